# SPDX-License-Identifier: Apache-2.0
"""
Unhealthy cards as the simulated driver's real event sets tell of them, up to the cards that the node offers.
"""

from __future__ import annotations

import threading

import pytest
from support.waiting import PATIENCE_SECONDS, until

pytest.importorskip("pynvml")
import pynvml

from isolation.contract.quantity import GIB
from isolation.host.card_events import CardEvent, CardEventKind, NvmlCardEvents
from isolation.host.core.card_health import HealthTerms
from isolation.host.machine import MachineError, NvmlMachine
from isolation.kube.background import Background
from isolation.node.inventory import NodeInventory, Terms
from isolation.node.unhealthy_cards import LOOK_SECONDS, HealthWatch


@pytest.fixture
def events(box):
    """The driver's events, listened to."""
    made = NvmlCardEvents(box.path)
    made.boards()
    yield made
    made.close()


def drain(events):
    """All that there is."""
    found = []
    while (event := events.wait(0.05)) is not None:
        found.append(event)
    return found


def test_xids_and_ecc_errors_are_told_of_the_card_that_had_them(box, events):
    """
    In their order; what could be corrected is not reported, and nothing is told twice.
    """
    first, second = (board.uuid for board in events.boards())
    for card, what, value in ((1, "xid", 79), (1, "xid", 13), (0, "ecc-corrected", 3), (0, "ecc-uncorrected", 2)):
        box.inject(card, what, value)
    found = drain(events)
    expected = {
        CardEvent(second, CardEventKind.XID, 79),
        CardEvent(second, CardEventKind.XID, 13),
        CardEvent(first, CardEventKind.ECC),
    }
    assert (expected, 3, []) == (set(found), len(found), drain(events))
    assert (2, "", [None, None]) == (
        events.monitored(),
        events.unmonitored(),
        [board.action for board in events.boards()],
    )


def test_a_card_that_was_lost_is_listened_to_again(box, events):
    """
    Meanwhile the others are, and it is not among the boards.
    """
    first, second = (board.uuid for board in events.boards())
    box.inject(0, "lost", 1)
    without = [board.uuid for board in events.boards()]
    lost, listened = drain(events), events.monitored()
    box.inject(1, "xid", 74)
    meanwhile = drain(events)
    box.inject(0, "lost", 0)
    back = [board.uuid for board in events.boards()]
    assert (1, 2) == (listened, events.monitored())
    box.inject(0, "xid", 48)
    assert ([second], [first, second], [CardEvent(first, CardEventKind.XID, 79)]) == (without, back, lost)
    assert ([CardEvent(second, CardEventKind.XID, 74)], [CardEvent(first, CardEventKind.XID, 48)]) == (
        meanwhile,
        drain(events),
    )


def divided():
    """A model whose cards are divided, by the simulator's list."""
    from isolation.simgpu.models import MODELS  # noqa: PLC0415 (needed for the parameter alone)

    return next(name for name, model in MODELS.items() if model.layout)


@pytest.mark.parametrize("box", [[divided()]], indirect=True, ids=["mig"])
def test_a_divided_card_is_one_board_with_its_instances(box, events):
    """
    Its events are its own; every instance is concerned.
    """
    board = events.boards()[0]
    box.inject(0, "xid", 95)
    shared = {card.uuid for card in NvmlMachine.cards(events)}
    assert [CardEvent(board.uuid, CardEventKind.XID, 95)] == drain(events)
    assert (shared, False) == (set(board.cards), board.uuid in board.cards)
    assert len(board.cards) > 1


