# SPDX-License-Identifier: Apache-2.0
"""
What the exporter's page and the alerting interfaces say, as values for the screen.

Pure. A page is read by the catalogue's names; what it does not tell stays None. Whatever is not as
expected is left out, never guessed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from isolation.contract import metrics
from isolation.contract.exposition import parse_page
from isolation.contract.reading import CardReading, ContainerReading, NodeReading
from isolation.contract.stack import FIRING, StackAlert

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_ALERTS: Final = 200
_SUBJECTS: Final = ("pod", "card", "pool", "collector", "job")
"""Labels that tell whom an alert is about, the closest first."""
_LONGEST: Final = 300

Page = dict[str, dict[tuple[tuple[str, str], ...], float]]


def read_page(raw: bytes) -> NodeReading | None:
    """One node of an exporter's page; None where it is no such page."""
    try:
        page = _samples(raw)
        return _node(page)
    except (ValueError, KeyError):
        return None


def _samples(raw: bytes) -> Page:
    page: Page = {}
    for sample in parse_page(raw, metrics.CATALOGUE):
        page.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return page


class _Of:
    """The samples of one thing, asked for by name."""

    def __init__(self, page: Page, **labels: str) -> None:
        self._page = page
        self._labels = set(labels.items())

    def value(self, spec: metrics.MetricSpec) -> float | None:
        """The one sample of it; None: there is none."""
        for labels, value in self._page.get(spec.name, {}).items():
            if self._labels <= set(labels):
                return value
        return None

    def amount(self, spec: metrics.MetricSpec) -> int | None:
        """The same as a whole number."""
        value = self.value(spec)
        return None if value is None else int(value)

    def parts(self, spec: metrics.MetricSpec, label: str) -> tuple[tuple[str, int], ...] | None:
        """Whole numbers above 0 by the value of one label; None: there are none."""
        samples = ((dict(labels), value) for labels, value in self._page.get(spec.name, {}).items())
        found = [(of[label], int(value)) for of, value in samples if self._labels <= set(of.items())]
        return tuple(sorted(one for one in found if one[1])) if found else None


def _rows(page: Page, spec: metrics.MetricSpec) -> Iterator[Mapping[str, str]]:
    return (dict(labels) for labels in page.get(spec.name, {}))


def _node(page: Page) -> NodeReading | None:
    cards = sorted(_rows(page, metrics.CARD_INFO), key=lambda labels: int(labels["card"]))
    if not cards:
        return None
    first = cards[0]
    return NodeReading(
        node=first["node"],
        pool=first["pool"],
        mode=first["mode"],
        isolation=first["isolation"],
        cards=tuple(_card(page, labels) for labels in cards),
        containers=tuple(
            _container(page, labels)
            for labels in sorted(_rows(page, metrics.CONTAINER_INFO), key=lambda of: (of["pod"], of["container"]))
        ),
    )


def _card(page: Page, labels: Mapping[str, str]) -> CardReading:
    of = _Of(page, uuid=labels["uuid"])
    unknown = [
        name
        for name, spec in (("total_bytes", metrics.CARD_MEMORY_TOTAL), ("reserved_bytes", metrics.CARD_MEMORY_RESERVED))
        if of.value(spec) is None
    ]
    return CardReading(
        uuid=labels["uuid"],
        index=int(labels["card"]),
        model=labels["model"],
        total_bytes=of.amount(metrics.CARD_MEMORY_TOTAL) or 0,
        reserved_bytes=of.amount(metrics.CARD_MEMORY_RESERVED) or 0,
        used_bytes=of.amount(metrics.CARD_MEMORY_USED),
        allocated_bytes=of.amount(metrics.CARD_MEMORY_ALLOCATED) or 0,
        allocatable_bytes=of.amount(metrics.CARD_MEMORY_ALLOCATABLE) or 0,
        unattributed_bytes=of.amount(metrics.CARD_MEMORY_UNATTRIBUTED),
        utilisation_ratio=of.value(metrics.CARD_UTILISATION),
        power_watts=of.value(metrics.CARD_POWER),
        temperature_celsius=of.value(metrics.CARD_TEMPERATURE),
        healthy=of.value(metrics.CARD_HEALTHY) != 0,
        breaches=of.parts(metrics.BREACHES_OPEN, "kind"),
        unknown=tuple(unknown),
    )


def _container(page: Page, labels: Mapping[str, str]) -> ContainerReading:
    of = _Of(page, uuid=labels["uuid"], container=labels["container"], pod=labels["pod"])
    return ContainerReading(
        namespace=labels["namespace"],
        pod=labels["pod"],
        container=labels["container"],
        promise=labels["promise"],
        uuid=labels["uuid"],
        index=int(labels["card"]),
        exclusive=labels["mode"] == "exclusive",
        allocated_bytes=of.amount(metrics.CONTAINER_MEMORY_ALLOCATED) or 0,
        used_bytes=of.amount(metrics.CONTAINER_MEMORY_USED),
        allocated_core_ratio=of.value(metrics.CONTAINER_COMPUTE_ALLOCATED),
        limit_core_ratio=of.value(metrics.CONTAINER_COMPUTE_LIMIT),
        used_core_ratio=of.value(metrics.CONTAINER_COMPUTE_USED),
        source=labels["source"],
        over_limit_seconds=of.value(metrics.OVER_LIMIT) or 0.0,
        allocation_source=labels["allocation_source"],
        policy=labels["policy"],
        over_limit_episodes=of.amount(metrics.OVER_LIMIT_INCIDENTS),
        denied=of.amount(metrics.DENIED_ALLOCATIONS),
    )


def read_alerts(raw: bytes, state: str = FIRING) -> tuple[StackAlert, ...] | None:
    """Alertmanager's list, or Prometheus' with `state` pending; None where it is neither."""
    try:
        document = json.loads(raw)
        found = document["data"]["alerts"] if isinstance(document, dict) else document
        return tuple(_alert(one, state) for one in found[:MAX_ALERTS] if _state(one) in {state, "active"})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _state(one: Mapping[str, Any]) -> str:
    """Prometheus says pending or firing; Alertmanager active, suppressed or unprocessed, which all are firing."""
    state = one.get("state")
    return str(state) if state else "active"


def _alert(one: Mapping[str, Any], state: str) -> StackAlert:
    labels, notes = one["labels"], one.get("annotations", {})
    return StackAlert(
        name=str(labels["alertname"])[:_LONGEST],
        severity=str(labels.get("severity", ""))[:_LONGEST],
        state=state,
        subject=next((str(labels[name])[:_LONGEST] for name in _SUBJECTS if name in labels), ""),
        summary=str(notes.get("summary", ""))[:_LONGEST],
        since=str(one.get("startsAt") or one.get("activeAt") or "")[:_LONGEST],
        node=str(labels.get("node", ""))[:_LONGEST],
    )
