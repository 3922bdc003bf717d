# SPDX-License-Identifier: Apache-2.0
"""
Failure is not idle: whatever stops answering, the scrape does not; what is unknown is absent, the rest is right.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from threading import Event, Thread

import pytest
from support.waiting import until

pytest.importorskip("pynvml")
pytest.importorskip("grpc")
from support.node_harness import GIB, breaches, exporter_node, get, parsed, served

from isolation.contract import abi
from isolation.simgpu.report import card_uuid

PERIOD = 1.0
UNKNOWN = 999
"""NVML_ERROR_UNKNOWN."""


@pytest.fixture
def world():
    """Two cards, a pod on each."""
    with exporter_node("t4", "t4") as made:
        made.pods = [made.pod("one", {"main": {0: 5}}), made.pod("two", {"main": {1: 5}})]
        made.processes = [made.process(pod, "main", gib=2, card=at) for at, pod in enumerate(made.pods)]
        yield made


def success(world):
    """{collector: 1 or 0} after one more turn."""
    world.run_once()
    found = world.samples()["gpushare_exporter_collector_success"]
    return {labels[0]: value for labels, value in found.items()}


def failed(world):
    """Names of collectors that fail after one more turn."""
    return {name for name, value in success(world).items() if not value}


def used(world):
    """{pod: bytes} as shown now."""
    series = world.samples().get("gpushare_container_memory_used_bytes", {})
    # labels in the order of their names: card, container, mode, namespace, node, pod, uuid
    return {labels[5]: value for labels, value in series.items()}


def whole(world):
    """Everything works, and both pods have what the records say."""
    assert set() == failed(world)
    expected = {f"{name}": world.driver_bytes(at)[world.processes[at].pid] for at, name in enumerate(("one", "two"))}
    assert expected == used(world)


def test_everything_works(world):
    """The state that the others fall from and come back to."""
    whole(world)


@pytest.mark.parametrize("when", ["at its start", "between two turns"])
def test_nvml_fails(world, when):
    """At its start or between two turns: no figure of cards and use, the promises stay; recovery by itself."""
    if when == "between two turns":
        whole(world)
    world.box.set("nvml_status", UNKNOWN)
    assert {"nvml"} == failed(world)
    assert {} == used(world)
    page = world.node.page()
    assert "gpushare_card_memory_used_bytes" not in page
    assert "gpushare_card_utilisation_ratio" not in page
    allocated = world.samples()["gpushare_container_memory_allocated_bytes"]
    assert [5.0 * GIB] * 2 == list(allocated.values())
    world.box.set("nvml_status", 0)
    assert until(lambda: not failed(world))
    whole(world)


def test_nvml_hangs(world, monkeypatch):
    """
    A driver that does not come back for as long as we like: turns go on, the scrape answers, the source is left
    alone, and after its return everything is as before, without a restart.
    """
    whole(world)
    monkeypatch.setattr(world.node.cycle, "_period", PERIOD)
    stop, began = Event(), []

    def failing():
        """The page, where the driver is said not to answer and the kernel still does; a turn after those before."""
        status, body = get(f"{url}/metrics")
        assert 200 == status
        page = parsed(body.decode())
        success, at = (page[f"gpushare_exporter_{name}"] for name in ("collector_success", "sample_timestamp_seconds"))
        if (success["nvml",], success["kernel",]) == (0.0, 1.0) and at[()] not in began:
            began.append(at[()])
        return len(began) >= 5 and page

    with served(world) as url:
        turning = Thread(target=world.node.cycle.run, args=(stop,))
        world.box.set("nvml_hang", 1)
        turning.start()
        try:
            page = until(failing)
            assert sorted(began) == began
            assert "gpushare_card_memory_used_bytes" not in page
            assert "gpushare_container_memory_used_bytes" not in page
            world.box.set("nvml_hang", 0)
            assert until(lambda: b'collector_success{collector="nvml"} 1.0' in get(f"{url}/metrics")[1])
        finally:
            world.box.set("nvml_hang", 0)
            stop.set()
            turning.join()
    monkeypatch.undo()
    assert until(lambda: not failed(world))  # another source's last call may still be under way
    whole(world)


def test_a_card_is_lost(world):
    """XID 79: of that card nothing but that it is gone; the other one and its pod stay right."""
    whole(world)
    world.box.inject(0, "xid", 79)
    world.box.inject(0, "lost", 1)
    world.run_once()
    assert until(lambda: {"two"} == set(used(world)) if world.run_once() else False)
    found = world.samples()
    assert 0.0 == found["gpushare_card_healthy"]["0", "n", world.uuids[0]]
    assert 1.0 == found["gpushare_card_healthy"]["1", "n", world.uuids[1]]
    assert ("0", "n", world.uuids[0]) not in found["gpushare_card_memory_used_bytes"]
    assert world.driver_bytes(1)[world.processes[1].pid] == used(world)["two"]
    assert ("0", "n", world.uuids[0], "79") in found["gpushare_card_xid_errors_total"]


def test_the_kubelet_is_gone(world):
    """Its socket vanishes: holds still say whose cards are whose; when it is back it is asked again."""
    whole(world)
    world.kubelet.gone()
    assert {"kubelet"} == failed(world)
    expected = {
        "one": world.driver_bytes(0)[world.processes[0].pid],
        "two": world.driver_bytes(1)[world.processes[1].pid],
    }
    assert expected == used(world)
    world.kubelet.back()
    assert until(lambda: not failed(world))
    whole(world)


def test_the_kubelet_is_gone_from_a_node_of_whole_cards(world):
    """Where only the kubelet knows who has which card, a kubelet that is gone is nobody's card, not an idle one."""
    shutil.rmtree(world.run_dir / "alloc")
    pod = world.whole("train", [0])
    process = world.process(pod, "main", gib=3)
    world.run_once()
    assert world.driver_bytes(0)[process.pid] == used(world)["train"]
    world.kubelet.gone()
    assert {"kubelet"} == failed(world)
    assert {} == used(world)
    assert "gpushare_card_memory_allocated_bytes" not in world.samples()
    world.kubelet.back()
    assert until(lambda: world.run_once() and used(world).get("train") == world.driver_bytes(0)[process.pid])


