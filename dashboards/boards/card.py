# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of nodes and their cards: who holds what, what the memory is, whether the hardware is well.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards import annotations as marks
from dashboards.boards.dashboard import ASK, Dashboard, to_card, to_pod
from dashboards.boards.expressions import free, most, most_events, of_cards, stranded
from dashboards.boards.layout import Section, even, wide
from dashboards.boards.panel import (
    BLUE,
    GREEN,
    GREY,
    NO_YES,
    ORANGE,
    RED,
    TROUBLE,
    YELLOW,
    YES_NO,
    LabelColumn,
    Panel,
    PanelColumn,
    Query,
    Threshold,
    ValueMapping,
    lines,
    stat,
    table,
)
from dashboards.promql import Scope, rate, total
from isolation.contract import metrics as m
from isolation.contract.metrics import card as c

SCOPE: Final = Scope(("cluster", "job", "node", "uuid"))
CARD: Final = "{{node}} card {{card}}"


WORK: Final = Section(
    "Load",
    (
        even(
            8,
            lines(
                "Busy",
                "Fraction of time in which the card ran a kernel, top ten cards.",
                (Query(most(rate(SCOPE(m.CARD_BUSY_SECONDS))), CARD),),
                "percentunit",
                top=1.0,
            ),
            lines(
                "Memory busy",
                "Fraction of time in which the card's memory was read or written, top ten cards.",
                (Query(most(SCOPE(m.CARD_MEMORY_UTILISATION)), CARD),),
                "percentunit",
                top=1.0,
            ),
            lines(
                "Compute by container",
                "Fraction of the card's compute that each container uses, top ten containers.",
                (
                    Query(
                        most(rate(SCOPE(m.CONTAINER_COMPUTE_SECONDS))),
                        "{{namespace}} {{pod}} on {{node}} card {{card}}",
                    ),
                ),
                "percentunit",
            ),
        ),
    ),
)

HARDWARE: Final = Section(
    "Hardware",
    (
        even(
            8,
            lines(
                "Power relative to the limit",
                "Fraction of the card's power limit that it draws, top ten cards.",
                (Query(most(f"{SCOPE(m.CARD_POWER)} / ({SCOPE(m.CARD_POWER_LIMIT)} > 0)"), CARD),),
                "percentunit",
                top=1.0,
            ),
            lines(
                "Temperature",
                "Temperature of each card, top ten. Most cards throttle at about 85 degrees Celsius.",
                (Query(most(SCOPE(m.CARD_TEMPERATURE)), CARD),),
                "celsius",
                steps=(Threshold(GREEN), Threshold(ORANGE, 85)),
            ),
            lines(
                "Clocks",
                "Clock rates of multiprocessors and memory. For a drop under load see the reason in Throttled.",
                (Query(most(SCOPE(m.CARD_CLOCK)), CARD + " {{clock}}"),),
                "hertz",
            ),
        ),
        even(
            8,
            lines(
                "Throttled",
                "Part of the time in which clocks were throttled, by reason.",
                (Query(f"{total(rate(SCOPE(m.CARD_THROTTLED)), 'node', 'card', 'reason')} > 0", CARD + " {{reason}}"),),
                "percentunit",
            ),
            lines(
                "Errors",
                "XID errors (since the exporter started), ECC errors, PCI Express replays and NVLink errors, per "
                "interval, top ten of each. Uncorrected ECC errors and most XID errors make a process fail.",
                (
                    Query(most_events(SCOPE, m.CARD_XIDS, "node", "card", "xid"), CARD + " XID {{xid}}"),
                    Query(most_events(SCOPE, m.CARD_ECC, "node", "card", "kind"), CARD + " ECC {{kind}}"),
                    Query(most_events(SCOPE, m.CARD_PCIE_REPLAYS, "node", "card"), CARD + " replays"),
                    Query(most_events(SCOPE, m.CARD_NVLINK_ERRORS, "node", "card"), CARD + " NVLink"),
                ),
                none="no errors reported",
            ),
            lines(
                "Power by energy counter",
                "Power computed from the card's energy counter. It includes peaks between two samples.",
                (Query(most(rate(SCOPE(m.CARD_ENERGY))), CARD),),
                "watt",
            ),
        ),
    ),
)


