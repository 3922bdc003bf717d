# SPDX-License-Identifier: Apache-2.0
"""
Whose memory is whose, on simulated cards with a stand-in kubelet: judged by the simulator's own records.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import PATIENCE_SECONDS, until

pytest.importorskip("pynvml")
pytest.importorskip("grpc")
from support.node_harness import GIB, MIB, breaches, exporter_node

ROOT = Path(__file__).resolve().parents[2]


def test_pods_share_cards():
    """Pods with one and two containers, one pod over two cards, a process of the host: everything adds up."""
    with exporter_node("t4", "t4") as world:
        one = world.pod("one", {"main": {0: 5}, "side": {0: 2}})
        two = world.pod("two", {"main": {0: 3, 1: 3}})
        a = world.process(one, "main", gib=3)
        b = world.process(one, "side", gib=1)
        c = [world.process(two, "main", gib=2, card=card) for card in (0, 1)]
        d = world.process(one, "main", gib=0.5)
        host = world.process(None, gib=1.25)

        world.adds_up(
            {
                ("one", "main", 0): (a, d),
                ("one", "side", 0): (b,),
                ("two", "main", 0): (c[0],),
                ("two", "main", 1): (c[1],),
            }
        )
        unattributed = world.run_once().reading.cards[0].unattributed_bytes
        assert world.driver_bytes(0)[host.pid] == unattributed > GIB
        promised = {
            (o.pod, o.container, o.index): o.allocated_bytes // GIB for o in world.run_once().reading.containers
        }
        expected = {("one", "main", 0): 5, ("one", "side", 0): 2, ("two", "main", 0): 3, ("two", "main", 1): 3}
        assert expected == promised
        assert all(one.source == "nvml" and not one.exclusive for one in world.run_once().reading.containers)


@pytest.mark.parametrize("init", [False, True])
def test_whole_cards_of_the_kubelet(init):
    """Exclusive pods are containers too: the card is theirs, their processes are measured."""
    with exporter_node("t4", "t4") as world:
        (world.run_dir / "alloc").rmdir()
        pod = world.whole("train", [0, 1], init=init)
        processes = [world.process(pod, "main", gib=4, card=card) for card in (0, 1)]
        expected = {("train", "main", card): (processes[card],) for card in (0, 1)}
        if init:
            expected |= {("train", "prepare", card): () for card in (0, 1)}

        world.adds_up(expected)
        reading = world.run_once().reading
        assert all(one.exclusive for one in reading.containers)
        room = reading.cards[0].total_bytes - reading.cards[0].reserved_bytes
        assert {room} == {one.allocated_bytes for one in reading.containers}
        assert [room, room] == [card.allocated_bytes for card in reading.cards]
        assert {"kubelet"} == {one.allocation_source for one in reading.containers}


def test_shared_and_exclusive_side_by_side():
    """One card shared by holds, one whole: the mode is the card's, not the node's."""
    with exporter_node("t4", "t4") as world:
        shared = world.pod("shared", {"main": {0: 5}})
        a = world.process(shared, "main", gib=2)
        assert not world.run_once().reading.cards[1].exclusive
        world.kubelet.add("ml", "whole", {"main": {"nvidia.com/gpu": [world.uuids[1]]}})
        (world.run_dir / "alloc").rename(world.folder / "kept")
        reading = world.run_once().reading
        assert [("whole", True)] == [(one.pod, one.exclusive) for one in reading.containers]
        assert [False, True] == [card.exclusive for card in reading.cards]
        assert reading.cards[0].unattributed_bytes == world.driver_bytes(0)[a.pid]


def test_however_many_device_ids_one_series():
    """Five unit IDs of one card are one series with five units, not five."""
    with exporter_node("t4", "t4") as world:
        (world.run_dir / "alloc").rmdir()
        ids = [f"{world.uuids[0]}-_-{unit}" for unit in range(5)]
        pod = world.granted("legacy", {"aliyun.com/gpu-mem": ids})
        process = world.process(pod, "main", gib=1)

        world.adds_up({("legacy", "main", 0): (process,)})
        (one,) = world.run_once().reading.containers
        assert (5 * GIB, False) == (one.allocated_bytes, one.exclusive)


def test_a_container_that_never_began_has_zero_from_allocation_on():
    """The series is there with 0 before CUDA is initialised, so that allocated and used divide from the start."""
    with exporter_node("t4") as world:
        pod = world.pod("late", {"main": {0: 5}})
        assert [(0, 5 * GIB)] == [(o.used_bytes, o.allocated_bytes) for o in world.run_once().reading.containers]
        process = world.process(pod, "main", gib=1)
        world.adds_up({("late", "main", 0): (process,)})


def test_a_dead_process_is_nobodys_from_the_next_turn_on():
    """Killed between two turns: its container has 0, and stays for as long as it is promised something."""
    with exporter_node("t4") as world:
        pod = world.pod("one", {"main": {0: 5}})
        process = world.process(pod, "main", gib=2)
        world.adds_up({("one", "main", 0): (process,)})
        world.kill(process)
        world.adds_up({("one", "main", 0): ()})


def test_a_process_that_died_while_its_card_still_lists_it():
    """The kernel has let it go, the driver not yet: looked at twice, then told as nobody's, never as a container's."""
    with exporter_node("t4") as world:
        pod = world.pod("one", {"main": {0: 5}})
        process = world.process(pod, "main", gib=2)
        world.run_once()
        world.tree.exit(process.pid)
        cycle = world.run_once()

        assert cycle.found.churned
        assert [0] == [one.used_bytes for one in cycle.reading.containers]
        assert world.driver_bytes(0)[process.pid] == cycle.reading.cards[0].unattributed_bytes
        world.tree.process(process.pid, container=(pod.uid, pod.containers["main"]))
        world.adds_up({("one", "main", 0): (process,)})


def test_a_pid_that_is_used_again():
    """The same number, another start time, another pod: what was remembered of the first is not believed."""
    with exporter_node("t4") as world:
        one, two = world.pod("one", {"main": {0: 5}}), world.pod("two", {"main": {0: 5}})
        process = world.process(one, "main", gib=2, start=1000)
        world.adds_up({("one", "main", 0): (process,), ("two", "main", 0): ()})
        world.tree.process(process.pid, container=(two.uid, two.containers["main"]), start=2000)
        world.adds_up({("one", "main", 0): (), ("two", "main", 0): (process,)})


def test_a_pod_that_ended_is_gone_within_a_turn():
    """Also where an old kubelet lists it for as long as its object stands."""
    with exporter_node("t4", "t4") as world:
        shared, stays = world.pod("ends", {"main": {0: 5}}), world.pod("stays", {"main": {0: 5}})
        ends, goes_on = world.process(shared, "main", gib=2), world.process(stays, "main", gib=1)
        world.adds_up({("ends", "main", 0): (ends,), ("stays", "main", 0): (goes_on,)})
        world.kill(ends)
        world.end(shared)
        world.adds_up({("stays", "main", 0): (goes_on,)})
        assert "ends" not in world.node.page()

    with exporter_node("t4") as world:
        (world.run_dir / "alloc").rmdir()
        world.kubelet.lists_ended = True
        pod = world.whole("train", [0])
        process = world.process(pod, "main", gib=2)
        world.adds_up({("train", "main", 0): (process,)})
        world.kill(process)
        world.end(pod)
        world.adds_up({})


def test_a_successor_of_the_same_name():
    """One after the other, a StatefulSet's pod keeps its name: the new one begins at 0, counters included."""
    with exporter_node("t4") as world:
        first = world.pod("db-0", {"main": {0: 5}})
        process = world.process(first, "main", gib=6)
        for _ in range(3):
            world.run_once()
            time.sleep(0.1)
        assert world.run_once().reading.containers[0].over_limit_seconds > 0
        world.kill(process)
        world.end(first)
        second = world.pod("db-0", {"main": {0: 5}})
        world.adds_up({("db-0", "main", 0): ()})
        (one,) = world.run_once().reading.containers
        assert (0.0, 0, second.uid) == (one.over_limit_seconds, one.over_limit_episodes, one.pod_uid)
        again = world.process(second, "main", gib=1)
        world.adds_up({("db-0", "main", 0): (again,)})