def field_of(kind, figure, value, status=0):
    """What the driver answers to the question for one field."""

    def answer(_handle, fields):
        made = pynvml.c_nvmlFieldValue_t()
        made.fieldId, made.valueType, made.nvmlReturn = fields[0], kind, status
        setattr(made.value, figure, value)
        return [made]

    return answer


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        (field_of(pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", 2), 2),
        (field_of(pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 0), 0),
        (field_of(pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal", 1.0), None),
        (field_of(pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", 2, pynvml.NVML_ERROR_NOT_SUPPORTED), None),
    ],
    ids=["uint", "ull", "double", "not-supported"],
)
def test_what_the_driver_wants_done_is_read_from_its_field(events, monkeypatch, answer, action):
    """
    None where it does not tell, or not as a number.
    """
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", answer)
    assert [action, action] == [board.action for board in events.boards()]


@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
def test_a_driver_without_events_is_named_and_its_cards_are_there(box, monkeypatch, call):
    """
    With the reason; to wait for its events is an error at once.
    """

    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, call, refuse)
    events = NvmlCardEvents(box.path)
    try:
        assert (2, 0) == (len(events.boards()), events.monitored())
        assert 2 == events.unmonitored().count("Not Supported")
        with pytest.raises(MachineError, match="Not Supported"):
            events.wait(5.0)
    finally:
        events.close()


def test_a_wait_that_fails_is_started_again_with_the_next_look(box, events, monkeypatch):
    """
    NVML's wait ends at once, with an error, when a card falls off the bus.
    """

    def lost(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    with monkeypatch.context() as patch:
        patch.setattr(pynvml, "nvmlEventSetWait_v2", lost)
        with pytest.raises(MachineError, match="cannot read NVML events"):
            events.wait(5.0)
        with pytest.raises(MachineError, match="no card reports error events"):
            events.wait(5.0)
    uuid = events.boards()[0].uuid
    box.inject(0, "xid", 62)
    assert ([CardEvent(uuid, CardEventKind.XID, 62)], 2) == (drain(events), events.monitored())


@pytest.fixture
def node(box, tmp_path, monkeypatch):
    """A watch and the inventory that asks it, as the agent joins them."""
    monkeypatch.setattr("isolation.node.unhealthy_cards.WAIT_SECONDS", 0.05)
    events, machine = NvmlCardEvents(box.path), NvmlMachine(box.path)
    watch = HealthWatch(events, HealthTerms(healthy_after=600.0), tmp_path / "unhealthy-cards.json", "b")
    yield watch, NodeInventory(machine, Terms(GIB), tmp_path / "node.json", watch.unhealthy)
    box.set("nvml_hang", 0)
    events.close()
    machine.close()


def test_an_unhealthy_card_is_offered_to_nobody_until_it_is_gone_and_back(box, node):
    """
    From the driver's event to the node's cards; a program's XID on the other one changes nothing.
    """
    watch, kept = node
    now, seen = 0.0, []
    for card, what, value in ((0, "xid", 79), (1, "xid", 31), (0, "lost", 1), (0, "lost", 0)):
        watch.turn(now)
        box.inject(card, what, value)
        now += LOOK_SECONDS
        watch.turn(now)
        now += LOOK_SECONDS
        watch.turn(now)
        kept.refresh()
        seen.append([card.healthy for card in kept.cards()])
    assert [[False, True], [False, True], [False, True], [True, True]] == seen
    assert (2, {}) == (watch.monitored, watch.unhealthy())


def test_a_driver_that_hangs_holds_up_the_watch_alone(box, node):
    """
    Whoever asks is answered meanwhile; when the driver answers again, cards are listened to.
    """
    watch, _ = node
    news = threading.Event()
    box.set("nvml_hang", 1)
    try:
        with Background().thread("card-events", lambda: watch.cycle(news.set)):
            assert not news.wait(0.3)
            assert (None, {}, {}) == (watch.monitored, watch.unhealthy(), watch.reasons())
            box.set("nvml_hang", 0)
            until(lambda: watch.monitored is not None)
            box.inject(0, "xid", 79)
            assert news.wait(PATIENCE_SECONDS)
            assert ["XID 79"] == list(watch.unhealthy().values())
    finally:
        box.set("nvml_hang", 0)
