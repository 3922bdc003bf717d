# SPDX-License-Identifier: Apache-2.0
"""
What can enforce promises on a node, what each way holds, and which one a node uses.

Pure. A node mode asks for abilities, not for a product. A choice (`Backend`) is made of one or more enforcers: the
kernel limits memory, and the library limits compute and managed memory beside it. Whether a backend works on a machine
is found out elsewhere; here it is a reason, or none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from isolation.contract.model import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T", bound=StrEnum)


class Memory(StrEnum):
    """How a memory limit holds."""

    HARD = "hard"
    """An allocation beyond the promise fails."""
    SOFT = "soft"
    """It may succeed while others do not need the memory; then the process is ended."""
    NONE = "none"


class ComputeLimit(StrEnum):
    """How a compute limit holds."""

    EXACT = "exact"
    """The share of GPU time that was granted."""
    CEILING = "ceiling"
    """Never more than granted; less where neighbours use the same multiprocessors."""
    NONE = "none"


class Counts(StrEnum):
    """What is counted as memory."""

    ALL = "all"
    """All device memory, whoever allocates it and however; managed memory is not device memory."""
    CUDA = "cuda"
    """What is allocated through the CUDA driver API, managed memory included."""
    NOTHING = "nothing"


class Faults(StrEnum):
    """Whom a fault of one container hits."""

    OWN = "own"
    SHARED = "shared"
    """Every container on the card."""


class Bypass(StrEnum):
    """How a program gets around a limit; the text is for people."""

    UNLOADED = "a program that does not load the library (static, musl, own loader, raw driver calls)"
    MANAGED = "managed memory"
    ENVIRONMENT = "a program that changes its environment"
    PROCESSES = "several processes"


Ways = frozenset[frozenset[Bypass]]
"""Ways around a limit; each is everything that a program must do at once. Empty: none is known."""
_NO_WAY: Final[Ways] = frozenset()
_ANY_WAY: Final[Ways] = frozenset({frozenset()})
"""Nothing has to be done: there is no limit."""


def _ways(*ways: Bypass) -> Ways:
    return frozenset(frozenset({one}) for one in ways)


class Enforcer(StrEnum):
    """What can hold a limit."""

    LIBRARY = "library"
    KERNEL = "kernel"
    MPS = "mps"
    MIG = "mig"


@dataclass(frozen=True, slots=True)
class Need:
    """What a node mode promises."""

    memory: bool = False
    """No allocation beyond the promise."""
    compute: bool = False
    only: str = ""
    """The one backend that serves the mode; empty: whichever holds the rest."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a backend holds. `a + b`: both at work in the same container."""

    memory: Memory = Memory.NONE
    compute: ComputeLimit = ComputeLimit.NONE
    memory_bypass: Ways = _ANY_WAY
    compute_bypass: Ways = _ANY_WAY
    counts: Counts = Counts.NOTHING
    faults: Faults = Faults.OWN

    def __add__(self, other: Abilities) -> Abilities:
        return Abilities(
            memory=_first(Memory, self.memory, other.memory),
            compute=_first(ComputeLimit, self.compute, other.compute),
            memory_bypass=_both(self.memory_bypass, other.memory_bypass),
            compute_bypass=_both(self.compute_bypass, other.compute_bypass),
            counts=_first(Counts, self.counts, other.counts),
            faults=Faults.SHARED if Faults.SHARED in {self.faults, other.faults} else Faults.OWN,
        )

    def lacks(self, need: Need) -> str:
        """What of it is not held, for people; empty: all is."""
        if need.memory and self.memory is not Memory.HARD:
            return f"no hard memory limit (memory: {self.memory})"
        if need.compute and self.compute is ComputeLimit.NONE:
            return "no compute limit"
        return ""


NEEDS: Final = MappingProxyType(
    {
        Mode.CGPU: Need(memory=True),
        Mode.CORE_MEM: Need(memory=True, compute=True),
        Mode.MPS: Need(memory=True, compute=True, only=Enforcer.MPS.value),
    }
)
"""Modes that are not here promise nothing."""


def need_of(mode: Mode) -> Need:
    """What a node of that mode must hold."""
    return NEEDS.get(mode, Need())


ABILITIES: Final = MappingProxyType(
    {
        Enforcer.LIBRARY: Abilities(
            Memory.HARD, ComputeLimit.EXACT, _ways(Bypass.UNLOADED), _ways(Bypass.UNLOADED), Counts.CUDA
        ),
        # NVIDIA, "MPS v3 Memory Partitioning": all device memory; managed memory only as system memory.
        Enforcer.KERNEL: Abilities(Memory.HARD, memory_bypass=_ways(Bypass.MANAGED), counts=Counts.ALL),
        # NVIDIA, "Multi-Process Service": limits of each process, by variables of the client below the server's.
        Enforcer.MPS: Abilities(
            Memory.HARD,
            ComputeLimit.CEILING,
            _ways(Bypass.ENVIRONMENT, Bypass.PROCESSES),
            _ways(Bypass.ENVIRONMENT, Bypass.PROCESSES),
            Counts.CUDA,
            Faults.SHARED,
        ),
        # Of an instance against its neighbours: shares inside it are the library's.
        Enforcer.MIG: Abilities(),
    }
)


