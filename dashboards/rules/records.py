# SPDX-License-Identifier: Apache-2.0
"""
Series that dashboards and alerts share, recorded so that both say the same.

Pure. Named level:metric:operation. A pool is known by the exporter's info series of its cards only,
so every figure of pools is joined there, and a card without one belongs to no pool.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import NAMESPACE_ALLOCATED, NAMESPACE_USED, NAMESPACE_WASTED, total, with_card
from dashboards.rules.rule import RecordingRule, RuleGroup, of, one
from isolation.contract import metrics

SHORT: Final = "card:gpushare_memory_shortfall_bytes:promised_less_left"
CARDS: Final = "node:gpushare_cards:count"
CARDS_BEFORE: Final = "node:gpushare_cards:max_7d"
TYPICAL: Final = "cluster:gpushare_container_memory_allocated_bytes:median"
POOL_OFFERED: Final = "pool:gpushare_card_memory_allocatable_bytes:sum"
POOL_ALLOCATED: Final = "pool:gpushare_card_memory_allocated_bytes:sum"
POOL_FREE: Final = "pool:gpushare_memory_free_bytes:sum"
POOL_SCRAPS: Final = "pool:gpushare_memory_stranded_bytes:sum"
POOL_SCRAPS_RATIO: Final = "pool:gpushare_memory_stranded:ratio"

_NAMESPACE: Final = ("cluster", "job", "namespace")
"""Dashboards are narrowed by cluster and job too."""
_CARD: Final = f"on ({', '.join(metrics.CARD_LABELS)})"
_INFO: Final = of(metrics.CARD_INFO)
_FREE: Final = of(metrics.CARD_MEMORY_LARGEST_FREE)
"""What a card can still promise, in whole units; 0 of one that is not healthy."""
_SHARED: Final = of(metrics.CONTAINER_MEMORY_ALLOCATED, one("mode", "shared"))


def _by_pool(expr: str) -> str:
    return total(with_card(expr, _INFO, "pool"), "pool")


def _unused() -> str:
    """What containers of a card may still come to take, by card."""
    left = f"clamp_min({of(metrics.CONTAINER_MEMORY_ALLOCATED)} - {of(metrics.CONTAINER_MEMORY_USED)}, 0)"
    return total(left, *metrics.CARD_LABELS)


def _physical() -> str:
    """By UUID and not by series: two of one card are there when one exporter replaces another."""
    parent = f'label_replace({_INFO}, "uuid", "$1", "parent", "(.+)")'
    return f"count by (node) (group by (node, uuid) ({parent}))"


def _left() -> str:
    return f"({of(metrics.CARD_MEMORY_TOTAL)} - {of(metrics.CARD_MEMORY_USED)})"


RECORDS: Final = RuleGroup(
    "gpushare.records",
    "Recorded series that dashboards and alerts share.",
    (
        RecordingRule(CARDS, _physical(), "Physical cards that the node's exporter reports."),
        RecordingRule(
            SHORT,
            f"{_unused()}\n- {_CARD}\n{_left()}",
            "Memory of the card that is missing if all containers use their whole promise now; negative: enough.",
        ),
        RecordingRule(
            NAMESPACE_ALLOCATED.name,
            total(of(metrics.CONTAINER_MEMORY_ALLOCATED), *_NAMESPACE),
            NAMESPACE_ALLOCATED.help,
        ),
        RecordingRule(
            NAMESPACE_USED.name,
            total(of(metrics.CONTAINER_MEMORY_USED), *_NAMESPACE),
            NAMESPACE_USED.help,
        ),
        RecordingRule(
            NAMESPACE_WASTED.name,
            total(
                f"clamp_min({of(metrics.CONTAINER_MEMORY_ALLOCATED)} - {of(metrics.CONTAINER_MEMORY_USED)}, 0)",
                *_NAMESPACE,
            ),
            NAMESPACE_WASTED.help,
        ),
        RecordingRule(
            TYPICAL,
            f"quantile(0.5, {_SHARED})",
            "Median promise of shared memory: what the next pod probably requests.",
        ),
        RecordingRule(
            POOL_OFFERED, _by_pool(of(metrics.CARD_MEMORY_ALLOCATABLE)), "Memory that the pool's cards offer."
        ),
        RecordingRule(
            POOL_ALLOCATED, _by_pool(of(metrics.CARD_MEMORY_ALLOCATED)), "Memory of the pool's cards that is promised."
        ),
        RecordingRule(POOL_FREE, _by_pool(_FREE), "Memory of the pool's cards that can still be promised, in total."),
        RecordingRule(
            POOL_SCRAPS,
            f"{_by_pool(f'{_FREE} < on () group_left () {TYPICAL}')}\nor\n({POOL_FREE} * 0 and on () {TYPICAL})",
            "Free memory of the pool on cards with less free memory than the median promise.",
        ),
        RecordingRule(
            POOL_SCRAPS_RATIO,
            f"{POOL_SCRAPS} / ({POOL_FREE} > 0)",
            "Fraction of the pool's free memory that is on cards with less free memory than the median promise.",
        ),
    ),
)
LONG: Final = RuleGroup(
    "gpushare.records-long",
    "Recorded series over long ranges, evaluated less often.",
    (
        RecordingRule(
            CARDS_BEFORE,
            f"max_over_time({CARDS}[7d:10m])",
            "Maximum number of physical cards that the node's exporter reported within a week.",
        ),
    ),
    "2m",
)
