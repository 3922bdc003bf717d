# SPDX-License-Identifier: Apache-2.0
"""
Alerts about promises that are broken: who has more than was promised, and who is harmed by it.

Pure. What pages is measured by the driver; what a container's own library tells only informs.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import total
from dashboards.rules.phrases import BYTES, CARD, COUNT, NODE, UUID, WHO
from dashboards.rules.records import SHORT
from dashboards.rules.rule import Alert, RuleGroup, Severity, of, one
from isolation.contract import metrics
from isolation.contract.quantity import MIB

SLACK: Final = 64 * MIB
"""Bytes: as much as the exporter itself lets pass before it speaks of a breach."""


IDLE_MEMORY: Final = 1024 * MIB
"""Bytes: what a program without data needs for its context is less."""
_COMPUTE: Final = of(metrics.CONTAINER_COMPUTE_SECONDS)

_WHICH: Final = (
    f"Breaches of kind {{{{ $labels.kind }}}} that are open or began within 15 minutes: {COUNT}. `gpushare breaches` "
    "lists them."
)
_WITHOUT: Final = ("uninstrumented", "missing_library")
_STRANGE: Final = ("unallocated",)
_DAMAGED: Final = ("unreadable_region", "wrong_limits")
_SPOKEN_OF: Final = ("denied", *_WITHOUT, *_STRANGE, *_DAMAGED)
"""Kinds that have alerts of their own; what is denied is the library's word, which only informs."""


def _there(*kinds: str) -> str:
    """
    Breaches of these kinds, by node and kind: those that go on, else those that began lately.

    The gauge misses what begins and ends between two scrapes, the counter what lasts longer than its window, and what
    went on when an exporter was restarted.
    """
    picked = one("kind", *kinds)
    going = total(of(metrics.BREACHES_OPEN, picked), "node", "kind")
    begun = total(f"increase({of(metrics.BREACHES, picked)}[15m])", "node", "kind")
    return f"{going} > 0\nor\n{begun} > 0"


GROUP: Final = RuleGroup(
    "gpushare.isolation",
    "Broken promises, as measured by the exporters.",
    (
        Alert(
            "GpushareContainerMemoryOverLimit",
            # The counter says that the driver measured it in two samples in a row, the difference that it goes on.
            f"({of(metrics.CONTAINER_MEMORY_USED)} - {of(metrics.CONTAINER_MEMORY_ALLOCATED)}) > 0\n"
            f"and\nrate({of(metrics.OVER_LIMIT)}[2m]) > 0",
            Severity.WARNING,
            f"{WHO} uses more GPU memory than promised",
            f"It uses {BYTES} more than its promise on {CARD} ({UUID}), as measured by the driver. Other containers on "
            "that card may not get what they were promised.",
        ),
        Alert(
            "GpusharePromiseAtRisk",
            f"{SHORT} > {SLACK}",
            Severity.CRITICAL,
            f"{CARD} cannot provide all promised memory",
            f"If all containers on {UUID} used their whole promise now, {BYTES} would be missing. A process on that "
            "card uses memory that is promised to others.",
            patience="1m",
        ),
        Alert(
            "GpushareContainerMemoryOverLimitRepeatedly",
            f"increase({of(metrics.OVER_LIMIT_INCIDENTS)}[1h]) > 5",
            Severity.WARNING,
            f"{WHO} exceeds its promise repeatedly",
            f"It used more memory of {CARD} ({UUID}) than promised {COUNT} times within an hour, each time too briefly "
            "for a lasting breach.",
            hold="15m",
        ),
        Alert(
            "GpushareUninstrumentedProcess",
            _there(*_WITHOUT),
            Severity.WARNING,
            f"Processes on {NODE} use a card without the isolation library",
            f"Nothing limits some processes on {NODE} to their promise. {_WHICH}",
        ),
        Alert(
            "GpushareUnallocatedProcess",
            _there(*_STRANGE),
            Severity.WARNING,
            f"Processes on {NODE} use a card without a promise",
            f"Processes that were promised nothing use cards of {NODE}. {_WHICH}",
        ),
        Alert(
            "GpushareIsolationFilesCorrupt",
            _there(*_DAMAGED),
            Severity.WARNING,
            f"Isolation files on {NODE} are damaged or do not match the promise",
            f"A container with invalid limits gets no memory. The use of a container with an unreadable region is not "
            f"counted. {_WHICH}",
        ),
        Alert(
            "GpushareBreachOpen",
            # Not by naming kinds: exporters that are newer may know others.
            of(metrics.BREACHES_OPEN, f'kind!~"{"|".join(_SPOKEN_OF)}"') + " > 0",
            Severity.WARNING,
            f"Breaches on {CARD} do not end ({{{{ $labels.kind }}}})",
            f"Breaches on {UUID} that have been open for ten minutes and have no alert for their kind: {COUNT}. "
            "`gpushare breaches` lists them.",
            patience="10m",
        ),
        Alert(
            "GpushareAllocationsDenied",
            f"{total(f'increase({of(metrics.DENIED_ALLOCATIONS)}[10m])', *metrics.CONTAINER_LABELS)} > 10",
            Severity.INFO,
            f"{WHO} is denied GPU memory",
            f"{COUNT} allocations within 10 minutes exceeded its promise on {CARD} ({UUID}) and were denied, as "
            "reported by its own isolation library. Its promise is probably too small for its work.",
            hold="10m",
        ),
        Alert(
            "GpushareComputeIdle",
            # A container whose compute could not be measured for most of the day has not been idle.
            f"{of(metrics.CONTAINER_MEMORY_USED)} > {IDLE_MEMORY}\n"
            f"and\nincrease({_COMPUTE}[1d]) < 60\nand\n{_COMPUTE} offset 1d >= 0\n"
            f"and\ncount_over_time({_COMPUTE}[1d]) > 0.9 * count_over_time({of(metrics.CONTAINER_MEMORY_USED)}[1d])",
            Severity.INFO,
            f"{WHO} holds GPU memory but does not compute",
            f"It uses {BYTES} of {CARD} ({UUID}) and has computed for less than a minute within the last day.",
            patience="15m",
        ),
        Alert(
            "GpusharePromisedMemoryUnused",
            # Both counts, because a container whose use could not be measured has not been idle.
            f"max_over_time({of(metrics.CONTAINER_MEMORY_USED)}[1d])"
            f" < 0.01 * {of(metrics.CONTAINER_MEMORY_ALLOCATED)}\n"
            f"and\n{of(metrics.CONTAINER_MEMORY_ALLOCATED)} offset 1d > 0\n"
            f"and\ncount_over_time({of(metrics.CONTAINER_MEMORY_USED)}[1d])"
            f" > 0.9 * count_over_time({of(metrics.CONTAINER_MEMORY_ALLOCATED)}[1d])",
            Severity.INFO,
            f"{WHO} has not used its GPU memory for a day",
            f"At most {BYTES} of its promise on {CARD} ({UUID}) were in use within the last day. No other pod can use "
            "the rest.",
            patience="15m",
        ),
    ),
)
