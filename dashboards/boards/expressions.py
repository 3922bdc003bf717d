# SPDX-License-Identifier: Apache-2.0
"""
Expressions that several dashboards show, each written once: free memory, waste, what is stranded, what waits.

Pure text over the catalogue, within the variables of the dashboard that asks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from dashboards.boards.dashboard import ASK
from dashboards.promql import RATE, begun, or_zero, total, with_card
from isolation.contract import metrics as m
from isolation.contract.metrics import CARD_LABELS
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from dashboards.promql import Scope

_SELECTOR: Final = re.compile(r"\{[^{}]*\}(\[[^\]]*\])?")
_ASKED: Final = f"(${ASK} * {GIB})"


def in_pool(scope: Scope, expr: str, *labels: str) -> str:
    """Of cards of the chosen pools only; with more labels of their info series."""
    return with_card(expr, scope(m.CARD_INFO), *labels)


def free(scope: Scope) -> str:
    """Memory of each card that can still be promised; one that is wholly somebody's, or not well, has none."""
    return scope(m.CARD_MEMORY_LARGEST_FREE)


def stranded(scope: Scope) -> str:
    """Free memory of each card that pods of the asked size would leave over."""
    room = free(scope)
    return f"({room} - floor({room} / {_ASKED}) * {_ASKED})"


def fitting(scope: Scope) -> str:
    """How many more pods of the asked size each card takes."""
    return f"floor({free(scope)} / {_ASKED})"


def waste(scope: Scope) -> str:
    """Promised to each container and not used by it; one that uses more than promised wastes nothing."""
    return f"clamp_min({scope(m.CONTAINER_MEMORY_ALLOCATED)} - {scope(m.CONTAINER_MEMORY_USED)}, 0)"


def over(scope: Scope) -> str:
    """What each container uses beyond its promise; nothing for one that keeps it."""
    return f"({scope(m.CONTAINER_MEMORY_USED)} - {scope(m.CONTAINER_MEMORY_ALLOCATED)}) > 0"


def once(scope: Scope, spec: m.MetricSpec, *by: str, only: tuple[str, ...] = ()) -> str:
    """A fact that each replica of the autoscaler tells alike, counted once a cluster and summed by these labels."""
    alike = ", ".join(("cluster", *spec.labels))
    return total(f"max by ({alike}) ({scope(spec, *only)})", *by)


def waiting(scope: Scope) -> str:
    """Pods that wait, by reason: only reasons that some pod has, or one 0 that says that none waits."""
    found = f"{once(scope, m.PENDING_PODS, 'reason')} > 0"
    return or_zero(found, scope(m.PENDING_MAX_AGE), "reason", "none pending")


def most(expr: str) -> str:
    """
    The ten that are largest at the end of the time shown, over all of it: never more lines than ten.

    The largest at each moment would be others all the time: 50 lines in an hour.
    """
    return f"({expr}) and topk(10, {_at_end(expr)})"


def most_events(scope: Scope, spec: m.MetricSpec, *by: str) -> str:
    """
    Events within each interval of the graph, of the ten objects that had most of them in all the time shown.

    A series' first event counts. Objects without events are absent.
    """
    events = total(begun(scope(spec), RATE), *by)
    return f"{events} and {_ten_with_most(scope, spec, *by)}"


def longest_over(scope: Scope, *by: str) -> str:
    """What is used beyond promises, of the ten objects that were over for longest in all the time shown."""
    return f"{total(over(scope), *by)} and {_ten_with_most(scope, m.OVER_LIMIT, *by)}"


def _ten_with_most(scope: Scope, spec: m.MetricSpec, *by: str) -> str:
    return f"topk(10, {_at_end(total(begun(scope(spec)), *by))} > 0)"


def _at_end(expr: str) -> str:
    """As it is at the end of the time shown: asked once, however many points a graph has."""
    return _SELECTOR.sub(r"\g<0> @ end()", expr)


def of_cards(expr: str) -> str:
    """Summed to one figure a card."""
    return total(expr, *CARD_LABELS)
