# SPDX-License-Identifier: Apache-2.0
"""
Containers from their beginning to their end, and what a tenant does meanwhile: on simulated cards, by their records.
"""

from __future__ import annotations

import os
import random
import time
from threading import Event, Thread
from uuid import UUID

import pytest
from support.waiting import PATIENCE_SECONDS

pytest.importorskip("pynvml")
pytest.importorskip("grpc")
from support.node_harness import GIB, breaches, exporter_node
from support.simbox import Program

from isolation.contract import abi
from isolation.lib import files


def card_series(world):
    """Every series of a card, by its name and labels."""
    found = world.samples()
    return {(name, labels) for name, series in found.items() if name.startswith("gpushare_card_") for labels in series}


@pytest.mark.parametrize("kubernetes", [True, False])
def test_no_card_changes_its_labels_when_the_first_promise_is_made(kubernetes):
    """What enforces promises is known before there is one: no series of a card ends with the first isolated pod."""
    with exporter_node("t4", "t4", kubernetes=kubernetes) as world:
        for _ in range(3):
            world.run_once()
        before = card_series(world)
        pod = world.pod("first", {"main": {0: 5}}, policy="fixed", core=30)
        world.process(pod, "main", gib=1)
        for _ in range(3):
            world.run_once()

        assert before == card_series(world)
        info = {labels for name, labels in before if name == "gpushare_card_info"}
        assert [{"library"}] * 2 == [{"library"} & set(labels) for labels in info]


def test_an_init_container_computes_and_hands_its_card_on():
    """One promise, two containers after each other: each has what its own processes use, the card what one has."""
    with exporter_node("t4") as world:
        (world.run_dir / "alloc").rmdir()
        pod = world.whole("train", [0], init=True)
        first = world.process(pod, "prepare", gib=2)
        world.adds_up({("train", "prepare", 0): (first,), ("train", "main", 0): ()})
        room = world.run_once().reading.cards[0].allocatable_bytes
        assert room <= world.run_once().reading.cards[0].allocated_bytes <= room + GIB
        world.kill(first)
        second = world.process(pod, "main", gib=3)
        world.adds_up({("train", "prepare", 0): (), ("train", "main", 0): (second,)})


def test_a_successor_of_the_same_name_that_only_the_kubelet_knows():
    """A whole card goes to the next pod of the name: its figures are its own, its predecessor's processes are not."""
    with exporter_node("t4") as world:
        (world.run_dir / "alloc").rmdir()
        first = world.whole("db-0", [0])
        old = world.process(first, "main", gib=4)
        world.adds_up({("db-0", "main", 0): (old,)})
        world.kill(old)
        world.end(first)
        world.adds_up({})
        second = world.whole("db-0", [0])
        world.adds_up({("db-0", "main", 0): ()})
        new = world.process(second, "main", gib=1)
        world.adds_up({("db-0", "main", 0): (new,)})
        (one,) = world.run_once().reading.containers
        assert (second.uid, one.used_bytes) == (one.pod_uid, one.peak_bytes)


def test_without_the_hosts_pids_it_says_so_and_guesses_nothing():
    """Two pods share a card that nobody can tell apart: absent, not 0, and a metric that says why."""
    with exporter_node("t4") as world:
        pods = [world.pod(name, {"main": {0: 5}}) for name in ("one", "two")]
        for pod in pods:
            world.process(pod, "main", gib=1)
        world.run_once()
        assert 1.0 == world.samples()["gpushare_node_host_pids_visible"]["n",]
        world.tree.process(2, name="kthreadd", flags=0)  # no kernel thread, whatever it calls itself
        world.run_once()
        found = world.samples()

        assert 0.0 == found["gpushare_node_host_pids_visible"]["n",]
        assert "gpushare_container_memory_used_bytes" not in found
        assert 2 == len(found["gpushare_container_memory_allocated_bytes"])
        assert [0.0] == list(found["gpushare_card_usage_attributable"].values())


def test_clients_behind_a_server_are_not_guessed():
    """Their memory stands under an MPS server of the host: the card says so, and nobody is told to have any."""
    with exporter_node("t4", "t4") as world:
        pods = [world.pod(name, {"main": {card: 5}}) for card, name in enumerate(("behind", "beside"))]
        server = world.process(None, gib=3, name="nvidia-cuda-mps")
        beside = world.process(pods[1], "main", gib=1, card=1)
        reading = world.run_once().reading

        assert {"behind": None, "beside": world.driver_bytes(1)[beside.pid]} == {
            one.pod: one.used_bytes for one in reading.containers
        }
        assert [False, True] == [card.attributable for card in reading.cards]
        assert [None, 0] == [card.unattributed_bytes for card in reading.cards]
        assert reading.cards[0].used_bytes == reading.cards[0].reserved_bytes + world.driver_bytes(0)[server.pid]
        world.run_once()
        assert [] == breaches(world)


