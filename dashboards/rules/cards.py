"""
Alerts about cards: ill ones, lost ones, hot ones, and those of which too much was promised.

Pure. All of it from the exporters, so that it also speaks where nothing of ours schedules.
"""

from __future__ import annotations

from typing import Final

from dashboards.rules.records import CARDS, POOL_FREE, POOL_SCRAPS_RATIO, TYPICAL
from dashboards.rules.rule import Alert, Group, Severity, grew, of, one
from dashboards.rules.words import BYTES, CARD, COUNT, NODE, PART, UUID
from isolation.contract import metrics

_HELD_DOWN: Final = of(
    metrics.CARD_THROTTLED, one("reason", "thermal", "hardware_thermal", "hardware_slowdown", "power_brake")
)
_UNCORRECTED: Final = of(metrics.CARD_ECC, one("kind", "uncorrected"))

GROUP: Final = Group(
    "gpushare.cards",
    "Cards and the room on them, as the exporters see it.",
    (
        Alert(
            "GpushareCardUnhealthy",
            f"{of(metrics.CARD_HEALTHY)} == 0",
            Severity.CRITICAL,
            f"{CARD} is ill",
            f"{UUID} cannot be promised any more: an XID error that says so, failed row remapping, or a driver that "
            "lost it. Containers on it have failed or will.",
            patience="30s",
            hold="5m",
        ),
        Alert(
            "GpushareCardMissing",
            f"max_over_time({CARDS}[1h]) - {CARDS} > 0",
            Severity.CRITICAL,
            f"{NODE} has lost cards",
            f"Cards that {NODE} had within the last hour and that its driver does not see any more: {COUNT}.",
            patience="2m",
        ),
        Alert(
            "GpushareXidErrors",
            grew(of(metrics.CARD_XIDS), "15m"),
            Severity.WARNING,
            f"The driver reports XID {{{{ $labels.xid }}}} on {CARD}",
            f"XID errors {{{{ $labels.xid }}}} on {UUID} within 15 minutes: {COUNT}.",
        ),
        Alert(
            "GpushareEccErrors",
            f"increase({_UNCORRECTED}[1h]) > 0",
            Severity.WARNING,
            f"Memory errors on {CARD} that could not be corrected",
            f"Uncorrected ECC errors on {UUID} within an hour: {COUNT}. Results computed there may be wrong.",
        ),
        Alert(
            "GpushareCardTooHot",
            f"{_HELD_DOWN} == 1",
            Severity.WARNING,
            f"{CARD} is held down because of {{{{ $labels.reason }}}}",
            f"The clocks of {UUID} have been held down for 15 minutes ({{{{ $labels.reason }}}}): everybody on it "
            "computes slower than promised.",
            patience="15m",
        ),
        Alert(
            "GpushareCardOvercommitted",
            f"({of(metrics.CARD_ALLOCATED)} - {of(metrics.CARD_OFFERED)}) > 0",
            Severity.CRITICAL,
            f"More of {CARD} is promised than it has",
            f"{BYTES} more than {UUID} offers are promised to containers; they cannot all have it.",
            patience="1m",
        ),
        Alert(
            "GpushareFragmentationHigh",
            f"{POOL_SCRAPS_RATIO} > 0.5\nand on (pool)\n{POOL_FREE} > on () group_left () {TYPICAL}",
            Severity.WARNING,
            "Free GPU memory of pool {{ $labels.pool }} lies in pieces",
            f"{PART} of the free memory of pool {{{{ $labels.pool }}}} is on cards that have less left than an average "
            "promise asks for. Pods will wait although the sums say that there is room.",
            patience="30m",
            hold="10m",
        ),
    ),
)
