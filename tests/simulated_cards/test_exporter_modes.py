# SPDX-License-Identifier: Apache-2.0
"""
A node whose mode changes there and back: shares by the agent's records, whole cards by the kubelet, both always read.
"""

from __future__ import annotations

import time

import pytest

pytest.importorskip("pynvml")
pytest.importorskip("grpc")
from support.node_harness import GIB, exporter_node
from support.waiting import until

from exporter.cycle import CycleClock
from isolation.host.card_events import NvmlCardEvents
from isolation.host.core.card_health import HealthTerms
from isolation.host.health_record import RECORD
from isolation.node.unhealthy_cards import HealthWatch


@pytest.fixture
def world():
    """Two cards of a node on which an agent of ours is, or was."""
    with exporter_node("t4", "t4") as made:
        yield made


def allocated(world):
    """{pod: (mode, GiB promised)} after two more turns: a pod is named, then asked for."""
    world.run_once()
    world.run_once()
    found = world.samples().get("gpushare_container_memory_allocated_bytes", {})
    # labels in the order of their names: card, container, mode, namespace, node, pod, uuid
    return {labels[5]: (labels[2], round(value / GIB)) for labels, value in found.items()}


def test_whole_cards_are_seen_on_a_node_that_once_had_an_agent(world):
    """The agent's folder is still there, with nobody in it: pods with whole cards have their series."""
    pod = world.whole("train", [0])
    process = world.process(pod, "main", gib=3)

    assert {"train": ("exclusive", 15)} == allocated(world)
    world.adds_up({("train", "main", 0): (process,)})
    assert "List" not in world.kubelet.calls, "which could hand a share out twice"


def test_shares_and_whole_cards_are_read_at_once_with_the_agent_away(world):
    """A pod of each, and nobody of ours alive for ten minutes: both stay as they are, and end as their pods do."""
    share = world.pod("share", {"main": {0: 5}})
    whole = world.whole("whole", [1])
    running = [world.process(share, "main", gib=2), world.process(whole, "main", gib=3, card=1)]
    both = {"share": ("shared", 5), "whole": ("exclusive", 15)}
    ahead = 0.0
    world.node.cycle._clock = CycleClock(monotonic=lambda: time.monotonic() + ahead)

    for _ in range(10):
        assert both == allocated(world)
        ahead += 60
    world.adds_up({("share", "main", 0): (running[0],), ("whole", "main", 1): (running[1],)})

    # the pod ends while no agent takes its record away
    world.kill(running[0])
    world.tree.end_pod(share.uid)
    assert {"whole": ("exclusive", 15)} == allocated(world)


def test_a_mode_that_changes_there_and_back(world):
    """Shares, then whole cards, then shares again on the same cards, under the same names: each has its own series."""
    first = world.pod("web-0", {"main": {0: 5}})
    assert {"web-0": ("shared", 5)} == allocated(world)
    world.end(first)
    second = world.whole("web-0", [0])
    assert {"web-0": ("exclusive", 15)} == allocated(world)
    world.end(second)
    third = world.pod("web-0", {"main": {0: 3}})
    assert {"web-0": ("shared", 3)} == allocated(world)
    assert 3 == len({first.uid, second.uid, third.uid})


def test_a_kubelet_without_single_pods_is_asked_for_all_where_nobody_has_a_share(world):
    """Before 1.34: a node without shares is read by List; with one it is not, for its sake."""
    world.kubelet.get_disabled = True
    world.whole("train", [1])

    assert {"train": ("exclusive", 15)} == allocated(world)
    world.pod("share", {"main": {0: 5}})
    assert {"share": ("shared", 5)} == allocated(world)
    assert not world.run_once().snapshot.kubelet.ok
    assert "1.34" in world.run_once().snapshot.kubelet.error


def test_pods_without_devices_are_asked_for_seldom(world):
    """A hundred pods that have no card cost the kubelet's common rate limit little once they are not young any more."""
    for number in range(100):
        world.granted(f"web-{number}", {})
    ahead = 0.0
    world.node.cycle._clock = CycleClock(monotonic=lambda: time.monotonic() + ahead)
    for _ in range(12):
        allocated(world)
        ahead += 2
    before = world.kubelet.calls["Get"]
    for _ in range(10):
        allocated(world)
        ahead += 2

    assert world.kubelet.calls["Get"] - before <= 30, "of 20 turns: one a turn shows whether the kubelet answers"


def test_exporter_and_agent_on_one_node(tmp_path):
    """
    Shares, whole cards, shares; an XID 48 that both hear; the agent leaves, the exporter restarts: each pod has its
    series as long as it lives, and the card is unhealthy, for the same reason, until somebody says so.
    """
    with exporter_node("t4", "t4", health_dir=tmp_path / "own") as world:
        events = NvmlCardEvents(world.box.path)
        agent = HealthWatch(events, HealthTerms(), world.run_dir / RECORD, "boot-of-the-tree")

        def health():
            page = world.samples()
            why = {labels[0]: labels[2] for labels in page.get("gpushare_card_unhealthy_info", {})}
            healthy = {labels[0]: bool(value) for labels, value in page["gpushare_card_healthy"].items()}
            assert healthy == {card: card not in why for card in ("0", "1")}
            return why

        first = world.pod("web-0", {"main": {0: 5}})
        agent.turn(time.monotonic())
        assert ({"web-0": ("shared", 5)}, {}) == (allocated(world), health())

        world.box.inject(0, "xid", 48)
        assert until(lambda: agent.turn(time.monotonic()) or agent.reasons())
        assert ({"web-0": ("shared", 5)}, {"0": "xid"}) == (allocated(world), health())

        world.again()  # the exporter, amid the XID
        assert ({"web-0": ("shared", 5)}, {"0": "xid"}) == (allocated(world), health())

        world.end(first)  # the mode changes: the agent is taken away, the vendor's plugin comes
        events.close()
        (world.run_dir / RECORD).unlink()
        second = world.whole("web-0", [1])
        assert ({"web-0": ("exclusive", 15)}, {"0": "xid"}) == (allocated(world), health())
        world.again()
        assert ({"web-0": ("exclusive", 15)}, {"0": "xid"}) == (allocated(world), health())

        world.end(second)  # and back
        world.pod("web-0", {"main": {1: 3}})
        (tmp_path / "own" / RECORD).unlink()  # somebody has seen to the card
        assert ({"web-0": ("shared", 3)}, {}) == (allocated(world), health())
