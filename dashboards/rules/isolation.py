"""
Alerts about promises that are broken: who has more than was promised, and who is harmed by it.

Pure. What pages is measured by the driver; what a container's own library tells only informs.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import total
from dashboards.rules.records import SHORT
from dashboards.rules.rule import Alert, Group, Severity, of, one
from dashboards.rules.words import BYTES, CARD, COUNT, NODE, UUID, WHO
from isolation.contract import metrics
from isolation.contract.quantity import MIB

SLACK: Final = 64 * MIB
"""Bytes: as much as the exporter itself lets pass before it speaks of a breach."""


_BEGUN: Final = (
    f"Breaches of kind {{{{ $labels.kind }}}} begun within 15 minutes: {COUNT}; /breaches of the exporter names them."
)


def _begun(*kinds: str) -> str:
    """Breaches of these kinds that began lately, by node and kind; the exporter counts every kind from 0."""
    picked = of(metrics.BREACHES, one("kind", *kinds))
    return f"{total(f'increase({picked}[15m])', 'node', 'kind')} > 0"


GROUP: Final = Group(
    "gpushare.isolation",
    "Promises that are broken, as the exporters see it.",
    (
        Alert(
            "GpushareMemoryOverLimit",
            # The counter says that the driver measured it in two samples in a row, the difference that it goes on.
            f"({of(metrics.CONTAINER_USED)} - {of(metrics.CONTAINER_ALLOCATED)}) > 0\n"
            f"and\nrate({of(metrics.OVER_LIMIT)}[2m]) > 0",
            Severity.WARNING,
            f"{WHO} uses more GPU memory than promised",
            f"It has {BYTES} more than its promise on {CARD} ({UUID}), measured by the driver. Its neighbours on that "
            "card may not get what they were promised.",
        ),
        Alert(
            "GpusharePromiseAtRisk",
            f"{SHORT} > {SLACK}",
            Severity.CRITICAL,
            f"{CARD} cannot give everybody what was promised",
            f"Should all containers of {UUID} come for their promise now, {BYTES} would be missing: somebody on that "
            "card has memory that was promised to others.",
            patience="1m",
        ),
        Alert(
            "GpushareOverLimitAgainAndAgain",
            f"increase({of(metrics.OVER_EPISODES)}[1h]) > 5",
            Severity.WARNING,
            f"{WHO} goes past its promise again and again",
            f"{COUNT} times within an hour it used more memory of {CARD} ({UUID}) than promised, too shortly each time "
            "for a lasting breach.",
            hold="15m",
        ),
        Alert(
            "GpushareUninstrumentedProcess",
            _begun("uninstrumented", "missing_library"),
            Severity.WARNING,
            f"Processes on {NODE} compute without the isolation library",
            f"Nothing enforces the promise of some processes on {NODE}. {_BEGUN}",
        ),
        Alert(
            "GpushareUnallocatedProcess",
            _begun("unallocated"),
            Severity.WARNING,
            f"Somebody computes on {NODE} to whom nothing was promised",
            f"Processes outside every promise use cards of {NODE}. {_BEGUN}",
        ),
        Alert(
            "GpushareIsolationDamaged",
            _begun("unreadable_region", "wrong_limits"),
            Severity.WARNING,
            f"Isolation files on {NODE} are damaged or say something else than was promised",
            f"A container whose limits cannot be believed gets no memory; one whose region cannot be read is not "
            f"accounted for. {_BEGUN}",
        ),
        Alert(
            "GpushareBreachOpen",
            f"{of(metrics.BREACHED)} > 0",
            Severity.WARNING,
            f"Breaches on {CARD} do not end",
            f"Breaches on {UUID} that have not ended for ten minutes: {COUNT}. /breaches of the exporter tells which.",
            patience="10m",
        ),
        Alert(
            "GpushareAllocationsDenied",
            f"{total(f'increase({of(metrics.DENIED)}[10m])', *metrics.CONTAINER_LABELS)} > 10",
            Severity.INFO,
            f"{WHO} is refused GPU memory",
            f"{COUNT} allocations within 10 minutes went past its promise on {CARD} ({UUID}) and were refused, as its "
            "own library tells. Its promise is probably too small for what it does.",
            hold="10m",
        ),
        Alert(
            "GpusharePromiseUnused",
            # Both counts, because a container whose use could not be measured has not been idle.
            f"max_over_time({of(metrics.CONTAINER_USED)}[1d]) < 0.01 * {of(metrics.CONTAINER_ALLOCATED)}\n"
            f"and\n{of(metrics.CONTAINER_ALLOCATED)} offset 1d > 0\n"
            f"and\ncount_over_time({of(metrics.CONTAINER_USED)}[1d])"
            f" > 0.9 * count_over_time({of(metrics.CONTAINER_ALLOCATED)}[1d])",
            Severity.INFO,
            f"{WHO} has not used its GPU memory for a day",
            f"At most {BYTES} of its promise on {CARD} ({UUID}) were in use within the last day. Others wait for what "
            "it does not use.",
            patience="15m",
        ),
    ),
)
