# SPDX-License-Identifier: Apache-2.0
"""The units that the kubelet counts: IDs that never change, and an unhealthy card that takes nothing from anybody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.model import Card
from isolation.contract.quantity import GIB, MIB, UNITS
from isolation.node.core.units import foreign_ids, offer, unit_id

CARDS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.booleans(), st.integers(0, 45)), max_size=4)
"""GiB, reserved GiB, healthy, GiB in force."""


def fleet(rows, unit=GIB):
    """Cards, and the memory of each that is in force."""
    cards = [
        Card(f"GPU-{at}", at, size * GIB, kept * GIB, unit, healthy=fine)
        for at, (size, kept, fine, _) in enumerate(rows)
    ]
    return cards, {card.uuid: rows[at][3] * GIB - 1 for at, card in enumerate(cards) if rows[at][3]}


def list_ids(*args, **more):
    """Health by ID, in the order in which it is told."""
    devices = offer(*args, **more)
    found = {one.id: one.healthy for one in devices}
    assert len(found) == len(devices), "no ID twice"
    return found


@given(CARDS, st.sets(st.integers(0, 200)), st.sampled_from(list(UNITS.values())))
def test_what_a_container_has_is_there_and_healthy_whatever_happens_to_cards(rows, used, unit):
    """The kubelet would not let it start again: not for an unhealthy card, a card that is gone or an excluded node."""
    cards, in_force = fleet(rows, unit)
    mine = {unit_id(unit, number) for number in used}
    for shares in (True, False):
        found = list_ids(cards, unit, mine, in_force, shares=shares)
        assert all(found[one] for one in mine)
        assert shares or mine == set(found), "where nothing is shared, nothing more can be had"


@given(CARDS, st.sets(st.integers(0, 200)))
def test_a_unit_is_unhealthy_for_each_that_an_unhealthy_card_could_still_give(rows, used):
    """Rounded so that a card in use by half a unit gives up one less; never more than nobody has."""
    cards, in_force = fleet(rows)
    found = list_ids(cards, GIB, {unit_id(GIB, number) for number in used}, in_force, shares=True)

    total = sum(card.allocatable_bytes // GIB for card in cards)
    assert max(total, len(used)) == len(found)
    lost = sum(max(0, card.allocatable_bytes // GIB - rows[card.index][3]) for card in cards if not card.healthy)
    free = len(found) - len(used)
    assert min(lost, free) == list(found.values()).count(False)


@given(CARDS, st.sets(st.integers(0, 50)), st.sets(st.integers(0, 50)))
def test_ids_do_not_depend_on_health_or_on_what_is_used(rows, before, after):
    """The kubelet keeps them over restarts of everybody."""
    cards, in_force = fleet(rows)
    total = sum(card.allocatable_bytes // GIB for card in cards)
    before, after = ({number for number in used if number < total} for used in (before, after))
    names = [list(list_ids(cards, GIB, {unit_id(GIB, n) for n in used}, {}, shares=True)) for used in (before, after)]
    assert names[0] == names[1] == [f"1GiB-{number}" for number in range(total)]
    well = [Card(card.uuid, card.index, card.total_bytes, card.reserved_bytes) for card in cards]
    assert names[1] == list(list_ids(well, GIB, {unit_id(GIB, n) for n in after}, in_force, shares=True))


def test_ids_of_another_unit_or_release_are_foreign_and_not_offered():
    old = ["GPU-8f2c-_-3", "1GiB-007", "1GiB-", "1GiB-99999999", "256MiB-0", " 1GiB-1"]
    assert sorted(old) == foreign_ids({"1GiB-0", "1GiB-12", *old}, GIB)
    assert [] == foreign_ids({"256MiB-63"}, 256 * MIB)
    assert ["1GiB-0", "1GiB-1"] == list(list_ids([Card("a", 0, 2 * GIB)], GIB, set(old), {}, shares=True))


@given(st.integers(0, 60), st.integers(-40, 40), st.sets(st.integers(0, 100)), st.data())
def test_resized_pods_change_how_many_units_there_are_and_take_none_from_a_living_container(size, extra, used, data):
    """As many as the cards have and resized pods hold less; those of pods that have ended go before idle ones."""
    ended = data.draw(st.sets(st.sampled_from(sorted(used))) if used else st.just(set()))
    mine, gone = ({unit_id(GIB, number) for number in numbers} for numbers in (used, ended))
    card = [Card("a", 0, size * GIB)] if size else []
    found = list_ids(card, GIB, mine, {}, shares=True, extra=extra, ended=gone)
    assert mine - gone <= set(found)
    assert max(size + extra, len(mine - gone), 0) == len(found)
    # An idle unit goes only after every one of an ended pod.
    idle = {unit_id(GIB, number) for number in range(size)} - mine
    assert idle <= set(found) or not gone & set(found)


@given(st.integers(1, 60), st.sets(st.integers(0, 80)))
def test_units_of_a_pod_that_shrank_come_back_as_they_went(size, used):
    """Restarts of anybody make the same units of the same records; without resized pods they are what they were."""
    mine, card = {unit_id(GIB, number) for number in used if number < size}, [Card("a", 0, size * GIB)]
    plain = list_ids(card, GIB, mine, {}, shares=True)
    more = list_ids(card, GIB, mine, {}, shares=True, extra=5)
    assert set(plain) < set(more) == set(list_ids(card, GIB, mine, {}, shares=True, extra=5))
    assert plain == list_ids(card, GIB, mine, {}, shares=True)
