# SPDX-License-Identifier: Apache-2.0
"""
Alerts about the node agents: without one a node takes no pod and starts no container on a shared card.

Pure. Which node an agent is on, only its info series says; `instance` is whatever the scrape job makes of it.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import DAEMONSET_WANTED, UP
from dashboards.rules.phrases import COUNT, NODE, TARGET, WHILE
from dashboards.rules.rule import (
    EXPORTER_JOB,
    JOB,
    NODE_JOB,
    Alert,
    RuleGroup,
    Severity,
    absent,
    grew,
    mostly_down,
    of,
    one,
    seen,
    slower,
    targets,
    task_unhealthy,
)
from isolation.contract import metrics
from isolation.contract.metrics import node, scheduler

_SHARED: Final = of(metrics.CARD_INFO, one("mode", "share", "cgpu", "core_mem"), one("job", EXPORTER_JOB))

GROUP: Final = RuleGroup(
    "gpushare.node",
    "The node agents, one on each node with shared cards.",
    (
        Alert(
            "GpushareNodeAgentsAbsent",
            absent(
                NODE_JOB,
                targets(NODE_JOB),
                f"max({of(scheduler.NODES)}) > 0 and on () {seen(NODE_JOB)}",
                f"max({of(DAEMONSET_WANTED, one('daemonset', NODE_JOB))}) > 0 and on () {seen(NODE_JOB)}",
            ),
            Severity.CRITICAL,
            "No gpushare node agent is up",
            f"No target of job {NODE_JOB} is up, although there are nodes with shared cards. No container on shared "
            "cards can start.",
            patience="5m",
        ),
        Alert(
            "GpushareNodeAgentDown",
            mostly_down(f'{UP.name}{{job="{NODE_JOB}"}}'),
            Severity.WARNING,
            f"The gpushare node agent at {TARGET} is down",
            f"{TARGET} has not answered for more than 3 of 10 minutes. Meanwhile no pod is bound to its node and no "
            "container on shared cards can start there. Running containers are not affected.",
            patience="3m",
        ),
        Alert(
            "GpushareNodeAgentMissing",
            f"(group by (node) ({_SHARED}) unless on (node) {of(node.INFO)})\nand on ()\ncount({of(node.INFO)}) > 0",
            Severity.WARNING,
            f"{NODE} has shared cards but no node agent",
            f"The cards of {NODE} are shared, and no gpushare node agent is reachable there. It accepts no pods.",
            patience="15m",
        ),
        Alert(
            "GpushareNodeAgentNotReady",
            mostly_down(of(node.READY)),
            Severity.WARNING,
            f"The node agent at {TARGET} is not ready",
            f"The agent at {TARGET} has not been ready for more than 3 of 10 minutes. Meanwhile no pod is bound to its "
            "node.",
            patience="3m",
        ),
        Alert(
            "GpushareDevicePluginDown",
            mostly_down(of(node.DEVICE_PLUGIN), "5m"),
            Severity.WARNING,
            f"The device plugin at {TARGET} does not run",
            f"The device plugin process beside the agent at {TARGET} did not run for more than a third of 5 minutes. "
            "Meanwhile the kubelet rejects pods with shares that it admits on the node, and no container with a share "
            "can be created there. Running containers are not affected.",
            patience="1m",
        ),
        Alert(
            "GpushareNodeAgentUnregistered",
            mostly_down(of(node.KUBELET_REGISTERED), "5m"),
            Severity.WARNING,
            f"The device plugin at {TARGET} is not registered with the kubelet",
            f"The agent at {TARGET} was not registered with the kubelet for more than a third of 5 minutes. Meanwhile "
            "its node offers no shared cards.",
            patience="1m",
        ),
        Alert(
            "GpushareNodeAgentRuntimeDisconnected",
            mostly_down(of(node.RUNTIME_CONNECTED), "5m"),
            Severity.WARNING,
            f"The node agent at {TARGET} is not connected to the container runtime",
            f"The agent at {TARGET} was not connected to the container runtime for more than a third of 5 minutes. "
            "Meanwhile no container on shared cards can start on its node.",
            patience="1m",
        ),
        Alert(
            "GpushareNodeAgentCardsUnhealthy",
            f"min_over_time({of(node.UNHEALTHY_CARDS)}[2m]) > 0",
            Severity.WARNING,
            f"The node agent at {TARGET} has taken cards out of service ({{{{ $labels.reason }}}})",
            f"Unhealthy cards at {TARGET} with reason {{{{ $labels.reason }}}}: {COUNT}. They get no new containers "
            "until they are healthy again.",
        ),
        Alert(
            "GpushareNodeAgentRequestsFailing",
            grew(of(node.REQUESTS, one("outcome", "timeout", "error")), "15m"),
            Severity.WARNING,
            f"The node agent at {TARGET} has no answer to some requests",
            f"Answers to {{{{ $labels.method }}}} at {TARGET} with outcome {{{{ $labels.outcome }}}} within 15 "
            f"minutes: {COUNT}. Their containers were refused; the kubelet tries again.",
        ),
        Alert(
            "GpushareNodeAgentFailing",
            f"increase({of(node.TASK_FAILURES)}[10m]) > 3",
            Severity.WARNING,
            f"Task {{{{ $labels.task }}}} of the node agent at {TARGET} fails",
            f"Failures of background task {{{{ $labels.task }}}} within 10 minutes: {COUNT}. The log of the agent has "
            "the errors.",
        ),
        Alert(
            "GpushareNodeAgentSlow",
            slower(node.REQUEST_DURATION, 1, *JOB, "method"),
            Severity.WARNING,
            f"The node agent at {TARGET} is slow to answer {{{{ $labels.method }}}} requests",
            f"One of 100 {{{{ $labels.method }}}} requests at {TARGET} takes longer than {WHILE}. Containers on shared "
            "cards start late.",
            patience="10m",
        ),
        task_unhealthy("GpushareNodeAgentTaskUnhealthy", node.TASK_HEALTHY, "node agent"),
        Alert(
            "GpushareNodeAgentWatchStale",
            f"{of(node.WATCH_STALENESS)} > 120",
            Severity.WARNING,
            f"The node agent at {TARGET} receives nothing from the API server",
            f"{TARGET} has received nothing from the API server about its pods for {WHILE}. A healthy watch is below "
            "90 s.",
            patience="1m",
        ),
    ),
)