def test_a_peak_between_two_turns_is_a_breach():
    """No sample saw it: the driver keeps account, and whose word it is stands beside it."""
    with exporter_node("t4") as world:
        world.box.set("accounting", 1)
        pod = world.pod("spike", {"main": {0: 2}})
        world.run_once()
        program = Program(world.box.path, "a = alloc(3 << 30); do('cuMemFree_v2', a); say('up'); wait()")
        world.running.append(program)
        assert "up" == program.line()
        world.tree.process(program.pid, container=(pod.uid, pod.containers["main"]))
        (one,) = world.run_once().reading.containers

        assert (1, "accounting") == (one.over_limit_episodes, one.peak_source)
        assert one.used_bytes < GIB < 3 * GIB <= one.peak_bytes
        (found,) = breaches(world)
        assert ("over_limit", "accounting", one.peak_bytes) == (found["kind"], found["source"], found["peak_bytes"])


def test_limits_that_somebody_changed():
    """The library goes by a file; one that is not what was promised is a breach of whoever it is about."""
    with exporter_node("t4") as world:
        pod = world.pod("one", {"main": {0: 5}}, policy="fixed", core=30)
        world.pod("two", {"main": {0: 5}}, policy="fixed", core=30)
        for _ in range(3):
            world.run_once()
        assert [] == [one for one in breaches(world) if one["kind"] == "wrong_limits"]
        card = abi.CardLimit(UUID(world.uuids[0].removeprefix("GPU-")), 15 * GIB, 0, 300_000)
        files.write_limits(pod.folders[0] / "limits/limits", abi.Limits(2, pod.folders[0].name, (card,)))
        for _ in range(3):
            world.run_once()

        (found,) = [one for one in breaches(world) if one["kind"] == "wrong_limits"]
        assert ("one", True, "limits") == (found["pod"], found["open"], found["source"])
        assert 1.0 == world.samples()["gpushare_isolation_breaches_total"]["wrong_limits", "n"]


def test_a_region_that_is_cut_and_grown_while_it_is_read():
    """A tenant truncates, grows and overwrites its region all the time: turns are made, nobody's figure changes."""
    with exporter_node("t4") as world:
        good = world.pod("good", {"main": {0: 3}}, policy="fixed", core=30)
        bad = world.pod("bad", {"main": {0: 3}}, policy="fixed", core=30)
        programs = {one.name: world.process(one, "main", gib=1) for one in (good, bad)}
        path = bad.folders[0] / "region/region"
        stop, spoilt = Event(), []
        tenant = Thread(target=spoil, args=(path, stop, spoilt))
        tenant.start()
        try:
            turns, end = 0, time.monotonic() + PATIENCE_SECONDS
            while (turns < 20 or len(spoilt) < 100) and time.monotonic() < end:
                turns += 1
                cycle = world.run_once()
                assert all(outcome.ok for outcome in (cycle.snapshot.machine, cycle.snapshot.promises))
                used = {one.pod: one.used_bytes for one in cycle.reading.containers}
                assert {name: world.driver_bytes(0)[one.pid] for name, one in programs.items()} == used
        finally:
            stop.set()
            tenant.join()
        assert len(spoilt) >= 100
        assert {"bad"} >= {one["pod"] for one in breaches(world) if one["kind"] != "missing_library"}
        assert sum(len(series) for series in world.samples().values()) <= 2 * 11 + 60 + 60


def spoil(path, stop, done):
    """Write anything, as fast as it goes."""
    words = random.Random(7)  # noqa: S311 (noise)
    texts = (abi.fresh_region("promise-2-main"), words.randbytes(abi.REGION_BYTES), b"\xff" * 4096)
    sizes = (0, 100, abi.SLOT_OFFSET, abi.REGION_BYTES, 1 << 34)
    with path.open("r+b", buffering=0) as file:
        while not stop.is_set():
            os.ftruncate(file.fileno(), words.choice(sizes))
            os.pwrite(file.fileno(), words.choice(texts), 0)
            done.append(None)
            time.sleep(0.001)
