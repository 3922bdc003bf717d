# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of a cluster: how much is promised, how much of that is used, what is stranded, who waits.

Decides what stands on the page and in which order; knows nothing of a single pod.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards import annotations as marks
from dashboards.boards.expressions import fitting, free, in_pool, most, once, stranded, waste
from dashboards.boards.frame import ASK, Board
from dashboards.boards.grid import Section, even, wide
from dashboards.boards.overview_lists import ALERTING, DEMAND, FLEET, NODES, SCOPE, WORK, pooled
from dashboards.boards.panel import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TROUBLE,
    YELLOW,
    Query,
    Step,
    bars,
    dial,
    lines,
    stat,
)
from dashboards.promql import or_zero, total
from isolation.contract import metrics as m

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
                pooled(SCOPE(m.CARD_HOLDERS)),
            ),
            stat(
                "Pending pods",
                "Pods that request cards and are not placed. Pending pods by reason, below, shows why.",
                or_zero(once(FLEET, m.PENDING), FLEET(m.PENDING_LONGEST)),
                steps=(Step(GREEN), Step(YELLOW, 1)),
            ),
            stat(
                "Open breaches",
                "Breaches that are open now: more memory used than promised, processes without a promise, and others.",
                pooled(SCOPE(m.BREACHED)),
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
                        Query(pooled(SCOPE(m.CARD_TOTAL)), "installed"),
                        Query(pooled(SCOPE(m.CARD_OFFERED)), "offered"),
                        Query(pooled(SCOPE(m.CARD_ALLOCATED)), "promised"),
                        Query(pooled(total(SCOPE(m.CONTAINER_USED), "node", "uuid", "card")), "used by containers"),
                    ),
                    "bytes",
                ),
            ),
            (
                4,
                dial(
                    "Promised",
                    "Fraction of the offered memory that is promised.",
                    f"{pooled(SCOPE(m.CARD_ALLOCATED))} / ({pooled(SCOPE(m.CARD_OFFERED))} > 0)",
                    "percentunit",
                    (Step(BLUE), Step(GREEN, 0.5), Step(ORANGE, 0.95)),
                ),
            ),
            (
                4,
                dial(
                    "Used of promised",
                    "Fraction of the promised memory that containers use. Low: promises are larger than needed.",
                    f"{pooled(total(SCOPE(m.CONTAINER_USED), 'node', 'uuid', 'card'))} / "
                    f"({pooled(SCOPE(m.CARD_ALLOCATED))} > 0)",
                    "percentunit",
                    (Step(ORANGE), Step(YELLOW, 0.3), Step(GREEN, 0.5), Step(RED, 1.0)),
                ),
            ),
            (
                6,
                stat(
                    "Additional pods of $ask GiB that fit",
                    "Number of additional pods of the selected size that fit, counted card by card. A count by the sum "
                    "of free memory would be too high.",
                    pooled(fitting(SCOPE)),
                    steps=(Step(RED), Step(YELLOW, 1), Step(GREEN, 4)),
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
                    Query(pooled(SCOPE(m.CARD_OFFERED)), "offered"),
                    Query(pooled(SCOPE(m.CARD_ALLOCATED)), "promised"),
                    Query(pooled(SCOPE(m.CARD_USED)), "used on cards"),
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

BOARD: Final = Board(
    "gpushare-overview",
    "gpushare / Cluster",
    "Memory of the fleet: installed, promised, used, wasted and stranded, and which pods are pending.",
    ("cluster", "job", "pool", "node", ASK),
    (_NOW, ALERTING, _MEMORY, DEMAND, NODES, WORK),
    marks=marks.FLEET,
)
