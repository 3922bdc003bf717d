# SPDX-License-Identifier: Apache-2.0
"""Cards that are lost or ill: the others are told as before, and so are they when they are back."""

from __future__ import annotations

import pytest
from support.nvml_harness import GIB, read
from support.simbox import HOLD

from exporter.sources.errors import SourceError
from isolation.simgpu.report import card_uuid

pytest.importorskip("pynvml")


def figures(card):
    """What a lost card may not tell."""
    return {
        card.free_bytes,
        card.processes,
        card.busy,
        card.utilisation_ratio,
        card.power_watts,
        card.energy_joules,
        card.temperature_celsius,
        card.throttled_seconds,
        card.ecc_uncorrected,
    }


def test_a_lost_card_takes_nobody_with_it(box, source, run):
    """
    Off the bus: lost, ill, every figure unknown, XID 79 counted; the other card's are all there. Found
    again, it is told as before.
    """
    run(box, HOLD, BYTES=GIB)
    other = run(box, HOLD, BYTES=GIB, CARD=1)
    before = read(source).cards

    box.inject(0, "lost", 1)
    lost, fine = read(source).cards

    assert (True, False, {79: 1}) == (lost.lost, lost.healthy, lost.xids)
    assert {None} == figures(lost)
    assert (before[0].uuid, before[0].total_bytes) == (lost.uuid, lost.total_bytes)
    assert (False, True, before[1].free_bytes) == (fine.lost, fine.healthy, fine.free_bytes)
    assert [other.pid] == [one.pid for one in fine.processes]
    assert fine.power_watts is not None

    box.inject(0, "lost", 0)
    assert before[0].free_bytes == (found := read(source).cards[0]).free_bytes
    assert (False, True) == (found.lost, found.healthy)


def test_a_card_that_is_lost_from_the_start(box, source):
    """
    Nobody knows its UUID: it is told as lost all the same, and by its own name once it is found.
    """
    box.inject(1, "lost", 1)

    fine, lost = read(source).cards

    assert ("lost-1", 1, True, False) == (lost.uuid, lost.index, lost.lost, lost.healthy)
    assert {None} == figures(lost)
    assert (False, True) == (fine.lost, fine.healthy)
    box.inject(1, "lost", 0)
    assert card_uuid(box.cards()[1]) == read(source).cards[1].uuid


def test_while_a_card_is_lost_nvml_is_restarted_every_minute(box, source):
    """
    A real driver shows a card that was reset only to those who start afterwards. The lost one keeps its
    name over a new start.
    """
    uuid = read(source, 100.0).cards[0].uuid
    box.inject(0, "lost", 1)
    read(source, 102.0)
    first = source._session
    read(source, 130.0)
    same = source._session
    lost = read(source, 170.0).cards[0]

    assert first is same
    assert first is not source._session
    assert (uuid, True, {79: 1}) == (lost.uuid, lost.lost, lost.xids)


def test_a_card_is_ill_until_it_was_reset(box, source):
    """
    After a fatal XID a card stays ill, also when NVML is restarted because of another card; once the
    driver was loaded again, or the card was gone and came back, it is well.
    """
    read(source, 100.0)
    box.inject(1, "xid", 48)
    box.inject(0, "xid", 48)
    box.inject(0, "lost", 1)
    assert [False, False] == [card.healthy for card in read(source, 102.0).cards]
    lost, ill = read(source, 170.0).cards
    assert (True, False, False) == (lost.lost, ill.lost, ill.healthy)

    box.inject(0, "lost", 0)
    assert [True, False] == [card.healthy for card in read(source, 172.0).cards]

    box.set("nvml_status", 1)
    with pytest.raises(SourceError):
        read(source, 174.0)
    box.set("nvml_status", 0)
    assert [True, True] == [card.healthy for card in read(source, 176.0).cards]


@pytest.mark.parametrize("box", [["a100-80g-mig", "t4"]], indirect=True)
def test_a_lost_card_loses_its_instances(box, source):
    """
    A divided card off the bus: it and all its instances are lost, the card beside is not.
    """
    assert 8 == len(read(source).cards)
    box.inject(0, "lost", 1)

    machine = read(source)

    assert [True] * 7 + [False] == [card.lost for card in machine.cards]
    assert {None} == set().union(*(figures(card) for card in machine.cards[:7]))
    assert [True] == [card.lost for card in machine.divided]
