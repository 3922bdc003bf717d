"""
The dashboard of nodes and their cards: who holds what, what the memory is, whether the hardware is well.
"""

from __future__ import annotations

from typing import Final

from dashboards.board.card_hardware import CARD, HARDWARE, SCOPE, WORK
from dashboards.board.figures import free, most, of_cards, stranded
from dashboards.board.frame import ASK, Board, to_pod
from dashboards.board.grid import Section, even, wide
from dashboards.board.panel import (
    BLUE,
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
from dashboards.promql import total
from isolation.contract import metrics as m

_BY_CARD: Final = (Key("node", "Node"), Key("card", "Card", width=70), Key("uuid", "UUID"))


def _of_node(spec: m.MetricSpec) -> str:
    return total(f"{SCOPE(spec)} * on (cluster, node) group_left (driver) {SCOPE(m.NODE_INFO)}", "node", "driver")


def _by_container(spec: m.MetricSpec) -> str:
    return total(SCOPE(spec), "node", "card", "namespace", "pod", "container", "mode")


_NOW: Final = Section(
    "Nodes",
    (
        even(
            4,
            stat("Cards", "Cards and MIG instances of the chosen nodes.", f"count({SCOPE(m.CARD_INFO)})"),
            stat(
                "Free",
                "Memory that can still be promised, all chosen cards together. It need not fit one pod.",
                total(free(SCOPE)),
                "bytes",
            ),
            stat(
                "Largest promise that fits",
                "The largest share of one card that can be promised now on the chosen nodes.",
                f"max({free(SCOPE)})",
                "bytes",
                steps=(Step(RED), Step(YELLOW, 1), Step(GREEN, 2**30)),
            ),
            stat(
                "Unhealthy cards",
                "Cards that cannot be promised now.",
                total(f"{SCOPE(m.CARD_HEALTHY)} == bool 0"),
                steps=TROUBLE,
            ),
            stat(
                "Cards not told apart",
                "Cards whose figures cannot be told apart by container: the exporter does not see all processes, or "
                "MPS clients stand under their server.",
                total(f"{SCOPE(m.CARD_ATTRIBUTABLE)} == bool 0"),
                steps=TROUBLE,
            ),
            stat("Power", "Drawn by the chosen cards.", total(SCOPE(m.CARD_POWER)), "watt"),
        ),
        wide(
            8,
            (
                16,
                table(
                    "Each card",
                    "One line per card: what it has, what is promised of it and used, and how it is.",
                    _BY_CARD,
                    (
                        Column("Promised", of_cards(SCOPE(m.CARD_ALLOCATED)), "bytes"),
                        Column("Can be promised", of_cards(SCOPE(m.CARD_OFFERED)), "bytes"),
                        Column("Used", of_cards(SCOPE(m.CARD_USED)), "bytes"),
                        Column("Stranded", of_cards(stranded(SCOPE)), "bytes", steps=(Step(GREY), Step(ORANGE, 1))),
                        Column("Containers", of_cards(SCOPE(m.CARD_HOLDERS)), "short"),
                        Column("Busy", of_cards(SCOPE(m.CARD_UTILISATION)), "percentunit"),
                        Column("Healthy", of_cards(SCOPE(m.CARD_HEALTHY)), "short", words=YES_NO),
                    ),
                    sort="Promised",
                ),
            ),
            (
                8,
                table(
                    "Nodes",
                    "Driver of each node, whether the exporter sees the host's processes, and whether MPS runs.",
                    (Key("node", "Node"), Key("driver", "Driver")),
                    (
                        Column("Sees processes", _of_node(m.HOST_PIDS), "short", words=YES_NO),
                        Column("MPS", _of_node(m.MPS), "short", words=(Word(0, "no", GREY), Word(1, "yes", BLUE))),
                    ),
                ),
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
                "What the memory is",
                "Used memory of the chosen cards in its parts: containers with a promise, processes without one, what "
                "the driver keeps, and what the measurement does not explain.",
                (
                    Query(total(SCOPE(m.CONTAINER_USED)), "containers"),
                    Query(total(SCOPE(m.CARD_UNATTRIBUTED)), "outside any promise"),
                    Query(total(SCOPE(m.CARD_RESERVED)), "driver"),
                    Query(total(SCOPE(m.CARD_REMAINDER)), "not explained"),
                ),
                "bytes",
                stacked=True,
                colours=(
                    ("containers", GREEN),
                    ("outside any promise", RED),
                    ("driver", GREY),
                    ("not explained", ORANGE),
                ),
            ),
            lines(
                "Used memory by card",
                "Part of the card's memory that is in use, the twenty fullest.",
                (Query(most(f"{SCOPE(m.CARD_USED)} / {SCOPE(m.CARD_TOTAL)}"), CARD),),
                "percentunit",
                top=1.0,
                steps=(Step(GREEN), Step(ORANGE, 0.95)),
            ),
            lines(
                "Promised memory by card",
                "Part of what can be promised of the card and is. Above 1 the card is promised twice: a defect.",
                (Query(most(f"{SCOPE(m.CARD_ALLOCATED)} / ({SCOPE(m.CARD_OFFERED)} > 0)"), CARD),),
                "percentunit",
                steps=(Step(GREEN), Step(RED, 1.001)),
            ),
        ),
        wide(
            9,
            (
                24,
                table(
                    "Who is on the cards",
                    "Promises on the chosen cards; the pod's name leads to its page.",
                    (
                        Key("node", "Node"),
                        Key("card", "Card", width=70),
                        Key("namespace", "Namespace"),
                        Key("pod", "Pod", to_pod(), "This pod"),
                        Key("container", "Container"),
                        Key("mode", "Mode", width=100),
                    ),
                    (
                        Column("Promised", _by_container(m.CONTAINER_ALLOCATED), "bytes"),
                        Column("Used", _by_container(m.CONTAINER_USED), "bytes"),
                        Column("Most used", _by_container(m.CONTAINER_PEAK), "bytes"),
                        Column("Compute promised", _by_container(m.CONTAINER_CORE), "percentunit"),
                        Column("Compute used", _by_container(m.CONTAINER_CORE_USED), "percentunit"),
                    ),
                    sort="Promised",
                ),
            ),
        ),
    ),
)

BOARD: Final = Board(
    "gpushare-card",
    "gpushare / Node and card",
    "The cards of a node: promises, use, what the memory is, work, hardware.",
    ("cluster", "job", "node", ASK),
    (_NOW, _MEMORY, WORK, HARDWARE),
)
