"""
The dashboard of a pod: promised beside used, on every card it has, and who says so.
"""

from __future__ import annotations

from typing import Final

from dashboards.board.figures import most, over, waste
from dashboards.board.frame import Board, to_node
from dashboards.board.grid import Section, even, wide
from dashboards.board.panel import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Key,
    Query,
    Step,
    dial,
    lines,
    stat,
    table,
)
from dashboards.promql import Scope, begun, or_zero, rate, total
from isolation.contract import metrics as m

_SCOPE: Final = Scope(("cluster", "job", "node", "namespace", "pod"))
_LEGEND: Final = "{{pod}}/{{container}} card {{card}}"
_PROMISES: Final = _SCOPE(m.CONTAINER_ALLOCATED)


def _by_container(spec: m.MetricSpec) -> str:
    return total(_SCOPE(spec), "namespace", "pod", "container", "node", "card")


_NOW: Final = Section(
    "Right now",
    (
        even(
            5,
            stat("Promised", "Memory promised to the chosen pods.", total(_PROMISES), "bytes"),
            stat(
                "Used",
                "Memory of cards that they use, measured from outside where the driver tells.",
                total(_SCOPE(m.CONTAINER_USED)),
                "bytes",
            ),
            dial(
                "Fullest promise",
                "Used part of the promise of the container that is nearest to its own. At 1 allocations are refused.",
                f"max({_SCOPE(m.CONTAINER_USED)} / ({_PROMISES} > 0))",
                "percentunit",
                (Step(GREEN), Step(YELLOW, 0.8), Step(ORANGE, 0.95), Step(RED, 1.001)),
            ),
            stat(
                "Never used",
                "Promised memory that the chosen pods have not used at any moment of the time shown: what could be "
                "asked less.",
                f"sum(clamp_min({_PROMISES} - max_over_time({_SCOPE(m.CONTAINER_USED)}[$__range]), 0))",
                "bytes",
                steps=(Step(GREEN), Step(YELLOW, 2**30)),
                spark=False,
            ),
            stat(
                "Over promise",
                "Memory that they use beyond their promises; the owner of the card pays for it.",
                or_zero(total(over(_SCOPE)), _PROMISES),
                "bytes",
                steps=(Step(GREEN), Step(RED, 1)),
            ),
            stat(
                "Refused allocations",
                "Allocations refused within the containers in the time shown, as their own library tells.",
                total(begun(_SCOPE(m.DENIED))),
                decimals=0,
                steps=(Step(GREEN), Step(YELLOW, 1)),
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
                "Used and promised",
                "Per container and card, the twenty largest of each. A line of use above its promise is a breach.",
                (
                    Query(most(_SCOPE(m.CONTAINER_USED)), f"{_LEGEND} used"),
                    Query(most(_PROMISES), f"{_LEGEND} promised"),
                ),
                "bytes",
            ),
            lines(
                "Used part of the promise",
                "Per container and card, the twenty fullest; at 1 allocations are refused.",
                (Query(most(f"{_SCOPE(m.CONTAINER_USED)} / ({_PROMISES} > 0)"), _LEGEND),),
                "percentunit",
                steps=(Step(GREEN), Step(ORANGE, 0.95), Step(RED, 1.001)),
            ),
            lines(
                "Promised and not used",
                "Per container and card: what nobody else can have and this one does not need now.",
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
                "Part of the card's compute that each container uses.",
                (Query(most(_SCOPE(m.CONTAINER_CORE_USED)), _LEGEND),),
                "percentunit",
            ),
            lines(
                "Compute used against promised",
                "For containers with a promise of compute. Above 1 they burst into what nobody used, or are not "
                "limited.",
                (Query(most(f"{_SCOPE(m.CONTAINER_CORE_USED)} / ({_SCOPE(m.CONTAINER_CORE)} > 0)"), _LEGEND),),
                "percentunit",
                steps=(Step(GREEN), Step(ORANGE, 1.05)),
                none="no promise of compute",
            ),
            lines(
                "Power put down to it",
                "The card's power: of what computing takes by compute, of what an idle card draws by promise.",
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
                    "One line per container and card; the node's name leads to its cards.",
                    (
                        Key("namespace", "Namespace"),
                        Key("pod", "Pod"),
                        Key("container", "Container"),
                        Key("node", "Node", to_node(), "Cards of this node"),
                        Key("card", "Card", width=70),
                    ),
                    (
                        Column("Promised", _by_container(m.CONTAINER_ALLOCATED), "bytes"),
                        Column("Used", _by_container(m.CONTAINER_USED), "bytes"),
                        Column("Most used", _by_container(m.CONTAINER_PEAK), "bytes"),
                        Column(
                            "Used part",
                            f"{_by_container(m.CONTAINER_USED)} / ({_by_container(m.CONTAINER_ALLOCATED)} > 0)",
                            "percentunit",
                            steps=(Step(GREEN), Step(ORANGE, 0.95), Step(RED, 1.001)),
                            bar=1.0,
                        ),
                        Column("Compute promised", _by_container(m.CONTAINER_CORE), "percentunit"),
                        Column("Compute used", _by_container(m.CONTAINER_CORE_USED), "percentunit"),
                        Column(
                            "Over for",
                            total(
                                begun(_SCOPE(m.OVER_LIMIT)),
                                "namespace",
                                "pod",
                                "container",
                                "node",
                                "card",
                            ),
                            "s",
                            steps=(Step(GREY), Step(RED, 1)),
                        ),
                    ),
                    sort="Used part",
                ),
            ),
        ),
        wide(
            7,
            (
                24,
                table(
                    "Who says so",
                    "The id of each promise (it stands in the allocation record, the limits file, Events and logs), "
                    "who wrote it down, the policy of compute, and where the figures come from. `library` is the "
                    "container's own word.",
                    (
                        Key("pod", "Pod"),
                        Key("container", "Container"),
                        Key("promise", "Promise"),
                        Key("promised_by", "Promised by"),
                        Key("policy", "Policy"),
                        Key("source", "Source of memory"),
                        Key("compute_source", "Source of compute"),
                    ),
                    (
                        Column(
                            "Cards",
                            "count by (pod, container, promise, promised_by, policy, source, compute_source) "
                            f"({_SCOPE(m.CONTAINER_INFO)})",
                            "short",
                            steps=(Step(BLUE),),
                            width=80,
                        ),
                    ),
                ),
            ),
        ),
    ),
)

BOARD: Final = Board(
    "gpushare-pod",
    "gpushare / Pod",
    "What pods were promised of cards and what they use, per container and card.",
    ("cluster", "job", "node", "namespace", "pod"),
    (_NOW, _MEMORY, _COMPUTE, _LIST),
    start="now-1h",
)
