"""
Of the dashboard of gpushare itself: scheduler, node agent, autoscaler.
"""

from __future__ import annotations

from typing import Final

from dashboards.board.figures import most
from dashboards.board.grid import Section, even, wide
from dashboards.board.panel import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TROUBLE,
    YES_NO,
    Column,
    Key,
    Query,
    Step,
    Word,
    lines,
    stat,
    states,
    table,
)
from dashboards.promql import (
    Scope,
    increase,
    or_zero,
    quantile,
    rate,
    total,
)
from isolation.contract import metrics_autoscaler as a
from isolation.contract import metrics_node as n
from isolation.contract import metrics_scheduler as s

SCOPE: Final = Scope(("cluster", "job", "instance"))
TARGETS: Final = (Key("job", "Job"), Key("instance", "Instance"))
_AGE: Final = (Step(GREEN), Step(RED, 90))
_DAY: Final = 86_400


def target(expr: str, of: str = "max") -> str:
    """One figure of each scraped process."""
    return f"{of} by (job, instance) ({expr})"


SCHEDULER: Final = Section(
    "Scheduler",
    (
        even(
            8,
            lines(
                "Questions by outcome",
                "Per second. failed is a defect; closed: the replica does not lead, or has not read the cluster.",
                (Query(total(rate(SCOPE(s.REQUESTS)), "verb", "outcome"), "{{verb}} {{outcome}}"),),
                "reqps",
                stacked=True,
            ),
            lines(
                "Time of answers",
                "The 99th of a hundred, by question; of bind with the write to the API server.",
                (Query(quantile(0.99, SCOPE(s.DURATION, suffix="_bucket"), "verb"), "{{verb}}"),),
                "s",
            ),
            lines(
                "Silence of the API server",
                "By watch; a healthy one is below 90 s.",
                (Query(f"max by (watch) ({SCOPE(s.VIEW_AGE)})", "{{watch}}"),),
                "s",
                steps=_AGE,
            ),
        ),
        even(
            8,
            lines(
                "What it knows",
                "Nodes with cards, pods with shares, and pods for which room is taken before their binding is seen.",
                (
                    Query(f"max({SCOPE(s.NODES)})", "nodes"),
                    Query(f"max({SCOPE(s.PODS)})", "pods"),
                    Query(f"max({SCOPE(s.ASSUMED)})", "assumed"),
                    Query(f"max({SCOPE(s.WAITING)})", "waiting"),
                ),
            ),
            lines(
                "Reservations",
                "That keep room, by reason.",
                (
                    Query(
                        or_zero(f"max by (reason) ({SCOPE(s.RESERVED)})", SCOPE(s.LEADS), "reason", "none"),
                        "{{reason}}",
                    ),
                ),
            ),
            lines(
                "Pre-emption and waking",
                "Reliefs and evictions by outcome, pods told of room, in each step of the graph.",
                (
                    Query(total(increase(SCOPE(s.RELIEFS)), "outcome"), "relief {{outcome}}"),
                    Query(total(increase(SCOPE(s.EVICTIONS)), "outcome"), "eviction {{outcome}}"),
                    Query(total(increase(SCOPE(s.WOKEN))), "woken"),
                ),
            ),
        ),
        wide(
            4,
            (
                5,
                stat(
                    "Cluster read",
                    "Whether every replica has read the cluster.",
                    f"min({SCOPE(s.SYNCED)})",
                    words=YES_NO,
                    spark=False,
                ),
            ),
            (
                5,
                stat(
                    "Overcommitted cards",
                    "Cards of which more is promised than they offer: a defect, or a foreign hand.",
                    f"max({SCOPE(s.OVERCOMMITTED)})",
                    steps=TROUBLE,
                ),
            ),
            (
                5,
                stat(
                    "Unreadable objects",
                    "Nodes and pods that could not be read and keep their last readable value.",
                    f"max({SCOPE(s.UNREADABLE)})",
                    steps=TROUBLE,
                ),
            ),
            (
                5,
                stat(
                    "Certificate valid for",
                    "Until the first of the replicas' certificates ends. Without a valid one no pod gets shares.",
                    f"min({SCOPE(s.CERTIFICATE_ENDS)} - time())",
                    "s",
                    steps=(Step(RED), Step(ORANGE, 2 * _DAY), Step(GREEN, 14 * _DAY)),
                    spark=False,
                ),
            ),
            (
                4,
                stat(
                    "Certificate read",
                    "How long ago the certificate in use was read.",
                    f"max(time() - {SCOPE(s.CERTIFICATE)})",
                    "s",
                    steps=(Step(BLUE),),
                    spark=False,
                ),
            ),
        ),
    ),
)

