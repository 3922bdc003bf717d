# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of the autoscaler: pools, what pods wait for, what was done about it, and why it holds back.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.dashboard import Dashboard
from dashboards.boards.expressions import once, waiting
from dashboards.boards.layout import Section, even, wide
from dashboards.boards.panel import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TROUBLE,
    WARN,
    YELLOW,
    YES_NO,
    LabelColumn,
    PanelColumn,
    Query,
    Threshold,
    ValueMapping,
    bars,
    lines,
    stat,
    states,
    table,
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
                (Query(total(increase(LOOP(a.ACTIONS)), "action", "outcome"), "{{action}}: {{outcome}}"),),
                stacked=True,
            ),
            lines(
                "Events",
                "Events on pods and nodes by kind, per interval.",
                (Query(f"{total(increase(LOOP(m.AUTOSCALER_EVENTS)), 'kind')} > 0", "{{kind}}"),),
                stacked=True,
                none="no events",
            ),
            lines(
                "Moves",
                "Pods evicted within the last hour, evictions left, reservations for pods that are moving, and pods "
                "whose annotations for cluster-autoscaler have yet to be changed.",
                (
                    Query(f"max({LOOP(a.MOVES_LAST_HOUR)})", "evicted in the last hour"),
                    Query(f"min({LOOP(a.MOVE_BUDGET_REMAINING)})", "evictions left"),
                    Query(f"max({LOOP(a.RESERVATIONS)})", "reservations"),
                    Query(f"max({LOOP(a.HANDOVER_PENDING_PODS)})", "annotations to change"),
                ),
            ),
        ),
        even(
            8,
            lines(
                "Fragmentation",
                "Fraction of the idle cards that is stranded: no pod of the current mix can use it.",
                (Query(f"max({LOOP(a.FRAGMENTATION)})", "stranded"),),
                "percentunit",
            ),
            states(
                "Defragmenting",
                "Active from the upper fragmentation threshold until the lower one is reached.",
                (Query(f"max({LOOP(a.DEFRAGMENTING)})", "defragmenting"),),
                (ValueMapping(0, "no", GREY), ValueMapping(1, "yes", BLUE)),
            ),
            lines(
                "Hot cards and fragmented pods",
                "Cards with compute use above the hot threshold; pending pods that fit a node by sum but not by card.",
                (
                    Query(f"max({LOOP(a.HOT_CARDS)})", "hot cards"),
                    Query(f"max({LOOP(m.PENDING_FRAGMENTED_PODS)})", "pods that fit by sum"),
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
                        or_zero(f"{once(LOOP, a.INHIBITED, 'reason')} > 0", LOOP(a.LEADER), "reason", "none"),
                        "{{reason}}",
                    ),
                ),
                "short",
                steps=WARN,
            ),
            lines(
                "Cycles by outcome",
                "Per interval. failed: see the log; inhibited: a condition held back an action.",
                (Query(total(increase(LOOP(a.CYCLES)), "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            lines(
                "Nodes by age of their metrics",
                "stale: older than three scrapes; silent: no metrics yet. Nothing is removed from nodes without fresh "
                "metrics.",
                (Query(once(LOOP, a.METRICS_NODES, "state"), "{{state}}"),),
                stacked=True,
                colours=(("fresh", GREEN), ("stale", ORANGE), ("missing", RED)),
            ),
        ),
        even(
            8,
            lines(
                "Cycle duration",
                "99th percentile by stage. The pause between deciding and acting is not included.",
                (Query(quantile(0.99, LOOP(a.CYCLE_DURATION, suffix="_bucket"), "stage"), "{{stage}}"),),
                "s",
            ),
            lines(
                "Age of inputs",
                "Time since the last message from the API server, by watch (healthy: below 90 s), and age of the "
                "oldest metrics in use.",
                (
                    Query(f"max by (resource) ({LOOP(a.WATCH_STALENESS)})", "{{resource}}"),
                    Query(f"max by (source) ({LOOP(a.METRICS_AGE)})", "metrics ({{source}})"),
                ),
                "s",
                steps=(Threshold(GREEN), Threshold(RED, 90)),
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
                    (Query(total(rate(LOOP(a.GRPC_REQUESTS)), "method", "code"), "{{method}} {{code}}"),),
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
                    (Query(f"min({LOOP(a.CONFIG_RELOAD_SUCCESSFUL)})", "last reload"),),
                    YES_NO,
                ),
            ),
        ),
    ),
)


