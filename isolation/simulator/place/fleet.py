# SPDX-License-Identifier: Apache-2.0
"""
The nodes that a command about manifests is given: its options, and what they name together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from isolation.options import memory_unit
from isolation.simulator.place.manifests import read
from isolation.simulator.place.nodes import (
    MAX_FILE_BYTES,
    MAX_NODES,
    NodesAndPods,
    NodeSpecError,
    parse_nodes,
    read_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from isolation.contract.model import Node

_SPECS = click.option(
    "specs",
    "--node",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Node to place on. Keys: name, cards, gib (memory per card), mode (share, cgpu, core_mem, mps, default), "
    "placement (binpack, spread, policy: how its cards are filled), policy (fixed, burst, weight, priority, none: how "
    "compute is shared); optional: cpu (cores), memory (GiB), pods, model, pool, label.KEY, count. "
    "Repeat for several.",
)
_FILES = click.option(
    "nodes_files",
    "--nodes-file",
    multiple=True,
    metavar="FILE",
    help="File with the nodes of a cluster, written by: kubectl get nodes -o yaml.",
)
_UNIT = memory_unit("Memory of one unit of gpu-mem.")


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--node`, `--nodes-file` and `--memory-unit`, as `specs`, `nodes_files` and `unit`."""
    return _SPECS(_FILES(_UNIT(command)))


def read_fleet(specs: tuple[str, ...], nodes_files: tuple[str, ...], stdin: BinaryIO, unit_bytes: int) -> NodesAndPods:
    """All nodes that were given, at least one; raises NodeSpecError, ManifestError."""
    files = [read_nodes(read(name, stdin, MAX_FILE_BYTES), unit_bytes) for name in nodes_files]
    nodes: list[Node] = [node for fleet in files for node in fleet.nodes]
    for spec in specs:
        try:
            nodes += parse_nodes(spec, unit_bytes)
        except NodeSpecError as exc:
            raise NodeSpecError(f"--node {spec[:80]}: {exc}") from None
    if not nodes:
        raise NodeSpecError("no nodes; add --node name=n1,cards=4,gib=15,mode=cgpu or --nodes-file FILE")
    if len(nodes) > MAX_NODES:
        raise NodeSpecError(f"too many nodes: {len(nodes)}; at most {MAX_NODES} are supported")
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise NodeSpecError(f"two nodes are named {node.name}; give each its own name")
        seen.add(node.name)
    pods = tuple(pod for fleet in files for pod in fleet.pods)
    return NodesAndPods(tuple(nodes), pods, tuple(note for fleet in files for note in fleet.notes))
