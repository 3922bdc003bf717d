# SPDX-License-Identifier: Apache-2.0
"""
The driver's figure against the ledger, over random interleavings of a container's life with the host's samples.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isolation.contract.abi import CARDS, GRANULE, CardLedger, SlotReading
from isolation.contract.host_allocation import Process
from isolation.host.core.memory_correction import CardUser, Correction, LedgerSample, counted, excess

MIB = 1 << 20
LIMIT = 100 * MIB


def wide(value):
    """A figure of card 0."""
    return (value, *[0] * (CARDS - 1))


def book(used, version=0, peak=None, released=0):
    """A card of a region."""
    figures = (used, LIMIT, used if peak is None else peak, *[0] * 8)
    return CardLedger(UUID(int=1), *figures, uncorrected=False, released=released, version=version)


def slot(held, sums=(0, 0, 0, 0), pid=1):
    """A process's own sums: all, and of that guessed, imported, managed, underway."""
    sums = map(wide, sums)
    return SlotReading(pid, pid, pid, 1, "n", wide(held), 0, False, *sums)


def user(size, pid=1):
    """As the driver lists it."""
    return CardUser(pid, size, pid, pid)


class Life:
    """
    A container of two processes: its ledger as the library keeps them, what the card really holds, and a host.

    Each call is in steps, and a sample may come between any two of them; a process may be killed anywhere.
    """

    def __init__(self):
        self.version = self.peak = self.released = self.clock = 0
        self.kept = {1: [], 2: []}
        """By process: [kind, charged, on the card, under way (None: freed, not given back)]."""
        self.lives = {1: 0, 2: 0}
        self.dead = []
        self.correction = Correction()
        self.feed = None

    @property
    def used(self):
        """The card word."""
        return sum(one[1] for mine in (*self.kept.values(), *(dead[2] for dead in self.dead)) for one in mine)

    def excess(self):
        """As the library computes it (`gs_excess`)."""
        if self.feed is None or self.feed.excess_bytes >= 0:
            return 0 if self.feed is None else self.feed.excess_bytes
        return min(0, self.feed.excess_bytes + (self.released - self.feed.released) * GRANULE)

    def truth(self, pid=None):
        """What the card holds, of one process or of all; the dead give theirs back at once."""
        return sum(one[2] for key, mine in self.kept.items() if pid in {None, key} for one in mine)

    def charge(self, pid, kind, size):
        """The first step of a call: whether it is not refused."""
        if self.used + self.excess() + size > LIMIT:
            return False
        self.kept[pid].append([kind, size, 0, True])
        self.version += 1
        self.peak = max(self.peak, self.used)
        return True

    def land(self, pid, part):
        """The driver has done it; a guess costs a part of what was charged, managed memory what is on the card."""
        for one in self.kept[pid]:
            if one[3] and not one[2]:
                one[2] = one[1] if one[0] == "explicit" else one[1] * part // 4
                return

    def done(self, pid):
        """The last step."""
        for one in self.kept[pid]:
            one[3] = False

    def fail(self, pid):
        """A call under way fails: rolled back."""
        for one in list(self.kept[pid]):
            if one[3] and not one[2]:
                self.kept[pid].remove(one)
                self.version += 1
                return

    def free(self, pid):
        """The driver frees; the ledger follow with `refund`."""
        for one in self.kept[pid]:
            if one[3] is False:
                one[2], one[3] = 0, None
                return

    def refund(self, pid):
        """The ledger give back what the driver freed."""
        for one in list(self.kept[pid]):
            if one[3] is None:
                if one[0] == "guess":
                    self.released += one[1] // GRANULE
                self.kept[pid].remove(one)
                self.version += 1
                return

    def kill(self, pid):
        """Anywhere; what it held stands in the ledger until it is reaped."""
        self.dead.append((pid, self.lives[pid], [[one[0], one[1], 0, *one[3:]] for one in self.kept[pid]]))
        self.lives[pid] += 1
        self.kept[pid] = []

    def reap(self):
        """Whoever comes next gives back what the dead held."""
        while self.dead:
            for one in self.dead.pop()[2]:
                self.released += one[1] // GRANULE if one[0] == "guess" and one[3] is not True else 0
                self.version += 1

    def slots(self):
        """As the region tells."""
        found = []
        for pid, life, mine in (*((pid, self.lives[pid], mine) for pid, mine in self.kept.items()), *self.dead):
            guessed = sum(one[1] for one in mine if one[0] == "guess" and one[3] is not True)
            underway = sum(one[1] for one in mine if one[3] or (one[3] is None and one[0] == "explicit"))
            managed = sum(one[1] for one in mine if one[0] == "managed" and one[3] is not True)
            found.append(slot(sum(one[1] for one in mine), (guessed, 0, managed, underway), pid + 10 * life))
        return found

    def before(self):
        """The host reads the ledger."""
        self.clock += 1
        self.seen = book(self.used, self.version, self.peak, self.released), self.slots(), self.clock

    def driver(self):
        """The host asks the driver."""
        self.asked = [
            user(self.truth(pid), pid + 10 * self.lives[pid])
            for pid, mine in self.kept.items()
            if any(one[2] for one in mine)
        ]

    def after(self):
        """The host reads the ledger again, and writes."""
        ledger = LedgerSample(self.seen[0], book(self.used, self.version, self.peak, self.released), self.seen[1])
        figure = counted(self.asked, ledger.slots, 0, 0)
        self.correction.take(figure, self.asked, ledger, 0, self.seen[2])
        self.feed = self.correction.feed


