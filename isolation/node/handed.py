# SPDX-License-Identifier: Apache-2.0
"""
Whose turn it is within a pod, by what the kubelet must have handed on.

It admits one pod after the other and within a pod one container after the other; what a plain init container has it
gives to those after it before anything else (pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate). So who went
before are the last of nobody's entries, each fits what was left for it, and the devices of this call fit what is left
now. Pure. Does not decide which pod it is, nor what to do where nothing fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.node.book import Entry
    from isolation.node.world import Bound, Wanted

    Devices = frozenset[str]


@dataclass(frozen=True, slots=True)
class Call:
    """What the kubelet says of the container that it admits."""

    size: int
    ids: Devices
    """Its devices, or those that it must get, as far as the kubelet has chosen."""


def predecessors(
    pod: Bound, known: Mapping[str, Devices], shown: Mapping[str, Entry], nobodys: Sequence[Entry], call: Call
) -> dict[str, Entry] | None:
    """
    What containers of the pod were given just before this call, of which the book does not know it yet.

    `known`: whose devices are sure; `shown`: entries of containers that the kubelet shows with devices, and that are
    not known; `nobodys`: entries without an owner in order of allocation. By container's name; empty: the first that is
    not known is the one. None: nothing of the kind fits, or what went before is itself not known.
    """
    rest = [one for one in pod.wanted if one.name not in known]
    for turn in range(len(rest) - 1, -1, -1):
        if rest[turn].units != call.size or any(one.name in shown for one in rest[turn:]):
            continue
        given = _given(rest[:turn], shown, nobodys)
        if given is not None and _fits(pod, rest[turn], known, given, call.ids):
            return given
    return None


def _given(earlier: Sequence[Wanted], shown: Mapping[str, Entry], nobodys: Sequence[Entry]) -> dict[str, Entry] | None:
    """The last of nobody's entries for these, in their order; None: there are not as many, or not as large."""
    numbers = {entry.made for entry in nobodys}
    found = {one.name: shown[one.name] for one in earlier if one.name in shown}
    taken = [one for one in earlier if one.name not in found or found[one.name].made in numbers]
    if len(taken) > len(nobodys):
        return None
    for one, entry in zip(taken, nobodys[len(nobodys) - len(taken) :], strict=True):
        if found.setdefault(one.name, entry) != entry or len(entry.ids) != one.units:
            return None
        if one.name not in shown and not one.init:
            return None  # the kubelet would show it
    return found


def _fits(pod: Bound, one: Wanted, known: Mapping[str, Devices], given: Mapping[str, Entry], ids: Devices) -> bool:
    """Whether each of `given`, and `ids` for this container, agree with what the kubelet had left to hand on."""
    left: Devices = frozenset()
    for other in pod.wanted:
        if other == one:
            return _from(left, one.units, ids)
        if other.name in given:
            mine = given[other.name].ids
            if not _from(left, other.units, mine):
                return False
        else:
            mine = known[other.name]
        left = left | mine if other.init else left - mine
    return False


def _from(left: Devices, units: int, ids: Devices) -> bool:
    """Whether the kubelet, with this to hand on, gives these: nothing else where it is enough, else all of it."""
    return len(ids) == units and ids <= left if len(left) >= units else left <= ids
