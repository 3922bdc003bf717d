"""
Of the dashboard of cards: their work, and whether the hardware is well.
"""

from __future__ import annotations

from typing import Final

from dashboards.board.figures import most
from dashboards.board.grid import Section, even
from dashboards.board.panel import (
    GREEN,
    ORANGE,
    Query,
    Step,
    Word,
    lines,
    states,
)
from dashboards.promql import Scope, increase, rate, total
from isolation.contract import metrics as m

SCOPE: Final = Scope(("cluster", "job", "node"))
CARD: Final = "{{node}} card {{card}}"


WORK: Final = Section(
    "Work",
    (
        even(
            8,
            lines(
                "Busy",
                "Part of the time in which the card ran a kernel, the twenty busiest.",
                (Query(most(SCOPE(m.CARD_UTILISATION)), CARD),),
                "percentunit",
                top=1.0,
            ),
            lines(
                "Memory busy",
                "Part of the time in which the card's memory was read or written.",
                (Query(most(SCOPE(m.CARD_MEMORY_UTILISATION)), CARD),),
                "percentunit",
                top=1.0,
            ),
            lines(
                "Compute by container",
                "Part of the card's compute that containers use, the ten busiest.",
                (
                    Query(
                        f"topk(10, {SCOPE(m.CONTAINER_CORE_USED)})", "{{namespace}} {{pod}} on {{node}} card {{card}}"
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
                "Power against its limit",
                "Part of the most power that the card may draw.",
                (Query(most(f"{SCOPE(m.CARD_POWER)} / ({SCOPE(m.CARD_POWER_LIMIT)} > 0)"), CARD),),
                "percentunit",
                top=1.0,
            ),
            lines(
                "Temperature",
                "Of each card. Most cards hold their clocks down from about 85 degrees on.",
                (Query(most(SCOPE(m.CARD_TEMPERATURE)), CARD),),
                "celsius",
                steps=(Step(GREEN), Step(ORANGE, 85)),
            ),
            lines(
                "Clocks",
                "Of multiprocessors and memory; a drop under load goes with a reason on the right.",
                (Query(most(SCOPE(m.CARD_CLOCK)), CARD + " {{clock}}"),),
                "hertz",
            ),
        ),
        even(
            8,
            states(
                "Held down",
                "Reasons for which clocks are held down. `none` says that there is no reason.",
                (Query(f"max by (node, card, reason) ({SCOPE(m.CARD_THROTTLED)})", CARD + " {{reason}}"),),
                (Word(0, "free", GREEN), Word(1, "held", ORANGE)),
            ),
            lines(
                "Errors",
                "XID errors since the exporter began to look, ECC errors, PCI Express replays, NVLink errors, in each "
                "step of the graph. Uncorrected ECC errors and most XIDs cost somebody their work.",
                (
                    Query(total(increase(SCOPE(m.CARD_XIDS)), "node", "card", "xid"), CARD + " XID {{xid}}"),
                    Query(total(increase(SCOPE(m.CARD_ECC)), "node", "card", "kind"), CARD + " ECC {{kind}}"),
                    Query(total(increase(SCOPE(m.CARD_PCIE_REPLAYS)), "node", "card"), CARD + " replays"),
                    Query(total(increase(SCOPE(m.CARD_NVLINK_ERRORS)), "node", "card"), CARD + " NVLink"),
                ),
                none="no errors told",
            ),
            lines(
                "Energy",
                "Power by the card's own meter of energy, which misses no peak between samples.",
                (Query(most(rate(SCOPE(m.CARD_ENERGY))), CARD),),
                "watt",
            ),
        ),
    ),
)
