"""
The dashboard of the autoscaler: pools, what pods wait for, what was done about it, and why it holds back.
"""

from __future__ import annotations

from typing import Final

from dashboards.board.autoscaler_moves import LOOP, MOVES, SCOPE, TRUST
from dashboards.board.figures import once, waiting
from dashboards.board.frame import Board
from dashboards.board.grid import Section, even, wide
from dashboards.board.panel import (
    DOUBT,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TROUBLE,
    YELLOW,
    YES_NO,
    Column,
    Key,
    Query,
    Step,
    Word,
    lines,
    stat,
    table,
)
from dashboards.promql import increase, or_zero, total
from isolation.contract import metrics as m
from isolation.contract import metrics_autoscaler as a

_SWITCH: Final = (Word(0, "off", ORANGE), Word(1, "on", GREEN))
_MOOD: Final = (Word(0, "acts", GREEN), Word(1, "dry run", YELLOW))


def _by_pool(spec: m.MetricSpec, of: str = "max") -> str:
    return f"{of} by (pool) ({SCOPE(spec)})"


_NOW: Final = Section(
    "Right now",
    (
        even(
            4,
            stat("Leader", "Whether some replica may act.", f"max({LOOP(a.LEADS)})", words=YES_NO, spark=False),
            stat(
                "Switch",
                "Off: nothing is done, by an operator's will.",
                f"min({LOOP(a.ENABLED)})",
                words=_SWITCH,
                spark=False,
            ),
            stat(
                "Mood", "Dry run: it only says what it would do.", f"max({LOOP(a.DRY_RUN)})", words=_MOOD, spark=False
            ),
            stat(
                "Since the last turn",
                "Turns come every ten seconds; a minute without one means trouble.",
                f"time() - max({LOOP(a.LAST_TURN)})",
                "s",
                steps=(Step(GREEN), Step(YELLOW, 30), Step(RED, 60)),
                decimals=0,
            ),
            stat(
                "Doubts",
                "Reasons for which something is withheld now. The list below says which.",
                once(LOOP, a.DOUBTS),
                steps=DOUBT,
            ),
            stat(
                "Pods waiting",
                "Pods that asked for cards and have no place.",
                or_zero(once(LOOP, m.PENDING), LOOP(m.PENDING_LONGEST)),
                steps=DOUBT,
            ),
            stat("Moves left", "Pods that may still be evicted within this hour.", f"min({LOOP(a.MOVES_LEFT)})"),
            stat(
                "Flaps",
                "Done and undone too soon: a fresh node emptied, a drain called off, a pod moved again.",
                or_zero(total(increase(SCOPE(a.FLAPS), "$__range")), LOOP(a.LEADS)),
                steps=TROUBLE,
                spark=False,
                decimals=0,
            ),
        ),
    ),
)

_POOLS: Final = Section(
    "Pools",
    (
        wide(
            9,
            (
                24,
                table(
                    "Pools",
                    "Nodes now, asked for, and between which bounds; the largest share that still fits on one card; "
                    "idle compute in cards and how much of it is of no use to the pods that come.",
                    (Key("pool", "Pool"),),
                    (
                        Column("Ready", once(SCOPE, m.POOL_NODES, "pool", only=('state="ready"',)), "short", width=80),
                        Column(
                            "Booting", once(SCOPE, m.POOL_NODES, "pool", only=('state="booting"',)), "short", width=80
                        ),
                        Column("Asked", _by_pool(a.POOL_TARGET), "short", width=80),
                        Column("Fewest", _by_pool(m.POOL_SMALLEST), "short", width=80),
                        Column("Most", _by_pool(m.POOL_LARGEST), "short", width=80),
                        Column("Largest share", _by_pool(a.POOL_FREE), "bytes"),
                        Column("Idle cards", _by_pool(a.POOL_IDLE), "short"),
                        Column("Of no use", _by_pool(a.POOL_LOST), "short", steps=(Step(GREY), Step(ORANGE, 0.5))),
                        Column("Price of a node", _by_pool(a.POOL_PRICE), "short"),
                        Column("Not asked for", _by_pool(a.POOL_REST), "s", steps=(Step(GREY), Step(ORANGE, 1))),
                        Column("Provider answers", _by_pool(a.PROVIDER_UP, of="min"), "short", words=YES_NO),
                        Column("Known node", _by_pool(a.POOL_KNOWN, of="min"), "short", words=YES_NO),
                    ),
                    sort="Ready",
                ),
            ),
        ),
        even(
            8,
            lines(
                "Nodes",
                "Of each pool, by state.",
                (Query(once(SCOPE, m.POOL_NODES, "pool", "state"), "{{pool}} {{state}}"),),
                stacked=True,
            ),
            lines(
                "Idle cards, and those of no use",
                "Compute that is idle on usable nodes, in cards, and what of it no pod that comes can have: stranded.",
                (
                    Query(once(SCOPE, a.POOL_IDLE), "idle"),
                    Query(once(SCOPE, a.POOL_LOST), "of no use"),
                ),
                colours=(("idle", GREEN), ("of no use", ORANGE)),
            ),
            lines(
                "Cards bought and given back",
                "In each step of the graph.",
                (
                    Query(
                        or_zero(total(increase(SCOPE(a.CARDS_BOUGHT)), "pool"), LOOP(a.LEADS), "pool", "none"),
                        "{{pool}} bought",
                    ),
                    Query(
                        or_zero(total(increase(SCOPE(a.CARDS_RETURNED)), "pool"), LOOP(a.LEADS), "pool", "none"),
                        "{{pool}} given back",
                    ),
                ),
            ),
        ),
    ),
)

_DEMAND: Final = Section(
    "Demand",
    (
        even(
            8,
            lines(
                "Pods waiting, by reason",
                "Fragmented: the sums have room, no card set has it.",
                (Query(waiting(LOOP), "{{reason}}"),),
                stacked=True,
            ),
            lines(
                "Memory waited for",
                "By namespace and by the cheapest pool that could host it; no pool: none could.",
                (
                    Query(
                        or_zero(
                            once(SCOPE, a.PENDING_BYTES, "namespace", "pool"),
                            LOOP(m.PENDING_LONGEST),
                            "namespace",
                            "nobody",
                        ),
                        "{{namespace}} {{pool}}",
                    ),
                ),
                "bytes",
                stacked=True,
            ),
            lines(
                "What waiting pods were told",
                "fits: there is room; coming: a machine was bought; kept: a drain was called off; capped: a pool may "
                "not grow now; hopeless: no pool could ever host it.",
                (Query(once(LOOP, a.ANSWERS, "answer"), "{{answer}}"),),
                stacked=True,
            ),
            lines(
                "Longest wait",
                "Of any pod without a place.",
                (Query(f"max({LOOP(m.PENDING_LONGEST)})", "longest"),),
                "s",
                steps=(Step(GREEN), Step(RED, 1800)),
            ),
        ),
    ),
)

BOARD: Final = Board(
    "gpushare-autoscaler",
    "gpushare / Autoscaler and rebalancing",
    "Pools, what pods wait for, what was bought, moved and given back, and why it holds back.",
    ("cluster", "job", "pool"),
    (_NOW, _POOLS, _DEMAND, MOVES, TRUST),
)