SIZES = st.integers(1, 8).map(lambda part: part * 10 * MIB)
PIDS = st.sampled_from([1, 2])
KINDS = st.sampled_from(["explicit", "explicit", "guess", "guess", "managed"])
CHARGES = st.tuples(st.just("charge"), PIDS, KINDS, SIZES)
LANDINGS = st.tuples(st.just("land"), PIDS, st.integers(0, 4))
PARTS = st.one_of(
    CHARGES.map(lambda step: [step]),
    LANDINGS.map(lambda step: [step]),
    st.tuples(st.sampled_from(["done", "fail", "free", "refund", "kill"]), PIDS).map(lambda step: [step]),
)
CALLS = st.tuples(CHARGES, st.integers(0, 4)).map(
    lambda both: [both[0], ("land", both[0][1], both[1]), ("done", both[0][1])]
)
FREES = PIDS.map(lambda pid: [("free", pid), ("refund", pid)])
STEPS = st.one_of(CALLS, CALLS, FREES, FREES, PARTS, PARTS, st.just([("reap",)]))
SOME = st.lists(STEPS, max_size=2).map(lambda parts: [step for part in parts for step in part])
SAMPLES = st.one_of(
    st.just([("before",), ("driver",), ("after",)]),
    st.tuples(SOME, SOME).map(lambda two: [("before",), *two[0], ("driver",), *two[1], ("after",)]),
)
STORIES = st.lists(st.one_of(STEPS, STEPS, SAMPLES), min_size=4, max_size=30).map(
    lambda parts: [step for part in parts for step in part]
)


def live(story, visit):
    """Play a story."""
    life = Life()
    for name, *words in story:
        getattr(life, name)(*words)
        visit(life, name)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STORIES)
def test_who_takes_nothing_unseen_is_never_charged_more_than_its_ledger(story):
    """
    Whatever comes between the readings: no sample ever raises the ledger of an honest container, so nobody is refused
    for the sake of a sample.
    """

    def visit(life, _):
        assert life.excess() <= 0

    live(story, visit)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STORIES)
def test_a_sample_never_leaves_less_charged_than_the_card_holds(story):
    """
    After a still sample ledger and correction are at least what the driver counted then.
    """
    counts = []

    def visit(life, name):
        if name == "driver":
            counts[:] = [sum(one.bytes for one in life.asked), life.version]
        if name == "after" and life.seen[0].version == life.version:
            assert life.used + life.excess() >= counts[0]

    live(story, visit)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STORIES)
def test_the_card_never_holds_more_than_was_promised(story):
    """
    Guesses are given back, and given back again with the memory they stood for; contexts may take as long to make as
    they like: what is on the card stays within the promise.
    """

    def visit(life, _):
        assert life.truth() <= LIMIT

    live(story, visit)


