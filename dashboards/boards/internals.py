# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of gpushare itself: exporter, scheduler, node agent and autoscaler, whether they live and keep up.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.dashboard import Dashboard, to_node
from dashboards.boards.expressions import most
from dashboards.boards.layout import Section, even, wide
from dashboards.boards.panel import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TROUBLE,
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
from dashboards.promql import (
    PROCESS_CPU,
    PROCESS_MEMORY,
    SCRAPE_SECONDS,
    SCRAPED,
    UP,
    Scope,
    increase,
    or_zero,
    quantile,
    rate,
    total,
)
from isolation.contract import metrics as m
from isolation.contract.metrics import autoscaler as a
from isolation.contract.metrics import node as n
from isolation.contract.metrics import scheduler as s

SCOPE: Final = Scope(("cluster", "job", "instance"))
TARGETS: Final = (LabelColumn("job", "Job"), LabelColumn("instance", "Instance"))
_AGE: Final = (Threshold(GREEN), Threshold(RED, 90))
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
                "Requests by outcome",
                "Per second. failed: an internal error; closed: the replica is not the leader or is not synced.",
                (Query(total(rate(SCOPE(s.REQUESTS)), "verb", "outcome"), "{{verb}} {{outcome}}"),),
                "reqps",
                stacked=True,
            ),
            lines(
                "Request duration",
                "99th percentile by request type; bind includes the write to the API server.",
                (Query(quantile(0.99, SCOPE(s.REQUEST_DURATION, suffix="_bucket"), "verb"), "{{verb}}"),),
                "s",
            ),
            lines(
                "Time since last message from the API server",
                "By watch. A healthy watch is below 90 s.",
                (Query(f"max by (resource) ({SCOPE(s.WATCH_STALENESS)})", "{{resource}}"),),
                "s",
                steps=_AGE,
            ),
        ),
        even(
            8,
            lines(
                "Scheduler cache",
                "Nodes with shared cards, pods with shares, pods that are assumed (placed, binding not yet observed), "
                "pods that could not be placed, and pools that gpushare scales in place of cluster-autoscaler.",
                (
                    Query(f"max({SCOPE(s.NODES)})", "nodes"),
                    Query(f"max({SCOPE(s.PODS)})", "pods"),
                    Query(f"max({SCOPE(s.ASSUMED_PODS)})", "assumed"),
                    Query(f"max({SCOPE(s.PENDING_PODS)})", "pending"),
                    Query(f"max({SCOPE(s.HANDED_OVER_POOLS)})", "pools handed over"),
                ),
            ),
            lines(
                "Reservations",
                "Reservations that keep cards free, by reason.",
                (
                    Query(
                        or_zero(f"max by (reason) ({SCOPE(s.RESERVATIONS)})", SCOPE(s.LEADER), "reason", "none"),
                        "{{reason}}",
                    ),
                ),
            ),
            lines(
                "Preemption and requeueing",
                "Preemptions and evictions by outcome, and pending pods that were requeued, per interval.",
                (
                    Query(total(increase(SCOPE(s.PREEMPTION_ATTEMPTS)), "outcome"), "preemption {{outcome}}"),
                    Query(total(increase(SCOPE(s.EVICTIONS)), "outcome"), "eviction {{outcome}}"),
                    Query(total(increase(SCOPE(s.REQUEUED_PODS))), "requeued"),
                ),
            ),
        ),
        even(
            8,
            lines(
                "Admission process",
                "Replicas whose admission process serves, and restarts per interval.",
                (
                    Query(f"sum({SCOPE(s.ADMISSION_UP)})", "up"),
                    Query(total(increase(SCOPE(s.ADMISSION_RESTARTS))), "restarts"),
                ),
            ),
            lines(
                "Connections of admission",
                "Open ones, and those per interval that were closed before they were answered, by reason.",
                (
                    Query(f"sum({SCOPE(s.ADMISSION_CONNECTIONS)})", "open"),
                    Query(total(increase(SCOPE(s.ADMISSION_DROPPED_CONNECTIONS)), "reason"), "closed: {{reason}}"),
                ),
            ),
            lines(
                "Memory of the admission process",
                "Resident, by replica.",
                (Query(target(SCOPE(s.ADMISSION_RESIDENT_MEMORY)), "{{instance}}"),),
                "bytes",
            ),
        ),
        wide(
            4,
            (
                5,
                stat(
                    "Synced",
                    "Whether all replicas have completed their first list of the cluster.",
                    f"min({SCOPE(s.SYNCED)})",
                    words=YES_NO,
                    spark=False,
                ),
            ),
            (
                5,
                stat(
                    "Overcommitted cards",
                    "Cards with more memory promised than they offer: a bug, or something else binds pods to them.",
                    f"max({SCOPE(s.OVERCOMMITTED_CARDS)})",
                    steps=TROUBLE,
                ),
            ),
            (
                5,
                stat(
                    "Unreadable objects",
                    "Nodes and pods that cannot be read. Their last readable state is used.",
                    f"max({SCOPE(s.UNREADABLE_OBJECTS)})",
                    steps=TROUBLE,
                ),
            ),
            (
                5,
                stat(
                    "Certificate valid for",
                    "Time until the first certificate of the replicas expires. Without a valid one no pod gets shares.",
                    f"min({SCOPE(s.CERTIFICATE_EXPIRY)} - time())",
                    "s",
                    steps=(Threshold(RED), Threshold(ORANGE, 2 * _DAY), Threshold(GREEN, 14 * _DAY)),
                    spark=False,
                ),
            ),
            (
                4,
                stat(
                    "Certificate loaded",
                    "Time since the certificate in use was loaded.",
                    f"max(time() - {SCOPE(s.CERTIFICATE_LOADED)})",
                    "s",
                    steps=(Threshold(BLUE),),
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
                "Answers to kubelet and runtime",
                "Per second, by method and outcome. All but ok refuse the container; the kubelet tries again.",
                (Query(total(rate(SCOPE(n.REQUESTS)), "method", "outcome"), "{{method}} {{outcome}}"),),
                "reqps",
                stacked=True,
            ),
            lines(
                "Answer duration",
                "99th percentile by method. A slow CreateContainer delays every container of the node.",
                (Query(quantile(0.99, SCOPE(n.REQUEST_DURATION, suffix="_bucket"), "method"), "{{method}}"),),
                "s",
            ),
            lines(
                "Time since last message from the API server",
                "By agent, top ten. A healthy watch is below 90 s.",
                (Query(most(SCOPE(n.WATCH_STALENESS)), "{{instance}}"),),
                "s",
                steps=_AGE,
            ),
        ),
        even(
            8,
            lines(
                "Device units",
                "Units of shared memory that the agents advertise to the kubelet, and units allocated to containers.",
                (
                    Query(total(SCOPE(n.DEVICES), "health"), "{{health}}"),
                    Query(total(SCOPE(n.ALLOCATED_DEVICES)), "allocated"),
                ),
                colours=(("healthy", GREEN), ("unhealthy", RED), ("allocated", BLUE)),
            ),
            lines(
                "Unhealthy cards",
                "Cards that get no new allocations, by reason. xid: an XID error; ecc: an uncorrected ECC error; "
                "driver: the driver requests an action on the card; lost: NVML no longer reports the card.",
                (Query(total(SCOPE(n.UNHEALTHY_CARDS), "reason"), "{{reason}}"),),
                stacked=True,
                steps=TROUBLE,
            ),
            lines(
                "Node writes",
                "Writes of the agents to their Node objects, per interval.",
                (Query(total(increase(SCOPE(n.NODE_UPDATES))), "node writes"),),
            ),
        ),
        wide(
            6,
            (
                16,
                table(
                    "Agents",
                    "Whether the agent is ready, registered with the kubelet and connected to the container runtime, "
                    "and how often it became so; whether its device plugin process runs; containers that this one "
                    "refused because the agent had not prepared them; containers that ended with their MPS server; "
                    "containers with an allocation; cards with error events from the driver.",
                    TARGETS,
                    (
                        PanelColumn("Ready", target(SCOPE(n.READY), "min"), "short", words=YES_NO),
                        PanelColumn("Registered", target(SCOPE(n.KUBELET_REGISTERED), "min"), "short", words=YES_NO),
                        PanelColumn(
                            "Registrations", target(f"increase({SCOPE(n.KUBELET_REGISTRATIONS)}[$__range])"), "short"
                        ),
                        PanelColumn("Connected", target(SCOPE(n.RUNTIME_CONNECTED), "min"), "short", words=YES_NO),
                        PanelColumn(
                            "Connections", target(f"increase({SCOPE(n.RUNTIME_CONNECTIONS)}[$__range])"), "short"
                        ),
                        PanelColumn("Device plugin", target(SCOPE(n.DEVICE_PLUGIN), "min"), "short", words=YES_NO),
                        PanelColumn(
                            "Unprepared", target(f"increase({SCOPE(n.UNPREPARED_CONTAINERS)}[$__range])"), "short"
                        ),
                        PanelColumn(
                            "MPS failures", target(f"increase({SCOPE(n.MPS_FAILED_CONTAINERS)}[$__range])"), "short"
                        ),
                        PanelColumn("Allocations", target(SCOPE(n.ALLOCATIONS)), "short", steps=(Threshold(GREY),)),
                        PanelColumn("Cards with error events", target(SCOPE(n.HEALTH_MONITORED_CARDS)), "short"),
                    ),
                ),
            ),
            (
                8,
                table(
                    "Nodes with an agent",
                    "Agents that report for each node. More than one: an old agent is still being replaced, or two "
                    "scrape jobs read the same agent.",
                    (LabelColumn("node", "Node", to_node(), "Cards of this node"),),
                    (
                        PanelColumn(
                            "Agents",
                            f"count by (node) ({SCOPE(n.INFO)})",
                            "short",
                            steps=(Threshold(GREEN), Threshold(ORANGE, 2)),
                        ),
                    ),
                    none="no agent is scraped",
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
                "Leader",
                "Which replica is the leader.",
                (Query(target(SCOPE(a.LEADER)), "{{instance}}"),),
                (ValueMapping(0, "standby", GREY), ValueMapping(1, "leader", GREEN)),
            ),
            states(
                "Synced",
                "Whether each replica has completed its first list of the cluster.",
                (Query(target(SCOPE(a.SYNCED), "min"), "{{instance}}"),),
                YES_NO,
            ),
            lines(
                "Time since last cycle",
                "By replica. Only cycles of the leader act.",
                (Query(f"time() - {SCOPE(a.LAST_CYCLE)}", "{{instance}}"),),
                "s",
                steps=(Threshold(GREEN), Threshold(RED, 60)),
            ),
        ),
        even(
            8,
            lines(
                "Cycle duration",
                "99th percentile by stage.",
                (Query(quantile(0.99, SCOPE(a.CYCLE_DURATION, suffix="_bucket"), "stage"), "{{stage}}"),),
                "s",
            ),
            lines(
                "Certificates valid for",
                "Time until the first certificate of the replicas expires, for the metrics APIs and the gRPC ports. "
                "Empty if neither is served over TLS.",
                (Query(f"min by (listener) ({SCOPE(a.CERTIFICATE_EXPIRY)} - time())", "{{listener}}"),),
                "s",
                steps=(Threshold(RED), Threshold(ORANGE, 2 * _DAY), Threshold(GREEN, 14 * _DAY)),
            ),
        ),
    ),
)

