# SPDX-License-Identifier: Apache-2.0
"""Never two at once: every interleaving of looks, writes, losses, pauses and clocks."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.budget import examples
from support.waiting import soon

from isolation.kube.core import lease
from isolation.kube.core.errors import UnreachableError
from isolation.kube.core.lease import NEVER, CandidateState, LeaseRecord, LeaseStep, LeaseTiming
from isolation.kube.election import Election

TERMS = LeaseTiming()
NAMES = ("a", "b", "c")
who = st.sampled_from(NAMES)


class Candidates(RuleBasedStateMachine):
    """
    Three candidates and a server; time passes only where a rule says so.

    Each candidate has its own clock: any setting, up to 10 % too fast or too slow. An answer may
    come late or never; a write may be done long after it was sent, or never.
    """

    @initialize(clocks=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.9, 1.1)), min_size=3, max_size=3))
    def begin(self, clocks):
        """Nobody holds anything."""
        self.now = 1000.0
        self.clock = dict(zip(NAMES, clocks, strict=True))
        self.server: LeaseRecord | None = None
        self.version = 0
        self.standing = {name: CandidateState() for name in NAMES}
        self.looks: list[tuple[str, LeaseRecord | None]] = []
        self.writes: list[tuple[str, LeaseRecord, float]] = []
        self.answers: list[tuple[str, LeaseRecord, float]] = []

    def reads(self, name):
        """This candidate's clock."""
        offset, rate = self.clock[name]
        return offset + self.now * rate

    @rule(seconds=st.sampled_from([0.01, 0.5, 1.5, 2.0, 5.9, 6.1, 7.9, 8.1, 20.0]))
    def time_passes(self, seconds):
        """For all."""
        self.now += seconds

    @rule(name=who)
    def looks_at_the_lease(self, name):
        """The server answers with what is there; the answer is on its way."""
        self.looks.append((name, self.server))

    @rule(data=st.data())
    def a_look_arrives(self, data):
        """Sooner or later, in any order."""
        if self.looks:
            name, record = self.looks.pop(data.draw(st.integers(0, len(self.looks) - 1)))
            self.standing[name] = lease.observe(self.standing[name], record, name, self.reads(name), TERMS)

    @rule(name=who)
    def writes_if_it_may(self, name):
        """What `step` says, sent now."""
        standing = self.standing[name]
        if (
            standing.observed > NEVER
            and lease.choose_step(standing, name, self.reads(name), TERMS) is not LeaseStep.WAIT
        ):
            self.writes.append((name, lease.build_record(standing, name, TERMS), self.reads(name)))

    @rule(name=who)
    def gives_up_and_releases(self, name):
        """Stops acting first."""
        standing = self.standing[name]
        self.standing[name] = lease.stop_acting(standing)
        wish = lease.build_release(standing)
        if wish is not None and standing.record.holder == name:
            self.writes.append((name, wish, NEVER))

    @rule(data=st.data())
    def the_server_takes_a_write(self, data):
        """Only over the version that it names."""
        if not self.writes:
            return
        name, wish, sent = self.writes.pop(data.draw(st.integers(0, len(self.writes) - 1)))
        if wish.version != (self.server.version if self.server else ""):
            return
        self.version += 1
        self.server = LeaseRecord(str(self.version), wish.holder, wish.duration, wish.epoch)
        if sent > NEVER:
            self.answers.append((name, self.server, sent))

    @rule(data=st.data())
    def an_answer_arrives(self, data):
        """Late answers of a write included, unless the candidate has looked since."""
        if self.answers:
            name, record, sent = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
            self.standing[name] = lease.record_write(self.standing[name], record, sent, self.reads(name), TERMS)

    @rule(data=st.data())
    def something_is_lost(self, data):
        """An answer or a request, for good."""
        pile = data.draw(st.sampled_from([self.looks, self.writes, self.answers]))
        if pile:
            pile.pop()

    @rule()
    def somebody_deletes_the_lease(self):
        """An administrator, under a holder."""
        self.server = None

    @invariant()
    def at_most_one_may_act(self):
        """The claim."""
        if hasattr(self, "standing"):
            acting = [name for name in NAMES if self.reads(name) < self.standing[name].until]
            assert len(acting) <= 1, acting


