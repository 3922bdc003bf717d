# SPDX-License-Identifier: Apache-2.0
"""
What the controller remembers from cycle to cycle, and leaves to the next leader as text.

Decides how it is written and what is believed of it when it is read. What is there is untrusted until checked:
times in the future are now, amounts are bounded, and text that is not ours or broken is an error, never a crash.

    {"version": 1, "epoch": 7,
     "memory": {"unneeded": {"node": t}, "last_add": t, "moves": [t], "removals": [t], "moved": {"owner": t},
                "closed": {"pool": [until, seconds]}, "refused": {"owner": [until, seconds]}, "hot": {"uuid": t},
                "defragmenting": false,
                "trials": {"on": [trial], "passed": [trial], "waiting": [trial], "resized": [[t, owner]]}},
     "kept": {"machines": {"name": [pool, state, t]}, "homes": {"uid": [machine, [card]]}, "missed": {"uid": [n, t]},
              "profiles": {<as `autoscaler.providers.core.profile` writes it>}}}
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.limits import BOUNDS
from autoscaler.core.observation import Nomination
from autoscaler.core.rightsizing.containers import Trial
from autoscaler.core.rightsizing.trial import TrialState
from autoscaler.core.state import AutoscalerState, Backoff
from autoscaler.providers.core import profile
from isolation.contract.codec.cursor import LARGEST, At, CodecError, decoded, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from isolation.contract.codec.template import NodeTemplate

VERSION: Final = 1
MAX_TEXT: Final = 960 << 10
"""A ConfigMap holds 1 MiB."""
MAX_MACHINES: Final = 20_000
MAX_HOMES: Final = 5_000
MAX_TRIALS: Final = 500
"""Of more the oldest are forgotten; what their pods reserve begins a trial again."""
_MAX_CARDS: Final = 64
_MAX_ENTRIES: Final = 20_000
_LONGEST_REST: Final = 86_400.0
_LATEST: Final = 1e12
"""Seconds since the epoch that no clock shows."""


@dataclass(frozen=True, slots=True)
class ControllerState:
    """Everything that outlives a cycle."""

    memory: AutoscalerState = field(default_factory=AutoscalerState)
    """The deciders'."""
    machines: Mapping[str, PoolMachine] = field(default_factory=dict)
    """By name, as of the latest observation."""
    homes: Mapping[str, Nomination] = field(default_factory=dict)
    """By UID of waiting pods: which coming machine each is nominated for."""
    profiles: Mapping[str, NodeTemplate] = field(default_factory=dict)
    """By pool, learnt from nodes or from the provider."""
    missed: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """By UID of waiting pods: how often a machine came for one and did not help, and when last."""
    asked: frozenset[str] = frozenset()
    """Pools whose provider has been asked what a fresh node looks like; of this process only."""
    epoch: int = 0
    """Of the leader that wrote it."""


def encode(state: ControllerState) -> str:
    """
    As one line of JSON, the same for the same state.

    Where it is too long it is without who waits for which machine, then without machines, then without profiles.
    """
    less = replace(state, homes={}, machines={})
    for shorter in (state, replace(state, homes={}), less):
        text = _encoded(shorter)
        if len(text) <= MAX_TEXT:
            return text
    return _encoded(replace(less, profiles={}, missed={}))


def _encoded(state: ControllerState) -> str:
    memory = state.memory
    shown = {
        "unneeded": _times(memory.unneeded),
        "last_add": round(memory.last_add, 3) if math.isfinite(memory.last_add) else None,
        "moves": [round(at, 3) for at in memory.moves[-_MAX_ENTRIES:]],
        "removals": [round(at, 3) for at in memory.removals[-_MAX_ENTRIES:]],
        "moved": _times(memory.moved),
        "closed": _rests(memory.backoffs),
        "refused": _rests(memory.refused),
        "hot": _times(memory.hot),
        "defragmenting": memory.defragmenting,
        "trials": {
            "on": [asdict(trial) for trial in memory.trials.trials.values()][-MAX_TRIALS:],
            "passed": [asdict(trial) for trial in memory.trials.passed.values()][-MAX_TRIALS:],
            "waiting": [asdict(trial) for trial in memory.trials.waiting.values()][-MAX_TRIALS:],
            "resized": [[round(when, 3), owner] for when, owner in memory.trials.resized[-MAX_TRIALS:]],
        },
    }
    whole = {"version": VERSION, "epoch": state.epoch, "memory": shown, "kept": _show_fleet(state)}
    return json.dumps(whole, separators=(",", ":"), sort_keys=True)