@pytest.mark.parametrize(("kind", "samples"), [("explicit", 1), ("guess", 3)])
def test_a_call_under_way_is_not_taken_for_a_guess_that_costs_nothing(kind, samples):
    """
    40 MiB guessed that cost 20, and 40 of a call that has not reached the card, 10 that have: 30 of 100 are left.
    """
    life = Life()

    def sample():
        for step in (life.before, life.driver, life.after):
            step()

    for pid, first, size in ((1, "guess", 40), (2, "explicit", 10)):
        assert life.charge(pid, first, size * MIB)
        life.land(pid, 2)
        life.done(pid)
    sample()
    sample()
    assert life.charge(2, kind, 40 * MIB)
    for _ in range(samples):
        sample()
    assert (False, True) == (life.charge(1, "explicit", 31 * MIB), life.charge(1, "explicit", 30 * MIB))


@settings(max_examples=300, deadline=None)
@given(st.integers(-(1 << 63), 1 << 64), st.integers(0, 1 << 41), st.tuples(*[st.integers(0, 1 << 64)] * 4), SIZES)
def test_a_forged_region_hides_nothing_from_the_next_sample(held, used, sums, driver):
    """
    Whatever stands there: ledger and correction together are never below the driver's figure.
    """
    slots = [slot(held, sums)]
    figure = counted([user(driver)], slots, 0, surplus=-1)
    assert driver == figure
    assert used + excess(figure, [user(driver)], LedgerSample(book(used), book(used), slots), 0) >= driver


@pytest.mark.parametrize(("surplus", "left"), [(-5, 30), (0, 30), (8, 22), (10, 20), (50, 20)])
def test_imports_are_taken_off_only_as_far_as_the_card_proves_them(surplus, left):
    """
    Two processes with 15 MiB each, 10 of them said to be shared.
    """
    users = [user(15 * MIB), user(15 * MIB, 2)]
    assert left * MIB == counted(users, [slot(0, (0, 10 * MIB, 0, 0))], 0, surplus * MIB)


def test_bytes_that_are_not_reported_are_no_figure():
    """
    Of one process is enough.
    """
    assert counted([user(5), user(None, 2)], [], 0, 0) is None


def test_guesses_are_given_back_when_two_samples_in_a_row_say_so():
    """
    30 MiB guessed that cost 10: after the first sample they still count in full; what is released since counts off.
    """
    correction = Correction()
    for at, released in enumerate([0, 0, 5 * MIB // GRANULE]):
        seen = book(30 * MIB, released=released)
        correction.take(
            10 * MIB, [user(10 * MIB)], LedgerSample(seen, seen, [slot(30 * MIB, (30 * MIB, 0, 0, 0))]), 0, at
        )
        expected = [(0, 0), (-20, 0), (-15, 1)][at]
        assert expected == (correction.feed.excess_bytes // MIB, correction.feed.sample_ns)


def test_what_moves_is_known_by_its_peak_alone():
    """
    LedgerSample that moved around the sample: what passes their peak is beyond doubt, what was known before stands.
    """
    correction = Correction()

    def sample(driver, peak):
        ledger = LedgerSample(book(0, 1), book(0, 2, peak * MIB), [])
        correction.take(driver * MIB, [user(driver * MIB)], ledger, 0, 1)
        return correction.feed and correction.feed.excess_bytes // MIB

    assert [None, 20, 20, 45, 10] == [sample(30, 40), sample(60, 40), sample(50, 40), sample(85, 40), sample(10, 40)]


def test_what_is_known_stands_while_one_lives_of_whom_it_is_known():
    """
    The driver tells no more: pid and start time decide.
    """
    correction, still = Correction(), LedgerSample(book(0), book(0))
    correction.take(5 * MIB, [user(5 * MIB, 7)], still, 0, 1)
    correction.skip({Process(7, 7)}.__contains__)
    assert 5 * MIB == correction.feed.excess_bytes
    correction.skip({Process(7, 8)}.__contains__)
    assert correction.feed is None
