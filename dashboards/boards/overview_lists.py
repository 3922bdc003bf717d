# SPDX-License-Identifier: Apache-2.0
"""
Of a cluster's dashboard: who waits, its nodes and namespaces, its work and energy.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.expressions import in_pool, most, waiting, waste
from dashboards.boards.frame import to_namespace, to_node
from dashboards.boards.grid import Section, even, wide
from dashboards.boards.panel import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    TROUBLE,
    YELLOW,
    Column,
    Key,
    Query,
    Step,
    lines,
    stat,
    table,
)
from dashboards.promql import ALERTS, Scope, increase, rate, total
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
                        Key("severity", "Severity", width=100),
                        Key("alertname", "Alert", f"{RUNBOOKS}/${{__value.text}}.md", "Runbook"),
                    ),
                    (Column("Objects", f"count by (severity, alertname) ({_FIRING})", "short", width=90),),
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
                    f"max({FLEET(m.PENDING_LONGEST)})",
                    "s",
                    steps=(Step(GREEN), Step(YELLOW, 300), Step(RED, 1800)),
                ),
            ),
            (
                4,
                stat(
                    "Fit by sum but not by card",
                    "Pending pods for which a node has enough free memory in total but not on single cards. A "
                    "scheduler that only compares sums would bind them to a node where they fail.",
                    f"max({FLEET(m.PHANTOMS)})",
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
                    (Key("node", "Node", to_node(), "Cards of this node"),),
                    (
                        Column("Cards", f"count by (node) ({SCOPE(m.CARD_INFO)})", "short", width=70),
                        Column(
                            "Promised",
                            f"{total(in_pool(SCOPE, SCOPE(m.CARD_ALLOCATED)), 'node')} / "
                            f"({total(in_pool(SCOPE, SCOPE(m.CARD_OFFERED)), 'node')} > 0)",
                            "percentunit",
                            steps=(Step(BLUE),),
                            bar=1.0,
                        ),
                        Column(
                            "Used",
                            f"{total(in_pool(SCOPE, SCOPE(m.CARD_USED)), 'node')} / "
                            f"({total(in_pool(SCOPE, SCOPE(m.CARD_TOTAL)), 'node')} > 0)",
                            "percentunit",
                            steps=(Step(GREEN), Step(ORANGE, 0.9)),
                            bar=1.0,
                        ),
                        Column(
                            "Busy",
                            f"avg by (node) ({in_pool(SCOPE, rate(SCOPE(m.CARD_BUSY_SECONDS)))})",
                            "percentunit",
                            width=80,
                        ),
                        Column("Power", total(in_pool(SCOPE, SCOPE(m.CARD_POWER)), "node"), "watt", width=90),
                        Column(
                            "Breaches",
                            total(in_pool(SCOPE, SCOPE(m.BREACHED)), "node"),
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
                    (Key("namespace", "Namespace", to_namespace(), "Usage of this namespace"),),
                    (
                        Column("Promised", total(in_pool(SCOPE, SCOPE(m.CONTAINER_ALLOCATED)), "namespace"), "bytes"),
                        Column("Used", total(in_pool(SCOPE, SCOPE(m.CONTAINER_USED)), "namespace"), "bytes"),
                        Column("Wasted", total(in_pool(SCOPE, waste(SCOPE)), "namespace"), "bytes"),
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
                        pooled(f"({SCOPE(m.CARD_POWER)} * ({SCOPE(m.CARD_HOLDERS)} == bool 0))"),
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
                        most(in_pool(SCOPE, f"{SCOPE(m.CARD_USED)} / {SCOPE(m.CARD_TOTAL)}")),
                        "{{node}} card {{card}}",
                    ),
                ),
                "percentunit",
                top=1.0,
                steps=(Step(GREEN), Step(ORANGE, 0.95)),
            ),
        ),
    ),
)
