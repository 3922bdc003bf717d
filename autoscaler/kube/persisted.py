# SPDX-License-Identifier: Apache-2.0
"""
What has to outlive the controller besides `Memory`: ages of machines, who waits for which, what fresh nodes look like.

A value and its JSON. Whatever cannot be read is forgotten, which costs patience and nothing else: what is in flight
stands in objects (reservations, taints, the provider's target) and is found there.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from autoscaler.core.lifecycle import Machine, MachineState
from autoscaler.core.observation import Nomination
from autoscaler.providers.core import profile
from isolation.contract.codec.cursor import At, CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from isolation.contract.codec.template import NodeTemplate

MOST_MACHINES: Final = 20_000
MOST_HOMES: Final = 5_000
_MOST_CARDS: Final = 64


@dataclass(frozen=True, slots=True)
class Kept:
    """See the module."""

    machines: Mapping[str, Machine] = field(default_factory=dict)
    homes: Mapping[str, Nomination] = field(default_factory=dict)
    """By UID of waiting pods."""
    profiles: Mapping[str, NodeTemplate] = field(default_factory=dict)
    """By pool, learnt from nodes or told by the provider."""
    missed: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """By UID of waiting pods: how often a machine came for one and did not help, and when last."""
    asked: frozenset[str] = frozenset()
    """Pools whose provider has been asked what a fresh node looks like."""

    def shown(self) -> dict[str, Any]:
        """As JSON; machines that stand and are well are many and are left out (their nodes say how old they are)."""
        machines = {
            name: [machine.pool, machine.state.value, round(machine.since, 3)]
            for name, machine in sorted(self.machines.items())[:MOST_MACHINES]
            if machine.state not in (MachineState.READY, MachineState.DELETING, MachineState.GONE)
        }
        homes = {uid: [home.machine, list(home.cards)] for uid, home in sorted(self.homes.items())[:MOST_HOMES]}
        missed = {uid: [count, round(at, 3)] for uid, (count, at) in sorted(self.missed.items())[:MOST_HOMES]}
        profiles = json.loads(profile.encode(self.profiles))
        return {"machines": machines, "homes": homes, "missed": missed, "profiles": profiles}


def kept_of(at: At) -> Kept:
    """From JSON of a whole or broken state; never an error."""
    return Kept(
        machines={machine.name: machine for machine in _machines(at)},
        homes=dict(_homes(at)),
        missed=dict(_missed(at)),
        profiles=_profiles(at),
    )


def _machines(at: At) -> Iterator[Machine]:
    for name, entry in _fields(at, "machines"):
        try:
            pool, state, since = entry.items()
            yield Machine(name, pool.text(), MachineState(state.text()), _moment(since))
        except (CodecError, ValueError, OverflowError):
            continue


def _homes(at: At) -> Iterator[tuple[str, Nomination]]:
    for uid, entry in _fields(at, "homes"):
        try:
            machine, cards = entry.items()
            places = tuple(card.integer(0, 0, _MOST_CARDS) for card in cards.items()[:_MOST_CARDS])
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
        return list(at[key].fields())[:MOST_MACHINES]
    except CodecError:
        return []
