# SPDX-License-Identifier: Apache-2.0
"""
Alerts about cards: unhealthy ones, lost ones, hot ones, and those of which too much was promised.

Pure. All of it from the exporters, so that it also speaks where nothing of ours schedules.
"""

from __future__ import annotations

from typing import Final

from dashboards.rules.phrases import BYTES, CARD, COUNT, NODE, PART, UUID
from dashboards.rules.records import (
    CARDS,
    CARDS_BEFORE,
    POOL_FREE,
    POOL_OFFERED,
    POOL_SCRAPS,
    POOL_SCRAPS_RATIO,
    TYPICAL,
)
from dashboards.rules.rule import JOB, Alert, RuleGroup, Severity, grew, of, one
from isolation.contract import metrics
from isolation.contract.metrics import card

_HELD_DOWN: Final = of(
    metrics.CARD_THROTTLED, one("reason", "thermal", "hardware_thermal", "hardware_slowdown", "power_brake")
)
_UNCORRECTED: Final = of(metrics.CARD_ECC, one("kind", "uncorrected"))
_CARD_LABELS: Final = ", ".join(metrics.CARD_LABELS)
_TENANT_XIDS: Final = "13|31|43|45"
"""XIDs that a program causes by its own error, such as a memory access out of bounds (NVIDIA, "XID errors")."""


def _xids(matcher: str) -> str:
    """Errors within 15 minutes; that the driver was read at all, the card's health says."""
    return grew(of(metrics.CARD_XIDS, matcher), "15m", of(metrics.CARD_HEALTHY), (*JOB, *metrics.CARD_LABELS))


GROUP: Final = RuleGroup(
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
            f"{CARDS_BEFORE} - {CARDS} > 0",
            Severity.CRITICAL,
            f"{NODE} has lost cards",
            f"Cards that {NODE} had within the last week and that its driver no longer reports: {COUNT}.",
            patience="5m",
        ),
        Alert(
            "GpushareXidErrors",
            _xids(f'xid!~"{_TENANT_XIDS}"'),
            Severity.WARNING,
            f"The driver reports XID {{{{ $labels.xid }}}} on {CARD}",
            f"XID {{{{ $labels.xid }}}} errors on {UUID} within 15 minutes: {COUNT}.",
        ),
        Alert(
            "GpushareTenantXidErrors",
            f"group by (namespace, {_CARD_LABELS}) (last_over_time({of(metrics.CONTAINER_MEMORY_ALLOCATED)}[15m]))\n"
            f"* on ({_CARD_LABELS}) group_left ()\n"
            f"sum by ({_CARD_LABELS}) (\n{_xids(one('xid', *_TENANT_XIDS.split('|')))}\n)",
            Severity.INFO,
            f"A program caused XID errors on {CARD}, where namespace {{{{ $labels.namespace }}}} has containers",
            f"XID errors that programs cause ({_TENANT_XIDS.replace('|', ', ')}) on {UUID} within 15 minutes: {COUNT}. "
            "A process on that card failed; others are not affected.",
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
            "GpushareRowRemapPending",
            f"min_over_time({of(card.ROW_REMAP_PENDING)}[5m]) == 1",
            Severity.WARNING,
            f"{CARD} needs a reset to replace a broken memory row",
            f"Row remapping of {UUID} is pending until the card is reset. Drain the node at a convenient time and "
            "reset the card.",
        ),
        Alert(
            "GpushareCorrectedEccErrorsFrequent",
            f"increase({of(metrics.CARD_ECC, one('kind', 'corrected'))}[1h]) > 100",
            Severity.WARNING,
            f"Many corrected memory errors on {CARD}",
            f"Corrected ECC errors on {UUID} within an hour: {COUNT}. Uncorrected ones may follow.",
        ),
        Alert(
            "GpushareNvlinkErrors",
            f"increase({of(metrics.CARD_NVLINK_ERRORS)}[15m]) > 0",
            Severity.WARNING,
            f"NVLink errors on {CARD}",
            f"NVLink errors of {UUID} within 15 minutes: {COUNT}.",
        ),
        Alert(
            "GpusharePcieReplays",
            # 8 a minute is the most that NVIDIA recommends (DCGM_LIMIT_MAX_PCIREPLAY_RATE).
            f"increase({of(metrics.CARD_PCIE_REPLAYS)}[10m]) > 80",
            Severity.WARNING,
            f"{CARD} retransmits many PCI Express packets",
            f"Packets of {UUID} that were retransmitted within 10 minutes: {COUNT}.",
        ),
        Alert(
            "GpushareCardOvercommitted",
            f"({of(metrics.CARD_MEMORY_ALLOCATED)} - {of(metrics.CARD_MEMORY_ALLOCATABLE)}) > 0",
            Severity.CRITICAL,
            f"{CARD} is overcommitted",
            f"Containers are promised {BYTES} more than {UUID} offers. Not all of them can get it.",
            patience="1m",
        ),
        Alert(
            "GpushareFragmentationHigh",
            f"{POOL_SCRAPS_RATIO} > 0.5\nand on (pool)\n{POOL_FREE} > on () group_left () {TYPICAL}\n"
            # Of a pool that is nearly full only scraps can be left.
            f"and on (pool)\n{POOL_SCRAPS} > 0.1 * {POOL_OFFERED}",
            Severity.WARNING,
            "Free GPU memory of pool {{ $labels.pool }} is fragmented",
            f"{PART} of the free memory of pool {{{{ $labels.pool }}}} is on cards with less free memory than the "
            "median promise. Pods will stay pending although there is enough memory in total.",
            patience="30m",
            hold="10m",
        ),
    ),
)
