"""
Alerts about the node agents: without one a node takes no pod and starts no container on a shared card.

Pure. Their series say nothing of their node; `instance` does, which our ServiceMonitor makes the node's name.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import UP
from dashboards.rules.rule import (
    EXPORTER_JOB,
    NODE_JOB,
    Alert,
    Group,
    Severity,
    gone,
    grew,
    of,
    one,
    task_unhealthy,
    up,
)
from dashboards.rules.words import COUNT, TARGET, WHILE
from isolation.contract import metrics, metrics_node

_SHARED: Final = of(metrics.CARD_INFO, one("mode", "share", "cgpu", "core_mem"), one("job", EXPORTER_JOB))

GROUP: Final = Group(
    "gpushare.node",
    "The node agents, one on each node with shared cards.",
    (
        Alert(
            "GpushareNodeAgentsAbsent",
            gone(NODE_JOB),
            Severity.CRITICAL,
            "No gpushare node agent is up",
            f"No target of job {NODE_JOB} is up, but some were within the last day. No container on shared cards can "
            "start.",
            patience="5m",
        ),
        Alert(
            "GpushareNodeAgentDown",
            f'{UP.name}{{job="{NODE_JOB}"}} == 0',
            Severity.WARNING,
            f"The gpushare node agent at {TARGET} is down",
            f"{TARGET} has not answered for five minutes. No pod is bound to its node and no container on shared cards "
            "can start there. Running containers are not affected.",
            patience="5m",
        ),
        Alert(
            "GpushareNodeAgentMissing",
            f"count(group by (node) ({_SHARED}))\n-\ncount({up(NODE_JOB)})\n> 0",
            Severity.WARNING,
            "Some nodes with shared cards have no node agent",
            f"Nodes with shared cards but no reachable node agent: {COUNT}. They accept no pods.",
            patience="15m",
        ),
        Alert(
            "GpushareNodeAgentNotReady",
            f"{of(metrics_node.READY)} == 0",
            Severity.WARNING,
            f"The node agent at {TARGET} is not ready",
            f"The agent at {TARGET} has not been ready for five minutes. No pod is bound to its node.",
            patience="5m",
        ),
        Alert(
            "GpushareNodeAgentUnregistered",
            f"{of(metrics_node.REGISTERED)} == 0",
            Severity.WARNING,
            f"The device plugin at {TARGET} is not registered with the kubelet",
            f"The agent at {TARGET} has not been registered with the kubelet for two minutes. Its node offers no "
            "shared cards.",
            patience="2m",
        ),
        Alert(
            "GpushareNodeAgentKubeletRequestsFailing",
            grew(of(metrics_node.ANSWERS, one("outcome", "timeout", "error")), "15m"),
            Severity.WARNING,
            f"The node agent at {TARGET} answers the kubelet without its allocation data",
            f"Answers to {{{{ $labels.method }}}} at {TARGET} with outcome {{{{ $labels.outcome }}}} within 15 "
            f"minutes: {COUNT}. The agent assigned devices without its allocation store and checks them when the "
            "container starts.",
        ),
        Alert(
            "GpushareNodeAgentFailing",
            f"increase({of(metrics_node.FAILURES)}[10m]) > 3",
            Severity.WARNING,
            f"Task {{{{ $labels.task }}}} of the node agent at {TARGET} fails",
            f"Failures of background task {{{{ $labels.task }}}} within 10 minutes: {COUNT}. The log of the agent has "
            "the errors.",
        ),
        task_unhealthy("GpushareNodeAgentTaskUnhealthy", metrics_node.HEALTHY, "node agent"),
        Alert(
            "GpushareNodeAgentWatchStale",
            f"{of(metrics_node.SILENCE)} > 120",
            Severity.WARNING,
            f"The node agent at {TARGET} receives nothing from the API server",
            f"{TARGET} has received nothing from the API server about its pods for {WHILE}. A healthy watch is below "
            "90 s.",
            patience="1m",
        ),
    ),
)
