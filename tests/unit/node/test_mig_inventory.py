# SPDX-License-Identifier: Apache-2.0
"""MIG instances as cards of a node: their numbers, and what happens where somebody divides a card differently."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import decode_cards, encode_cards
from isolation.contract.codec.request import MAX_CARDS
from isolation.contract.model import Card, Instance, Mode
from isolation.contract.quantity import GIB
from isolation.host.machine import MachineError
from isolation.node.inventory import NodeInventory, Terms, divided
from isolation.node.status import wish


def parts(board: int, *names: str, gib: int = 9):
    """The instances of one physical card; names are of instances."""
    places = [Instance(f"GPU-{board}", "1g.10gb", at + 7, 0, 1) for at in range(len(names))]
    return [
        Card(f"MIG-{board}{name}", board, gib * GIB, model="A100", instance=place)
        for name, place in zip(names, places, strict=True)
    ]


def whole(board: int):
    """A physical card that MIG does not divide."""
    return Card(f"GPU-{board}", board, 79 * GIB, model="A100")


class Box:
    """A machine whose cards change, with promises on some."""

    def __init__(self, folder, *cards):
        self.now, self.held, self._folder = list(cards), set(), folder
        self.kept = self.restarted()

    def cards(self):
        """See `inventory.Cards`."""
        return tuple(self.now)

    def restarted(self):
        """The inventory of an agent that has just started."""
        return NodeInventory(self, Terms(GIB), self._folder / "node.json", held=lambda: self.held)

    def look(self, *cards):
        """What is known after the machine has these."""
        self.now = list(cards) if cards else self.now
        self.kept.refresh()
        return {card.uuid: card.index for card in self.kept.cards() if card.healthy}


def test_instances_are_numbered_with_the_whole_cards_beside_them(tmp_path):
    """No number twice, in the driver's order; what stands in the node's object can be read back."""
    box = Box(tmp_path, *parts(0, "a", "b", "c"), whole(1), *parts(2, "d"))

    assert {"MIG-0a": 0, "MIG-0b": 1, "MIG-0c": 2, "GPU-1": 3, "MIG-2d": 4} == box.look()
    cards = tuple(box.kept.cards())
    assert cards == decode_cards(encode_cards(cards))
    assert "GPU-0" == decode_cards(encode_cards(cards))[0].board


def test_nothing_of_compute_is_offered_within_instances():
    said = wish([*parts(0, "a", "b"), replace(whole(1), index=2)], Mode.CORE_MEM, "ready")
    assert {"aliyun.com/gpu-count": 3, "aliyun.com/gpu-core.percentage": 100} == said.resources


def test_a_node_without_mig_keeps_the_drivers_numbers(tmp_path):
    box = Box(tmp_path, whole(0), whole(3))
    assert {"GPU-0": 0, "GPU-3": 3} == box.look()


def test_a_change_under_promises_is_reported_and_nobody_new_comes(tmp_path):
    """
    The old instances stay as they were known until the last promise has ended, over a restart of the agent too; the
    card beside is not concerned.
    """
    box = Box(tmp_path, *parts(0, "a", "b"), *parts(1, "x"))
    box.look()
    box.held = {"MIG-0a"}

    assert {"MIG-1x": 2} == box.look(*parts(0, "c", "d", "e"), *parts(1, "x"))
    assert {"MIG-0a", "MIG-0b"} == set(box.kept.changed)
    assert "while containers have promises on MIG-0a" in box.kept.unhealthy["MIG-0b"]
    box.kept = box.restarted()
    assert {"MIG-1x": 2} == box.look()

    box.held = set()
    assert {"MIG-0c": 0, "MIG-0d": 1, "MIG-1x": 2, "MIG-0e": 3} == box.look()
    assert ({}, {}) == (box.kept.changed, box.kept.unhealthy)


def test_a_change_without_promises_is_taken_as_it_is(tmp_path):
    box = Box(tmp_path, *parts(0, "a", "b"), *parts(1, "x"))
    box.look()
    box.held = {"MIG-1x"}

    assert {"GPU-0": 0, "MIG-1x": 2} == box.look(whole(0), *parts(1, "x"))


def test_one_more_instance_beside_promises_is_offered(tmp_path):
    """Nothing that anybody has a promise on has changed."""
    box = Box(tmp_path, *parts(0, "a", "b"))
    box.look()
    box.held = {"MIG-0a"}

    assert {"MIG-0a": 0, "MIG-0b": 1, "MIG-0c": 2} == box.look(*parts(0, "a", "b", "c"))


def test_the_same_uuid_at_another_place_is_a_change(tmp_path):
    """The driver may give a name again."""
    box = Box(tmp_path, *parts(0, "a", "b"))
    box.look()
    box.held = {"MIG-0a"}

    assert {} == box.look(*parts(0, "b", "a"))


def test_a_divided_card_off_the_bus_is_lost_and_not_changed(tmp_path):
    box = Box(tmp_path, *parts(0, "a", "b"), whole(1))
    box.look()
    box.held = {"MIG-0a"}

    assert {"GPU-1": 2} == box.look(Card("lost-0", 0, 0, healthy=False), whole(1))
    assert ({}, 3) == (box.kept.changed, len(box.kept.cards()))
    assert {"MIG-0a": 0, "MIG-0b": 1, "GPU-1": 2} == box.look(*parts(0, "a", "b"), whole(1))


def test_compute_instances_that_share_memory_are_no_cards():
    """Two of one GPU instance: each would be promised the memory of both."""
    shared = [replace(card, instance=replace(card.instance, gpu=7)) for card in parts(0, "a", "b")]
    with pytest.raises(MachineError, match=r"GPU instance 7 of card GPU-0 has 2 compute instances.*-cgi PROFILE -C"):
        divided(shared, Terms(GIB))


LAYOUTS = st.lists(st.frozensets(st.sampled_from("abcdefg"), max_size=7), min_size=8, max_size=8)


@given(story=st.lists(st.tuples(LAYOUTS, st.frozensets(st.integers(0, 55), max_size=6)), min_size=1, max_size=5))
def test_however_cards_are_divided_numbers_are_right(tmp_path_factory, story):
    """
    Against the promises: a card with one keeps its number, none is given twice or beyond what records can hold.
    """
    box = Box(tmp_path_factory.mktemp("mig"))
    for layouts, chosen in story:
        now = [
            card
            for board, names in enumerate(layouts)
            for card in (parts(board, *sorted(names)) if names else [whole(board)])
        ]
        before = {card.uuid: card.index for card in box.kept.cards() if card.uuid in box.held}
        box.look(*now)
        known = {card.uuid: card.index for card in box.kept.cards()}
        assert before == {uuid: known[uuid] for uuid in before}
        assert len(known) == len(set(known.values()))
        assert max(known.values()) < MAX_CARDS
        offered = [card for card in box.kept.cards() if card.healthy]
        assert {card.uuid for card in offered} <= {card.uuid for card in now}
        box.held = {uuid for uuid, index in known.items() if index in chosen}