TASKS: Final = Section(
    "Background tasks",
    (
        even(
            6,
            lines(
                "Unhealthy tasks",
                "Background tasks that have failed, or completed no cycle, for too long, by task. The kubelet restarts "
                "their container.",
                tuple(
                    Query(f"sum by (task) (1 - {SCOPE(spec)})", f"{name} {{{{task}}}}")
                    for name, spec in (
                        ("scheduler", s.TASK_HEALTHY),
                        ("agent", n.TASK_HEALTHY),
                        ("autoscaler", a.TASK_HEALTHY),
                    )
                ),
                steps=TROUBLE,
            ),
            lines(
                "Task failures",
                "Failures of background tasks, which are retried with backoff, per interval.",
                tuple(
                    Query(total(increase(SCOPE(spec)), "task"), f"{name} {{{{task}}}}")
                    for name, spec in (
                        ("scheduler", s.TASK_FAILURES),
                        ("agent", n.TASK_FAILURES),
                        ("autoscaler", a.TASK_FAILURES),
                    )
                ),
                steps=TROUBLE,
            ),
        ),
    ),
)


_ALIVE: Final = Section(
    "Availability",
    (
        even(
            4,
            stat(
                "Processes up",
                "Scrape targets that are up: the last scrape succeeded.",
                total(SCOPE(UP)),
                steps=(Threshold(RED), Threshold(GREEN, 1)),
            ),
            stat(
                "Processes down",
                "Scrape targets that are down: the last scrape failed.",
                total(f"{SCOPE(UP)} == bool 0"),
                steps=TROUBLE,
            ),
            stat(
                "Oldest metrics",
                "Age of the oldest metrics that an exporter serves.",
                f"max(time() - {SCOPE(m.SAMPLE_TIMESTAMP)})",
                "s",
                steps=(Threshold(GREEN), Threshold(ORANGE, 30), Threshold(RED, 60)),
                decimals=0,
            ),
            stat(
                "Failed collectors",
                "Collectors of exporters that failed in their last reading. Their series are absent.",
                total(f"{SCOPE(m.COLLECTOR_SUCCESS)} == bool 0"),
                steps=TROUBLE,
            ),
            stat(
                "Scheduler leader",
                "Whether a scheduler replica is the leader. Without one, no pod with shared cards is bound.",
                f"max({SCOPE(s.LEADER)})",
                words=YES_NO,
                spark=False,
            ),
            stat(
                "Nodes not ready",
                "Node agents that are not ready. No pod is bound to their nodes.",
                total(f"{SCOPE(n.READY)} == bool 0"),
                steps=TROUBLE,
            ),
        ),
        wide(
            8,
            (
                14,
                table(
                    "Processes",
                    "Each scrape target with its cost.",
                    TARGETS,
                    (
                        PanelColumn("Up", target(SCOPE(UP), "min"), "short", words=YES_NO, width=70),
                        PanelColumn("Scrape", target(SCOPE(SCRAPE_SECONDS)), "s"),
                        PanelColumn("Samples", target(SCOPE(SCRAPED)), "short"),
                        PanelColumn("CPU", target(rate(SCOPE(PROCESS_CPU))), "percentunit"),
                        PanelColumn("Memory", target(SCOPE(PROCESS_MEMORY)), "bytes"),
                    ),
                    sort="Memory",
                ),
            ),
            (
                10,
                states(
                    "Up",
                    "Whether the scrapes of each target succeed.",
                    (Query(target(SCOPE(UP), "min"), "{{job}} {{instance}}"),),
                    (ValueMapping(0, "down", RED), ValueMapping(1, "up", GREEN)),
                ),
            ),
        ),
    ),
)