_CONTAINER: Final = "{{namespace}} {{pod}} on {{node}} card {{card}}"
_ACTIONS: Final = (
    ValueMapping(0, "none", GREEN),
    ValueMapping(1, "reset", RED),
    ValueMapping(2, "reboot node", RED),
    ValueMapping(3, "drain peer-to-peer", ORANGE),
    ValueMapping(4, "drain and reset", RED),
    ValueMapping(5, "recover IMEX domain", RED),
    ValueMapping(6, "bus reset", RED),
    ValueMapping(7, "reboot system", RED),
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
                        LabelColumn("node", "Node"),
                        LabelColumn("card", "Card", width=70),
                        LabelColumn("uuid", "UUID", to_card(), "This card alone"),
                    ),
                    (
                        PanelColumn("Recovery action", of_cards(SCOPE(c.RECOVERY_ACTION)), "short", words=_ACTIONS),
                        PanelColumn("Row remap pending", of_cards(SCOPE(c.ROW_REMAP_PENDING)), "short", words=NO_YES),
                        PanelColumn("Processes", of_cards(SCOPE(c.PROCESSES)), "short", steps=(Threshold(GREY),)),
                        PanelColumn("Row remap failed", of_cards(SCOPE(c.ROW_REMAP_FAILED)), "short", words=NO_YES),
                        PanelColumn("PCIe generation", of_cards(SCOPE(c.PCIE_GENERATION)), "short"),
                        PanelColumn("PCIe lanes", of_cards(SCOPE(c.PCIE_WIDTH)), "short"),
                        PanelColumn("NVLink links", of_cards(SCOPE(c.NVLINK_ACTIVE_LINKS)), "short"),
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
                (_ten(c.PCIE_TRANSMIT, "sent"), _ten(c.PCIE_RECEIVE, "received")),
                "Bps",
            ),
            _collected(
                "NVLink",
                "Data bytes per second, top ten cards of each direction.",
                "nvlink",
                (_ten(c.NVLINK_TRANSMIT, "sent"), _ten(c.NVLINK_RECEIVE, "received")),
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


_BY_CARD: Final = (
    LabelColumn("node", "Node"),
    LabelColumn("card", "Card", width=70),
    LabelColumn("uuid", "UUID", to_card(), "This card alone"),
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
                steps=(Threshold(RED), Threshold(YELLOW, 1), Threshold(GREEN, 2**30)),
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
                total(f"{SCOPE(m.CARD_USAGE_ATTRIBUTABLE)} == bool 0"),
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
                        PanelColumn("Promised", of_cards(SCOPE(m.CARD_MEMORY_ALLOCATED)), "bytes"),
                        PanelColumn("Offered", of_cards(SCOPE(m.CARD_MEMORY_ALLOCATABLE)), "bytes"),
                        PanelColumn("Used", of_cards(SCOPE(m.CARD_MEMORY_USED)), "bytes"),
                        PanelColumn(
                            "Stranded",
                            of_cards(stranded(SCOPE)),
                            "bytes",
                            steps=(Threshold(GREY), Threshold(ORANGE, 1)),
                        ),
                        PanelColumn("Containers", of_cards(SCOPE(m.CARD_CONTAINERS)), "short"),
                        PanelColumn("Busy", of_cards(rate(SCOPE(m.CARD_BUSY_SECONDS))), "percentunit"),
                        PanelColumn("Healthy", of_cards(SCOPE(m.CARD_HEALTHY)), "short", words=YES_NO),
                    ),
                    sort="Promised",
                ),
            ),
            (
                8,
                table(
                    "Nodes",
                    "Driver version of each node, whether the exporter can see host processes, and whether MPS runs.",
                    (LabelColumn("node", "Node"), LabelColumn("driver", "Driver")),
                    (
                        PanelColumn("Host processes", _of_node(m.HOST_PIDS), "short", words=YES_NO),
                        PanelColumn(
                            "MPS",
                            _of_node(m.MPS_RUNNING),
                            "short",
                            words=(ValueMapping(0, "no", GREY), ValueMapping(1, "yes", BLUE)),
                        ),
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
                    Query(total(SCOPE(m.CONTAINER_MEMORY_USED)), "containers"),
                    Query(total(SCOPE(m.CARD_MEMORY_UNATTRIBUTED)), "unattributed"),
                    Query(total(SCOPE(m.CARD_MEMORY_RESERVED)), "driver"),
                    Query(total(SCOPE(m.CARD_MEMORY_UNACCOUNTED)), "unexplained"),
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
                (Query(most(f"{SCOPE(m.CARD_MEMORY_USED)} / {SCOPE(m.CARD_MEMORY_TOTAL)}"), CARD),),
                "percentunit",
                top=1.0,
                steps=(Threshold(GREEN), Threshold(ORANGE, 0.95)),
            ),
            lines(
                "Promised memory by card",
                "Fraction of the card's offered memory that is promised. Above 1, memory is promised twice: a bug.",
                (Query(most(f"{SCOPE(m.CARD_MEMORY_ALLOCATED)} / ({SCOPE(m.CARD_MEMORY_ALLOCATABLE)} > 0)"), CARD),),
                "percentunit",
                steps=(Threshold(GREEN), Threshold(RED, 1.001)),
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
                        LabelColumn("node", "Node"),
                        LabelColumn("card", "Card", width=70),
                        LabelColumn("namespace", "Namespace"),
                        LabelColumn("pod", "Pod", to_pod(), "This pod"),
                        LabelColumn("container", "Container"),
                        LabelColumn("mode", "Mode", width=100),
                    ),
                    (
                        PanelColumn("Promised", _by_container(m.CONTAINER_MEMORY_ALLOCATED), "bytes"),
                        PanelColumn("Used", _by_container(m.CONTAINER_MEMORY_USED), "bytes"),
                        PanelColumn("Peak use", _by_container(m.CONTAINER_MEMORY_PEAK), "bytes"),
                        PanelColumn("Compute promised", _by_container(m.CONTAINER_COMPUTE_ALLOCATED), "percentunit"),
                        PanelColumn("Compute limit", _by_container(m.CONTAINER_COMPUTE_LIMIT), "percentunit"),
                        PanelColumn(
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

BOARD: Final = Dashboard(
    "gpushare-card",
    "gpushare / Node and card",
    "The cards of a node: promises, use, owners of memory, load, hardware.",
    ("cluster", "job", "node", "uuid", ASK),
    (_NOW, _MEMORY, WORK, HARDWARE, HEALTH, COLLECTED),
    marks=marks.CARD,
)
