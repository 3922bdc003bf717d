# SPDX-License-Identifier: Apache-2.0
"""
The switch in the cluster: one ConfigMap that stops the autoscaler, or has it only say what it would do.

    kubectl -n gpushare-system create configmap gpushare-autoscaler --from-literal=enabled=false

Decides what its words mean. Without the ConfigMap, or without a key, it is as the options say. A word that is not
understood, a key that may be a misspelt one, and a ConfigMap that cannot be read all mean: do nothing, and say so.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from isolation.contract.codec.cursor import show
from isolation.contract.names import AUTOSCALER
from isolation.kube.core.errors import ClusterError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from isolation.kube.access import Access

log = logging.getLogger(__name__)
NAME: Final = AUTOSCALER
ENABLED: Final = "enabled"
DRY_RUN: Final = "dryRun"
LOOK_SECONDS: Final = 2.0
"""Between two looks; a step under way is carried to its end, the next one is not begun."""
READ_SECONDS: Final = 4.0
OLD_SECONDS: Final = 15.0
"""What was read so long ago may not be so any more."""
_WORDS: Final = {"true": True, "false": False}
_MAX_SAID: Final = 5


@dataclass(frozen=True, slots=True)
class Position:
    """What the switch says."""

    enabled: bool | None = None
    """None: it does not say."""
    dry_run: bool | None = None
    problem: str = ""
    """Why it cannot be followed; then nothing is done."""


def position_of(data: Mapping[str, object]) -> Position:
    """The ConfigMap's `data`; keys with a dot are files that share it."""
    strange = [key for key in data if key not in (ENABLED, DRY_RUN) and "." not in key]
    problems = [f"unknown key {show(key)}; known keys: {ENABLED}, {DRY_RUN}" for key in strange[:_MAX_SAID]]
    found: dict[str, bool | None] = {}
    for key in (ENABLED, DRY_RUN):
        word = data.get(key)
        found[key] = _WORDS.get(word.strip().lower()) if isinstance(word, str) else None
        if word is not None and found[key] is None:
            problems.append(f'{key} is {show(word)}; write "true" or "false"')
    return Position(found[ENABLED], found[DRY_RUN], "; ".join(problems))


class Switch:
    """The latest position; `run` until cancelled."""

    def __init__(self, access: Access, namespace: str, clock: Callable[[], float], name: str = NAME) -> None:
        """`clock` is one that nobody can set."""
        self._access, self._clock = access, clock
        self.where = f"ConfigMap {namespace}/{name}"
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
        self._position = Position(problem="not read yet")
        self._read_at: float | None = None

    def position(self) -> Position:
        """As last read; too long ago is a problem of its own."""
        if self._read_at is not None and self._clock() - self._read_at > OLD_SECONDS:
            return Position(problem=f"unreadable for {self._clock() - self._read_at:.0f} s")
        return self._position

    async def look(self) -> None:
        """Read it once; what goes wrong stands in the position."""
        try:
            text = await self._access.send("GET", self._path, seconds=READ_SECONDS)
        except NotFoundError:
            self._read_at = self._clock()
            self._say(Position())
            return
        except RefusedError as exc:
            self._say(Position(problem=f"the API server refused the read: {exc}"))
            return
        except ClusterError as exc:
            if self._read_at is None:
                self._say(Position(problem=f"cannot read it: {exc}"))
            return
        self._read_at = self._clock()
        self._say(_position(text))

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def _say(self, position: Position) -> None:
        if position != self._position:
            text = position.problem or f"enabled={_show(position.enabled)}, dryRun={_show(position.dry_run)}"
            log.log(logging.WARNING if position.problem else logging.INFO, "switch %s: %s", self.where, text)
        self._position = position


def _show(word: bool | None) -> str:  # noqa: FBT001 (a value to be shown)
    return "unset" if word is None else str(word).lower()


def _position(text: bytes) -> Position:
    try:
        data = json.loads(text).get("data") or {}
    except (ValueError, AttributeError, RecursionError):
        return Position(problem="response is not a ConfigMap")
    return position_of(data) if isinstance(data, dict) else Position(problem="data is not a mapping")