Candidates.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
TestCandidates = Candidates.TestCase


def test_a_holders_time_begins_when_it_sent_not_when_it_was_answered():
    """
    Others count from the server's write, which came after the sending and maybe long before the answer.
    """
    standing = lease.record_write(
        CandidateState(LeaseRecord("0")), LeaseRecord("1", "a"), sent=100.0, now=105.0, timing=TERMS
    )

    assert 100.0 + TERMS.act == standing.until


def test_anothers_name_ends_our_time_at_once():
    """
    Somebody edited the Lease by hand: we do not insist.
    """
    held = lease.record_write(CandidateState(LeaseRecord("0")), LeaseRecord("1", "a"), 100.0, 100.0, TERMS)

    assert NEVER == lease.observe(held, LeaseRecord("2", "b"), "a", 101.0, TERMS).until


def test_a_candidate_waits_as_long_as_the_holder_wrote():
    """
    A holder with longer terms than ours is still waited for; what nobody of ours writes is not believed.
    """
    long = lease.observe(CandidateState(), LeaseRecord("1", "b", 30.0), "a", 100.0, TERMS)
    absurd = lease.observe(CandidateState(), LeaseRecord("1", "b", 1e9), "a", 100.0, TERMS)

    assert (LeaseStep.WAIT, LeaseStep.TAKE) == (
        lease.choose_step(long, "a", 129.0, TERMS),
        lease.choose_step(long, "a", 130.0, TERMS),
    )
    assert LeaseStep.TAKE == lease.choose_step(absurd, "a", 100.0 + TERMS.duration, TERMS)


def test_a_released_lease_is_taken_at_once_and_the_epoch_grows():
    """
    A planned restart costs no waiting.
    """
    standing = lease.observe(CandidateState(), LeaseRecord("7", "", 1.0, 4), "a", 100.0, TERMS)

    assert LeaseStep.TAKE == lease.choose_step(standing, "a", 100.0, TERMS)
    assert LeaseRecord("7", "a", TERMS.duration, 5) == lease.build_record(standing, "a", TERMS)


def test_a_new_lease_gives_no_right_until_it_is_old_enough():
    """
    It may have been deleted under a holder, who acts on until its time is over.
    """
    created = lease.record_write(CandidateState(), LeaseRecord("1", "a"), 100.0, 101.0, TERMS)
    young = lease.record_write(created, LeaseRecord("2", "a"), 101.0 + TERMS.duration - 0.1, 110.0, TERMS)
    old = lease.record_write(young, LeaseRecord("3", "a"), 101.0 + TERMS.duration, 110.0, TERMS)

    assert (NEVER, NEVER, 101.0 + TERMS.duration + TERMS.act) == (created.until, young.until, old.until)
    assert lease.build_release(young) is None


@pytest.mark.parametrize("wrong", [{"act": 8.0}, {"retry": 5.0}, {"request": 0.0, "retry": 0.0}, {"duration": 1e4}])
def test_terms_that_could_let_two_act_are_refused(wrong):
    """
    The holder must stop before the others begin, and be able to renew before it must stop.
    """
    with pytest.raises(ValueError, match="Lease timing must be"):
        LeaseTiming(**wrong)


class Table:
    """A Lease in memory, as the API server keeps it; down while told so."""

    def __init__(self):
        self.record, self.version, self.down, self.writes = None, 0, False, 0
        self.answering = lambda: None
        """What happens while a write is answered."""

    async def read(self, _seconds):
        """What is there."""
        if self.down:
            raise UnreachableError("down")
        return self.record

    async def write(self, wish, _seconds):
        """Only over the version that it names."""
        if self.down:
            raise UnreachableError("down")
        if wish.version != (self.record.version if self.record else ""):
            return None
        self.version, self.writes = self.version + 1, self.writes + 1
        self.record = LeaseRecord(str(self.version), wish.holder, wish.duration, wish.epoch)
        self.answering()
        return self.record


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self):
        """The time."""
        return self.now


def elections(*names):
    """A table, a clock for all, and candidates."""
    table, clock = Table(), Clock()
    return table, clock, [Election(table, name, TERMS, clock=clock) for name in names]


