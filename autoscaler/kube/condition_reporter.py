# SPDX-License-Identifier: Apache-2.0
"""
What the process says of itself: why it does nothing, or not everything, once when that changes.

Decides what counts as a change: the kinds of doubts and whom they are about, never a number in a text. In the log
for people, in Events on our own pod for those who look there.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from autoscaler.core.plan import get_action
from autoscaler.kube.core.conditions import Kind
from autoscaler.kube.core.inhibition import Why
from autoscaler.kube.guard import told

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.kube.execution_context import Events
    from autoscaler.kube.reconciler import Turns
    from autoscaler.kube.watches import Sources

log = logging.getLogger(__name__)
CONFIG: Final = "config"
FAILED: Final = "failed"
KINDS: Final = (*(kind.value for kind in Kind), Why.SWITCH.value, Why.STATE.value, CONFIG, FAILED)
"""Every reason of the metric."""
_MOST_LINES: Final = 20


class Voice:
    """Knows what was said last."""

    def __init__(self, events: Events, sources: Sources, about: tuple[str, str], steady: Callable[[], float]) -> None:
        """`about`: namespace and name of our own pod, empty where we are none."""
        self._events, self._sources, self._about, self._steady = events, sources, about, steady
        self._said: dict[tuple[str, ...], str] = {}
        self._would: frozenset[tuple[str, str]] = frozenset()
        self._hold = ""
        self.doubts: tuple[tuple[str, str], ...] = ()
        """Kind and text of every doubt of the latest turn."""

    def counts(self) -> dict[str, int]:
        """Doubts by kind, those of which there is none included."""
        found = Counter(dict.fromkeys(KINDS, 0))
        found.update(kind for kind, _ in self.doubts)
        return dict(found)

    async def say(self, turns: Turns) -> None:
        """After a turn."""
        now = _all(turns)
        self.doubts = tuple((key[0], text) for key, text in now.items())
        fresh = {key: text for key, text in now.items() if key not in self._said}
        over = {key: text for key, text in self._said.items() if key not in now}
        for key, text in list(fresh.items())[:_MOST_LINES]:
            log.warning("actions inhibited: reason=%s: %s", key[0], text)
        if len(fresh) > _MOST_LINES:
            log.warning("actions inhibited: %d more reasons: see `gpushare autoscaler plan`", len(fresh) - _MOST_LINES)
        for key, text in list(over.items())[:_MOST_LINES]:
            log.info("condition cleared: reason=%s: %s", key[0], text)
        self._said = now
        turned = self._say_hold(turns)
        self._say_would(turns)
        # whoever comes to lead has said its doubts in the log only: a standby writes no Events
        if fresh or over or (turned and self.doubts):
            await self._event(turns)

    def _say_hold(self, turns: Turns) -> bool:
        """Whether it acts, when that changes; whether it has."""
        hold = turns.hold()
        why = "" if hold is None else hold.why.value
        before, self._hold = self._hold, why
        if why != before:
            log.info("%s", "taking actions" if hold is None else f"not taking actions: {hold.text}")
        return why != before

    def _say_would(self, turns: Turns) -> None:
        """In a dry run: what would be done, each step once while it stands."""
        turned = turns.last
        if turned.hold is None or turned.hold.why is not Why.DRY_RUN or turned.decided is None:
            self._would = frozenset()
            return
        steps = {(get_action(step), _subject(step)): step for step in turned.decided.steps}
        for key, step in list(steps.items())[:_MOST_LINES]:
            if key not in self._would:
                log.info("dry run: would %s", told(step))
        self._would = frozenset(steps)

    async def _event(self, turns: Turns) -> None:
        namespace, name = self._about
        if not name:
            return
        uid = next((p.uid for p in self._sources.notes.pods.values() if (p.namespace, p.name) == self._about), "")
        if not uid:
            return
        if self.doubts:
            texts = "; ".join(text for _, text in self.doubts)
            await self._events.pod(f"{namespace}/{name}", uid, "Inhibited", texts, warning=True)
        elif turns.hold() is None:
            await self._events.pod(f"{namespace}/{name}", uid, "Resumed", "No condition inhibits actions any more")


def _all(turns: Turns) -> dict[tuple[str, ...], str]:
    """Every doubt of now, by what it is about."""
    found: dict[tuple[str, ...], str] = {}
    hold = turns.hold()
    if hold is not None and hold.doubt:
        found[hold.why.value, hold.text if hold.why is Why.SWITCH else ""] = hold.text
    if turns.problem:
        text = turns.unconfigured or f"invalid configuration file, the previous one stays in force: {turns.problem}"
        found[CONFIG, turns.problem] = text
    if turns.broken:
        found[FAILED, turns.broken] = f"reconcile cycle failed: {turns.broken}"
    for text in turns.last.decided.capped if turns.last.decided is not None else ():
        found[Kind.LIMITS.value, text] = text
    for doubt in turns.world.doubts() if turns.world is not None else ():
        found[doubt.kind.value, doubt.pool, doubt.node] = doubt.text
    return found


def _subject(step: object) -> str:
    return "/".join(str(getattr(step, name, "")) for name in ("pool", "node", "pod"))
