# SPDX-License-Identifier: Apache-2.0
"""
Whether a system whose dialect is spoken lives in the cluster itself, by what it leaves there: one rule for all readers.

Two owners of one name would give a pod two promises, or none. Nothing is a sign by its absence: a system without
webhook, nodes or workloads that anybody may read is not noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.dialects.system import System


@dataclass(frozen=True, slots=True)
class Signs:
    """What was found in a cluster, as far as its reader may look."""

    webhooks: tuple[str, ...] = ()
    """Names of mutating webhooks."""
    nodes: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """By node, extended resources that it offers."""
    images: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """By workload (\"DaemonSet kube-system/x\"), names of its images."""


def find_living(systems: Iterable[System], signs: Signs) -> Mapping[str, str]:
    """By dialect, what shows that its system lives here; in words for people."""
    found = {system.name: shown for system in systems if (shown := _sign_of(system, signs))}
    return MappingProxyType(found)


def _sign_of(system: System, signs: Signs) -> str:
    hooks = sorted(name for name in signs.webhooks if system.webhooks and name.endswith(system.webhooks))
    if hooks:
        return f"webhook {hooks[0]}"
    for node, offered in sorted(signs.nodes.items()):
        if resources := sorted(set(offered).intersection(system.node_resources)):
            return f"node {node} offers {resources[0]}"
    for workload, images in sorted(signs.images.items()):
        if any(program_of(image) in system.programs for image in images):
            return workload
    return ""


def program_of(image: str) -> str:
    """The last part of an image's name, without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]