def test_the_right_ends_by_the_clock_alone():
    """
    The server is away and nobody calls us: after `act` seconds we may not act, and a second later still not.
    """
    table, clock, (first,) = elections("a")

    async def story():
        await first.try_acquire_or_renew()
        clock.now += TERMS.duration
        await first.try_acquire_or_renew()
        held = first.fence()
        table.down = True
        clock.now += TERMS.act - 0.1
        late = first.fence()
        clock.now += 0.1
        return held, late.left(clock.now - 0.1), first.fence()

    held, left, after = asyncio.run(story())
    assert (0, None) == (held.epoch, after)
    assert 0.1 == pytest.approx(left)


def test_a_renewal_that_is_answered_late_gives_no_more_time():
    """
    The right counts from the sending: the server may have had the request at once, and others count from then.
    """
    table, clock, (first,) = elections("a")

    async def story():
        await first.try_acquire_or_renew()
        clock.now += TERMS.duration
        await first.try_acquire_or_renew()
        clock.now += 1.0
        sent = clock.now
        table.answering = lambda: setattr(clock, "now", clock.now + TERMS.request)
        await first.try_acquire_or_renew()
        return sent, clock.now, first.fence()

    sent, answered, held = asyncio.run(story())
    assert TERMS.request == pytest.approx(answered - sent)
    assert sent + TERMS.act - answered == pytest.approx(held.left(answered))


def test_a_jump_of_the_wall_clock_changes_nothing(monkeypatch):
    """
    Whatever date the machine believes in, the holder keeps its time and the candidate waits its own.
    """
    _, clock, (first, second) = elections("a", "b")

    async def story():
        await first.try_acquire_or_renew()
        clock.now += TERMS.duration
        held = []
        for year in (1970, 2100, 2026):
            monkeypatch.setattr("time.time", lambda year=year: (year - 1970) * 3.15e7)
            await first.try_acquire_or_renew()
            await second.try_acquire_or_renew()
            held.append((first.fence() is not None, second.fence() is not None))
            clock.now += 1.0
        return held

    assert [(True, False)] * 3 == asyncio.run(story())


def test_a_renewal_is_one_request_and_a_takeover_needs_the_whole_silence():
    """
    The second candidate acts only after it has seen no change for as long as the Lease says.
    """
    table, clock, (first, second) = elections("a", "b")

    async def story():
        await first.try_acquire_or_renew()
        clock.now += TERMS.duration
        await first.try_acquire_or_renew()
        await second.try_acquire_or_renew()
        before = table.writes
        await first.try_acquire_or_renew()
        renewals = table.writes - before
        await second.try_acquire_or_renew()
        clock.now += TERMS.duration - 0.1
        await second.try_acquire_or_renew()
        early = second.fence()
        clock.now += 0.1
        await second.try_acquire_or_renew()
        await first.try_acquire_or_renew()
        return renewals, early, second.fence().epoch, first.fence(), first.holder()

    assert (1, None, 1, None, "b") == asyncio.run(story())


def test_on_the_way_out_the_right_ends_before_the_lease_is_given_back():
    """
    Cancelled, a holder releases; the next one takes it without waiting.
    """
    table, clock, (first, second) = elections("a", "b")

    async def story():
        await first.try_acquire_or_renew()
        clock.now += TERMS.duration
        running = asyncio.create_task(first.run())
        held = await soon(first.fence)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await second.try_acquire_or_renew()
        return held is not None, first.fence(), table.record.holder, second.fence() is not None

    assert (True, None, "b", True) == asyncio.run(story())


def test_a_renewal_that_is_cut_off_on_the_way_out_keeps_the_lease_from_nobody():
    """
    Cancelled while the server has taken a renewal and not answered yet: the version that we know is old, and the Lease
    is given back all the same.
    """
    table, clock, (first,) = elections("a")

    async def story():
        await first.try_acquire_or_renew()
        clock.now += TERMS.duration
        await first.try_acquire_or_renew()
        taken, write = asyncio.Event(), table.write

        async def unanswered(wish, seconds):
            table.write = write
            await write(wish, seconds)
            taken.set()
            await asyncio.Event().wait()

        table.write = unanswered
        running = asyncio.create_task(first.run())
        await taken.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return table.record.holder

    assert "" == asyncio.run(story())