_SWITCH: Final = (ValueMapping(0, "off", ORANGE), ValueMapping(1, "on", GREEN))
_MOOD: Final = (ValueMapping(0, "active", GREEN), ValueMapping(1, "dry run", YELLOW))


def _by_pool(spec: m.MetricSpec, of: str = "max") -> str:
    return f"{of} by (pool) ({SCOPE(spec)})"


_NOW: Final = Section(
    "Current state",
    (
        even(
            4,
            stat("Leader", "Whether a replica is the leader.", f"max({LOOP(a.LEADER)})", words=YES_NO, spark=False),
            stat(
                "Switch",
                "Off: an operator has switched the autoscaler off. It takes no action.",
                f"min({LOOP(a.ENABLED)})",
                words=_SWITCH,
                spark=False,
            ),
            stat(
                "Mode",
                "Dry run: the autoscaler only reports what it would do.",
                f"max({LOOP(a.DRY_RUN)})",
                words=_MOOD,
                spark=False,
            ),
            stat(
                "Time since last cycle",
                "A cycle runs every ten seconds. More than a minute without one is a problem.",
                f"time() - max({LOOP(a.LAST_CYCLE)})",
                "s",
                steps=(Threshold(GREEN), Threshold(YELLOW, 30), Threshold(RED, 60)),
                decimals=0,
            ),
            stat(
                "Autoscaler conditions",
                "Conditions that inhibit actions now. Autoscaler conditions by reason, below, lists them.",
                once(LOOP, a.INHIBITED),
                steps=WARN,
            ),
            stat(
                "Pending pods",
                "Pods that request cards and are not placed.",
                or_zero(once(LOOP, m.PENDING_PODS), LOOP(m.PENDING_MAX_AGE)),
                steps=WARN,
            ),
            stat(
                "Moves left",
                "Pods that may still be evicted within this hour.",
                f"min({LOOP(a.MOVE_BUDGET_REMAINING)})",
            ),
            stat(
                "Flaps",
                "Actions that were reversed too soon: a new node drained, a drain cancelled, a pod moved again.",
                or_zero(total(increase(SCOPE(a.FLAPS), "$__range")), LOOP(a.LEADER)),
                steps=TROUBLE,
                spark=False,
                decimals=0,
            ),
        ),
    ),
)