def decode(text: str, now: float) -> ControllerState:
    """The saved state; CodecError where it is not ours, or broken."""
    if len(text) > MAX_TEXT:
        raise CodecError((), f"saved state has {len(text)} characters: the maximum is {MAX_TEXT}")
    at = decoded(text)
    if at["version"].integer(0) != VERSION:
        raise at["version"].wrong(
            f"unsupported version {show(at['version'].value)}; this program reads version {VERSION}"
        )
    memory = at["memory"]
    moves = memory["moves"].items()
    if len(moves) > _MAX_ENTRIES:
        raise memory["moves"].wrong(f"{len(moves)} entries: the maximum is {_MAX_ENTRIES}")
    removals = memory["removals"].items()
    if len(removals) > _MAX_ENTRIES:
        raise memory["removals"].wrong(f"{len(removals)} entries: the maximum is {_MAX_ENTRIES}")
    last_add = memory["last_add"]
    kept = at["kept"]
    # never an error: what is in flight also stands in objects (reservations, taints, targets) and is found there
    return ControllerState(
        memory=AutoscalerState(
            unneeded=_times_at(memory["unneeded"], now),
            last_add=_time_at(last_add, now) if last_add else float("-inf"),
            moves=tuple(_time_at(each, now) for each in moves),
            removals=tuple(_time_at(each, now) for each in removals),
            moved=_times_at(memory["moved"], now),
            backoffs=_rests_at(memory["closed"], now),
            refused=_rests_at(memory["refused"], now),
            hot=_times_at(memory["hot"], now),
            defragmenting=memory["defragmenting"].flag(),
            trials=_trials(memory["trials"], now),
        ),
        machines={
            machine.name: replace(machine, since=min(max(0.0, machine.since), now)) for machine in _machines(kept)
        },
        homes=dict(_homes(kept)),
        profiles=_profiles(kept),
        missed=dict(_missed(kept)),
        epoch=at["epoch"].integer(0, 0, 1 << 62),
    )


def _show_fleet(state: ControllerState) -> dict[str, Any]:
    """Ready machines are many and are left out: their nodes say how old they are."""
    machines = {
        name: [machine.pool, machine.state.value, round(machine.since, 3)]
        for name, machine in sorted(state.machines.items())[:MAX_MACHINES]
        if machine.state not in (MachineState.READY, MachineState.DELETING, MachineState.GONE)
    }
    homes = {uid: [home.machine, list(home.cards)] for uid, home in sorted(state.homes.items())[:MAX_HOMES]}
    missed = {uid: [count, round(at, 3)] for uid, (count, at) in sorted(state.missed.items())[:MAX_HOMES]}
    return {
        "machines": machines,
        "homes": homes,
        "missed": missed,
        "profiles": json.loads(profile.encode(state.profiles)),
    }


def merge_memories(ours: AutoscalerState, theirs: AutoscalerState) -> AutoscalerState:
    """Both: whoever moved what counts, a rest ends at the later end; for the rest theirs."""
    return replace(
        theirs,
        last_add=max(ours.last_add, theirs.last_add),
        moves=tuple(sorted({*ours.moves, *theirs.moves})),
        removals=tuple(sorted({*ours.removals, *theirs.removals})),
        moved={**theirs.moved, **{who: max(at, theirs.moved.get(who, at)) for who, at in ours.moved.items()}},
        trials=TrialState(
            {**ours.trials.trials, **theirs.trials.trials},
            {**ours.trials.passed, **theirs.trials.passed},
            {**ours.trials.waiting, **theirs.trials.waiting},
            tuple(sorted({*ours.trials.resized, *theirs.trials.resized})),
        ),
        backoffs=_later(ours.backoffs, theirs.backoffs),
        refused=_later(ours.refused, theirs.refused),
    )


def _later(ours: Mapping[str, Backoff], theirs: Mapping[str, Backoff]) -> dict[str, Backoff]:
    return {
        name: max(filter(None, (ours.get(name), theirs.get(name))), key=lambda rest: rest.until)
        for name in sorted(ours.keys() | theirs.keys())
    }


def _machines(at: At) -> Iterator[PoolMachine]:
    for name, entry in _fields(at, "machines"):
        try:
            pool, state, since = entry.items()
            yield PoolMachine(name, pool.text(), MachineState(state.text()), _moment(since))
        except (CodecError, ValueError, OverflowError):
            continue


