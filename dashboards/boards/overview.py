# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of a cluster: how much is promised, how much of that is used, what is stranded, who waits.

Decides what stands on the page and in which order; knows nothing of a single pod.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards import annotations as marks
from dashboards.boards.dashboard import ASK, Dashboard, to_namespace, to_node
from dashboards.boards.expressions import fitting, free, in_pool, most, once, stranded, waiting, waste
from dashboards.boards.layout import Section, even, wide
from dashboards.boards.panel import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TROUBLE,
    YELLOW,
    LabelColumn,
    PanelColumn,
    Query,
    Threshold,
    bars,
    dial,
    lines,
    stat,
    table,
)
from dashboards.promql import ALERTS, Scope, increase, or_zero, rate, total
from dashboards.rules.rule import RUNBOOKS
from isolation.contract import metrics as m

SCOPE: Final = Scope(("cluster", "job", "pool", "node"))
FLEET: Final = Scope(("cluster", "job"))


def pooled(expr: str) -> str:
    """The sum over cards of the chosen pools."""
    return total(in_pool(SCOPE, expr))


_FIRING: Final = FLEET(ALERTS, 'alertname=~"Gpushare.+"', 'alertstate="firing"', without=("job",))
ALERTING: Final = Section(
    "Firing alerts",
    (
        wide(
            6,
            (
                14,
                table(
                    "Alerts",
                    "Alerts of gpushare that fire now, and on how many objects. The name links to the runbook. Needs "
                    "the rules of gpushare in the same Prometheus.",
                    (
                        LabelColumn("severity", "Severity", width=100),
                        LabelColumn("alertname", "Alert", f"{RUNBOOKS}/${{__value.text}}.md", "Runbook"),
                    ),
                    (PanelColumn("Objects", f"count by (severity, alertname) ({_FIRING})", "short", width=90),),
                    sort="Severity",
                    none="no alert is firing",
                ),
            ),
            (
                10,
                lines(
                    "Firing alerts over time",
                    "Number of firing alerts, by severity.",
                    (Query(f"count by (severity) ({_FIRING})", "{{severity}}"),),
                    stacked=True,
                    colours=(("critical", RED), ("warning", ORANGE), ("info", BLUE)),
                    none="no alert is firing",
                ),
            ),
        ),
    ),
)

DEMAND: Final = Section(
    "Demand",
    (
        wide(
            8,
            (
                10,
                lines(
                    "Pending pods by reason",
                    "Why pods are not placed. Fragmented: free memory is enough in total, but not on single cards.",
                    (Query(waiting(FLEET), "{{reason}}"),),
                    stacked=True,
                ),
            ),
            (
                4,
                stat(
                    "Longest wait",
                    "How long the longest-waiting pod has been pending; 0 if none is pending.",
                    f"max({FLEET(m.PENDING_MAX_AGE)})",
                    "s",
                    steps=(Threshold(GREEN), Threshold(YELLOW, 300), Threshold(RED, 1800)),
                ),
            ),
            (
                4,
                stat(
                    "Fit by sum but not by card",
                    "Pending pods for which a node has enough free memory in total but not on single cards. A "
                    "scheduler that only compares sums would bind them to a node where they fail.",
                    f"max({FLEET(m.PENDING_FRAGMENTED_PODS)})",
                    steps=TROUBLE,
                ),
            ),
            (
                6,
                lines(
                    "New breaches",
                    "New breaches by kind, per interval.",
                    (Query(total(increase(SCOPE(m.BREACHES)), "kind"), "{{kind}}"),),
                    stacked=True,
                ),
            ),
        ),
    ),
)

