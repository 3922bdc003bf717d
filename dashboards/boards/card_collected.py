# SPDX-License-Identifier: Apache-2.0
"""
Of the dashboard of cards: health of the hardware, and what exporters expose behind `--collect`.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.card_hardware import CARD, SCOPE
from dashboards.boards.expressions import most, most_events, of_cards
from dashboards.boards.frame import to_card
from dashboards.boards.grid import Section, even, wide
from dashboards.boards.panel import (
    GREEN,
    GREY,
    NO_YES,
    ORANGE,
    RED,
    Column,
    Key,
    Panel,
    Query,
    Step,
    Word,
    lines,
    table,
)
from dashboards.promql import rate, total
from isolation.contract import metrics as m
from isolation.contract.metrics import card as c

_CONTAINER: Final = "{{namespace}} {{pod}} on {{node}} card {{card}}"
_ACTIONS: Final = (
    Word(0, "none", GREEN),
    Word(1, "reset", RED),
    Word(2, "reboot node", RED),
    Word(3, "drain peer-to-peer", ORANGE),
    Word(4, "drain and reset", RED),
    Word(5, "recover IMEX domain", RED),
    Word(6, "bus reset", RED),
    Word(7, "reboot system", RED),
)
"""`gpushare_card_recovery_action`."""


def _collected(title: str, text: str, group: str, queries: tuple[Query, ...], unit: str = "short") -> Panel:
    """Figures of a group that exporters leave out unless asked."""
    return lines(title, f"{text} Needs `--collect {group}`.", queries, unit, none=f"needs --collect {group}")


def _ten(spec: m.MetricSpec, word: str, legend: str = CARD) -> Query:
    selector = SCOPE(spec)
    return Query(most(rate(selector) if spec.kind is m.Kind.COUNTER else selector), f"{legend} {word}")


HEALTH: Final = Section(
    "Health of the hardware",
    (
        wide(
            8,
            (
                16,
                table(
                    "State of the hardware",
                    "One row per card: what the driver requests, broken memory, links. Columns after Processes need "
                    "`--collect memory,pcie,nvlink`.",
                    (
                        Key("node", "Node"),
                        Key("card", "Card", width=70),
                        Key("uuid", "UUID", to_card(), "This card alone"),
                    ),
                    (
                        Column("Recovery action", of_cards(SCOPE(c.RECOVERY_ACTION)), "short", words=_ACTIONS),
                        Column("Row remap pending", of_cards(SCOPE(c.REMAP_PENDING)), "short", words=NO_YES),
                        Column("Processes", of_cards(SCOPE(c.PROCESSES)), "short", steps=(Step(GREY),)),
                        Column("Row remap failed", of_cards(SCOPE(c.REMAP_FAILED)), "short", words=NO_YES),
                        Column("PCIe generation", of_cards(SCOPE(c.PCIE_GENERATION)), "short"),
                        Column("PCIe lanes", of_cards(SCOPE(c.PCIE_WIDTH)), "short"),
                        Column("NVLink links", of_cards(SCOPE(c.NVLINK_LINKS)), "short"),
                    ),
                ),
            ),
            (
                8,
                lines(
                    "Unhealthy cards by reason",
                    "Cards that take no new containers, and why.",
                    (Query(total(SCOPE(c.UNHEALTHY), "reason"), "{{reason}}"),),
                    stacked=True,
                    none="no unhealthy card",
                ),
            ),
        ),
    ),
)

COLLECTED: Final = Section(
    "More of the hardware",
    (
        even(
            8,
            _collected(
                "Activity of multiprocessors",
                "SM activity, occupancy and tensor core activity, top ten cards of each; Hopper and later.",
                "gpm",
                (
                    _ten(c.SM_ACTIVITY, "SM active"),
                    _ten(c.SM_OCCUPANCY, "occupancy"),
                    _ten(c.TENSOR_ACTIVITY, "tensor"),
                ),
                "percentunit",
            ),
            _collected(
                "Memory bandwidth",
                "Fraction of the memory bandwidth in use, top ten cards; Hopper and later.",
                "gpm",
                (Query(most(SCOPE(c.MEMORY_BANDWIDTH)), CARD),),
                "percentunit",
            ),
            _collected(
                "Memory temperature",
                "Temperature of the card's memory, top ten cards.",
                "memory",
                (Query(most(SCOPE(c.MEMORY_TEMPERATURE)), CARD),),
                "celsius",
            ),
        ),
        even(
            8,
            _collected(
                "Video engines by card",
                "Utilisation of encoders and decoders, top ten cards of each.",
                "engines",
                (_ten(c.ENCODER, "encoder"), _ten(c.DECODER, "decoder")),
                "percentunit",
            ),
            _collected(
                "Video engines by container",
                "Encoder and decoder capacity used by each container, top ten of each.",
                "engines",
                (_ten(c.CONTAINER_ENCODER, "encoder", _CONTAINER), _ten(c.CONTAINER_DECODER, "decoder", _CONTAINER)),
                "percentunit",
            ),
            _collected(
                "Broken memory",
                "Memory rows remapped and pages retired, per interval and kind of error, top ten of each.",
                "memory",
                (
                    Query(most_events(SCOPE, c.REMAPPED_ROWS, "node", "card", "kind"), CARD + " rows, {{kind}}"),
                    Query(most_events(SCOPE, c.RETIRED_PAGES, "node", "card", "kind"), CARD + " pages, {{kind}}"),
                ),
            ),
        ),
        even(
            8,
            _collected(
                "PCI Express",
                "Bytes per second, top ten cards of each direction.",
                "pcie",
                (_ten(c.PCIE_SENT, "sent"), _ten(c.PCIE_RECEIVED, "received")),
                "Bps",
            ),
            _collected(
                "NVLink",
                "Data bytes per second, top ten cards of each direction.",
                "nvlink",
                (_ten(c.NVLINK_SENT, "sent"), _ten(c.NVLINK_RECEIVED, "received")),
                "Bps",
            ),
            _collected(
                "PCI Express errors",
                "Per interval and kind, top ten.",
                "pcie",
                (Query(most_events(SCOPE, c.PCIE_ERRORS, "node", "card", "kind"), CARD + " {{kind}}"),),
            ),
        ),
    ),
)
