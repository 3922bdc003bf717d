# SPDX-License-Identifier: Apache-2.0
"""
Why, in the history of pods and nodes: Events, each piece of news once in a while, and never so many that they hurt.

Decides what is said again and what is dropped. An Event that cannot be written is logged: nothing rests on it.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from isolation.contract.names import AUTOSCALER
from isolation.kube.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from isolation.kube.access import Access

log = logging.getLogger(__name__)
AGAIN_SECONDS: Final = 600.0
"""The same event about the same object is not repeated sooner."""
BURST: Final = 50
A_SECOND: Final = 5.0
_MAX_KNOWN: Final = 10_000
_LONGEST_NOTE: Final = 1000  # the API's bound is 1 KiB
_LONGEST_NAME: Final = 200
_SECONDS: Final = 2.0


class Recorder:
    """Writes Events as one identity."""

    def __init__(self, access: Access, me: str, allowed: Callable[[], str], steady: Callable[[], float]) -> None:
        self._access, self._me, self._allowed, self._steady = access, me, allowed, steady
        self._sent: dict[tuple[str, ...], float] = {}
        self._left, self._filled = float(BURST), steady()
        self.dropped = 0
        """Events that were not written: too many at once, or the server would not."""

    async def node(self, name: str, uid: str, reason: str, note: str, *, warning: bool = False) -> None:
        """One line in a node's history."""
        about = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid or name}
        await self._say("default", about, reason, note, "Warning" if warning else "Normal")

    async def pod(self, key: str, uid: str, reason: str, note: str, *, warning: bool = False) -> None:
        """One line in a pod's history; `key` is namespace/name."""
        namespace, _, name = key.partition("/")
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        await self._say(namespace, about, reason, note, "Warning" if warning else "Normal")

    async def _say(self, namespace: str, about: dict[str, str], reason: str, note: str, kind: str) -> None:
        # in this order: an event that may not be written now does not count as written
        if self._allowed() or not self._news((about["kind"], about["uid"], reason, note)):
            return
        if not self._room():
            self.dropped += 1
            return
        path = f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
        try:
            await self._access.send("POST", path, self._body(namespace, about, reason, note, kind), seconds=_SECONDS)
        except ClusterError as exc:
            self.dropped += 1
            log.info("cannot write Event %s for %s: %s", reason, about["name"], exc)

    def _body(self, namespace: str, about: dict[str, str], reason: str, note: str, kind: str) -> dict[str, Any]:
        now = dt.datetime.now(dt.UTC)
        short = about["name"][:_LONGEST_NAME].rstrip(".-").replace("/", "-")
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{short}.{int(now.timestamp() * 1e6):x}", "namespace": namespace},
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": AUTOSCALER,
            "reportingInstance": self._me[:128],
            "action": reason,
            "reason": reason,
            "note": note.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
            "type": kind,
            "regarding": about,
        }

    def _news(self, what: tuple[str, ...]) -> bool:
        now = self._steady()
        if len(self._sent) >= _MAX_KNOWN:
            self._sent = {key: at for key, at in self._sent.items() if now - at < AGAIN_SECONDS}
            if len(self._sent) >= _MAX_KNOWN:
                self._sent.clear()
        if now - self._sent.get(what, float("-inf")) < AGAIN_SECONDS:
            return False
        self._sent[what] = now
        return True

    def _room(self) -> bool:
        now = self._steady()
        self._left = min(float(BURST), self._left + (now - self._filled) * A_SECOND)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
