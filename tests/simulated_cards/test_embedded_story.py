# SPDX-License-Identifier: Apache-2.0
"""What the embedded cluster tells: the same story for the same seed, and figures that dashboards ask for."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from support.builders import ask, node
from support.embedded_fleet import QUICK, check_frame, check_homes, check_room, counts, live
from support.pools_builder import arrival, fleet, pool

from autoscaler.core.observation import SuccessorReservation
from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
from autoscaler.demo.embedded.node_pools import ScenarioError, build_fleet, demo_fleet, demo_limits
from autoscaler.demo.embedded.workload import demo_workload, request_whole_cards
from exporter.pipeline.families import card_families
from isolation.contract import metrics
from isolation.contract.model import Placement, Slice
from isolation.contract.quantity import gib


def story(embedded: EmbeddedCluster, seconds: float, step: float) -> list:
    """Everything that happened, collected along the way."""
    found = []
    while embedded.now < seconds:
        before = embedded.cluster.accounting.event_count
        embedded.advance(min(step, seconds - embedded.now))
        new = embedded.cluster.accounting.event_count - before
        found += embedded.frame().events[-new:] if new else ()
    return found


def demo(seed: int = 42) -> EmbeddedCluster:
    return EmbeddedCluster(demo_fleet(), demo_workload(seed), seed=seed, limits=demo_limits())


def test_same_seed_same_story_however_time_is_cut():
    """
    Two runs of the demonstration, advanced in different steps, tell the same to the last word.
    """
    first, second, other = story(demo(), 900, 10), story(demo(), 900, 3.7), story(demo(7), 900, 10)

    assert first == second
    assert first != other


def test_same_seed_same_story_in_another_process():
    """
    Nothing hangs on the order of a set of strings.
    """
    code = (
        "from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster\n"
        "from autoscaler.demo.embedded.node_pools import demo_fleet, demo_limits\n"
        "from autoscaler.demo.embedded.workload import demo_workload\n"
        "e = EmbeddedCluster(demo_fleet(), demo_workload(3), seed=3, limits=demo_limits())\n"
        "for _ in range(40): e.advance(20); print(e.frame())\n"
        "print(e.summary())"
    )

    def figures(hash_seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=env, timeout=300)
        return hashlib.sha256(ran.stdout).hexdigest()

    assert figures("1") == figures("2")


def test_demonstration_shows_the_main_job():
    """
    Twenty minutes of the fleet: growth, shrinkage by draining and moving, breaches, a refusal, no fragmented pod.
    """
    embedded = demo()

    live(embedded, 1200, check_room, check_frame, check_homes, step=5)

    figures = counts(embedded)
    assert all(
        figures[name] > 0 for name in ("nodes_added", "nodes_removed", "pods_moved", "breaches", "pods_finished")
    )
    assert 1 == figures["pods_refused"]
    assert 0 == embedded.summary()["unserved_pods"]
    assert 0 < embedded.summary()["used_gib_hours"] < embedded.summary()["promised_gib_hours"]


def test_breach_is_seen_on_the_card_and_in_the_story():
    """
    More used than promised, for so many seconds, and said once.
    """
    greedy = replace(arrival(0, "greedy", ask(4)), excess=0.25)
    embedded = EmbeddedCluster(fleet(pool(), standing=1), [greedy], seed=1, limits=QUICK)

    embedded.advance(100)
    (container,) = embedded.frame().nodes[0].containers

    assert gib(5) == container.used_bytes
    assert gib(4) == container.allocated_bytes
    assert container.over_limit_seconds > 0
    assert 1 == container.over_limit_episodes
    (reading,) = embedded.frame().nodes
    assert [("over_limit", 1)] == [kind for card in reading.cards for kind in card.breaches]
    assert (("over_limit", 1),) == reading.breach_counts
    assert ["breach"] == [h.kind for h in embedded.frame().events if h.subject == "default/greedy"][1:]


def test_what_a_card_still_has_is_what_is_neither_promised_nor_kept_for_a_move():
    """
    Free room shrinks by what is promised and by homes that are kept; a kept home is nobody's container yet.
    """
    embedded = EmbeddedCluster(fleet(pool(), standing=1), [arrival(0, "one", ask(4))], seed=1, limits=QUICK)
    embedded.advance(10)
    (card, *_) = sorted(embedded.frame().nodes[0].cards, key=lambda card: card.largest_free_bytes)
    assert (gib(4), 1, False) == (card.allocated_bytes, card.holders, card.exclusive)
    assert (("over_limit", 0),) == card.breaches
    assert card.allocatable_bytes - gib(4) == card.largest_free_bytes

    name = embedded.frame().nodes[0].node
    slot = Slice(card.uuid, card.index, gib(3), 0)
    kept = SuccessorReservation("coming", ask(3), Placement(name, (slot,)), embedded.now, embedded.now + 60)
    embedded.cluster.state.reserve(kept)
    embedded.cluster.state.changed.add(name)
    (after,) = [one for one in embedded.frame().nodes[0].cards if one.uuid == card.uuid]

    assert card.largest_free_bytes - gib(3) == after.largest_free_bytes
    assert 1 == after.holders


def test_a_whole_card_that_is_taken_has_nothing_left():
    """
    Taken whole: no room, one container, exclusive.
    """
    embedded = EmbeddedCluster(demo_fleet(), [arrival(0, "train", request_whole_cards())], seed=1, limits=QUICK)
    embedded.advance(200)
    cards = [card for reading in embedded.frame().nodes for card in reading.cards if card.exclusive]

    assert [(0, 1)] == [(card.largest_free_bytes, card.holders) for card in cards]


def test_readings_fill_what_dashboards_ask_of_every_card():
    """
    Room, containers, breaches and whole cards as an exporter tells them: a sample for each card, and zero is reported.
    """
    embedded = EmbeddedCluster(demo_fleet(), demo_workload(3), seed=3, limits=demo_limits())
    embedded.advance(400)
    nodes = embedded.frame().nodes
    cards = sum(len(reading.cards) for reading in nodes)
    families = {family.spec: len(tuple(family.samples)) for family in card_families(nodes)}

    figures = (
        metrics.CARD_MEMORY_LARGEST_FREE,
        metrics.CARD_CONTAINERS,
        metrics.CARD_EXCLUSIVE,
        metrics.CARD_USAGE_ATTRIBUTABLE,
        metrics.BREACHES_OPEN,
    )
    assert cards > 2
    assert dict.fromkeys((*figures, metrics.BREACHES_OPEN), cards) == {
        spec: families[spec] for spec in (*figures, metrics.BREACHES_OPEN)
    }
    assert sum(bool(reading.cards) for reading in nodes) == families[metrics.BREACHES]


def test_list_of_nodes_becomes_pools_of_their_kind_that_grow_from_nothing():
    """
    Equal nodes share a pool that may hold as many as there are; none stands until a pod needs it.
    """
    nodes = [node(f"a{i}", 2, 15, model="T4") for i in range(3)] + [node("b", 8, 40, model="A100")]
    made = build_fleet(nodes)
    embedded = EmbeddedCluster(made, [arrival(0, "p", ask(20))], seed=1)

    before = len(embedded.cluster.state.on)
    embedded.advance(300)

    assert {"t4x2": 3, "a100x8": 1} == {supply.pool.name: supply.pool.max_nodes for supply in made.supplies}
    assert (0, ["a100x8-1"]) == (before, list(embedded.cluster.state.on))


def test_workload_out_of_order_is_refused():
    """
    With the name of the pod that comes too late in the list.
    """
    pods = [arrival(5, "late", ask(1)), arrival(1, "early", ask(1))]
    embedded = EmbeddedCluster(fleet(pool()), pods, seed=1, limits=QUICK)

    with pytest.raises(ScenarioError, match="early"):
        embedded.advance(10)
