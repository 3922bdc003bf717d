# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of broken promises: who uses more than promised, who slips past, where nothing is known.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.dashboard import Dashboard, to_node, to_pod
from dashboards.boards.expressions import longest_over, most, most_events, of_cards, over
from dashboards.boards.layout import Section, even, wide
from dashboards.boards.panel import (
    GREEN,
    GREY,
    ORANGE,
    RED,
    TROUBLE,
    WARN,
    LabelColumn,
    PanelColumn,
    Query,
    Threshold,
    bars,
    lines,
    stat,
    table,
)
from dashboards.promql import Scope, begun, increase, or_zero, total
from isolation.contract import metrics as m

_SCOPE: Final = Scope(("cluster", "job", "node", "namespace", "pod"))
_WHO: Final = ("namespace", "pod", "container", "node", "card")


def _grown(spec: m.MetricSpec, *by: str) -> str:
    return total(begun(_SCOPE(spec)), *by)


_NOW: Final = Section(
    "Current state and selected time range",
    (
        even(
            4,
            stat("Open breaches", "Breaches that are open now.", total(_SCOPE(m.BREACHES_OPEN)), steps=TROUBLE),
            stat(
                "Over promise",
                "Memory that containers use beyond their promises. It may be promised to other containers.",
                or_zero(total(over(_SCOPE)), _SCOPE(m.CONTAINER_MEMORY_ALLOCATED)),
                "bytes",
                steps=TROUBLE,
            ),
            stat(
                "Unattributed memory",
                "Memory of processes without a promise. Some are system processes; see the list of cards below.",
                total(_SCOPE(m.CARD_MEMORY_UNATTRIBUTED)),
                "bytes",
                steps=WARN,
            ),
            stat(
                "New breaches",
                "Breaches of all kinds that began in the selected time range.",
                _grown(m.BREACHES),
                steps=WARN,
                spark=False,
                decimals=0,
            ),
            stat(
                "Denied allocations",
                "Allocations in the selected time range that exceeded a promise and were denied, as reported by the "
                "containers' own libraries. The limit worked: the application did not get the memory.",
                _grown(m.DENIED_ALLOCATIONS),
                steps=WARN,
                spark=False,
                decimals=0,
            ),
            stat(
                "Cards without per-container use",
                "Breaches on these cards can go undetected: the exporter cannot see the processes, or the driver "
                "reports MPS clients as the MPS server.",
                or_zero(total(f"{_SCOPE(m.CARD_USAGE_ATTRIBUTABLE)} == bool 0"), _SCOPE(m.CARD_MEMORY_TOTAL)),
                steps=WARN,
            ),
        ),
    ),
)

