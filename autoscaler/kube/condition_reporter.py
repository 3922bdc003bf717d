# SPDX-License-Identifier: Apache-2.0
"""
Reports why the autoscaler does nothing, or not everything: in the log and as Events of our own pod, once for a change.

Decides what counts as a change: the kinds of conditions and what they are about, never a number in a text.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoscaler.core.plan import get_action
from autoscaler.kube.core.conditions import ConditionKind
from autoscaler.kube.core.inhibition import Cause
from autoscaler.kube.cycle import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.kube.core.conditions import Condition
    from autoscaler.kube.core.inhibition import Inhibition
    from autoscaler.kube.cycle import Cycle
    from autoscaler.kube.step_context import EventSink
    from autoscaler.kube.watches import Sources

log = logging.getLogger(__name__)
CONFIG: Final = "config"
FAILED: Final = "failed"
KINDS: Final = (*(kind.value for kind in ConditionKind), Cause.SWITCH.value, Cause.STATE.value, CONFIG, FAILED)
"""Every reason of the metric."""
_MAX_LINES: Final = 20


@dataclass(frozen=True, slots=True)
class ReconcilerStatus:
    """What the reconciler knows after a cycle; texts are empty where there is nothing to say."""

    inhibition: Inhibition | None
    """Why nothing may be done now."""
    cycle: Cycle | None
    """The latest that has ended."""
    conditions: tuple[Condition, ...]
    config_error: str
    unconfigured: str
    """Why there is no configuration at all."""
    error: str
    """What broke the latest cycle."""


class ConditionReporter:
    """Knows what was reported last."""

    def __init__(
        self, events: EventSink, sources: Sources, about: tuple[str, str], steady: Callable[[], float]
    ) -> None:
        """`about`: namespace and name of our own pod, empty where we are none."""
        self._events, self._sources, self._about, self._steady = events, sources, about, steady
        self._reported: dict[tuple[str, ...], str] = {}
        self._dry_run: frozenset[tuple[str, str]] = frozenset()
        self._inhibition = ""
        self.conditions: tuple[tuple[str, str], ...] = ()
        """ConditionKind and text of every condition of the latest cycle."""

    def counts(self) -> dict[str, int]:
        """Number of conditions by kind, kinds without any included."""
        found = Counter(dict.fromkeys(KINDS, 0))
        found.update(kind for kind, _ in self.conditions)
        return dict(found)

    async def report(self, status: ReconcilerStatus) -> None:
        """After a cycle."""
        now = _find_all(status)
        self.conditions = tuple((key[0], text) for key, text in now.items())
        new = {key: text for key, text in now.items() if key not in self._reported}
        over = {key: text for key, text in self._reported.items() if key not in now}
        for key, text in list(new.items())[:_MAX_LINES]:
            log.warning("actions inhibited: reason=%s: %s", key[0], text)
        if len(new) > _MAX_LINES:
            log.warning("actions inhibited: %d more reasons: see `gpushare autoscaler plan`", len(new) - _MAX_LINES)
        for key, text in list(over.items())[:_MAX_LINES]:
            log.info("condition cleared: reason=%s: %s", key[0], text)
        self._reported = now
        changed = self._report_inhibition(status)
        self._report_dry_run(status)
        # a new leader has only logged its conditions so far: a standby writes no Events
        if new or over or (changed and self.conditions):
            await self._event(status)

    def _report_inhibition(self, status: ReconcilerStatus) -> bool:
        """Whether it acts, when that changes; whether it has."""
        inhibition = status.inhibition
        why = "" if inhibition is None else inhibition.cause.value
        before, self._inhibition = self._inhibition, why
        if why != before:
            log.info("%s", "taking actions" if inhibition is None else f"not taking actions: {inhibition.text}")
        return why != before

    def _report_dry_run(self, status: ReconcilerStatus) -> None:
        """In a dry run: what would be done, each step once while it stands."""
        cycle = status.cycle
        if (
            cycle is None
            or cycle.plan is None
            or cycle.inhibition is None
            or cycle.inhibition.cause is not Cause.DRY_RUN
        ):
            self._dry_run = frozenset()
            return
        steps = {(get_action(step), _subject(step)): step for step in cycle.plan.steps}
        for key, step in list(steps.items())[:_MAX_LINES]:
            if key not in self._dry_run:
                log.info("dry run: would %s", describe(step))
        self._dry_run = frozenset(steps)

    async def _event(self, status: ReconcilerStatus) -> None:
        namespace, name = self._about
        if not name:
            return
        uid = next((p.uid for p in self._sources.notes.pods.values() if (p.namespace, p.name) == self._about), "")
        if not uid:
            return
        if self.conditions:
            texts = "; ".join(text for _, text in self.conditions)
            await self._events.pod(f"{namespace}/{name}", uid, "Inhibited", texts, warning=True)
        elif status.inhibition is None:
            await self._events.pod(f"{namespace}/{name}", uid, "Resumed", "No condition inhibits actions any more")


def _find_all(status: ReconcilerStatus) -> dict[tuple[str, ...], str]:
    """Every condition of now, by what it is about."""
    found: dict[tuple[str, ...], str] = {}
    inhibition = status.inhibition
    if inhibition is not None and inhibition.condition:
        found[inhibition.cause.value, inhibition.text if inhibition.cause is Cause.SWITCH else ""] = inhibition.text
    if status.config_error:
        text = (
            status.unconfigured or f"invalid configuration file, the previous one stays in force: {status.config_error}"
        )
        found[CONFIG, status.config_error] = text
    if status.error:
        found[FAILED, status.error] = f"reconcile cycle failed: {status.error}"
    plan = status.cycle.plan if status.cycle is not None else None
    for text in plan.capped if plan is not None else ():
        found[ConditionKind.LIMITS.value, text] = text
    for condition in status.conditions:
        found[condition.kind.value, condition.pool, condition.node] = condition.text
    return found


def _subject(step: object) -> str:
    return "/".join(str(getattr(step, name, "")) for name in ("pool", "node", "pod"))
