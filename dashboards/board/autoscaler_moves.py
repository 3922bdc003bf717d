"""
Of the autoscaler's dashboard: what was moved, and why it holds back.
"""

from __future__ import annotations

from typing import Final

from dashboards.board.figures import once
from dashboards.board.grid import Section, even, wide
from dashboards.board.panel import (
    BLUE,
    DOUBT,
    GREEN,
    GREY,
    NO_YES,
    ORANGE,
    RED,
    YES_NO,
    Query,
    Step,
    Word,
    bars,
    lines,
    states,
)
from dashboards.promql import Scope, increase, or_zero, quantile, rate, total
from isolation.contract import metrics as m
from isolation.contract import metrics_autoscaler as a

SCOPE: Final = Scope(("cluster", "job", "pool"))
LOOP: Final = Scope(("cluster", "job"))


MOVES: Final = Section(
    "Rebalancing",
    (
        even(
            8,
            lines(
                "Steps",
                "What was done and became of it, in each step of the graph.",
                (Query(total(increase(LOOP(a.STEPS)), "step", "outcome"), "{{step}}: {{outcome}}"),),
                stacked=True,
            ),
            lines(
                "What happened",
                "To pods and nodes, in each step of the graph.",
                (Query(f"{total(increase(LOOP(m.EVENTS)), 'kind')} > 0", "{{kind}}"),),
                stacked=True,
                none="nothing happened",
            ),
            lines(
                "Moves",
                "Pods evicted within the last hour, those that may be, and homes kept for pods on the move.",
                (
                    Query(f"max({LOOP(a.MOVES_HOUR)})", "evicted in the last hour"),
                    Query(f"min({LOOP(a.MOVES_LEFT)})", "may still be"),
                    Query(f"max({LOOP(a.RESERVED)})", "homes kept"),
                ),
            ),
        ),
        even(
            8,
            lines(
                "Fragments",
                "Part of the idle cards that is of no use to the pods that come.",
                (Query(f"max({LOOP(a.FRAGMENTS)})", "fragments"),),
                "percentunit",
            ),
            states(
                "Defragmenting",
                "From the high mark of fragments until the low one.",
                (Query(f"max({LOOP(a.DEFRAGMENTING)})", "defragmenting"),),
                (Word(0, "no", GREY), Word(1, "yes", BLUE)),
            ),
            lines(
                "Hot cards, and misled pods",
                "Cards with compute above the hot mark; pods that wait although some node's sums have room for them.",
                (
                    Query(f"max({LOOP(a.HOT)})", "hot cards"),
                    Query(f"max({LOOP(m.PHANTOMS)})", "misled by sums"),
                ),
            ),
        ),
    ),
)

TRUST: Final = Section(
    "Why it holds back",
    (
        even(
            8,
            bars(
                "Doubts by reason",
                "Each keeps at least one step from being decided or done; the log says which.",
                (
                    Query(
                        or_zero(f"{once(LOOP, a.DOUBTS, 'reason')} > 0", LOOP(a.LEADS), "reason", "none"),
                        "{{reason}}",
                    ),
                ),
                "short",
                steps=DOUBT,
            ),
            lines(
                "Turns by outcome",
                "In each step of the graph. failed: see the log; withheld: a doubt kept a step back.",
                (Query(total(increase(LOOP(a.TURNS)), "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            lines(
                "Nodes by their figures",
                "stale: older than three scrapes; silent: none yet. Nothing is taken from a node that cannot be seen.",
                (Query(once(LOOP, a.FIGURES_NODES, "state"), "{{state}}"),),
                stacked=True,
                colours=(("fresh", GREEN), ("stale", ORANGE), ("silent", RED)),
            ),
        ),
        even(
            8,
            lines(
                "Time of a turn",
                "By its parts, the 99th of a hundred turns; the pause between deciding and acting is in none.",
                (Query(quantile(0.99, LOOP(a.DURATION, suffix="_bucket"), "stage"), "{{stage}}"),),
                "s",
            ),
            lines(
                "Age of what it sees",
                "Silence of the API server by watch, a healthy one is below 90 s; age of the oldest figures in use.",
                (
                    Query(f"max by (watch) ({LOOP(a.VIEW_AGE)})", "{{watch}}"),
                    Query(f"max by (source) ({LOOP(a.FIGURES_AGE)})", "figures ({{source}})"),
                ),
                "s",
                steps=(Step(GREEN), Step(RED, 90)),
            ),
            states(
                "Providers",
                "Whether each pool's provider answered when last asked.",
                (Query(f"min by (pool, provider) ({SCOPE(a.PROVIDER_UP)})", "{{pool}} ({{provider}})"),),
                YES_NO,
            ),
        ),
        wide(
            8,
            (
                8,
                lines(
                    "Questions by gRPC",
                    "From cluster-autoscaler and KEDA, by answer, per second.",
                    (Query(total(rate(LOOP(a.CALLS)), "method", "code"), "{{method}} {{code}}"),),
                    "reqps",
                    none="nobody asks by gRPC",
                ),
            ),
            (
                8,
                lines(
                    "Writes of its memory",
                    "What it remembers from turn to turn, written to the cluster; a conflict means another writer.",
                    (Query(total(increase(LOOP(a.STATE_WRITES)), "outcome"), "{{outcome}}"),),
                ),
            ),
            (
                8,
                states(
                    "Configuration refused",
                    "Yes: the file says something that cannot be used, and the one before stays in force.",
                    (Query(f"max({LOOP(a.CONFIG_REFUSED)})", "refused"),),
                    NO_YES,
                ),
            ),
        ),
    ),
)
