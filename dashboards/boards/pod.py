# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of a pod: promised beside used, on every card it has, and who says so.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.dashboard import Dashboard, to_node
from dashboards.boards.expressions import most, over, waste
from dashboards.boards.layout import Section, even, wide
from dashboards.boards.panel import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    YELLOW,
    LabelColumn,
    PanelColumn,
    Query,
    Threshold,
    dial,
    lines,
    stat,
    table,
)
from dashboards.promql import Scope, begun, or_zero, rate, total
from isolation.contract import metrics as m

_SCOPE: Final = Scope(("cluster", "job", "node", "namespace", "pod"))
_LEGEND: Final = "{{pod}}/{{container}} card {{card}}"
_PROMISES: Final = _SCOPE(m.CONTAINER_MEMORY_ALLOCATED)
_BUSY: Final = rate(_SCOPE(m.CONTAINER_COMPUTE_SECONDS))
_KEYS: Final = ("namespace", "pod", "container", "node", "card")


def _by_container(spec: m.MetricSpec) -> str:
    return total(_SCOPE(spec), *_KEYS)


_NOW: Final = Section(
    "Current state",
    (
        even(
            5,
            stat("Promised", "Memory promised to the selected pods.", total(_PROMISES), "bytes"),
            stat(
                "Used",
                "Card memory that the selected pods use, as measured by the driver where it reports processes.",
                total(_SCOPE(m.CONTAINER_MEMORY_USED)),
                "bytes",
            ),
            dial(
                "Fullest promise",
                "Used fraction of the promise, for the container closest to its limit. At 1, allocations are denied.",
                f"max({_SCOPE(m.CONTAINER_MEMORY_USED)} / ({_PROMISES} > 0))",
                "percentunit",
                (Threshold(GREEN), Threshold(YELLOW, 0.8), Threshold(ORANGE, 0.95), Threshold(RED, 1.001)),
            ),
            stat(
                "Never used",
                "Promised memory that the selected pods did not use at any time in the selected time range. They could "
                "request this much less.",
                f"sum(clamp_min({_PROMISES} - max_over_time({_SCOPE(m.CONTAINER_MEMORY_USED)}[$__range]), 0))",
                "bytes",
                steps=(Threshold(GREEN), Threshold(YELLOW, 2**30)),
                spark=False,
            ),
            stat(
                "Over promise",
                "Memory that the selected pods use beyond their promises. It may be promised to other pods.",
                or_zero(total(over(_SCOPE)), _PROMISES),
                "bytes",
                steps=(Threshold(GREEN), Threshold(RED, 1)),
            ),
            stat(
                "Denied allocations",
                "Allocations that the containers' own isolation library denied in the selected time range.",
                total(begun(_SCOPE(m.DENIED_ALLOCATIONS))),
                decimals=0,
                steps=(Threshold(GREEN), Threshold(YELLOW, 1)),
                spark=False,
            ),
        ),
    ),
)

_MEMORY: Final = Section(
    "Memory",
    (
        even(
            9,
            lines(
                "Used and promised memory",
                "By container and card, top ten of each. Use above the promise is a breach.",
                (
                    Query(most(_SCOPE(m.CONTAINER_MEMORY_USED)), f"{_LEGEND} used"),
                    Query(most(_PROMISES), f"{_LEGEND} promised"),
                ),
                "bytes",
            ),
            lines(
                "Used fraction of the promise",
                "By container and card, top ten. At 1, allocations are denied.",
                (Query(most(f"{_SCOPE(m.CONTAINER_MEMORY_USED)} / ({_PROMISES} > 0)"), _LEGEND),),
                "percentunit",
                steps=(Threshold(GREEN), Threshold(ORANGE, 0.95), Threshold(RED, 1.001)),
            ),
            lines(
                "Promised but unused memory",
                "By container and card, top ten: memory that the container does not use and no other pod can use.",
                (Query(most(waste(_SCOPE)), _LEGEND),),
                "bytes",
                stacked=True,
            ),
        ),
    ),
)

