# SPDX-License-Identifier: Apache-2.0
"""
What outlives the process: the deciders' memory and what the world keeps, as text in one ConfigMap.

Decides how it is written, what is believed of it when it is read, and that nobody's write is overwritten unseen.
What is there is a stranger's word until checked: times in the future are now, amounts are bounded, and what cannot
be read at all is said and forgotten, never a crash.

    data["state.json"] = {"version": 1, "epoch": 7, "memory": {"unneeded": {"node": t}, "last_add": t, "moves": [t],
      "moved": {"owner": t}, "closed": {"pool": [until, seconds]}, "refused": {"owner": [until, seconds]},
      "hot": {"uuid": t}, "defragmenting": false}, "kept": {<as `autoscaler.kube.persisted` writes it>}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from autoscaler.core.state import AutoscalerState, Backoff
from autoscaler.kube.persisted import Kept, kept_of
from isolation.contract.codec.cursor import At, CodecError, decoded, show
from isolation.contract.names import AUTOSCALER_STATE
from isolation.kube.core.errors import ConflictError, MalformedError, NotFoundError
from isolation.kube.writes import decode_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.kube.access import Access

VERSION: Final = 1
NAME: Final = AUTOSCALER_STATE
KEY: Final = "state.json"
MOST_TEXT: Final = 960 << 10
"""A ConfigMap holds 1 MiB."""
_MOST_ENTRIES: Final = 20_000
_LONGEST_REST: Final = 86_400.0
_LATEST: Final = 1e12
"""Seconds since the epoch that no clock shows."""
_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was written, as far as it is believed."""

    memory: AutoscalerState = field(default_factory=AutoscalerState)
    kept: Kept = field(default_factory=Kept)
    epoch: int = 0
    """Of the leader that wrote it."""


def encode(remembered: Remembered) -> str:
    """
    As one line of JSON, the same for the same memory.

    Where there is not room enough it is without who waits for which machine, then without machines and profiles.
    """
    kept = remembered.kept
    for less in (kept, replace(kept, homes={}), replace(kept, homes={}, machines={})):
        text = _encoded(replace(remembered, kept=less))
        if len(text) <= MOST_TEXT:
            return text
    return _encoded(replace(remembered, kept=Kept()))


def _encoded(remembered: Remembered) -> str:
    memory = remembered.memory
    shown = {
        "unneeded": _times(memory.unneeded),
        "last_add": round(memory.last_add, 3) if isfinite(memory.last_add) else None,
        "moves": [round(at, 3) for at in memory.moves[-_MOST_ENTRIES:]],
        "removals": [round(at, 3) for at in memory.removals[-_MOST_ENTRIES:]],
        "moved": _times(memory.moved),
        "closed": _rests(memory.closed),
        "refused": _rests(memory.refused),
        "hot": _times(memory.hot),
        "defragmenting": memory.defragmenting,
    }
    whole = {"version": VERSION, "epoch": remembered.epoch, "memory": shown, "kept": remembered.kept.shown()}
    return json.dumps(whole, separators=(",", ":"), sort_keys=True)


def decode(text: str, now: float) -> Remembered:
    """What was remembered; CodecError where it is none of ours, or broken."""
    if len(text) > MOST_TEXT:
        raise CodecError((), f"saved state has {len(text)} characters: the maximum is {MOST_TEXT}")
    at = decoded(text)
    if at["version"].integer(0) != VERSION:
        raise at["version"].wrong(
            f"unsupported version {show(at['version'].value)}; this program reads version {VERSION}"
        )
    memory = at["memory"]
    moves = memory["moves"].items()
    if len(moves) > _MOST_ENTRIES:
        raise memory["moves"].wrong(f"{len(moves)} entries: the maximum is {_MOST_ENTRIES}")
    removals = memory["removals"].items()
    if len(removals) > _MOST_ENTRIES:
        raise memory["removals"].wrong(f"{len(removals)} entries: the maximum is {_MOST_ENTRIES}")
    last_add = memory["last_add"]
    return Remembered(
        AutoscalerState(
            unneeded=_times_at(memory["unneeded"], now),
            last_add=_time_at(last_add, now) if last_add else float("-inf"),
            moves=tuple(_time_at(each, now) for each in moves),
            removals=tuple(_time_at(each, now) for each in removals),
            moved=_times_at(memory["moved"], now),
            closed=_rests_at(memory["closed"], now),
            refused=_rests_at(memory["refused"], now),
            hot=_times_at(memory["hot"], now),
            defragmenting=memory["defragmenting"].flag(),
        ),
        _kept_at(at["kept"], now),
        at["epoch"].integer(0, 0, 1 << 62),
    )