def test_a_user_of_a_card_that_was_promised_nothing():
    """A pod that reaches a card past its promise is unattributed, counted as a breach and named at /breaches."""
    with exporter_node("t4", "t4") as world:
        pod = world.pod("greedy", {"main": {0: 5}})
        mine = world.process(pod, "main", gib=1)
        theirs = world.process(pod, "main", gib=2, card=1)
        for _ in range(3):
            world.adds_up({("greedy", "main", 0): (mine,)})

        assert world.driver_bytes(1)[theirs.pid] == world.run_once().reading.cards[1].unattributed_bytes
        found = breaches(world)
        assert [("unallocated", "greedy", 1)] == [(one["kind"], one["pod"], one["card"]) for one in found]
        assert 1.0 == world.samples()["gpushare_isolation_breaches_total"]["unallocated", "n"]


def test_more_than_promised():
    """Over the limit from outside the container: duration, peak, one breach."""
    with exporter_node("t4") as world:
        pod = world.pod("over", {"main": {0: 2}}, policy="fixed", core=30)
        world.process(pod, "main", gib=3)
        began = []
        for _ in range(4):
            cycle = world.run_once()
            began.append(cycle.snapshot.at)
            time.sleep(0.2)

        (one,) = cycle.reading.containers
        assert 0.3 < one.over_limit_seconds <= began[-1] - began[0]
        assert (1, one.used_bytes) == (one.over_limit_episodes, one.peak_bytes)
        kinds = {found["kind"]: found for found in breaches(world)}
        assert "over_limit" in kinds
        assert {"missing_library", "uninstrumented"} & set(kinds)
        assert kinds["over_limit"]["open"]
        assert one.peak_bytes == kinds["over_limit"]["peak_bytes"]