NODES: Final = Section(
    "Nodes and namespaces",
    (
        wide(
            9,
            (
                14,
                table(
                    "Nodes",
                    "Memory, load and breaches of each node. The name links to the cards of the node.",
                    (LabelColumn("node", "Node", to_node(), "Cards of this node"),),
                    (
                        PanelColumn("Cards", f"count by (node) ({SCOPE(m.CARD_INFO)})", "short", width=70),
                        PanelColumn(
                            "Promised",
                            f"{total(in_pool(SCOPE, SCOPE(m.CARD_MEMORY_ALLOCATED)), 'node')} / "
                            f"({total(in_pool(SCOPE, SCOPE(m.CARD_MEMORY_ALLOCATABLE)), 'node')} > 0)",
                            "percentunit",
                            steps=(Threshold(BLUE),),
                            bar=1.0,
                        ),
                        PanelColumn(
                            "Used",
                            f"{total(in_pool(SCOPE, SCOPE(m.CARD_MEMORY_USED)), 'node')} / "
                            f"({total(in_pool(SCOPE, SCOPE(m.CARD_MEMORY_TOTAL)), 'node')} > 0)",
                            "percentunit",
                            steps=(Threshold(GREEN), Threshold(ORANGE, 0.9)),
                            bar=1.0,
                        ),
                        PanelColumn(
                            "Busy",
                            f"avg by (node) ({in_pool(SCOPE, rate(SCOPE(m.CARD_BUSY_SECONDS)))})",
                            "percentunit",
                            width=80,
                        ),
                        PanelColumn("Power", total(in_pool(SCOPE, SCOPE(m.CARD_POWER)), "node"), "watt", width=90),
                        PanelColumn(
                            "Breaches",
                            total(in_pool(SCOPE, SCOPE(m.BREACHES_OPEN)), "node"),
                            "short",
                            steps=TROUBLE,
                            width=90,
                        ),
                    ),
                    sort="Promised",
                ),
            ),
            (
                10,
                table(
                    "Namespaces",
                    "Promised and used memory of each namespace. The name links to the usage of the namespace.",
                    (LabelColumn("namespace", "Namespace", to_namespace(), "Usage of this namespace"),),
                    (
                        PanelColumn(
                            "Promised", total(in_pool(SCOPE, SCOPE(m.CONTAINER_MEMORY_ALLOCATED)), "namespace"), "bytes"
                        ),
                        PanelColumn(
                            "Used", total(in_pool(SCOPE, SCOPE(m.CONTAINER_MEMORY_USED)), "namespace"), "bytes"
                        ),
                        PanelColumn("Wasted", total(in_pool(SCOPE, waste(SCOPE)), "namespace"), "bytes"),
                    ),
                    sort="Promised",
                ),
            ),
        ),
    ),
)

WORK: Final = Section(
    "Load and power",
    (
        even(
            8,
            lines(
                "Busy cards",
                "Fraction of time in which cards ran a kernel: mean and maximum over cards.",
                (
                    Query(f"avg({in_pool(SCOPE, rate(SCOPE(m.CARD_BUSY_SECONDS)))})", "mean"),
                    Query(f"max({in_pool(SCOPE, rate(SCOPE(m.CARD_BUSY_SECONDS)))})", "busiest card"),
                ),
                "percentunit",
                top=1.0,
            ),
            lines(
                "Power",
                "Power drawn by all cards, and by cards on which nothing is promised.",
                (
                    Query(pooled(SCOPE(m.CARD_POWER)), "all cards"),
                    Query(
                        pooled(f"({SCOPE(m.CARD_POWER)} * ({SCOPE(m.CARD_CONTAINERS)} == bool 0))"),
                        "unallocated cards",
                    ),
                ),
                "watt",
            ),
            lines(
                "Fullest cards",
                "Fraction of the card's memory in use, top ten cards.",
                (
                    Query(
                        most(in_pool(SCOPE, f"{SCOPE(m.CARD_MEMORY_USED)} / {SCOPE(m.CARD_MEMORY_TOTAL)}")),
                        "{{node}} card {{card}}",
                    ),
                ),
                "percentunit",
                top=1.0,
                steps=(Threshold(GREEN), Threshold(ORANGE, 0.95)),
            ),
        ),
    ),
)


