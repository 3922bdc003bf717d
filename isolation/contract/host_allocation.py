# SPDX-License-Identifier: Apache-2.0
"""
A hold as it stands on disk: what a command or a container has of this machine's cards. Text in, values out.

Written by `gpushare run` and by the node agent, read by them and by the exporter. Knows no files and
does not say who lives. A text that is not exactly a hold of this format is refused: a hold that is
misread would be sold twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.abi import CARDS
from isolation.contract.model import FULL_CORE, MAX_UID, MAX_WEIGHT, Compute, ComputePolicy, Slice, Trust

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1
MAX_CHARS: Final = 1 << 20
MAX_NUMBER: Final = 1 << 50
"""A pebibyte: no true amount, time or number comes near it, and sums of thousands still fit 64 bits."""
MAX_PIDS: Final = 1 << 22
"""PID_MAX_LIMIT: linux/include/linux/threads.h."""
POLICIES: Final = frozenset(policy.value for policy in ComputePolicy)
_NO_POLICY: Final = ComputePolicy.NONE.value


def store_beside(hardware: Path) -> Path:
    """The folder with the allocations of `gpushare run` on simulated cards, which lies next to their hardware file."""
    return hardware.with_name(f"{hardware.name}.allocations")


class HostAllocationError(ValueError):
    """Text that is no hold of this format; the message says in which way."""


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """One process for all time (until the next boot)."""

    pid: int
    start: int
    """Clock ticks since boot: field 22 of /proc/<pid>/stat."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """The container of a pod to which a hold was given."""

    namespace: str
    pod: str
    uid: str
    container: str


@dataclass(frozen=True, slots=True)
class HostAllocation:
    """What one command or container holds."""

    id: str
    """The promise id: also in the limits file, the region and the command's environment."""
    name: str
    boot: str
    """Boot in which it was made; nothing outlives a boot."""
    created: float
    """Seconds since the epoch."""
    uid: int
    runner: Process
    """The `gpushare run` or node agent that made it."""
    command: tuple[str, ...]
    slices: tuple[Slice, ...]
    policy: str
    """How compute is shared (`isolation.contract.model.ComputePolicy`)."""
    owner: str = ""
    """Name that was given by hand: runs of one name are replicas of each other."""
    online: bool = False
    cgroup: str = ""
    tenant: Tenant | None = None
    """None: a command of `gpushare run`."""
    weight: int = 0
    ceiling: int = 0
    """See `Compute`, these two."""
    enforced: bool = True
    """Whether the library enforces anything; policy `none` may still have its memory enforced."""
    trust: Trust | None = None
    """Beside whom it may be under MPS."""

    @property
    def compute(self) -> Compute:
        """How its compute is shared."""
        return Compute(ComputePolicy(self.policy), self.online, self.weight, self.ceiling)

    @property
    def core(self) -> int:
        """Percent of compute on each card; 0: none was promised."""
        return self.slices[0].core


def dump(hold: HostAllocation) -> str:
    """The hold as it stands on disk."""
    record = {
        "format": FORMAT,
        "id": hold.id,
        "name": hold.name,
        "boot": hold.boot,
        "created": hold.created,
        "uid": hold.uid,
        "runner": [hold.runner.pid, hold.runner.start],
        "command": list(hold.command),
        "cards": [{"uuid": s.uuid, "index": s.index, "bytes": s.bytes, "core": s.core} for s in hold.slices],
        "policy": hold.policy,
        "owner": hold.owner,
        "online": hold.online,
        "cgroup": hold.cgroup,
        "weight": hold.weight,
        "ceiling": hold.ceiling,
        "enforced": hold.enforced,
    }
    if hold.tenant is not None:
        tenant = hold.tenant
        record["pod"] = [tenant.namespace, tenant.pod, tenant.uid, tenant.container]
    if hold.trust is not None:
        record["trust"] = [hold.trust.group, hold.trust.uid]
    return json.dumps(record) + "\n"