CLIENT = """
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cu.cuInit(0)
cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cu.cuCtxSetCurrent(context)
print(cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 20)), flush=True)
sys.stdin.read()
"""


def test_commands_of_gpushare_run():
    """On a plain machine the holds of `gpushare run` are the containers; a command beside it is not."""
    with exporter_node("t4", proc=Path("/proc"), cgroup=Path("/sys/fs/cgroup"), kubernetes=False) as world:
        started = []
        for name, promised, used in (("one", 5, 3000), ("two", 4, 1000)):
            front = [sys.executable, "-m", "gpushare", "run", "--simgpu", str(world.box.path), "--name", name]
            words = [*front, "--gpu-mem", str(promised), "--", sys.executable, "-c", CLIENT, str(used)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
            started.append(subprocess.Popen(words, **pipes))
            assert "0" == started[-1].stdout.readline().strip()
        try:
            reading = world.run_once().reading
            found = {one.pod: one for one in reading.containers}
            assert {"one": 5 * GIB, "two": 4 * GIB} == {name: one.allocated_bytes for name, one in found.items()}
            records = sorted(world.driver_bytes(0).values())
            assert records == sorted(one.used_bytes for one in found.values())
            (card,) = reading.cards
            assert (0, card.used_bytes) == (card.unattributed_bytes, sum(records) + card.reserved_bytes)
            assert {"run"} == {one.allocation_source for one in reading.containers}
            world.joins()
            for process in started:
                process.stdin.close()
                process.wait(PATIENCE_SECONDS)
            until(lambda: () == world.run_once().reading.containers)
        finally:
            for process in started:
                process.kill()
                process.wait(timeout=300)
                process.stdout.close()
            shutil.rmtree(f"{world.box.path}.allocations", ignore_errors=True)


def test_names_from_the_log_links_do_not_matter_to_the_sum():
    """Where names is unknown a process is still its pod's: the hold says whose the control group is."""
    with exporter_node("t4") as world:
        pod = world.pod("one", {"main": {0: 5}})
        process = world.process(pod, "main", gib=2)
        shutil.rmtree(world.tree.links)
        reading = world.run_once().reading
        (one,) = reading.containers
        assert abs(one.used_bytes - world.driver_bytes(0)[process.pid]) <= 64 * MIB
