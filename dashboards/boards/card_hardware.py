# SPDX-License-Identifier: Apache-2.0
"""
Of the dashboard of cards: their work, and whether the hardware is well.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.expressions import most, most_events
from dashboards.boards.grid import Section, even
from dashboards.boards.panel import GREEN, ORANGE, Query, Step, lines
from dashboards.promql import Scope, rate, total
from isolation.contract import metrics as m

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
                steps=(Step(GREEN), Step(ORANGE, 85)),
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
