# SPDX-License-Identifier: Apache-2.0
"""
Loads and saves the controller's state: one ConfigMap, read when leadership begins, written after each cycle.

Decides that nobody's write is overwritten unseen, and for how long nothing is done after the state was lost or another
client wrote it. What the state is and how it is written, `state` knows.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from autoscaler.core.state import AutoscalerState
from autoscaler.kube.state import MAX_TEXT, ControllerState, decode, encode, merge_memories
from isolation.contract.codec.cursor import CodecError
from isolation.contract.names import AUTOSCALER_STATE
from isolation.kube.core.errors import ClusterError, ConflictError, MalformedError, NotFoundError
from isolation.kube.writes import decode_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from isolation.kube.access import Access

log = logging.getLogger(__name__)
NAME: Final = AUTOSCALER_STATE
KEY: Final = "state.json"
QUIET_SECONDS: Final = 60.0
"""After the state was lost: time in which somebody can look before anything is done."""
_SECONDS: Final = 5.0


class Saved(StrEnum):
    """What became of a write."""

    DONE = "done"
    SAME = "same"
    """Nothing has changed since the last one."""
    CONFLICT = "conflict"
    """Another client wrote meanwhile; nothing was written: read again."""


class StateConfigMap:
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

    async def load(self, now: float) -> ControllerState | None:
        """The saved state; None where there is none. CodecError where it cannot be used (a save replaces it)."""
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

    async def save(self, state: ControllerState) -> Saved:
        """Write it over exactly what was read or written last."""
        text = encode(state)
        if text == self._text:
            return Saved.SAME
        if len(text) > MAX_TEXT:
            raise MalformedError(f"saved state has {len(text)} characters: the maximum is {MAX_TEXT}")
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


class StateStore:
    """Loads the state once for each right to act, and saves it under the version that was read."""

    def __init__(self, store: StateConfigMap, steady: Callable[[], float]) -> None:
        self._store, self._steady = store, steady
        self.epoch: int | None = None
        """Of the right to act for which it has been read; None: for none."""
        self._trouble, self._paused_until = "", 0.0
        self._overwritten = False
        """Whether what we wrote was written over by somebody else: then both count."""

    def trouble(self) -> str:
        """Why nothing may be done because of it; empty: nothing of this kind is in the way."""
        return self._trouble if self.epoch is None or self._steady() < self._paused_until else ""

    async def load(self, epoch: int, ours: ControllerState, now: float) -> ControllerState | None:
        """The saved state, read once for each right to act (`epoch`); None: go on with ours. Never an error."""
        if epoch == self.epoch:
            return None
        try:
            found = await self._store.load(now)
        except ClusterError as exc:
            self._trouble = f"cannot read saved state {self._store.where}: {exc}; no actions are taken"
            return None
        except CodecError as exc:
            why = f"saved state {self._store.where} is corrupt: starting from empty state: {exc}"
            log.error("%s", why)  # noqa: TRY400 (the text says it all)
            self._pause(why, QUIET_SECONDS)
            self._take_over(epoch, "nothing")
            # whatever was evicted and bought in the last hour is not known: nothing is drained for a while
            return ControllerState(AutoscalerState(last_add=now))
        overwritten = self._overwritten
        self._take_over(epoch, "nothing" if found is None else "read")
        if found is None:
            return None
        return replace(ours, memory=merge_memories(ours.memory, found.memory)) if overwritten else found

    def _take_over(self, epoch: int, what: str) -> None:
        self.epoch, self._overwritten = epoch, False
        log.info("acting as leader: epoch=%d, saved state=%s", epoch, what)

    def _pause(self, why: str, seconds: float) -> None:
        self._trouble = f"{why}; no actions are taken for {seconds:.0f} s"
        self._paused_until = self._steady() + seconds

    async def save(self, state: ControllerState, quiet_seconds: float) -> str:
        """The outcome, as the metric has it, empty where nothing has changed; after trouble no actions for so long."""
        try:
            saved = await self._store.save(state)
        except ClusterError as exc:
            log.warning("cannot write saved state: %s", exc)
            self._pause(f"cannot write saved state: {exc}", quiet_seconds)
            return "failed"
        if saved is Saved.CONFLICT:
            why = f"another client wrote saved state {self._store.where}: reading it again"
            log.warning("%s", why)
            self._pause(why, quiet_seconds)
            self.epoch, self._overwritten = None, True
        return "" if saved is Saved.SAME else saved.value


def _version_of(found: dict[str, Any]) -> str:
    meta = found.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    if not isinstance(version, str) or not version:
        raise MalformedError("ConfigMap has no resourceVersion")
    return version