_POOLS: Final = Section(
    "Pools",
    (
        wide(
            9,
            (
                24,
                table(
                    "Pools",
                    "Current, requested, minimum and maximum number of nodes; the largest share that still fits on one "
                    "card; idle compute in cards, and the stranded part of it that no pod of the current mix can use.",
                    (LabelColumn("pool", "Pool"),),
                    (
                        PanelColumn(
                            "Ready", once(SCOPE, m.POOL_NODES, "pool", only=('state="ready"',)), "short", width=80
                        ),
                        PanelColumn(
                            "Booting", once(SCOPE, m.POOL_NODES, "pool", only=('state="booting"',)), "short", width=80
                        ),
                        PanelColumn("Requested", _by_pool(a.POOL_TARGET_NODES), "short", width=90),
                        PanelColumn("Minimum", _by_pool(m.POOL_MIN_NODES), "short", width=90),
                        PanelColumn("Maximum", _by_pool(m.POOL_MAX_NODES), "short", width=90),
                        PanelColumn("Largest share", _by_pool(a.POOL_LARGEST_FREE), "bytes"),
                        PanelColumn("Idle cards", _by_pool(a.POOL_IDLE_CARDS), "short"),
                        PanelColumn(
                            "Stranded cards",
                            _by_pool(a.POOL_STRANDED_CARDS),
                            "short",
                            steps=(Threshold(GREY), Threshold(ORANGE, 0.5)),
                        ),
                        PanelColumn("Node price", _by_pool(a.POOL_NODE_PRICE), "short"),
                        PanelColumn(
                            "Backoff", _by_pool(a.POOL_BACKOFF), "s", steps=(Threshold(GREY), Threshold(ORANGE, 1))
                        ),
                        PanelColumn("Provider up", _by_pool(a.PROVIDER_UP, of="min"), "short", words=YES_NO),
                        PanelColumn(
                            "Profile known", _by_pool(a.POOL_NODE_TEMPLATE_KNOWN, of="min"), "short", words=YES_NO
                        ),
                    ),
                    sort="Ready",
                ),
            ),
        ),
        even(
            8,
            lines(
                "Nodes",
                "Nodes of each pool by state.",
                (Query(once(SCOPE, m.POOL_NODES, "pool", "state"), "{{pool}} {{state}}"),),
                stacked=True,
            ),
            lines(
                "Idle and stranded cards",
                "Idle compute on usable nodes, in cards, and the stranded part of it that no pod of the current mix "
                "can use.",
                (
                    Query(once(SCOPE, a.POOL_IDLE_CARDS), "idle"),
                    Query(once(SCOPE, a.POOL_STRANDED_CARDS), "stranded"),
                ),
                colours=(("idle", GREEN), ("stranded", ORANGE)),
            ),
            lines(
                "Cards added and removed",
                "Cards of added and removed nodes, per interval.",
                (
                    Query(
                        or_zero(total(increase(SCOPE(a.SCALED_UP_CARDS)), "pool"), LOOP(a.LEADER), "pool", "none"),
                        "{{pool}} added",
                    ),
                    Query(
                        or_zero(total(increase(SCOPE(a.SCALED_DOWN_CARDS)), "pool"), LOOP(a.LEADER), "pool", "none"),
                        "{{pool}} removed",
                    ),
                ),
            ),
        ),
    ),
)

_DEMAND: Final = Section(
    "Demand",
    (
        even(
            8,
            lines(
                "Pending pods by reason",
                "Fragmented: free memory is enough in total, but not on single cards.",
                (Query(waiting(LOOP), "{{reason}}"),),
                stacked=True,
            ),
            lines(
                "Memory requested by pending pods",
                "By namespace and by the cheapest pool that can host the pods. No pool name: no pool can.",
                (
                    Query(
                        or_zero(
                            once(SCOPE, a.PENDING_MEMORY, "namespace", "pool"),
                            LOOP(m.PENDING_MAX_AGE),
                            "namespace",
                            "none",
                        ),
                        "{{namespace}} {{pool}}",
                    ),
                ),
                "bytes",
                stacked=True,
            ),
            lines(
                "Pending pods by status",
                "fits: a node has room; nominated: a node is being added; drain_cancelled: a drain was cancelled for "
                "it; pool_limited: a pool cannot be scaled up now; unsatisfiable: no pool can ever host the pod.",
                (Query(once(LOOP, a.PENDING_PODS, "status"), "{{status}}"),),
                stacked=True,
            ),
            lines(
                "Longest wait",
                "How long the longest-waiting pod has been pending.",
                (Query(f"max({LOOP(m.PENDING_MAX_AGE)})", "longest"),),
                "s",
                steps=(Threshold(GREEN), Threshold(RED, 1800)),
            ),
        ),
    ),
)

BOARD: Final = Dashboard(
    "gpushare-autoscaler",
    "gpushare / Autoscaler and rebalancing",
    "Pools, pending pods, scale-ups, moves and scale-downs, and conditions that inhibit the autoscaler.",
    ("cluster", "job", "pool"),
    (_NOW, _POOLS, _DEMAND, MOVES, TRUST),
)
