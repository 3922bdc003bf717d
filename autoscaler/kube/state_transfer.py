# SPDX-License-Identifier: Apache-2.0
"""
What one leader leaves to the next: read when the right to act begins, written after each turn that changed it.

Decides what is believed, and how long nothing is done after something was lost or written by somebody else. Whether
there is a right to act at all is `app_hold`'s.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.state import AutoscalerState, Backoff
from autoscaler.kube.persisted import Kept
from autoscaler.kube.state_store import Remembered, Saved
from isolation.contract.codec.cursor import CodecError
from isolation.kube.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.kube.state_store import StateStore

log = logging.getLogger(__name__)
QUIET_SECONDS: Final = 60.0
"""After what was remembered was lost: time in which somebody can look before anything is done."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What to go on with."""

    memory: AutoscalerState
    kept: Kept | None
    """None: the world's own is as good."""


class Heritage:
    """See the module."""

    def __init__(self, store: StateStore, steady: Callable[[], float]) -> None:
        self._store, self._steady = store, steady
        self.epoch: int | None = None
        """Of the right to act for which it has been read; None: for none."""
        self._trouble, self._quiet_until = "", 0.0
        self._overwritten = False
        """Whether what we wrote was written over by somebody else: then both count."""

    def trouble(self) -> str:
        """Why nothing may be done because of it; empty: nothing of this kind is in the way."""
        return self._trouble if self.epoch is None or self._steady() < self._quiet_until else ""

    async def taken(self, epoch: int, ours: AutoscalerState, now: float) -> Taken | None:
        """What was remembered, read once for each right to act; None: go on with what we have."""
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
            self._be_quiet(why, QUIET_SECONDS)
            self._read(epoch, "nothing")
            # whatever was evicted and bought in the last hour is not known: nothing is drained for a while
            return Taken(AutoscalerState(last_add=now), Kept())
        overwritten = self._overwritten
        self._read(epoch, "nothing" if found is None else "read")
        if found is None:
            return None
        return Taken(merged(ours, found.memory), None) if overwritten else Taken(found.memory, found.kept)

    def _read(self, epoch: int, what: str) -> None:
        self.epoch, self._overwritten = epoch, False
        log.info("acting as leader: epoch=%d, saved state=%s", epoch, what)

    def _be_quiet(self, why: str, seconds: float) -> None:
        self._trouble = f"{why}; no actions are taken for {seconds:.0f} s"
        self._quiet_until = self._steady() + seconds

    async def left(self, remembered: Remembered, quiet_seconds: float) -> str:
        """Write it; the outcome, as the metric has it, empty where nothing has changed."""
        try:
            saved = await self._store.save(remembered)
        except ClusterError as exc:
            log.warning("cannot write saved state: %s", exc)
            self._be_quiet(f"cannot write saved state: {exc}", quiet_seconds)
            return "failed"
        if saved is Saved.CONFLICT:
            why = f"another client wrote saved state {self._store.where}: reading it again"
            log.warning("%s", why)
            self._be_quiet(why, quiet_seconds)
            self.epoch, self._overwritten = None, True
        return "" if saved is Saved.SAME else saved.value


def merged(ours: AutoscalerState, theirs: AutoscalerState) -> AutoscalerState:
    """Both: whoever moved what counts, a rest ends at the later end; for the rest theirs."""
    return replace(
        theirs,
        last_add=max(ours.last_add, theirs.last_add),
        moves=tuple(sorted({*ours.moves, *theirs.moves})),
        removals=tuple(sorted({*ours.removals, *theirs.removals})),
        moved={**theirs.moved, **{who: max(at, theirs.moved.get(who, at)) for who, at in ours.moved.items()}},
        closed=_later(ours.closed, theirs.closed),
        refused=_later(ours.refused, theirs.refused),
    )


def _later(ours: Mapping[str, Backoff], theirs: Mapping[str, Backoff]) -> dict[str, Backoff]:
    return {
        name: max(filter(None, (ours.get(name), theirs.get(name))), key=lambda rest: rest.until)
        for name in sorted(ours.keys() | theirs.keys())
    }