_COMPUTE: Final = Section(
    "Compute and energy",
    (
        even(
            9,
            lines(
                "Compute used",
                "Fraction of the card's compute that each container uses, top ten.",
                (Query(most(_BUSY), _LEGEND),),
                "percentunit",
            ),
            lines(
                "Compute used relative to promised",
                "For containers with a compute promise. Above 1, the container uses idle compute of others or is not "
                "limited.",
                (Query(most(f"{_BUSY} / ({_SCOPE(m.CONTAINER_COMPUTE_ALLOCATED)} > 0)"), _LEGEND),),
                "percentunit",
                steps=(Threshold(GREEN), Threshold(ORANGE, 1.05)),
                none="no compute promises",
            ),
            lines(
                "Attributed power",
                "Power of the card by container: active power by compute used, idle power by promise.",
                (Query(most(rate(_SCOPE(m.CONTAINER_ENERGY))), _LEGEND),),
                "watt",
                stacked=True,
            ),
        ),
    ),
)

_LIST: Final = Section(
    "Containers",
    (
        wide(
            9,
            (
                24,
                table(
                    "Promises and use",
                    "One row per container and card. The name of the node links to its cards.",
                    (
                        LabelColumn("namespace", "Namespace"),
                        LabelColumn("pod", "Pod"),
                        LabelColumn("container", "Container"),
                        LabelColumn("node", "Node", to_node(), "Cards of this node"),
                        LabelColumn("card", "Card", width=70),
                    ),
                    (
                        PanelColumn("Promised", _by_container(m.CONTAINER_MEMORY_ALLOCATED), "bytes"),
                        PanelColumn("Used", _by_container(m.CONTAINER_MEMORY_USED), "bytes"),
                        PanelColumn("Peak use", _by_container(m.CONTAINER_MEMORY_PEAK), "bytes"),
                        PanelColumn(
                            "Used fraction",
                            f"{_by_container(m.CONTAINER_MEMORY_USED)}"
                            f" / ({_by_container(m.CONTAINER_MEMORY_ALLOCATED)} > 0)",
                            "percentunit",
                            steps=(Threshold(GREEN), Threshold(ORANGE, 0.95), Threshold(RED, 1.001)),
                            bar=1.0,
                        ),
                        PanelColumn("Compute promised", _by_container(m.CONTAINER_COMPUTE_ALLOCATED), "percentunit"),
                        PanelColumn("Compute limit", _by_container(m.CONTAINER_COMPUTE_LIMIT), "percentunit"),
                        PanelColumn("Compute used", total(_BUSY, *_KEYS), "percentunit"),
                        PanelColumn(
                            "Overrun of long kernels",
                            total(begun(_SCOPE(m.CONTAINER_COMPUTE_OVERRUN)), *_KEYS),
                            "s",
                        ),
                        PanelColumn(
                            "Time over promise",
                            total(begun(_SCOPE(m.OVER_LIMIT)), *_KEYS),
                            "s",
                            steps=(Threshold(GREY), Threshold(RED, 1)),
                        ),
                    ),
                    sort="Used fraction",
                ),
            ),
        ),
        wide(
            7,
            (
                24,
                table(
                    "Sources of the data",
                    "The ID of each promise (also in the allocation record, the limits file, Events and logs), who "
                    "made it, its compute policy, and the sources of the measurements. `library`: reported by the "
                    "container itself.",
                    (
                        LabelColumn("pod", "Pod"),
                        LabelColumn("container", "Container"),
                        LabelColumn("promise", "Promise"),
                        LabelColumn("allocation_source", "Promised by"),
                        LabelColumn("policy", "Policy"),
                        LabelColumn("source", "Memory source"),
                        LabelColumn("compute_source", "Compute source"),
                    ),
                    (
                        PanelColumn(
                            "Cards",
                            "count by (pod, container, promise, allocation_source, policy, source, compute_source) "
                            f"({_SCOPE(m.CONTAINER_INFO)})",
                            "short",
                            steps=(Threshold(BLUE),),
                            width=80,
                        ),
                    ),
                ),
            ),
        ),
    ),
)

BOARD: Final = Dashboard(
    "gpushare-pod",
    "gpushare / Pod",
    "Promised and used memory and compute of pods, by container and card.",
    ("cluster", "job", "node", "namespace", "pod"),
    (_NOW, _MEMORY, _COMPUTE, _LIST),
    start="now-1h",
)
