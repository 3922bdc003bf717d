"""
Series that dashboards and alerts share, recorded so that both say the same.

Pure. Named level:metric:operation. A pool is known by the exporter's info series of its cards only,
so every figure of pools is joined there, and a card without one belongs to no pool.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import total, with_card
from dashboards.rules.rule import Group, Record, of, one
from isolation.contract import metrics

SHORT: Final = "card:gpushare_memory_short_bytes:promised_less_left"
CARDS: Final = "node:gpushare_cards:count"
NAMESPACE_ALLOCATED: Final = "namespace:gpushare_container_memory_allocated_bytes:sum"
NAMESPACE_USED: Final = "namespace:gpushare_container_memory_used_bytes:sum"
TYPICAL: Final = "cluster:gpushare_container_memory_allocated_bytes:median"
POOL_OFFERED: Final = "pool:gpushare_card_memory_offered_bytes:sum"
POOL_ALLOCATED: Final = "pool:gpushare_card_memory_allocated_bytes:sum"
POOL_FREE: Final = "pool:gpushare_memory_free_bytes:sum"
POOL_SCRAPS: Final = "pool:gpushare_memory_scraps_bytes:sum"
POOL_SCRAPS_RATIO: Final = "pool:gpushare_memory_scraps:ratio"

_CARD: Final = f"on ({', '.join(metrics.CARD_LABELS)})"
_INFO: Final = of(metrics.CARD_INFO)
_FREE: Final = of(metrics.CARD_LARGEST_FREE)
"""What a card can still promise, in whole units; 0 of one that is not healthy."""
_SHARED: Final = of(metrics.CONTAINER_ALLOCATED, one("mode", "shared"))


def _by_pool(expr: str) -> str:
    return total(with_card(expr, _INFO, "pool"), "pool")


def _unused() -> str:
    """What containers of a card may still come to take, by card."""
    left = f"clamp_min({of(metrics.CONTAINER_ALLOCATED)} - {of(metrics.CONTAINER_USED)}, 0)"
    return total(left, *metrics.CARD_LABELS)


def _left() -> str:
    return f"({of(metrics.CARD_TOTAL)} - {of(metrics.CARD_USED)})"


RECORDS: Final = Group(
    "gpushare.records",
    "Series that dashboards and alerts share.",
    (
        Record(CARDS, f"count by (node) ({_INFO})", "Cards that the node's exporter sees."),
        Record(
            SHORT,
            f"{_unused()}\n- {_CARD}\n{_left()}",
            "What would be missing if all who were promised memory of the card came for it now; below 0: it is there.",
        ),
        Record(NAMESPACE_ALLOCATED, total(of(metrics.CONTAINER_ALLOCATED), "namespace"), "Promised to the namespace."),
        Record(NAMESPACE_USED, total(of(metrics.CONTAINER_USED), "namespace"), "Used by the namespace."),
        Record(
            TYPICAL,
            f"quantile(0.5, {_SHARED})",
            "The promise in the middle: what the next pod will probably ask for.",
        ),
        Record(POOL_OFFERED, _by_pool(of(metrics.CARD_OFFERED)), "What the pool's cards can promise."),
        Record(POOL_ALLOCATED, _by_pool(of(metrics.CARD_ALLOCATED)), "What they have promised."),
        Record(POOL_FREE, _by_pool(_FREE), "What they can still promise, by sum."),
        Record(
            POOL_SCRAPS,
            f"{_by_pool(f'{_FREE} < on () group_left () {TYPICAL}')}\nor\n({POOL_FREE} * 0 and on () {TYPICAL})",
            "Of it what lies in pieces too small for the promise in the middle.",
        ),
        Record(POOL_SCRAPS_RATIO, f"{POOL_SCRAPS} / ({POOL_FREE} > 0)", "Part of what is free that is of no use."),
    ),
)
