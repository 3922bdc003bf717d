# SPDX-License-Identifier: Apache-2.0
"""
Generated fleets whose memory use is not kind to a recommender.

A program has replicas, a replica has lives one after another, a life needs so much memory in each step. What greedy
programs need is a part of what they are promised. Everything follows from the seed, the mix and the rule for promises.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.random import Generator
    from numpy.typing import NDArray

DAYS: Final = 30
STEPS: Final = 24
"""Of a day: a measurement in each hour."""
CARD_GIB: Final = 80.0
_WORKDAYS: Final = 5
_ROUND: Final = (2, 4, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80)
"""Amounts in GiB that people write."""


@dataclass(frozen=True, slots=True)
class TracedLife:
    """One life: what it needs, uncapped, in GiB (for greedy programs: as a part of the promise), by step."""

    start: int
    """Step of the fleet's time in which it starts."""
    peak: NDArray[np.float64]
    """Largest need within each step."""
    used: NDArray[np.float64]
    """Need at the end of each step."""
    busy: NDArray[np.float64]
    """Ratio of a card's compute in each step."""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """One workload."""

    name: str
    kind: str
    replicas: tuple[tuple[TracedLife, ...], ...]
    promises: tuple[float, ...] = ()
    """In GiB, by replica."""
    finite: bool = False
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Mix:
    """What a fleet is made of: parts of its programs by kind, and how people promise."""

    parts: Mapping[str, float] = field(
        default_factory=lambda: {
            "inference": 0.34,
            "training": 0.2,
            "switching": 0.1,
            "growing": 0.08,
            "idle-first": 0.05,
            "notebook": 0.03,
            "greedy": 0.2,
        }
    )
    programs: int = 100
    tight: float = 0.1
    """Part of the promises that are hardly above the need."""
    short: float = 0.03
    """Part of the promises that are below it: they are denied memory today."""


def generate(seed: int, mix: Mix | None = None) -> list[Program]:
    """A fleet of `DAYS` days."""
    mix, rng = mix or Mix(), np.random.default_rng(seed)
    kinds = list(mix.parts)
    drawn = rng.choice(len(kinds), size=mix.programs, p=np.array(list(mix.parts.values())) / sum(mix.parts.values()))
    programs = [_KINDS[kinds[kind]](f"{kinds[kind]}-{number}", rng) for number, kind in enumerate(drawn)]
    return [_promise(program, rng, mix) for program in programs]


def _promise(program: Program, rng: Generator, mix: Mix) -> Program:
    """The rule: what is ever needed times a guess, in whole GiB or one of the amounts that people write."""
    if program.greedy:
        # any amount fits them; some owners give their replicas different ones
        first = float(rng.choice(_ROUND[2:]))
        other = float(rng.choice(_ROUND[2:])) if rng.random() < 0.25 else first
        return replace(program, promises=tuple(other if n % 2 else first for n in range(len(program.replicas))))
    need = max(life.peak.max() for lives in program.replicas for life in lives)
    guess = rng.random()
    if guess < mix.short:
        promise = max(1.0, np.floor(need * rng.uniform(0.8, 0.98)))
    elif guess < mix.short + mix.tight:
        promise = ceil(need * rng.uniform(1.02, 1.2))
    elif guess < 0.65:
        promise = ceil(need * rng.uniform(1.3, 2.2))
    else:
        promise = next((amount for amount in _ROUND if amount >= need * rng.uniform(1.2, 1.8)), CARD_GIB)
    return replace(program, promises=tuple(min(CARD_GIB, float(promise)) for _ in program.replicas))


def _weights(rng: Generator) -> float:
    return float(np.exp(rng.uniform(np.log(1.5), np.log(26))))


@dataclass(frozen=True, slots=True)
class _Load:
    """How a service uses memory above its weights."""

    level: float
    """Of the weights, in GiB."""
    burst: float = 0.05
    """Scale of bursts, as a part of the level."""
    tail: float = 3.0
    """Pareto exponent of bursts."""
    caching: bool = False
    """Whether its allocator gives nothing back."""


