# SPDX-License-Identifier: Apache-2.0
"""Energy by container: by compute, by promise, and never more than the card has drawn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.breach_watch import Watch
from support.budget import examples
from support.node_facts import Node, uuid


def drawing(joules, busy=None, **more):
    """Two pods with 5 and 10 GiB of 15.5; the card's counter stands at so much."""
    node = Node(agent=True).pod_hold("a", gib=5).pod_hold("b", gib=10)
    node.process(1, 1, pod="a").process(2, 1, pod="b").process(3, 1)
    return node.card(energy_joules=joules, busy=busy or {}, **more)


def energy(watch):
    """{pod: joules}."""
    return {one.pod: one.energy_joules for one in watch.judged.reading.containers}


def test_energy_by_compute():
    """What was drawn goes by the share of all compute, a stranger's share to nobody."""
    watch = Watch().see(drawing(1000.0)).see(drawing(1100.0, busy={1: 0.2, 2: 0.2, 3: 0.4}))

    assert {"a": 25.0, "b": 25.0} == energy(watch)


def test_energy_of_an_idle_card():
    """It goes by the promises of memory; what nobody was promised is nobody's."""
    watch = Watch().see(drawing(1000.0)).see(drawing(1031.0))

    assert {"a": 10.0, "b": 20.0} == pytest.approx(energy(watch))


def test_energy_of_a_card_whose_idle_power_is_known():
    """10 W idle are put down to promises, also while somebody computes; the rest to whoever does."""
    watch = Watch()
    for number in range(6):
        watch.see(drawing(1000.0 + 20.0 * number))
    before = energy(watch)
    watch.see(drawing(1200.0, busy={1: 0.5}))

    after = energy(watch)
    idle = 20.0 / 15.5
    assert {"a": 80.0 + 5 * idle, "b": 10 * idle} == pytest.approx({pod: after[pod] - before[pod] for pod in after})


def idling(watts, times=6):
    """A watch on a card that has drawn so much while nobody computed."""
    watch, stands = Watch().see(drawing(1000.0)), 1000.0
    for each in watts:
        for _ in range(times):
            stands += 2 * each
            watch.see(drawing(stands))
    return watch, stands


def test_idle_power_is_the_lowest_seen():
    """A card that is still warm from its last kernel draws more than an idle one."""
    watch, stands = idling([10, 30])
    before = energy(watch)["b"]

    watch.see(drawing(stands + 200.0, busy={1: 0.5}))

    assert 2 * 10 * 10 / 15.5 == pytest.approx(energy(watch)["b"] - before)


def test_idle_power_over_a_gap_in_the_counter():
    """What was drawn while the counter could not be read counts for all of that time."""
    watch, stands = idling([10])
    before = energy(watch)["b"]

    watch.see(drawing(None, busy={1: 0.5}), times=4).see(drawing(stands + 500.0, busy={1: 0.5}))

    assert 10 * 10 * 10 / 15.5 == pytest.approx(energy(watch)["b"] - before)


def test_energy_of_a_whole_card():
    """Its only container answers for all of it, also where compute is unknown."""
    node = Node().container("a").grant("a", [uuid()])
    watch = Watch().see(node.card(energy_joules=10.0, busy=None)).see(node.card(energy_joules=60.0, busy=None))

    assert {"a": 50.0} == energy(watch)


def test_energy_of_sharers_whose_compute_is_unknown():
    """Nobody can say whose it was."""
    blind = Node(agent=True).pod_hold("a").pod_hold("b")
    watch = Watch().see(blind.card(energy_joules=10.0, busy=None)).see(blind.card(energy_joules=60.0, busy=None))

    assert {"a": None, "b": None} == energy(watch)


@pytest.mark.parametrize("reset", [None, 5.0])
def test_a_counter_that_stops_or_is_set_back(reset):
    """Without a counter there is no series; a driver that was loaded again starts from where it stands."""
    watch = Watch().see(drawing(1000.0)).see(drawing(1100.0, busy={1: 1.0})).see(drawing(reset, busy={1: 1.0}))

    assert {None: {"a": None, "b": None}, 5.0: {"a": 100.0, "b": 0.0}}[reset] == energy(watch)
    assert 100.0 <= energy(watch.see(drawing(1200.0, busy={1: 1.0})))["a"]


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 500), st.dictionaries(st.integers(1, 3), st.floats(0, 1)), st.floats(0.1, 60), st.booleans()
        ),
        min_size=2,
        max_size=12,
    )
)
def test_containers_never_draw_more_than_their_card(steps):
    """Whatever is computed, the energy of the containers only grows and is at most the card's."""
    watch, stands, before = Watch().see(drawing(0.0)), 0.0, {"a": 0.0, "b": 0.0}
    for watts, busy, seconds, owner_known in steps:
        stands += watts * seconds
        watch.see(drawing(stands if owner_known else None, busy=busy), after=seconds)
        now = energy(watch)
        if owner_known:
            assert all(now[pod] >= before[pod] for pod in now)
            assert sum(now.values()) <= stands * (1 + 1e-9)
            before = now