@dataclass(frozen=True, slots=True)
class Backend:
    """What a node may use, by the name that stands in its label, in options and in metrics."""

    name: str
    parts: tuple[Enforcer, ...] = ()
    automatic: bool = True
    """Whether a node uses it without being told to."""
    compute: Enforcer | None = None
    """The one part that limits compute, the others' limits are off; None: they hold together what each of them does."""

    @property
    def abilities(self) -> Abilities:
        """What its parts hold together."""
        held: Abilities = reduce(lambda a, b: a + b, (ABILITIES[part] for part in self.parts), Abilities())
        if self.compute is None:
            return held
        its = ABILITIES[self.compute]
        return replace(held, compute=its.compute, compute_bypass=its.compute_bypass)

    @property
    def sentence(self) -> str:
        """What it holds, for people."""
        held = self.abilities
        if not self.parts:
            return "nothing is enforced"
        memory = f"memory {held.memory}, counting {_COUNTED[held.counts]}, bypassed by {_text(held.memory_bypass)}"
        compute = f"compute {held.compute}"
        if held.compute is not ComputeLimit.NONE:
            compute += f", bypassed by {_text(held.compute_bypass)}"
        faults = (
            "faults stay in the container" if held.faults is Faults.OWN else "faults hit every container of the card"
        )
        return f"{' and '.join(self.parts)}: {memory}; {compute}; {faults}"


NONE: Final = Backend("none", automatic=False)
LIBRARY: Final = Backend("library", (Enforcer.LIBRARY,))
KERNEL: Final = Backend("kernel", (Enforcer.KERNEL, Enforcer.LIBRARY))
MIG: Final = Backend("mig", (Enforcer.MIG, Enforcer.LIBRARY), compute=Enforcer.MIG)
MPS: Final = Backend("mps", (Enforcer.MPS, Enforcer.LIBRARY), automatic=False, compute=Enforcer.MPS)
"""A fault of one client hits all, so only in the mode of that name."""
BACKENDS: Final = MappingProxyType({one.name: one for one in (KERNEL, MIG, LIBRARY, MPS, NONE)})
"""The best first."""
AUTO: Final = "auto"
"""In place of a name: the best that works and holds what the node's mode promises."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """What a node uses, or why it can promise nothing."""

    backend: Backend | None
    reason: str = ""
    """Why there is none, or why a better one is not used; empty: the best there is."""


def choose(wanted: str, need: Need, found: Mapping[str, str]) -> BackendChoice:
    """
    What a node uses.

    `wanted`: a name or `AUTO`; `found`: why a backend does not work here, by name; empty: it does; no entry: nobody
    looked, so it holds nothing. A named backend is never replaced by another one.
    """
    if need.only and wanted == AUTO:
        wanted = need.only
    if wanted != AUTO:
        named = BACKENDS.get(wanted)
        if named is None:
            return BackendChoice(None, f"backend {wanted[:63]!r} is unknown: use one of {AUTO}, {', '.join(BACKENDS)}")
        why = _mismatch(named, need) or _obstacle(named, found) or named.abilities.lacks(need)
        return BackendChoice(None, f"backend {wanted} cannot be used here: {why}") if why else BackendChoice(named)
    if need == Need():
        return BackendChoice(NONE)
    passed: list[str] = []
    for one in BACKENDS.values():
        if not one.automatic:
            continue
        why = _obstacle(one, found) or one.abilities.lacks(need)
        if not why:
            return BackendChoice(one, "; ".join(passed))
        passed.append(f"{one.name}: {why}")
    return BackendChoice(None, f"nothing here holds what the node's mode promises ({'; '.join(passed)})")


def _obstacle(one: Backend, found: Mapping[str, str]) -> str:
    """Why it does not work here; empty: it does. One that was not looked at does not, unless it does nothing."""
    return found.get(one.name, "" if one is NONE else "whether it works here is not known")


def _mismatch(named: Backend, need: Need) -> str:
    """Why the backend does not go with the mode; empty: it does."""
    if named.name == need.only or Enforcer.MPS.value not in {named.name, need.only}:
        return ""
    return "it serves node mode mps alone" if named is MPS else "node mode mps is served by backend mps alone"


_COUNTED: Final = MappingProxyType(
    {
        Counts.ALL: "all device memory",
        Counts.CUDA: "what the CUDA driver API allocates",
        Counts.NOTHING: "nothing",
    }
)


def _first(kind: type[_T], one: _T, other: _T) -> _T:
    """The stronger one: members stand in that order."""
    return next(member for member in kind if member in {one, other})


def _both(one: Ways, other: Ways) -> Ways:
    """Who gets around both has done something of each; a way that contains another one is no way of its own."""
    pairs = frozenset(a | b for a in one for b in other)
    return frozenset(way for way in pairs if not any(less < way for less in pairs))


def _text(ways: Ways) -> str:
    return ", or ".join(sorted(" with ".join(sorted(way)) for way in ways)) or "nothing known"
