# SPDX-License-Identifier: Apache-2.0
"""How simulated containers use what they were promised."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.demo.embedded.usage import draw_profile, share_memory

excesses = st.one_of(st.none(), st.floats(0.05, 0.5))


@given(st.integers(0, 1000), excesses, st.floats(1, 2000))
def test_closed_form_equals_the_sum_of_many_samples(seed, excess, age):
    """
    Usage over a span does not depend on how often somebody looks.
    """
    habit = draw_profile(seed, "ns/pod/main", excess)
    count = 4000
    sampled = sum(habit.memory_ratio((n + 0.5) * age / count) for n in range(count)) * age / count

    assert math.isclose(sampled, habit.memory_seconds(age), rel_tol=2e-3, abs_tol=1e-2)


@given(st.integers(0, 1000), st.floats(0, 5000))
def test_who_keeps_the_promise_never_exceeds_it(seed, age):
    """
    Without an excess memory stays at or below the promise, compute too, and no time is over it.
    """
    habit = draw_profile(seed, "ns/pod/main")

    assert 0 <= habit.memory_ratio(age) <= 1
    assert 0 <= habit.compute_ratio(age, "k") <= 1
    assert habit.over_seconds(age) == 0


@given(st.integers(0, 1000), st.floats(0.05, 0.5))
def test_who_breaks_it_does_so_from_the_onset_on(seed, excess):
    """
    And the time over the promise counts from there.
    """
    habit = draw_profile(seed, "ns/pod/main", excess)
    late = habit.onset_seconds + 10

    assert habit.memory_ratio(habit.onset_seconds - 0.1) <= 1 < habit.memory_ratio(late)
    assert math.isclose(10, habit.over_seconds(late))


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2000)), max_size=8), st.integers(0, 2000))
def test_a_card_gives_no_more_than_it_has_and_keeps_every_promise(tenants, spare):
    """
    Those within their promise get what they want; the rest share what is left.
    """
    promised, wanted = [has for has, _ in tenants], [want for _, want in tenants]
    room = sum(promised) + spare

    used = share_memory(room, promised, wanted)

    assert sum(used) <= room
    assert all(min(want, has) <= got <= want for want, has, got in zip(wanted, promised, used, strict=True))