def _kept_at(at: At, now: float) -> Kept:
    kept = kept_of(at)
    machines = {name: replace(one, since=min(max(0.0, one.since), now)) for name, one in kept.machines.items()}
    return replace(kept, machines=machines)


class Saved(StrEnum):
    """What became of a write."""

    DONE = "done"
    SAME = "same"
    """Nothing has changed since the last one."""
    CONFLICT = "conflict"
    """Somebody else wrote meanwhile; nothing was done, read anew."""


class StateStore:
    """One ConfigMap, read and written under its version; errors of the cluster are raised."""

    def __init__(self, access: Access, namespace: str, name: str = NAME) -> None:
        self._access = access
        self.where = f"ConfigMap {namespace}/{name}"
        self._name = name
        self._all = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._one = f"{self._all}/{quote(name, safe='')}"
        self._version: str | None = None
        """None: there was none when it was last looked at."""
        self._text: str | None = None

    async def load(self, now: float) -> Remembered | None:
        """What is remembered; None where nothing is. CodecError where it cannot be believed (a save replaces it)."""
        self._version = self._text = None
        try:
            found = decode_object(await self._access.send("GET", self._one, seconds=_SECONDS))
        except NotFoundError:
            return None
        self._version = _version_of(found)
        data = found.get("data") or {}
        text = data.get(KEY) if isinstance(data, dict) else None
        if text is None:
            if data:
                raise CodecError((), f"key {KEY} is missing: the ConfigMap belongs to another application")
            return None
        if not isinstance(text, str):
            raise CodecError((KEY,), "not a string")
        try:
            return decode(text, now)
        except CodecError as exc:
            raise exc.under((KEY,)) from None

    async def save(self, remembered: Remembered) -> Saved:
        """Write it over exactly what was read or written last."""
        text = encode(remembered)
        if text == self._text:
            return Saved.SAME
        if len(text) > MOST_TEXT:
            raise MalformedError(f"saved state has {len(text)} characters: the maximum is {MOST_TEXT}")
        meta: dict[str, Any] = {"name": self._name}
        body: dict[str, Any] = {"metadata": meta, "data": {KEY: text}}
        try:
            if self._version is None:
                body |= {"apiVersion": "v1", "kind": "ConfigMap"}
                answer = await self._access.send("POST", self._all, body, seconds=_SECONDS)
            else:
                meta["resourceVersion"] = self._version
                answer = await self._access.send("PATCH", self._one, body, "merge-patch", _SECONDS)
        except (ConflictError, NotFoundError):
            return Saved.CONFLICT
        self._version, self._text = _version_of(decode_object(answer)), text
        return Saved.DONE


def _times(times: Mapping[str, float]) -> dict[str, float]:
    """The latest of them, as many as are kept."""
    latest = sorted(times.items(), key=lambda entry: (-entry[1], entry[0]))[:_MOST_ENTRIES]
    return {name: round(at, 3) for name, at in sorted(latest)}


def _rests(rests: Mapping[str, Backoff]) -> dict[str, list[float]]:
    latest = sorted(rests.items(), key=lambda entry: (-entry[1].until, entry[0]))[:_MOST_ENTRIES]
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
    if len(entries) > _MOST_ENTRIES:
        raise at.wrong(f"{len(entries)} entries: the maximum is {_MOST_ENTRIES}")
    return entries


def _time_at(at: At, now: float) -> float:
    return min(_number(at), now)


def _number(at: At) -> float:
    value = at.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST:
        raise at.wrong(f"{show(value)} is not a number of seconds")
    return float(value)


def _version_of(found: dict[str, Any]) -> str:
    meta = found.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    if not isinstance(version, str) or not version:
        raise MalformedError("ConfigMap has no resourceVersion")
    return version
