# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of nodes and their cards: who holds what, what the memory is, whether the hardware is well.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards import annotations as marks
from dashboards.boards.card_collected import COLLECTED, HEALTH
from dashboards.boards.card_hardware import CARD, HARDWARE, SCOPE, WORK
from dashboards.boards.expressions import free, most, of_cards, stranded
from dashboards.boards.frame import ASK, Board, to_card, to_pod
from dashboards.boards.grid import Section, even, wide
from dashboards.boards.panel import (
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
from dashboards.promql import rate, total
from isolation.contract import metrics as m

_BY_CARD: Final = (
    Key("node", "Node"),
    Key("card", "Card", width=70),
    Key("uuid", "UUID", to_card(), "This card alone"),
)
_BY_CONTAINER: Final = ("node", "card", "namespace", "pod", "container", "mode")


def _of_node(spec: m.MetricSpec) -> str:
    return total(f"{SCOPE(spec)} * on (cluster, node) group_left (driver) {SCOPE(m.NODE_INFO)}", "node", "driver")


def _by_container(spec: m.MetricSpec) -> str:
    return total(SCOPE(spec), *_BY_CONTAINER)


_NOW: Final = Section(
    "Nodes",
    (
        even(
            4,
            stat("Cards", "Cards and MIG instances of the selected nodes.", f"count({SCOPE(m.CARD_INFO)})"),
            stat(
                "Free",
                "Memory that can still be promised, summed over the selected cards. One pod may not be able to use it.",
                total(free(SCOPE)),
                "bytes",
            ),
            stat(
                "Largest promise that fits",
                "The largest share of one card that can be promised now on the selected nodes.",
                f"max({free(SCOPE)})",
                "bytes",
                steps=(Step(RED), Step(YELLOW, 1), Step(GREEN, 2**30)),
            ),
            stat(
                "Unhealthy cards",
                "Cards that take no new containers.",
                total(f"{SCOPE(m.CARD_HEALTHY)} == bool 0"),
                steps=TROUBLE,
            ),
            stat(
                "Cards without per-container use",
                "Use of these cards cannot be attributed to containers: the exporter cannot see all processes, or the "
                "driver reports MPS clients as the MPS server.",
                total(f"{SCOPE(m.CARD_ATTRIBUTABLE)} == bool 0"),
                steps=TROUBLE,
            ),
            stat("Power", "Power drawn by the selected cards.", total(SCOPE(m.CARD_POWER)), "watt"),
        ),
        wide(
            8,
            (
                16,
                table(
                    "Card list",
                    "One row per card: offered, promised and used memory, load and health.",
                    _BY_CARD,
                    (
                        Column("Promised", of_cards(SCOPE(m.CARD_ALLOCATED)), "bytes"),
                        Column("Offered", of_cards(SCOPE(m.CARD_OFFERED)), "bytes"),
                        Column("Used", of_cards(SCOPE(m.CARD_USED)), "bytes"),
                        Column("Stranded", of_cards(stranded(SCOPE)), "bytes", steps=(Step(GREY), Step(ORANGE, 1))),
                        Column("Containers", of_cards(SCOPE(m.CARD_HOLDERS)), "short"),
                        Column("Busy", of_cards(rate(SCOPE(m.CARD_BUSY_SECONDS))), "percentunit"),
                        Column("Healthy", of_cards(SCOPE(m.CARD_HEALTHY)), "short", words=YES_NO),
                    ),
                    sort="Promised",
                ),
            ),
            (
                8,
                table(
                    "Nodes",
                    "Driver version of each node, whether the exporter can see host processes, and whether MPS runs.",
                    (Key("node", "Node"), Key("driver", "Driver")),
                    (
                        Column("Host processes", _of_node(m.HOST_PIDS), "short", words=YES_NO),
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
                "Used memory by owner",
                "Used memory of the selected cards: containers with a promise, processes without one (unattributed), "
                "memory that the driver reserves, and the part that the measurement does not explain.",
                (
                    Query(total(SCOPE(m.CONTAINER_USED)), "containers"),
                    Query(total(SCOPE(m.CARD_UNATTRIBUTED)), "unattributed"),
                    Query(total(SCOPE(m.CARD_RESERVED)), "driver"),
                    Query(total(SCOPE(m.CARD_REMAINDER)), "unexplained"),
                ),
                "bytes",
                stacked=True,
                colours=(
                    ("containers", GREEN),
                    ("unattributed", RED),
                    ("driver", GREY),
                    ("unexplained", ORANGE),
                ),
            ),
            lines(
                "Used memory by card",
                "Fraction of the card's memory in use, top ten cards.",
                (Query(most(f"{SCOPE(m.CARD_USED)} / {SCOPE(m.CARD_TOTAL)}"), CARD),),
                "percentunit",
                top=1.0,
                steps=(Step(GREEN), Step(ORANGE, 0.95)),
            ),
            lines(
                "Promised memory by card",
                "Fraction of the card's offered memory that is promised. Above 1, memory is promised twice: a bug.",
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
                    "Containers on the cards",
                    "Promises on the selected cards. The name of the pod links to its dashboard.",
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
                        Column("Peak use", _by_container(m.CONTAINER_PEAK), "bytes"),
                        Column("Compute promised", _by_container(m.CONTAINER_CORE), "percentunit"),
                        Column(
                            "Compute used",
                            total(rate(SCOPE(m.CONTAINER_COMPUTE_SECONDS)), *_BY_CONTAINER),
                            "percentunit",
                        ),
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
    "The cards of a node: promises, use, owners of memory, load, hardware.",
    ("cluster", "job", "node", "uuid", ASK),
    (_NOW, _MEMORY, WORK, HARDWARE, HEALTH, COLLECTED),
    marks=marks.CARD,
)
