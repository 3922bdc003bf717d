# SPDX-License-Identifier: Apache-2.0
"""
`/processes`: who is on the cards now, each process with the container that explains it.
"""

from __future__ import annotations

import json

from support.attributed import look
from support.node_facts import GIB, Node, uuid

from dashboards.terminal.read.processes import parse_processes
from exporter.evaluate import CycleResult
from exporter.process_list import to_json


def document(node):
    """What stands there, with the snapshot that it is made from."""
    return json.loads(to_json(CycleResult(node.snapshot(), look(node)), "n-0"))


def test_each_process_has_its_container_or_nobody():
    """Memory by process, whose it is, and what nobody explains."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a").process(9, 0.5, pod="x").container("x")
    found = document(node)
    assert (1, "n-0") == (found["version"], found["node"])
    by_pid = {one["pid"]: one for one in found["processes"]}
    assert {1, 9} == by_pid.keys()
    mine = by_pid[1]
    assert (uuid(), 2 * GIB, "a", "main", "claim") == (
        *(mine[key] for key in ("uuid", "memory_bytes", "pod", "container")),
        mine["attributed"],
    )
    assert ("x", "nobody") == (by_pid[9]["pod"], by_pid[9]["attributed"])


def test_what_is_unknown_is_null_and_not_an_empty_list():
    """Nobody judged, or nothing is read yet."""
    assert None is json.loads(to_json(None, "n-0"))["processes"]
    assert None is json.loads(to_json(CycleResult(Node().snapshot(), None), "n-0"))["processes"]
    assert "cannot tell now" in parse_processes(to_json(None, "n-0").encode(), "n-0").why


def test_the_view_reads_what_the_exporter_writes():
    """Both sides of one format."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a")
    parsed = parse_processes(to_json(CycleResult(node.snapshot(), look(node)), "n-0").encode(), "n-0")
    assert [(1, 2 * GIB, "main")] == [(one.pid, one.bytes, one.container) for one in parsed.all]
