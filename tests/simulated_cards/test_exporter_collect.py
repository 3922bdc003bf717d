# SPDX-License-Identifier: Apache-2.0
"""What `--collect` adds, off the cycle, and what a page holds without it; judged by the simulator."""

from __future__ import annotations

import time

import pytest
from support.simbox import LOAD, Program, boxes

pytest.importorskip("pynvml")
from support.node_harness import exporter_node

from exporter.settings import GROUPS
from exporter.sources.nvml import source as nvml_source
from exporter.sources.nvml.source import NvmlSource
from isolation.contract.metrics.card import COLLECTED
from isolation.simgpu.models import MODELS

SET = {
    "recovery-action": 0,
    "remap-pending": 1,
    "remapped-rows": 3,
    "retired-single-bit": 2,
    "retired-double-bit": 1,
    "pcie-correctable": 7,
    "pcie-non-fatal": 5,
    "pcie-fatal": 1,
    "pcie-replays": 9,
    "nvlink-links": 4,
    "nvlink-errors": 6,
    "nvlink-kib": 1000,
    "encoder": 30,
    "decoder": 40,
    "memory-temperature": 71,
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """What loads the simulated driver leaves nothing behind."""
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")


def settled(*groups):
    """The hardware of an H100 on which everything was set, as a source with these groups reads it."""
    with boxes("h100-80g") as box:
        for what, value in SET.items():
            box.inject(0, what, value)
        source = NvmlSource(box.path, beat=0, groups=frozenset(groups))
        try:
            return source.read(1000.0).cards[0]
        finally:
            source.close()


def test_all_groups_tell_what_was_set():
    """Each figure under its own name and unit."""
    card = settled(*GROUPS)
    figures = card.hardware

    assert (0.3, 0.4) == (figures.encoder_ratio, figures.decoder_ratio)
    assert (5, 16) == (figures.pcie_generation, figures.pcie_width)
    assert (("correctable", 7), ("non_fatal", 5), ("fatal", 1)) == figures.pcie_errors
    assert (4, 1000 * 1024, 1000 * 1024) == (
        figures.nvlink_links,
        figures.nvlink_sent_bytes,
        figures.nvlink_received_bytes,
    )
    assert (71, True, False) == (figures.memory_celsius, figures.remap_pending, figures.remap_failed)
    assert ((("corrected", 3), ("uncorrected", 0)), (("single_bit", 2), ("double_bit", 1))) == (
        figures.remapped_rows,
        figures.retired_pages,
    )
    assert (0, 9, 6) == (figures.recovery_action, card.pcie_replays, card.nvlink_errors)


def test_without_groups_only_health_is_asked():
    """What nobody shows costs the driver nothing."""
    figures = settled().hardware

    assert (0, True, False) == (figures.recovery_action, figures.remap_pending, figures.remap_failed)
    further = (
        figures.encoder_ratio,
        figures.pcie_generation,
        figures.nvlink_links,
        figures.memory_celsius,
        figures.remapped_rows,
    )
    assert (None, None, None, None, ()) == further


@pytest.mark.parametrize("action", [1, 2, 4, 7])
def test_a_card_that_the_driver_wants_reset_is_unhealthy_until_it_is(action):
    """By the driver's own word, without any XID."""
    with boxes("h100-80g") as box:
        box.inject(0, "recovery-action", 0)
        source = NvmlSource(box.path, beat=0)
        try:
            assert "" == source.read(1000.0).cards[0].unhealthy
            box.inject(0, "recovery-action", action)
            assert "driver" == source.read(1020.0).cards[0].unhealthy
            box.inject(0, "recovery-action", 0)
            assert "" == source.read(1040.0).cards[0].unhealthy
            box.inject(0, "remap-failed", 1)
            assert "row_remap" == source.read(1060.0).cards[0].unhealthy
        finally:
            source.close()


def test_activity_of_a_cards_parts_is_an_average_between_two_readings(monkeypatch):
    """On Hopper: what the records say of the time in between; the first reading has none, older cards never have."""
    monkeypatch.setattr(nvml_source, "SLOW_SECONDS", 0.5)
    with boxes("h100-80g", "t4") as box:
        box.inject(0, "tensor", 25)
        source, load = NvmlSource(box.path, beat=0, groups=frozenset({"gpm"})), Program(box.path, LOAD, PART=0.4)
        try:
            assert "up" == load.line()
            first = source.read(time.monotonic()).cards
            assert [None, None] == [card.hardware.sm_activity for card in first]
            box.settle()
            before = box.cards()[0]
            time.sleep(2.0)
            found, old = source.read(time.monotonic()).cards
            box.settle()
            after = box.cards()[0]
        finally:
            load.kill()
            source.close()
        busy = (after.busy_ns - before.busy_ns) / (after.clock_ns - before.clock_ns)
        assert found.hardware.sm_activity == pytest.approx(busy, abs=0.1)
        assert found.hardware.tensor_activity == pytest.approx(found.hardware.sm_activity / 4, abs=0.001)
        assert None is not found.hardware.memory_bandwidth
        assert None is old.hardware.sm_activity


@pytest.mark.parametrize("model", sorted(name for name in MODELS if not name.endswith("-mig")))
def test_a_card_has_at_most_60_samples(model):
    """With everything that a driver can tell set, breaches that can be judged, and a tenant; without `--collect`."""
    with exporter_node(model) as world:
        for what, value in SET.items():
            world.box.inject(0, what, value)
        pod = world.pod("one", {"main": {0: 5}})
        world.process(pod, "main", gib=1)
        for _ in range(3):
            world.run_once()
        page = world.samples()
        mine = {
            name: rows for name, rows in page.items() if name.startswith(("gpushare_card_", "gpushare_isolation_br"))
        }
        mine.pop("gpushare_isolation_breaches_total")

        assert 45 <= sum(map(len, mine.values())) <= 60
        assert 11 >= sum(len(rows) for name, rows in page.items() if "container" in name and "collector" not in name)
        assert not page.keys() & {spec.name for specs in COLLECTED.values() for spec in specs}


def test_collected_families_are_on_the_page():
    """`--collect all` of the whole exporter."""
    with exporter_node("h100-80g", collect=frozenset(GROUPS)) as world:
        for what, value in SET.items():
            world.box.inject(0, what, value)
        pod = world.pod("one", {"main": {0: 5}})
        world.process(pod, "main", gib=1)
        world.run_once()
        names = world.samples().keys()

        gpm = {spec.name for spec in COLLECTED["gpm"]}
        assert {spec.name for specs in COLLECTED.values() for spec in specs} - gpm <= names
