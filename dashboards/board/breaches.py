"""
The dashboard of broken promises: who uses more than promised, who slips past, where nothing can be told.
"""

from __future__ import annotations

from typing import Final

from dashboards.board.figures import most, of_cards, over
from dashboards.board.frame import Board, to_node, to_pod
from dashboards.board.grid import Section, even, wide
from dashboards.board.panel import (
    DOUBT,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TROUBLE,
    Column,
    Key,
    Query,
    Step,
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
    "Right now, and in the time shown",
    (
        even(
            4,
            stat("Breaches now", "Breaches that go on now.", total(_SCOPE(m.BREACHED)), steps=TROUBLE),
            stat(
                "Over promise",
                "Memory that containers use beyond their promises: it is somebody else's.",
                or_zero(total(over(_SCOPE)), _SCOPE(m.CONTAINER_ALLOCATED)),
                "bytes",
                steps=TROUBLE,
            ),
            stat(
                "Outside any promise",
                "Memory of processes that nobody promised anything. Some belong to the system; see the cards below.",
                total(_SCOPE(m.CARD_UNATTRIBUTED)),
                "bytes",
                steps=DOUBT,
            ),
            stat(
                "Breaches begun",
                "In the time shown, of every kind.",
                _grown(m.BREACHES),
                steps=DOUBT,
                spark=False,
                decimals=0,
            ),
            stat(
                "Refused allocations",
                "In the time shown, as the containers' own libraries tell. The promise held: an application that "
                "wanted more did not get it.",
                _grown(m.DENIED),
                steps=DOUBT,
                spark=False,
                decimals=0,
            ),
            stat(
                "Cards that cannot be told apart",
                "On these cards a breach can go unseen: processes are hidden, or MPS stands between.",
                or_zero(total(f"{_SCOPE(m.CARD_ATTRIBUTABLE)} == bool 0"), _SCOPE(m.CARD_TOTAL)),
                steps=DOUBT,
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
                    "Containers that went past their promise, or tried to",
                    "Whoever is over now, was over in the time shown, or was refused memory in it. Refused is the "
                    "library's word alone. The pod's name leads to its page.",
                    (
                        Key("namespace", "Namespace"),
                        Key("pod", "Pod", to_pod(), "This pod"),
                        Key("container", "Container"),
                        Key("node", "Node", to_node(), "Cards of this node"),
                        Key("card", "Card", width=70),
                    ),
                    (
                        Column("Over by", total(over(_SCOPE), *_WHO), "bytes", steps=(Step(RED),)),
                        Column("Over for", f"{_grown(m.OVER_LIMIT, *_WHO)} > 0", "s", steps=(Step(ORANGE),)),
                        Column("Times over", f"round({_grown(m.OVER_EPISODES, *_WHO)}) > 0", "short"),
                        Column("Refused", f"round({_grown(m.DENIED, *_WHO)}) > 0", "short"),
                    ),
                    sort="Over for",
                    none="no container went past its promise",
                ),
            ),
        ),
        wide(
            9,
            (
                14,
                table(
                    "Cards with a breach, or with strangers",
                    "Cards on which a breach goes on, or processes without a promise hold memory.",
                    (
                        Key("node", "Node", to_node(), "Cards of this node"),
                        Key("card", "Card", width=70),
                        Key("uuid", "UUID"),
                    ),
                    (
                        Column("Breaches", of_cards(f"{_SCOPE(m.BREACHED)} > 0"), "short", steps=(Step(RED),)),
                        Column(
                            "Outside any promise",
                            of_cards(f"{_SCOPE(m.CARD_UNATTRIBUTED)} > 0"),
                            "bytes",
                            steps=(Step(ORANGE),),
                        ),
                    ),
                    sort="Breaches",
                    none="no breach and no stranger",
                ),
            ),
            (
                10,
                bars(
                    "Breaches begun, by kind",
                    "In the time shown. over_limit: more used than promised; uninstrumented: a process in a container "
                    "without our library; unallocated: a card used without a promise; missing_library, "
                    "unreadable_region, wrong_limits: what enforces the promise is gone or was changed.",
                    (Query(_grown(m.BREACHES, "kind"), "{{kind}}"),),
                    "short",
                    decimals=0,
                    steps=(Step(GREEN), Step(RED, 0.5)),
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
                "Breaches begun",
                "By kind, in each step of the graph.",
                (Query(total(increase(_SCOPE(m.BREACHES)), "kind"), "{{kind}}"),),
                stacked=True,
            ),
            lines(
                "Over promise",
                "By pod, the ten largest; nothing is drawn while all keep their promises.",
                (
                    Query(
                        or_zero(
                            f"topk(10, {total(over(_SCOPE), 'namespace', 'pod')})",
                            _SCOPE(m.CONTAINER_ALLOCATED),
                            "pod",
                            "nobody",
                        ),
                        "{{namespace}} {{pod}}",
                    ),
                ),
                "bytes",
            ),
            lines(
                "Outside any promise",
                "Memory of processes without a promise, by card, the twenty largest.",
                (Query(most(_SCOPE(m.CARD_UNATTRIBUTED)), "{{node}} card {{card}}"),),
                "bytes",
                stacked=True,
            ),
        ),
        even(
            8,
            lines(
                "Refused allocations",
                "By pod, in each step of the graph, the ten most.",
                (Query(f"topk(10, {total(increase(_SCOPE(m.DENIED)), 'namespace', 'pod')})", "{{namespace}} {{pod}}"),),
            ),
            lines(
                "Breaches that go on",
                "By kind; none, a line at 0, where nothing goes on.",
                (Query(total(_SCOPE(m.BREACHED), "kind"), "{{kind}}"),),
                stacked=True,
                steps=TROUBLE,
            ),
            table(
                "What enforces promises",
                "Cards by what their node serves and by what keeps tenants to their promises there. `none` and "
                "`share` mean that promises are kept by nobody but the tenants.",
                (Key("mode", "Mode"), Key("isolation", "Enforced by"), Key("pool", "Pool")),
                (
                    Column(
                        "Cards",
                        f"count by (mode, isolation, pool) ({_SCOPE(m.CARD_INFO)})",
                        "short",
                        steps=(Step(GREY),),
                    ),
                ),
            ),
        ),
    ),
)

BOARD: Final = Board(
    "gpushare-breaches",
    "gpushare / Isolation breaches",
    "Who uses more of a card than was promised, who was stopped, and where that cannot be told.",
    ("cluster", "job", "node", "namespace", "pod"),
    (_NOW, _LIST, _COURSE),
    start="now-24h",
)