def load(text: str) -> HostAllocation:
    """The hold that `dump` wrote."""
    if len(text) > MAX_CHARS:
        raise HostAllocationError("file is too large")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise HostAllocationError("invalid JSON: truncated or overwritten") from None
    if not isinstance(record, dict):
        raise HostAllocationError("not an allocation")
    if record.get("format") != FORMAT:
        raise HostAllocationError(f"format {str(record.get('format'))[:20]} is not supported, only format {FORMAT} is")
    return HostAllocation(
        id=_name(record, "id"),
        name=_text(record, "name"),
        boot=_name(record, "boot"),
        created=_time(record, "created"),
        uid=_count(record, "uid"),
        runner=_process(_of(record, "runner", list)),
        command=tuple(_word(word) for word in _of(record, "command", list)),
        slices=_slices(_of(record, "cards", list)),
        policy=_policy(record),
        owner=_text(record, "owner"),
        online=_of(record, "online", bool),
        cgroup=_path(record, "cgroup"),
        tenant=_tenant(_of(record, "pod", list)) if "pod" in record else None,
        weight=_small(record, "weight", MAX_WEIGHT),
        ceiling=_small(record, "ceiling", FULL_CORE),
        # Holds of before these three were written: policy none enforced nothing.
        enforced=_of(record, "enforced", bool) if "enforced" in record else _policy(record) != _NO_POLICY,
        trust=_trust(_of(record, "trust", list)) if "trust" in record else None,
    )


def _of(record: dict[str, Any], key: str, kind: Any) -> Any:
    value = record.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise HostAllocationError(f"{key} is missing or not of type {getattr(kind, '__name__', 'number')}")
    return value


def _text(record: dict[str, Any], key: str) -> str:
    return str(_of(record, key, str))


def _name(record: dict[str, Any], key: str) -> str:
    """What stands in paths, environments and tables."""
    value = _text(record, key)
    if not value.isascii() or not value.isprintable():
        raise HostAllocationError(f"{key} is not a printable ASCII name")
    return value


def _path(record: dict[str, Any], key: str) -> str:
    value = _text(record, key)
    if not value.isprintable():  # NUL and lone surrogates are no path
        raise HostAllocationError(f"{key} is not a valid path")
    return value


def _policy(record: dict[str, Any]) -> str:
    value = _text(record, "policy")
    if value not in POLICIES:
        raise HostAllocationError(f"unknown policy {value[:20]!r}")
    return value


def _time(record: dict[str, Any], key: str) -> float:
    value: int | float = _of(record, key, float | int)
    if not 0 <= value < MAX_NUMBER:  # no NaN either
        raise HostAllocationError(f"{key} is not a valid time")
    return float(value)


def _count(record: dict[str, Any], key: str) -> int:
    value = int(_of(record, key, int))
    if not 0 <= value < MAX_NUMBER:
        raise HostAllocationError(f"{key} is negative or too large")
    return value


def _small(record: dict[str, Any], key: str, most: int) -> int:
    """A number that a hold of an earlier version does not have."""
    if key not in record:
        return 0
    value = _count(record, key)
    if value > most:
        raise HostAllocationError(f"{key} is out of range")
    return value


def _word(word: object) -> str:
    if not isinstance(word, str):
        raise HostAllocationError("command contains an element that is not a string")
    return word


def _process(pair: list[Any]) -> Process:
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) for n in pair):  # noqa: PLR2004 (a pair)
        raise HostAllocationError("runner is not a pair of PID and start time")
    pid, started = pair
    if not 0 < pid <= MAX_PIDS or not 0 <= started < MAX_NUMBER:
        raise HostAllocationError("runner is not a valid process")
    return Process(pid, started)


def _tenant(words: list[Any]) -> Tenant:
    if len(words) != 4 or not all(isinstance(word, str) and word.isprintable() for word in words):  # noqa: PLR2004 (the four names)
        raise HostAllocationError("pod is not a list of namespace, name, UID and container")
    return Tenant(*words)


def _trust(words: list[Any]) -> Trust:
    match words:
        case [str(group), int(uid)] if group.isprintable() and group and 0 <= uid <= MAX_UID:
            return Trust(group, uid)
    raise HostAllocationError("trust is not a pair of group and user")


def _slices(cards: list[Any]) -> tuple[Slice, ...]:
    if not 0 < len(cards) <= CARDS or not all(isinstance(card, dict) for card in cards):
        raise HostAllocationError("cards are missing or too many")
    found = tuple(
        Slice(_name(card, "uuid"), _count(card, "index"), _count(card, "bytes"), _count(card, "core")) for card in cards
    )
    if len({part.uuid for part in found}) != len(found):
        raise HostAllocationError("two entries for one card")
    if any(not part.bytes or part.core > FULL_CORE for part in found):
        raise HostAllocationError("memory or compute is out of range")
    return found