def _service(
    rng: Generator, start: int, steps: int, load: _Load
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Weights, a load by day and week, and bursts: largest need, need at the end of each step, and compute."""
    time, level = (start + np.arange(steps)) / STEPS, load.level
    daily = (0.5 + 0.5 * np.sin(2 * np.pi * (time - 0.3))) * np.where((time % 7) < _WORKDAYS, 1.0, 0.6)
    swing = level * rng.uniform(0.05, 0.3)
    bursts = np.where(rng.random(steps) < 0.04, level * load.burst * rng.pareto(load.tail, steps), 0.0)
    noise = level * 0.01 * rng.standard_normal(steps)
    # requests are limited in size and in number: no burst is without bounds
    peak = level + swing * daily + np.minimum(bursts, 0.6 * level) + np.abs(noise)
    used = np.maximum(level + swing * daily * 0.9, peak * rng.uniform(0.8, 1.0, steps))
    if load.caching:
        peak = np.maximum.accumulate(peak)
        used = peak * 0.999
    return peak, used, np.clip(0.05 + 0.5 * daily, 0, 1)


def _lives(rng: Generator, mean_days: float) -> list[tuple[int, int]]:
    """Start and length of the lives of one replica, over the fleet's time; some are deployed later."""
    at = int(rng.integers(0, 6 * STEPS)) if rng.random() < 0.3 else 0
    found = []
    while at < DAYS * STEPS:
        steps = max(2, int(rng.exponential(mean_days * STEPS)))
        steps = min(steps, DAYS * STEPS - at)
        found.append((at, steps))
        at += steps
    return found


def _inference(name: str, rng: Generator) -> Program:
    load = _Load(_weights(rng), rng.uniform(0.02, 0.1), rng.uniform(2.2, 4.0), bool(rng.random() < 0.5))
    days = rng.choice([4.0, 12.0, 60.0])
    replicas = tuple(
        tuple(TracedLife(start, *_service(rng, start, steps, load)) for start, steps in _lives(rng, days))
        for _ in range(int(rng.integers(1, 5)))
    )
    return Program(name, "inference", replicas)


def _switching(name: str, rng: Generator) -> Program:
    """Another model at some restarts; half of the programs say so in their template."""
    level, visible = _weights(rng), rng.random() < 0.5
    chance, replicas = rng.uniform(0.1, 0.4), []
    schedule = _lives(rng, rng.uniform(2.0, 6.0))
    levels = [level]
    for _ in schedule[1:]:
        switched = rng.random() < chance
        levels.append(float(np.clip(level * np.exp(0.35 * rng.standard_normal()), 1, 30)) if switched else levels[-1])
    for _ in range(int(rng.integers(1, 4))):
        lives = [
            TracedLife(start, *_service(rng, start, steps, _Load(one)), str(one) if visible else "")
            for (start, steps), one in zip(schedule, levels, strict=True)
        ]
        replicas.append(tuple(lives))
    return Program(name, "switching", tuple(replicas))


def _growing(name: str, rng: Generator) -> Program:
    """Caches that fill over days."""
    level, rate, top = _weights(rng), rng.uniform(0.005, 0.04), rng.uniform(1.2, 1.8)
    replicas = []
    for _ in range(int(rng.integers(1, 3))):
        lives = []
        for start, steps in _lives(rng, rng.uniform(6, 15)):
            peak, used, busy = _service(rng, start, steps, _Load(level, burst=0.03))
            more = level * np.minimum(top - 1, rate * np.arange(steps) / STEPS)
            lives.append(TracedLife(start, peak + more, used + more, busy))
        replicas.append(tuple(lives))
    return Program(name, "growing", tuple(replicas))


def _training(name: str, rng: Generator) -> Program:
    """Runs of hours or days that differ a little: growth, a plateau, and a peak near the end of some."""
    level, spread = _weights(rng), rng.uniform(0.02, 0.08)
    days, late = float(np.exp(rng.uniform(np.log(0.2), np.log(3)))), rng.uniform(0.05, 0.4)
    often = rng.choice([1.0, 1.0, 0.7])
    replicas = []
    for _ in range(int(rng.integers(1, 4))):
        lives, at = [], int(rng.integers(0, STEPS))
        while at < DAYS * STEPS:
            steps = min(max(4, int(days * STEPS * rng.uniform(0.8, 1.2))), DAYS * STEPS - at)
            own = level * max(0.5, 1 + spread * rng.standard_normal())
            time = np.arange(steps) / steps
            peak = own * np.minimum(1.0, 0.6 + 0.4 * np.log1p(9 * time / 0.3) / np.log(10))
            if rng.random() < often:
                peak = np.where((time > 0.9) & (time < 0.97), own * (1 + late), peak)
            lives.append(TracedLife(at, peak, peak * 0.98, np.full(steps, 0.9)))
            at += steps + int(rng.exponential(0.15 * days * STEPS))
        replicas.append(tuple(lives))
    return Program(name, "training", tuple(replicas), finite=True)


def _idle_first(name: str, rng: Generator) -> Program:
    """Deployed for days before its traffic comes."""
    level, idle = _weights(rng), int(rng.uniform(2, 9) * STEPS)
    replicas = []
    for _ in range(int(rng.integers(1, 4))):
        peak, used, busy = _service(rng, 0, DAYS * STEPS, _Load(level))
        # a lazy loader: without a request no model is in memory
        peak[:idle], used[:idle], busy[:idle] = 0.4, 0.4, 0.0
        replicas.append((TracedLife(0, peak, used, busy),))
    return Program(name, "idle-first", tuple(replicas))


def _notebook(name: str, rng: Generator) -> Program:
    """Somebody who works on some days, with whatever is being tried."""
    level, steps = _weights(rng), DAYS * STEPS
    peak, busy = np.full(steps, 0.4), np.zeros(steps)
    for day in range(DAYS):
        if rng.random() < 0.5:
            start, hours = day * STEPS + int(rng.integers(16, 24)), int(rng.integers(4, 16))
            peak[start : start + hours] = level * np.exp(0.35 * rng.standard_normal())
            busy[start : start + hours] = 0.4
    return Program(name, "notebook", ((TracedLife(0, peak, peak, busy),),))


def _greedy(name: str, rng: Generator) -> Program:
    """A constant part of what is promised: all of it (TensorFlow), 90 % (vLLM), 75 % (JAX); or caches that fill it."""
    style = rng.choice(["all", "vllm", "jax", "cache"], p=[0.25, 0.4, 0.2, 0.15])
    ratio = {"all": rng.uniform(0.975, 1.0), "vllm": rng.uniform(0.89, 0.95), "jax": 0.75, "cache": 0.995}[str(style)]
    replicas = []
    for _ in range(int(rng.integers(1, 5))):
        lives = []
        for start, steps in _lives(rng, rng.choice([5.0, 60.0])):
            used = np.full(steps, ratio) * (1 - 0.004 * rng.random(steps))
            if style == "cache":
                used *= np.minimum(1.0, 0.7 + 0.3 * np.arange(steps) / (0.3 * STEPS))
            lives.append(TracedLife(start, used, used, np.full(steps, 0.5)))
        replicas.append(tuple(lives))
    return Program(name, "greedy", tuple(replicas), greedy=True)


_KINDS: Final[Mapping[str, Callable[[str, Generator], Program]]] = {
    "inference": _inference,
    "training": _training,
    "switching": _switching,
    "growing": _growing,
    "idle-first": _idle_first,
    "notebook": _notebook,
    "greedy": _greedy,
}
