# SPDX-License-Identifier: Apache-2.0
"""
Turns: what is read in which order, what a failure costs, and that nothing piles up. Time is a number here.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from threading import Event

import pytest

from exporter import evaluate as evaluate_module
from exporter.cycle import IDENTITIES, KERNEL, KUBELET, MACHINE, PROMISES, CycleClock, ExporterCycle, outcomes
from exporter.evaluate import Evaluator
from exporter.pipeline.attribution import NodeLabels
from exporter.pipeline.snapshot import (
    CardProcess,
    CardSample,
    IdentitySample,
    KernelSample,
    KubeletSample,
    MachineSample,
    ProcessSample,
    PromiseSample,
    SourceOutcome,
)
from isolation.contract.quantity import GIB

CARD = CardSample(
    uuid="GPU-0",
    index=0,
    model="T4",
    total_bytes=16 * GIB,
    reserved_bytes=GIB,
    free_bytes=15 * GIB,
    processes=(),
    busy={},
)


class Time:
    """A clock that moves when somebody waits or works."""

    def __init__(self):
        self.now = 100.0

    def clock(self):
        """For the cycle."""
        return CycleClock(lambda: self.now, lambda: self.now + 1.7e9)


class Scripted:
    """Sources and runner in one: answers as the test says, and what was asked."""

    def __init__(self, **answers):
        self.answers = {MACHINE: MachineSample((CARD,)), KERNEL: KernelSample({}, True), PROMISES: PromiseSample(())}
        self.answers |= answers
        self.asked = []
        self.passed = []

    def read_first(self, _now):
        """What needs no other."""
        return self.reads(name for name in self.answers if name in {MACHINE, PROMISES})

    def read_kubelet(self, _now, promises, kernel):
        """What a machine need not have; notes what it was reported."""
        self.passed.append((promises, kernel))
        return self.reads(name for name in self.answers if name in {KUBELET, IDENTITIES})

    def reads(self, names):
        """Each takes its next answer."""
        return {name: lambda name=name: self.take(name) for name in names}

    def read_kernel(self, _now, machine, promises):
        """The kernel; notes what it was reported."""
        self.passed.append((machine, promises))
        return {KERNEL: lambda: self.take(KERNEL)}

    def take(self, name):
        """The next answer of a list, or always the same."""
        answer = self.answers[name]
        return answer.pop(0) if isinstance(answer, list) else answer

    def run_all(self, reads, deadline):
        """As `Runner` does, without threads."""
        self.asked.append((tuple(reads), deadline))
        found = {}
        for name, read in reads.items():
            value = read()
            found[name] = SourceOutcome(None, value) if isinstance(value, str) else SourceOutcome(value)
        return found


def made(sources, time=None, period=2.0):
    """A cycle over scripted sources, and what it published."""
    published = []
    clock = (time or Time()).clock()
    evaluator = Evaluator(NodeLabels(node="n"), clock=clock.monotonic)
    return ExporterCycle(sources, sources, evaluator, published.append, period=period, clock=clock), published


def test_one_turn():
    """Every source is asked once, the kernel after those that say which processes there are; one result."""
    sources = Scripted()
    cycle, published = made(sources, period=20.0)
    passed = cycle.run_once()

    assert [((MACHINE, PROMISES), 10.0), ((KERNEL,), 4.0)] == [(n, pytest.approx(d)) for n, d in sources.asked]
    machine, promises, kernel = (sources.answers[name] for name in (MACHINE, PROMISES, KERNEL))
    assert [(machine, promises), (promises, kernel)] == sources.passed
    assert [passed] == published
    assert ("n", 15 * GIB) == (passed.reading.node, passed.reading.cards[0].total_bytes - GIB)
    assert (100.0, 1.7e9 + 100) == (passed.snapshot.at, passed.snapshot.epoch)


def test_a_short_period_leaves_every_read_a_second():
    """A busy node keeps a read from the processor for parts of one."""
    sources = Scripted(**{KUBELET: KubeletSample(())})
    made(sources, period=0.1)[0].run_once()

    assert [1.0, 1.0, 1.0] == [deadline for _, deadline in sources.asked]


def test_sources_that_a_machine_does_not_have():
    """No kubelet is no failure; one that is there and fails is."""
    cycle, _ = made(Scripted())
    assert {MACHINE, KERNEL, PROMISES} == set(outcomes(cycle.run_once().snapshot))

    cycle, _ = made(Scripted(**{KUBELET: "the socket is gone", IDENTITIES: IdentitySample({})}))
    found = outcomes(cycle.run_once().snapshot)
    assert {MACHINE, KERNEL, PROMISES, KUBELET, IDENTITIES} == set(found)
    assert "the socket is gone" == found[KUBELET].error


def test_a_source_that_fails_is_reported_once_and_its_recovery_too(caplog):
    """A log line when it begins and one when it ends, not every two seconds; the turns go on."""
    caplog.set_level(logging.INFO)
    gone = "cannot initialize NVML"
    cycle, published = made(Scripted(**{MACHINE: [gone, gone, gone, MachineSample((CARD,))]}))
    for _ in range(4):
        cycle.run_once()

    assert [(), (), (), ("GPU-0",)] == [tuple(card.uuid for card in passed.reading.cards) for passed in published]
    lines = [record.message for record in caplog.records if record.name == "exporter.cycle"]
    failed = "source nvml failed: cannot initialize NVML; the metrics of this source are absent"
    assert [failed, "source nvml works again"] == lines


def process(pid, size=GIB):
    """A process on the card."""
    return CardProcess(pid, size)


def test_a_process_that_went_while_we_read_is_looked_for_again_once():
    """Cards and kernel are read once more; kubelet, promises and loads of the first look stand."""
    before = replace(CARD, processes=(process(7),), free_bytes=14 * GIB, busy={7: 0.5}, utilisation_ratio=0.5)
    after = replace(CARD, busy={}, utilisation_ratio=0.0)
    sources = Scripted(
        **{
            MACHINE: [MachineSample((before,)), MachineSample((after,))],
            KUBELET: [KubeletSample(())],
            PROMISES: [PromiseSample(())],
        }
    )
    cycle, published = made(sources)
    passed = cycle.run_once()

    assert [passed] == published
    assert [(MACHINE,), (KERNEL,)] == [names for names, _ in sources.asked[3:]]
    card = passed.snapshot.machine.value.cards[0]
    assert ((), 15 * GIB, {7: 0.5}, 0.5) == (card.processes, card.free_bytes, card.busy, card.utilisation_ratio)
    assert GIB == passed.reading.cards[0].used_bytes


def test_churn_that_does_not_end_is_reported_as_it_is():
    """One retake and no more, however many processes come and go."""
    busy = MachineSample((replace(CARD, processes=(process(7),), free_bytes=14 * GIB),))
    sources = Scripted(**{MACHINE: busy})
    cycle, published = made(sources)
    cycle.run_once()

    assert (4, 1) == (len(sources.asked), len(published))


def test_a_retake_that_fails_leaves_the_first_look():
    """NVML fails between the two: the first look is told rather than nothing."""
    busy = MachineSample((replace(CARD, processes=(process(7),), free_bytes=14 * GIB),))
    cycle, published = made(Scripted(**{MACHINE: [busy, "gone"]}))
    cycle.run_once()

    assert busy is published[0].snapshot.machine.value


def test_no_retake_while_everybody_is_there():
    """A process that the kernel knows is no churn."""
    busy = MachineSample((replace(CARD, processes=(process(7),), free_bytes=14 * GIB),))
    known = KernelSample({7: ProcessSample(7, 1, 0, "python")}, True)
    sources = Scripted(**{MACHINE: busy, KERNEL: known})
    cycle, _ = made(sources)
    cycle.run_once()

    assert 2 == len(sources.asked)


class Waiter(Event):
    """Ends the loop after so many waits; waiting moves the clock."""

    def __init__(self, time, waits):
        super().__init__()
        self.time, self.waits, self.waited = time, waits, []

    def wait(self, timeout=None):
        """Note it."""
        self.waited.append(timeout)
        self.time.now += timeout
        if len(self.waited) >= self.waits:
            self.set()


def test_turns_begin_at_the_beat():
    """However long a turn takes, the next one begins a period after the last one began."""
    time = Time()
    sources = Scripted()
    cycle, published = made(sources, time)
    taken = iter((0.5, 1.0, 0.0))
    sources.read_kernel = lambda *_: (
        setattr(time, "now", time.now + next(taken)),
        {KERNEL: lambda: KernelSample({}, True)},
    )[1]
    stop = Waiter(time, 3)
    cycle.run(stop)

    assert [1.5, 1.0, 2.0] == stop.waited
    assert [100.0, 102.0, 104.0] == [passed.snapshot.at for passed in published]


def test_a_turn_that_takes_too_long_leaves_out_what_it_missed(caplog):
    """Five seconds at a period of two: the next one at six, and none in a hurry."""
    time = Time()
    sources = Scripted()
    cycle, published = made(sources, time)
    taken = iter((5.0, 0.0))
    sources.read_kernel = lambda *_: (
        setattr(time, "now", time.now + next(taken)),
        {KERNEL: lambda: KernelSample({}, True)},
    )[1]
    cycle.run(Waiter(time, 2))

    assert [100.0, 106.0] == [passed.snapshot.at for passed in published]
    assert 2 == cycle.skipped
    assert "cycle took 5.0 s: skipping 2 cycles" in caplog.text


def test_a_turn_that_breaks_is_not_the_last(caplog):
    """Whatever is wrong in us, the next turn is made."""
    time = Time()
    sources = Scripted()
    cycle, published = made(sources, time)
    breaks = iter((True, False))
    whole = sources.read_first
    sources.read_first = lambda now: 1 / 0 if next(breaks) else whole(now)
    cycle.run(Waiter(time, 2))

    assert 1 == len(published)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("step", ["attribute", "detect_breaches"])
def test_a_judgement_that_fails_is_reported_without_a_reading(monkeypatch, caplog, step):
    """Sources that worked are told to work; of the reading nothing is shown, and the next turn is another try."""
    cycle, published = made(Scripted())

    def broken(*_args, **_more):
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patched:
        patched.setattr(evaluate_module, step, broken)
        cycle.run_once()
    cycle.run_once()

    assert [None, "n"] == [passed.reading and passed.reading.node for passed in published]
    assert published[0].snapshot.machine.ok
    assert "a mistake of ours" in caplog.text