AGENT: Final = Section(
    "Node agent",
    (
        even(
            8,
            lines(
                "Answers to the kubelet",
                "Per second, by what was asked and what it heard. late and broken cost a check at the pod's start.",
                (Query(total(rate(SCOPE(n.ANSWERS)), "method", "outcome"), "{{method}} {{outcome}}"),),
                "reqps",
                stacked=True,
            ),
            lines(
                "Time of answers",
                "The 99th of a hundred, by what was asked. Allocate holds up every pod of the node.",
                (Query(quantile(0.99, SCOPE(n.DURATION, suffix="_bucket"), "method"), "{{method}}"),),
                "s",
            ),
            lines(
                "Silence of the API server",
                "By agent, the twenty longest; a healthy watch is below 90 s.",
                (Query(most(SCOPE(n.SILENCE)), "{{instance}}"),),
                "s",
                steps=_AGE,
            ),
        ),
        even(
            8,
            lines(
                "Units",
                "Of shared memory as the kubelet is told, and those that the agents' books give to containers.",
                (
                    Query(total(SCOPE(n.DEVICES), "health"), "{{health}}"),
                    Query(total(SCOPE(n.HELD)), "held"),
                ),
                colours=(("healthy", GREEN), ("unhealthy", RED), ("held", BLUE)),
            ),
            lines(
                "Sick cards",
                "Cards that get no newcomers, by why: xid; ecc, an error that could not be corrected; driver, it wants "
                "something done with the card; lost, NVML does not tell of it.",
                (Query(total(SCOPE(n.SICK), "reason"), "{{reason}}"),),
                stacked=True,
                steps=TROUBLE,
            ),
            lines(
                "Trouble",
                "Failed turns of the agents' loops and writes to their nodes, in each step of the graph.",
                (
                    Query(total(increase(SCOPE(n.FAILED_TURNS))), "failed turns"),
                    Query(total(f"delta({SCOPE(n.WRITES)}[$__rate_interval])"), "node writes"),
                ),
            ),
        ),
        wide(
            6,
            (
                24,
                table(
                    "Agents",
                    "Whether pods may be bound, whether the kubelet knows the plugin and how often it registered, "
                    "containers in the book, and cards of whose errors the driver tells.",
                    TARGETS,
                    (
                        Column("Ready", target(SCOPE(n.READY), "min"), "short", words=YES_NO),
                        Column("Registered", target(SCOPE(n.REGISTERED), "min"), "short", words=YES_NO),
                        Column("Registrations", target(SCOPE(n.REGISTRATIONS)), "short"),
                        Column("Holders", target(SCOPE(n.HOLDERS)), "short", steps=(Step(GREY),)),
                        Column("Cards listened to", target(SCOPE(n.LISTENED)), "short"),
                    ),
                ),
            ),
        ),
    ),
)

LOOP: Final = Section(
    "Autoscaler",
    (
        even(
            8,
            states(
                "Leads",
                "Which replica may act.",
                (Query(target(SCOPE(a.LEADS)), "{{instance}}"),),
                (Word(0, "waits", GREY), Word(1, "leads", GREEN)),
            ),
            states(
                "Cluster read",
                "Whether each replica has read the cluster as a whole.",
                (Query(target(SCOPE(a.SYNCED), "min"), "{{instance}}"),),
                YES_NO,
            ),
            lines(
                "Since the last turn",
                "By replica. Only the one that leads takes turns.",
                (Query(f"time() - {SCOPE(a.LAST_TURN)}", "{{instance}}"),),
                "s",
                steps=(Step(GREEN), Step(RED, 60)),
            ),
        ),
        even(
            8,
            lines(
                "Time of a turn",
                "The 99th of a hundred, by part.",
                (Query(quantile(0.99, SCOPE(a.DURATION, suffix="_bucket"), "stage"), "{{stage}}"),),
                "s",
            ),
            lines(
                "Certificates valid for",
                "Of the metrics APIs and of the gRPC ports, until the first of the replicas' ends; nothing where "
                "neither is served over TLS.",
                (Query(f"min by (door) ({SCOPE(a.CERTIFICATE_ENDS)} - time())", "{{door}}"),),
                "s",
                steps=(Step(RED), Step(ORANGE, 2 * _DAY), Step(GREEN, 14 * _DAY)),
            ),
        ),
    ),
)
