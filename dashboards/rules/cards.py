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
    "Cards and their free memory, as measured by the exporters.",
    (
        Alert(
            "GpushareCardUnhealthy",
            f"{of(metrics.CARD_HEALTHY)} == 0",
            Severity.CRITICAL,
            f"{CARD} is unhealthy",
            f"{UUID} takes no new containers: the driver reported a fatal XID error or failed row remapping, or it "
            "lost the card. Containers on it have failed or will fail.",
            patience="30s",
            hold="5m",
        ),
        Alert(
            "GpushareCardMissing",
            f"max_over_time({CARDS}[1h]) - {CARDS} > 0",
            Severity.CRITICAL,
            f"{NODE} has lost cards",
            f"Cards that {NODE} had within the last hour and that its driver no longer reports: {COUNT}.",
            patience="2m",
        ),
        Alert(
            "GpushareXidErrors",
            grew(of(metrics.CARD_XIDS), "15m"),
            Severity.WARNING,
            f"The driver reports XID {{{{ $labels.xid }}}} on {CARD}",
            f"XID {{{{ $labels.xid }}}} errors on {UUID} within 15 minutes: {COUNT}.",
        ),
        Alert(
            "GpushareEccErrors",
            f"increase({_UNCORRECTED}[1h]) > 0",
            Severity.WARNING,
            f"Uncorrected memory errors on {CARD}",
            f"Uncorrected ECC errors on {UUID} within an hour: {COUNT}. Results computed there may be wrong.",
        ),
        Alert(
            "GpushareCardThrottled",
            f"rate({_HELD_DOWN}[15m]) > 0.9",
            Severity.WARNING,
            f"{CARD} is throttled ({{{{ $labels.reason }}}})",
            f"The clocks of {UUID} are throttled most of the time ({{{{ $labels.reason }}}}). All containers on it "
            "run slower than promised.",
            patience="5m",
        ),
        Alert(
            "GpushareCardOvercommitted",
            f"({of(metrics.CARD_ALLOCATED)} - {of(metrics.CARD_OFFERED)}) > 0",
            Severity.CRITICAL,
            f"{CARD} is overcommitted",
            f"Containers are promised {BYTES} more than {UUID} offers. They cannot all have it.",
            patience="1m",
        ),
        Alert(
            "GpushareFragmentationHigh",
            f"{POOL_SCRAPS_RATIO} > 0.5\nand on (pool)\n{POOL_FREE} > on () group_left () {TYPICAL}",
            Severity.WARNING,
            "Free GPU memory of pool {{ $labels.pool }} is fragmented",
            f"{PART} of the free memory of pool {{{{ $labels.pool }}}} is on cards with less free memory than the "
            "median promise. Pods will stay pending although there is enough memory in total.",
            patience="30m",
            hold="10m",
        ),
    ),
)