_NOW: Final = Section(
    "Current state",
    (
        even(
            4,
            stat(
                "Nodes",
                "Nodes with cards, as reported by their exporters.",
                f"count({total(SCOPE(m.CARD_INFO), 'node')})",
            ),
            stat("Cards", "Cards and MIG instances, as reported by the exporters.", f"count({SCOPE(m.CARD_INFO)})"),
            stat(
                "Unhealthy cards",
                "Cards that take no new containers. The dashboard of the node shows the cause.",
                pooled(f"({SCOPE(m.CARD_HEALTHY)} == bool 0)"),
                steps=TROUBLE,
            ),
            stat(
                "Promises",
                "Current promises, one per container and card.",
                pooled(SCOPE(m.CARD_CONTAINERS)),
            ),
            stat(
                "Pending pods",
                "Pods that request cards and are not placed. Pending pods by reason, below, shows why.",
                or_zero(once(FLEET, m.PENDING_PODS), FLEET(m.PENDING_MAX_AGE)),
                steps=(Threshold(GREEN), Threshold(YELLOW, 1)),
            ),
            stat(
                "Open breaches",
                "Breaches that are open now: more memory used than promised, processes without a promise, and others.",
                pooled(SCOPE(m.BREACHES_OPEN)),
                steps=TROUBLE,
            ),
        ),
        wide(
            7,
            (
                10,
                bars(
                    "From installed to used memory",
                    "Memory of the fleet: installed on cards, offered in whole units, promised, used. Each step down "
                    "is a reserve: room for more pods, or promises that can be smaller.",
                    (
                        Query(pooled(SCOPE(m.CARD_MEMORY_TOTAL)), "installed"),
                        Query(pooled(SCOPE(m.CARD_MEMORY_ALLOCATABLE)), "offered"),
                        Query(pooled(SCOPE(m.CARD_MEMORY_ALLOCATED)), "promised"),
                        Query(
                            pooled(total(SCOPE(m.CONTAINER_MEMORY_USED), "node", "uuid", "card")), "used by containers"
                        ),
                    ),
                    "bytes",
                ),
            ),
            (
                4,
                dial(
                    "Promised",
                    "Fraction of the offered memory that is promised.",
                    f"{pooled(SCOPE(m.CARD_MEMORY_ALLOCATED))} / ({pooled(SCOPE(m.CARD_MEMORY_ALLOCATABLE))} > 0)",
                    "percentunit",
                    (Threshold(BLUE), Threshold(GREEN, 0.5), Threshold(ORANGE, 0.95)),
                ),
            ),
            (
                4,
                dial(
                    "Used of promised",
                    "Fraction of the promised memory that containers use. Low: promises are larger than needed.",
                    f"{pooled(total(SCOPE(m.CONTAINER_MEMORY_USED), 'node', 'uuid', 'card'))} / "
                    f"({pooled(SCOPE(m.CARD_MEMORY_ALLOCATED))} > 0)",
                    "percentunit",
                    (Threshold(ORANGE), Threshold(YELLOW, 0.3), Threshold(GREEN, 0.5), Threshold(RED, 1.0)),
                ),
            ),
            (
                6,
                stat(
                    "Additional pods of $ask GiB that fit",
                    "Number of additional pods of the selected size that fit, counted card by card. A count by the sum "
                    "of free memory would be too high.",
                    pooled(fitting(SCOPE)),
                    steps=(Threshold(RED), Threshold(YELLOW, 1), Threshold(GREEN, 4)),
                ),
            ),
        ),
    ),
)

_MEMORY: Final = Section(
    "Waste and stranded memory",
    (
        even(
            8,
            lines(
                "Offered, promised and used memory",
                "The gap between promised and used is waste. The gap between offered and promised is free.",
                (
                    Query(pooled(SCOPE(m.CARD_MEMORY_ALLOCATABLE)), "offered"),
                    Query(pooled(SCOPE(m.CARD_MEMORY_ALLOCATED)), "promised"),
                    Query(pooled(SCOPE(m.CARD_MEMORY_USED)), "used on cards"),
                ),
                "bytes",
                colours=(("offered", GREY), ("promised", BLUE), ("used on cards", GREEN)),
            ),
            lines(
                "Waste by namespace",
                "Memory that is promised but not used, top ten namespaces. No other pod can use it.",
                (
                    Query(
                        most(total(in_pool(SCOPE, waste(SCOPE)), "namespace")),
                        "{{namespace}}",
                    ),
                ),
                "bytes",
                stacked=True,
            ),
            lines(
                "Free and stranded memory for pods of $ask GiB",
                "Stranded memory is free, but no pod of the selected size can use it because too little is left on "
                "its card. It counts as free in every sum.",
                (
                    Query(pooled(free(SCOPE)), "free"),
                    Query(pooled(stranded(SCOPE)), "stranded"),
                ),
                "bytes",
                colours=(("free", GREEN), ("stranded", ORANGE)),
            ),
        ),
    ),
)

BOARD: Final = Dashboard(
    "gpushare-overview",
    "gpushare / Cluster",
    "Memory of the fleet: installed, promised, used, wasted and stranded, and which pods are pending.",
    ("cluster", "job", "pool", "node", ASK),
    (_NOW, ALERTING, _MEMORY, DEMAND, NODES, WORK),
    marks=marks.FLEET,
)