_LIST: Final = Section(
    "Breach list",
    (
        wide(
            10,
            (
                24,
                table(
                    "Containers that exceeded their promise or tried to",
                    "Containers that are over their promise now, were over it in the selected time range, or were "
                    "denied memory in it. Denied is reported by the container's own library only. The name of the pod "
                    "links to its dashboard.",
                    (
                        LabelColumn("namespace", "Namespace"),
                        LabelColumn("pod", "Pod", to_pod(), "This pod"),
                        LabelColumn("container", "Container"),
                        LabelColumn("node", "Node", to_node(), "Cards of this node"),
                        LabelColumn("card", "Card", width=70),
                    ),
                    (
                        PanelColumn("Over by", total(over(_SCOPE), *_WHO), "bytes", steps=(Threshold(RED),)),
                        PanelColumn(
                            "Time over promise", f"{_grown(m.OVER_LIMIT, *_WHO)} > 0", "s", steps=(Threshold(ORANGE),)
                        ),
                        PanelColumn(
                            "Times over promise", f"round({_grown(m.OVER_LIMIT_INCIDENTS, *_WHO)}) > 0", "short"
                        ),
                        PanelColumn("Denied", f"round({_grown(m.DENIED_ALLOCATIONS, *_WHO)}) > 0", "short"),
                    ),
                    sort="Time over promise",
                    none="no container exceeded its promise",
                ),
            ),
        ),
        wide(
            9,
            (
                14,
                table(
                    "Cards with an open breach or unattributed memory",
                    "Cards with an open breach, or with processes that use memory without a promise.",
                    (
                        LabelColumn("node", "Node", to_node(), "Cards of this node"),
                        LabelColumn("card", "Card", width=70),
                        LabelColumn("uuid", "UUID"),
                    ),
                    (
                        PanelColumn(
                            "Breaches", of_cards(f"{_SCOPE(m.BREACHES_OPEN)} > 0"), "short", steps=(Threshold(RED),)
                        ),
                        PanelColumn(
                            "Unattributed",
                            of_cards(f"{_SCOPE(m.CARD_MEMORY_UNATTRIBUTED)} > 0"),
                            "bytes",
                            steps=(Threshold(ORANGE),),
                        ),
                    ),
                    sort="Breaches",
                    none="no open breach and no unattributed memory",
                ),
            ),
            (
                10,
                bars(
                    "New breaches by kind",
                    "Breaches that began in the selected time range. over_limit: more used than promised; "
                    "uninstrumented: a process in a container runs without the isolation library; unallocated: a card "
                    "is used without a promise; missing_library, unreadable_region, wrong_limits: the library or its "
                    "files are missing or changed.",
                    (Query(_grown(m.BREACHES, "kind"), "{{kind}}"),),
                    "short",
                    decimals=0,
                    steps=(Threshold(GREEN), Threshold(RED, 0.5)),
                ),
            ),
        ),
    ),
)

_COURSE: Final = Section(
    "Over time",
    (
        even(
            8,
            lines(
                "New breaches",
                "By kind, per interval.",
                (Query(total(increase(_SCOPE(m.BREACHES)), "kind"), "{{kind}}"),),
                stacked=True,
            ),
            lines(
                "Over promise",
                "By pod, the ten that were over for longest; 0 while all pods keep their promises.",
                (
                    Query(
                        or_zero(
                            longest_over(_SCOPE, "namespace", "pod"),
                            _SCOPE(m.CONTAINER_MEMORY_ALLOCATED),
                            "pod",
                            "none",
                        ),
                        "{{namespace}} {{pod}}",
                    ),
                ),
                "bytes",
            ),
            lines(
                "Unattributed memory",
                "Memory of processes without a promise, top ten cards.",
                (Query(most(_SCOPE(m.CARD_MEMORY_UNATTRIBUTED)), "{{node}} card {{card}}"),),
                "bytes",
                stacked=True,
            ),
        ),
        even(
            8,
            lines(
                "Denied allocations",
                "By pod, per interval, the ten with the most.",
                (Query(most_events(_SCOPE, m.DENIED_ALLOCATIONS, "namespace", "pod"), "{{namespace}} {{pod}}"),),
            ),
            lines(
                "Open breaches by kind",
                "Kind `none` at 0: no breach is open.",
                (Query(total(_SCOPE(m.BREACHES_OPEN), "kind"), "{{kind}}"),),
                stacked=True,
                steps=TROUBLE,
            ),
            table(
                "Enforcement of promises",
                "Cards by mode of their node and by what enforces promises there. `none` and `share`: nothing enforces "
                "them; tenants must keep them on their own.",
                (LabelColumn("mode", "Mode"), LabelColumn("isolation", "Enforced by"), LabelColumn("pool", "Pool")),
                (
                    PanelColumn(
                        "Cards",
                        f"count by (mode, isolation, pool) ({_SCOPE(m.CARD_INFO)})",
                        "short",
                        steps=(Threshold(GREY),),
                    ),
                ),
            ),
        ),
    ),
)

BOARD: Final = Dashboard(
    "gpushare-breaches",
    "gpushare / Isolation breaches",
    "Containers that exceed their promise, denied allocations, and cards where breaches cannot be detected.",
    ("cluster", "job", "node", "namespace", "pod"),
    (_NOW, _LIST, _COURSE),
    start="now-24h",
)
