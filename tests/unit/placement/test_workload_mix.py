# SPDX-License-Identifier: Apache-2.0
"""What the engine learns: prices of remainders, and when."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import ask, node

from isolation.placement import native
from isolation.placement.engine import Engine
from isolation.placement.workload_mix import FIRST, MEMORY, STEADY, RequestShape, WorkloadMix


def values(demand: dict[int, float]) -> np.ndarray:
    """The price table for sizes in thousandths."""
    sizes, amounts = np.array(list(demand), np.int32), np.array(list(demand.values()), np.float64)
    table = np.zeros(native.PRICE_STEPS + 1)
    assert native.LIB.gs_prices(len(demand), native.pointer(sizes), native.pointer(amounts), native.pointer(table)) >= 0
    return table


@pytest.mark.parametrize(
    ("demand", "remainder", "expected"),
    [
        ({500: 10}, 500, 0.5),
        ({500: 10}, 499, 0.0),
        ({810: 10, 190: 1}, 190, 0.0),
        ({810: 1, 190: 10}, 190, 0.19),
        ({260: 5}, 260, 0.26),
        ({650: 10, 300: 30}, 349, 1 / 3),
        ({650: 10, 350: 5}, 350, 0.0),
        ({1000: 3}, 999, 0.0),
        ({1000: 3}, 1000, 1.0),
    ],
)
def test_a_remainder_is_valued_by_what_the_mix_can_pack_into_it(demand, remainder, expected):
    """Duals of small packings that can be checked by hand: scarce partners are worth nothing."""
    assert expected == pytest.approx(values(demand)[remainder])


@given(st.dictionaries(st.integers(1, 1000), st.floats(0.5, 1000), min_size=1, max_size=32))
def test_price_tables_are_sane_for_any_mix(demand):
    """Never above the remainder itself, never falling, superadditive below the cap, 1 for a card."""
    table = values(demand)
    steps = np.linspace(0, 1, native.PRICE_STEPS + 1)
    assert (table <= steps + 1e-9).all()
    assert (table >= -1e-9).all()
    assert 1.0 == table[-1]
    assert (np.diff(table) >= -1e-9).all()


def test_more_sizes_than_the_solver_takes_are_refused_not_truncated():
    """The caller chooses which sizes count."""
    sizes = np.arange(1, 40, dtype=np.int32)
    demand, out = np.ones(39), np.zeros(native.PRICE_STEPS + 1)
    assert -1 == native.LIB.gs_prices(39, native.pointer(sizes), native.pointer(demand), native.pointer(out))


def test_the_mix_is_learnt_at_doubling_arrivals_and_old_habits_fade():
    """32, 64, 128 ... then at a steady pace; counts are halved so that a new workload can take over."""
    learner = WorkloadMix()
    shape = RequestShape(0, 0, 1, 0, 1, whole=False, group=0)
    due = [at for at in range(1, 2 * MEMORY) if learner.add(shape)]
    assert [FIRST, 64, 128, 256] == due[:4]
    assert all(later - earlier <= STEADY for earlier, later in pairwise(due))
    assert learner.arrived < MEMORY


def test_only_arrivals_teach_an_online_policy_and_only_teaching_the_published_baseline():
    """`potential` may not know the future; `fgd` is given it, as published."""
    request = ask(5)
    online, offline = Engine([node()]), Engine([node()], policy="fgd")
    for engine in (online, offline):
        for _ in range(FIRST):
            engine.arrive(request)
            engine.place(request)
    assert FIRST == online.learner.arrived
    assert 0 == offline.learner.arrived
    offline.teach([request])
    assert 1 == offline.learner.arrived


def test_fragments_are_the_idle_cards_that_the_mix_could_not_use():
    """FGD's measure: a free 7 GiB is lost to a mix of 10 GiB pods, a free card is not."""
    engine = Engine([node("n", 2)], policy="fgd")
    engine.teach([ask(10)])
    assert (2.0, 0.0) == engine.fragments()
    engine.hold("a", ask(8), engine.place(ask(8)))
    idle, lost = engine.fragments()
    assert 1 + 7 / 15 == pytest.approx(idle)
    assert 7 / 15 == pytest.approx(lost)
