# SPDX-License-Identifier: Apache-2.0
"""
A pod of this node as the agent sees it, from the API server's JSON.

Pure. Decides what of a pod's words the agent believes: its record, its containers in the kubelet's order,
and from the status which of them have ended. A record that cannot be read is none: such a pod does not start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.codec import CodecError, decode_allocation
from isolation.contract.codec.cursor import At
from isolation.contract.names import ACK, ALLOCATION, Dialect
from isolation.contract.quantity import QuantityError, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.codec import Allocation
    from isolation.contract.model import Resize, Slice

MAX_UNITS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """A container that asks for units of shared memory."""

    name: str
    units: int
    init: bool = False
    """It ends before the pod's app containers start (a sidecar does not)."""
    done: bool = False
    """It is an init container and has ended well."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod that is bound to this node and asks for shares, as the API server says."""

    uid: str
    name: str
    namespace: str
    wanted: tuple[Wanted, ...]
    allocation: Allocation | None
    """Our record; None: there is none that can be read."""

    @property
    def resize(self) -> Resize | None:
        """The latest change of its record; None: it was never changed."""
        return self.allocation.resize if self.allocation is not None else None

    def extra(self, *, smaller: bool) -> tuple[int, int]:
        """
        Bytes and percent of compute by which it holds less than its spec requests, over all its cards.

        Below 0: more. `smaller`: the smaller limits of a record that shrinks it are in force.
        """
        record = self.allocation
        if record is None or record.resize is None:
            return 0, 0
        each, core = record.requested
        held = record.slices
        if smaller:
            return len(held) * (each - record.resize.card_bytes), len(held) * (core - record.resize.card_core)
        return sum(each - one.bytes for one in held), sum(core - one.core for one in held)

    def container(self, name: str) -> Wanted | None:
        """One of them by name."""
        return next((one for one in self.wanted if one.name == name), None)

    def part(self, name: str) -> tuple[Slice, ...] | None:
        """What the record gives that container; None: nothing."""
        parts = self.allocation.parts if self.allocation else ()
        return next((part.slices for part in parts if part.container == name), None)


def bound_of(pod: object, *, dialect: Dialect = ACK) -> Bound:
    """One pod; CodecError where the JSON has the wrong shape."""
    at = At(pod)
    metadata, spec, status = at["metadata"], at["spec"], at["status"]
    seen = _statuses(status["initContainerStatuses"]) | _statuses(status["containerStatuses"])
    wanted = [_wanted(one, seen, dialect, first=True) for one in spec["initContainers"].items()]
    wanted += [_wanted(one, seen, dialect, first=False) for one in spec["containers"].items()]
    return Bound(
        uid=metadata["uid"].text(),
        name=metadata["name"].name(),
        namespace=metadata["namespace"].label_name("default"),
        wanted=tuple(one for one in wanted if one.units),
        allocation=_allocation(metadata["annotations"].texts(), metadata["uid"].text()),
    )


def _statuses(at: At) -> dict[str, At]:
    return {one["name"].text(): one for one in at.items()}


def _wanted(container: At, seen: Mapping[str, At], dialect: Dialect, *, first: bool) -> Wanted:
    name = container["name"].text()
    init = first and container["restartPolicy"].text() != "Always"
    status = seen.get(name, At(None))
    ended = status["state"]["terminated"]
    return Wanted(
        name=name,
        units=_units(container["resources"]["limits"][dialect.memory]),
        init=init,
        done=init and bool(ended) and ended["exitCode"].integer(0) == 0,
    )


def _units(amount: At) -> int:
    """0 for an amount that the API server would not have let pass."""
    if not amount:
        return 0
    try:
        value = parse(amount.value)
    except QuantityError:
        return 0
    return int(value) if value.denominator == 1 and 0 < value < MAX_UNITS else 0


def _allocation(annotations: Mapping[str, str], uid: str) -> Allocation | None:
    """The record, if it can be read and was made for this very pod: a copied one promises nothing."""
    try:
        found = decode_allocation(annotations[ALLOCATION]) if ALLOCATION in annotations else None
    except CodecError:
        return None
    return found if found is not None and found.promise == uid else None
