"""
The dashboard of a cluster: how much is promised, how much of that is used, what is stranded, who waits.

Decides what stands on the page and in which order; knows nothing of a single pod.
"""

from __future__ import annotations

from typing import Final

from dashboards.board.figures import fitting, free, in_pool, once, stranded, waste
from dashboards.board.frame import ASK, Board
from dashboards.board.grid import Section, even, wide
from dashboards.board.overview_lists import DEMAND, FLEET, NODES, SCOPE, WORK, pooled
from dashboards.board.panel import (
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
    "Right now",
    (
        even(
            4,
            stat("Nodes", "Nodes whose exporter tells of cards.", f"count({total(SCOPE(m.CARD_INFO), 'node')})"),
            stat("Cards", "Cards and MIG instances that are seen.", f"count({SCOPE(m.CARD_INFO)})"),
            stat(
                "Unhealthy cards",
                "Cards that cannot be promised now. The node's page says what is wrong with them.",
                pooled(f"({SCOPE(m.CARD_HEALTHY)} == bool 0)"),
                steps=TROUBLE,
            ),
            stat(
                "Containers with a share",
                "Promises that stand, one for each container and card.",
                pooled(SCOPE(m.CARD_HOLDERS)),
            ),
            stat(
                "Pods waiting",
                "Pods that asked for cards and have no place. Below it says why.",
                or_zero(once(FLEET, m.PENDING), FLEET(m.PENDING_LONGEST)),
                steps=(Step(GREEN), Step(YELLOW, 1)),
            ),
            stat(
                "Breaches now",
                "Breaches that go on now: more used than promised, processes without a promise, and so on.",
                pooled(SCOPE(m.BREACHED)),
                steps=TROUBLE,
            ),
        ),
        wide(
            7,
            (
                10,
                bars(
                    "From memory to use",
                    "What becomes of the fleet's memory: cards have it, it can be promised in whole units, it is "
                    "promised, it is used. Each step down is room: for more pods, or for smaller promises.",
                    (
                        Query(pooled(SCOPE(m.CARD_TOTAL)), "cards have"),
                        Query(pooled(SCOPE(m.CARD_OFFERED)), "can be promised"),
                        Query(pooled(SCOPE(m.CARD_ALLOCATED)), "is promised"),
                        Query(pooled(total(SCOPE(m.CONTAINER_USED), "node", "uuid", "card")), "is used by containers"),
                    ),
                    "bytes",
                ),
            ),
            (
                4,
                dial(
                    "Promised",
                    "Part of the memory that can be promised and is.",
                    f"{pooled(SCOPE(m.CARD_ALLOCATED))} / ({pooled(SCOPE(m.CARD_OFFERED))} > 0)",
                    "percentunit",
                    (Step(BLUE), Step(GREEN, 0.5), Step(ORANGE, 0.95)),
                ),
            ),
            (
                4,
                dial(
                    "Used of promised",
                    "Part of the promised memory that containers use. Low means that promises are larger than needed.",
                    f"{pooled(total(SCOPE(m.CONTAINER_USED), 'node', 'uuid', 'card'))} / "
                    f"({pooled(SCOPE(m.CARD_ALLOCATED))} > 0)",
                    "percentunit",
                    (Step(ORANGE), Step(YELLOW, 0.3), Step(GREEN, 0.5), Step(RED, 1.0)),
                ),
            ),
            (
                6,
                stat(
                    "Room for a pod of $ask GiB",
                    "How many more pods of the size chosen above fit, card by card. A sum over cards would say more.",
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
                "Memory: promised and used",
                "The gap between promised and used is waste; between promised and what can be promised, free room.",
                (
                    Query(pooled(SCOPE(m.CARD_OFFERED)), "can be promised"),
                    Query(pooled(SCOPE(m.CARD_ALLOCATED)), "promised"),
                    Query(pooled(SCOPE(m.CARD_USED)), "used on cards"),
                ),
                "bytes",
                colours=(("can be promised", GREY), ("promised", BLUE), ("used on cards", GREEN)),
            ),
            lines(
                "Waste by namespace",
                "Memory that is promised and not used, the ten largest. Nobody else can have it.",
                (
                    Query(
                        f"topk(10, {total(in_pool(SCOPE, waste(SCOPE)), 'namespace')})",
                        "{{namespace}}",
                    ),
                ),
                "bytes",
                stacked=True,
            ),
            lines(
                "Free, and stranded for pods of $ask GiB",
                "Stranded is free memory that pods of the size chosen above would leave over on each card: "
                "it counts as free in every sum, and no such pod can have it.",
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
    "What the fleet's cards have, what of it is promised, used, wasted and stranded, and who waits.",
    ("cluster", "job", "pool", "node", ASK),
    (_NOW, _MEMORY, DEMAND, NODES, WORK),
)