_EXPORTER: Final = Section(
    "Exporter",
    (
        even(
            8,
            lines(
                "Age of the metrics",
                "Time since each exporter took the readings that it serves, top ten.",
                (Query(most(f"time() - {SCOPE(m.SAMPLE_TIMESTAMP)}"), "{{instance}}"),),
                "s",
                steps=(Threshold(GREEN), Threshold(RED, 60)),
            ),
            lines(
                "Collector duration",
                "Duration in the slowest exporter, by collector.",
                (Query(f"max by (collector) ({SCOPE(m.COLLECTOR_DURATION)})", "{{collector}}"),),
                "s",
            ),
            states(
                "Collectors",
                "Whether each collector succeeds on all nodes. If it fails, its series are absent.",
                (Query(f"min by (collector) ({SCOPE(m.COLLECTOR_SUCCESS)})", "{{collector}}"),),
                (ValueMapping(0, "failed", RED), ValueMapping(1, "ok", GREEN)),
            ),
            bars(
                "Versions",
                "Number of exporters by gpushare version.",
                (Query(f"count by (version) ({SCOPE(m.BUILD_INFO)})", "{{version}}"),),
                "short",
            ),
        ),
    ),
)

BOARD: Final = Dashboard(
    "gpushare-internals",
    "gpushare / Internals",
    "Exporter, scheduler, node agent and autoscaler: availability, latency and errors.",
    ("cluster", "job", "instance"),
    (_ALIVE, _EXPORTER, SCHEDULER, AGENT, LOOP, TASKS),
    start="now-1h",
)
