# SPDX-License-Identifier: Apache-2.0
"""
Of the autoscaler's dashboard: what was moved, and why it holds back.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.expressions import once
from dashboards.boards.grid import Section, even, wide
from dashboards.boards.panel import (
    BLUE,
    DOUBT,
    GREEN,
    GREY,
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
from isolation.contract.metrics import autoscaler as a

SCOPE: Final = Scope(("cluster", "job", "pool"))
LOOP: Final = Scope(("cluster", "job"))


MOVES: Final = Section(
    "Rebalancing",
    (
        even(
            8,
            lines(
                "Actions by outcome",
                "Actions of the autoscaler and their outcome, per interval.",
                (Query(total(increase(LOOP(a.STEPS)), "action", "outcome"), "{{action}}: {{outcome}}"),),
                stacked=True,
            ),
            lines(
                "Events",
                "Events on pods and nodes by kind, per interval.",
                (Query(f"{total(increase(LOOP(m.EVENTS)), 'kind')} > 0", "{{kind}}"),),
                stacked=True,
                none="no events",
            ),
            lines(
                "Moves",
                "Pods evicted within the last hour, evictions left, reservations for pods that are moving, and pods "
                "whose annotations for cluster-autoscaler have yet to be changed.",
                (
                    Query(f"max({LOOP(a.MOVES_HOUR)})", "evicted in the last hour"),
                    Query(f"min({LOOP(a.MOVES_LEFT)})", "evictions left"),
                    Query(f"max({LOOP(a.RESERVED)})", "reservations"),
                    Query(f"max({LOOP(a.HANDOVER_LEFT)})", "annotations to change"),
                ),
            ),
        ),
        even(
            8,
            lines(
                "Fragmentation",
                "Fraction of the idle cards that is stranded: no pod of the current mix can use it.",
                (Query(f"max({LOOP(a.FRAGMENTS)})", "stranded"),),
                "percentunit",
            ),
            states(
                "Defragmenting",
                "Active from the upper fragmentation threshold until the lower one is reached.",
                (Query(f"max({LOOP(a.DEFRAGMENTING)})", "defragmenting"),),
                (Word(0, "no", GREY), Word(1, "yes", BLUE)),
            ),
            lines(
                "Hot cards and fragmented pods",
                "Cards with compute use above the hot threshold; pending pods that fit a node by sum but not by card.",
                (
                    Query(f"max({LOOP(a.HOT)})", "hot cards"),
                    Query(f"max({LOOP(m.PHANTOMS)})", "pods that fit by sum"),
                ),
            ),
        ),
    ),
)

TRUST: Final = Section(
    "Conditions and health",
    (
        even(
            8,
            bars(
                "Autoscaler conditions by reason",
                "Each condition inhibits at least one action. The log names the action.",
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
                "Cycles by outcome",
                "Per interval. failed: see the log; inhibited: a condition held back an action.",
                (Query(total(increase(LOOP(a.TURNS)), "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            lines(
                "Nodes by age of their metrics",
                "stale: older than three scrapes; silent: no metrics yet. Nothing is removed from nodes without fresh "
                "metrics.",
                (Query(once(LOOP, a.FIGURES_NODES, "state"), "{{state}}"),),
                stacked=True,
                colours=(("fresh", GREEN), ("stale", ORANGE), ("missing", RED)),
            ),
        ),
        even(
            8,
            lines(
                "Cycle duration",
                "99th percentile by stage. The pause between deciding and acting is not included.",
                (Query(quantile(0.99, LOOP(a.DURATION, suffix="_bucket"), "stage"), "{{stage}}"),),
                "s",
            ),
            lines(
                "Age of inputs",
                "Time since the last message from the API server, by watch (healthy: below 90 s), and age of the "
                "oldest metrics in use.",
                (
                    Query(f"max by (resource) ({LOOP(a.VIEW_AGE)})", "{{resource}}"),
                    Query(f"max by (source) ({LOOP(a.FIGURES_AGE)})", "metrics ({{source}})"),
                ),
                "s",
                steps=(Step(GREEN), Step(RED, 90)),
            ),
            states(
                "Providers",
                "Whether the provider of each pool answered the last call.",
                (Query(f"min by (pool, provider) ({SCOPE(a.PROVIDER_UP)})", "{{pool}} ({{provider}})"),),
                YES_NO,
            ),
        ),
        wide(
            8,
            (
                8,
                lines(
                    "gRPC requests",
                    "Requests per second from cluster-autoscaler and KEDA, by method and status.",
                    (Query(total(rate(LOOP(a.CALLS)), "method", "code"), "{{method}} {{code}}"),),
                    "reqps",
                    none="no gRPC requests",
                ),
            ),
            (
                8,
                lines(
                    "State writes",
                    "Writes of the autoscaler's state to the cluster, per interval. conflict: something else wrote it.",
                    (Query(total(increase(LOOP(a.STATE_WRITES)), "outcome"), "{{outcome}}"),),
                ),
            ),
            (
                8,
                states(
                    "Configuration loaded",
                    "Whether the last reload succeeded. No: the file has an error, and the previous one stays active.",
                    (Query(f"min({LOOP(a.CONFIG_OK)})", "last reload"),),
                    YES_NO,
                ),
            ),
        ),
    ),
)