def _homes(at: At) -> Iterator[tuple[str, Nomination]]:
    for uid, entry in _fields(at, "homes"):
        try:
            machine, cards = entry.items()
            places = tuple(card.integer(0, 0, _MAX_CARDS) for card in cards.items()[:_MAX_CARDS])
            yield uid, Nomination(machine.text(), places)
        except (CodecError, ValueError):
            continue


def _missed(at: At) -> Iterator[tuple[str, tuple[int, float]]]:
    for uid, entry in _fields(at, "missed"):
        try:
            count, moment = entry.items()
            yield uid, (count.integer(0, 0), _moment(moment))
        except (CodecError, ValueError, OverflowError):
            continue


def _trials(at: At, now: float) -> TrialState:
    """Those that can be read: what a pod reserves also stands on the pod."""
    on, passed, waiting = (
        {trial.key: trial for trial in _trials_in(at[name], now)} for name in ("on", "passed", "waiting")
    )
    pairs = [each.items() for each in at["resized"].items()[:MAX_TRIALS]]
    return TrialState(
        on, passed, waiting, tuple((_time_at(pair[0], now), pair[1].text()) for pair in pairs if len(pair) > 1)
    )


def _trials_in(at: At, now: float) -> Iterator[Trial]:
    for each in at.items()[:MAX_TRIALS]:
        try:
            began, until = _time_at(each["began"], now), _number(each["until"])
            yield Trial(
                uid=each["uid"].text(),
                container=each["container"].text(),
                owner=each["owner"].text(),
                from_bytes=each["from_bytes"].integer(0, 0, LARGEST),
                to_bytes=each["to_bytes"].integer(0, 0, LARGEST),
                reserved_bytes=each["reserved_bytes"].integer(0, 0, LARGEST),
                began=began,
                until=min(until, began + BOUNDS["right_size_trial_seconds"][1]),
                denied=each["denied"].integer(0, 0),
                restarts=each["restarts"].integer(0, 0),
                peak_bytes=each["peak_bytes"].integer(0, 0, LARGEST),
                node=each["node"].text(),
                cards=each["cards"].integer(1, 1, _MAX_CARDS),
            )
        except CodecError:
            continue


def _moment(at: At) -> float:
    value = at.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise at.wrong("not a timestamp")
    return float(value)


def _profiles(at: At) -> dict[str, NodeTemplate]:
    try:
        return profile.decode(json.dumps(at["profiles"].mapping()))[0]
    except (CodecError, TypeError, ValueError):
        return {}


def _fields(at: At, key: str) -> list[tuple[str, At]]:
    try:
        return list(at[key].fields())[:MAX_MACHINES]
    except CodecError:
        return []


def _times(times: Mapping[str, float]) -> dict[str, float]:
    """The latest of them, as many as are kept."""
    latest = sorted(times.items(), key=lambda entry: (-entry[1], entry[0]))[:_MAX_ENTRIES]
    return {name: round(at, 3) for name, at in sorted(latest)}


def _rests(rests: Mapping[str, Backoff]) -> dict[str, list[float]]:
    latest = sorted(rests.items(), key=lambda entry: (-entry[1].until, entry[0]))[:_MAX_ENTRIES]
    return {name: [round(rest.until, 3), rest.seconds] for name, rest in sorted(latest)}


def _times_at(at: At, now: float) -> dict[str, float]:
    return {name: _time_at(each, now) for name, each in _entries(at)}


def _rests_at(at: At, now: float) -> dict[str, Backoff]:
    found = {}
    for name, each in _entries(at):
        pair = each.items()
        if len(pair) != 2:  # noqa: PLR2004 (a pair)
            raise each.wrong("not a pair [until, seconds]")
        until, seconds = _number(pair[0]), min(_number(pair[1]), _LONGEST_REST)
        # a clock that was set back would close a pool for days
        found[name] = Backoff(min(until, now + seconds), seconds)
    return found


def _entries(at: At) -> list[tuple[str, At]]:
    entries = list(at.fields())
    if len(entries) > _MAX_ENTRIES:
        raise at.wrong(f"{len(entries)} entries: the maximum is {_MAX_ENTRIES}")
    return entries


def _time_at(at: At, now: float) -> float:
    return min(_number(at), now)


def _number(at: At) -> float:
    value = at.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST:
        raise at.wrong(f"{show(value)} is not a number of seconds")
    return float(value)