def test_the_kubelet_refuses_or_is_slow(world):
    """Too many calls by others, or an answer that never comes: the turn ends, the rest has its figures."""
    shutil.rmtree(world.run_dir / "alloc")
    world.whole("train", [0])
    assert set() == failed(world)
    world.kubelet.refuse = -1
    assert {"kubelet"} == failed(world)
    world.kubelet.refuse = 0
    assert until(lambda: not failed(world))
    connection = world.node._sources._kubelet._grants._connection
    world.kubelet.delay, connection.deadline, usual = 3600.0, 0.5, connection.deadline
    assert {"kubelet"} == failed(world)
    assert "gpushare_card_memory_used_bytes" in world.samples()
    world.kubelet.delay, connection.deadline = 0.0, usual
    assert until(lambda: not failed(world))


def test_proc_cannot_be_read(world):
    """Without it no process is anybody's: cards are reported, containers' use is not, and nothing is called idle."""
    whole(world)
    world.tree.proc.rename(world.folder / "away")
    assert {"kernel", "promises"} == failed(world)
    found = world.samples()
    assert {} == used(world)
    assert 2 == len(found["gpushare_card_memory_used_bytes"])
    assert "gpushare_card_memory_unattributed_bytes" not in found
    (world.folder / "away").rename(world.tree.proc)
    assert until(lambda: not failed(world))
    whole(world)


def test_a_reading_that_nobody_renews_is_not_shown(monkeypatch):
    """If turns end altogether the scrape says so instead of showing the last figures for ever."""
    with exporter_node("t4") as world:
        world.run_once()
        with served(world) as url:
            assert 200 == get(f"{url}/metrics")[0]
            monkeypatch.setattr(world.front.fresh, "_clock", lambda: time.monotonic() + 600)
            assert [503, 503, 200] == [get(f"{url}{path}")[0] for path in ("/metrics", "/readyz", "/healthz")]
            assert b"the last reading is 600 s old" in get(f"{url}/metrics")[1]


def hostile(at):
    """What a tenant might write where its region should be."""
    whole_region = abi.fresh_region("promise-1-main")
    words = random.Random(at)  # noqa: S311 (noise)
    return [
        b"",
        whole_region[:100],
        whole_region[: abi.REGION_BYTES // 2],
        words.randbytes(abi.REGION_BYTES),
        b"\xff" * abi.REGION_BYTES,
        whole_region[:8] + b"\x63\x00" + whole_region[10:],
        whole_region[:4096] + words.randbytes(abi.REGION_BYTES - 4096),
        whole_region + words.randbytes(1 << 20),
    ][at]


@pytest.mark.parametrize("at", range(8))
def test_hostile_regions(at):
    """
    Whatever a tenant writes into its region: the turn is made, nobody's memory is another figure, no label
    comes from it, and no other pod is told of as in breach.
    """
    with exporter_node("t4") as world:
        good = world.pod("good", {"main": {0: 3}})
        bad = world.pod("bad", {"main": {0: 3}}, policy="fixed", core=30)
        programs = {"good": world.process(good, "main", gib=1), "bad": world.process(bad, "main", gib=1)}
        region = bad.folders[0] / "region/region"
        region.write_bytes(hostile(at))
        for _ in range(3):
            assert set() == failed(world)
            assert {name: world.driver_bytes(0)[one.pid] for name, one in programs.items()} == used(world)
        samples = sum(len(series) for series in world.samples().values())
        assert samples <= 2 * 12 + 30 + 60
        assert {"bad"} >= {one["pod"] for one in breaches(world)}


def test_a_region_that_is_no_file():
    """A pipe, a link, a folder, nothing: said as unreadable, never waited for."""
    with exporter_node("t4") as world:
        pod = world.pod("bad", {"main": {0: 3}}, policy="fixed", core=30)
        program = world.process(pod, "main", gib=1)
        region = pod.folders[0] / "region/region"
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir(), lambda _: None):
            if region.is_dir():
                region.rmdir()
            else:
                region.unlink(missing_ok=True)
            make(region)
            assert set() == failed(world)
            assert {"bad": world.driver_bytes(0)[program.pid]} == used(world)
        assert "unreadable_region" in {one["kind"] for one in breaches(world)}


def test_names_of_cards_are_the_simulators(world):
    """The helper above takes labels by their place: this is the place."""
    assert [card_uuid(card) for card in world.box.cards()] == world.uuids
    world.run_once()
    (labels, *_) = world.samples()["gpushare_container_memory_used_bytes"]
    assert ("0", "main", "shared", "ml", "n", "one", world.uuids[0]) == labels
