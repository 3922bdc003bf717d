"""
Alerts about the node agents: without one a node takes no pod and starts no container on a shared card.

Pure. Their series say nothing of their node; `instance` does, which our ServiceMonitor makes the node's name.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import UP
from dashboards.rules.rule import EXPORTER_JOB, NODE_JOB, Alert, Group, Severity, gone, grew, of, one, up
from dashboards.rules.words import COUNT, TARGET, WHILE
from isolation.contract import metrics, metrics_node

_SHARED: Final = of(metrics.CARD_INFO, one("mode", "share", "cgpu", "core_mem"), one("job", EXPORTER_JOB))

GROUP: Final = Group(
    "gpushare.node",
    "The agents of nodes with shared cards.",
    (
        Alert(
            "GpushareNodeAgentsAbsent",
            gone(NODE_JOB),
            Severity.CRITICAL,
            "No gpushare node agent is reached",
            f"Prometheus reaches no target of job {NODE_JOB}, of which there were some within the last day: no "
            "container on shared cards can start.",
            patience="5m",
        ),
        Alert(
            "GpushareNodeAgentDown",
            f'{UP.name}{{job="{NODE_JOB}"}} == 0',
            Severity.WARNING,
            f"The gpushare node agent at {TARGET} is not reached",
            f"{TARGET} has not answered for five minutes. Nothing is bound to its node, and containers there cannot "
            "start; those that run go on.",
            patience="5m",
        ),
        Alert(
            "GpushareNodeAgentMissing",
            f"count(group by (node) ({_SHARED}))\n-\ncount({up(NODE_JOB)})\n> 0",
            Severity.WARNING,
            "Some nodes with shared cards have no node agent",
            f"Nodes that serve shares of cards, have no agent that is reached, and therefore take no pods: {COUNT}.",
            patience="15m",
        ),
        Alert(
            "GpushareNodeAgentNotReady",
            f"{of(metrics_node.READY)} == 0",
            Severity.WARNING,
            f"The node agent at {TARGET} takes no pods",
            f"For five minutes the agent at {TARGET} has not been ready: nothing is bound to its node.",
            patience="5m",
        ),
        Alert(
            "GpushareNodeAgentUnregistered",
            f"{of(metrics_node.REGISTERED)} == 0",
            Severity.WARNING,
            f"The kubelet does not know the device plugin at {TARGET}",
            f"The agent at {TARGET} has not been registered for two minutes; its node offers no shares.",
            patience="2m",
        ),
        Alert(
            "GpushareNodeAgentLate",
            grew(of(metrics_node.ANSWERS, one("outcome", "late", "broken")), "15m"),
            Severity.WARNING,
            f"The node agent at {TARGET} answers the kubelet without knowing",
            f"Answers to {{{{ $labels.method }}}} at {TARGET} that were {{{{ $labels.outcome }}}} within 15 minutes: "
            f"{COUNT}. Devices were given without the agent's book and are checked when the container starts.",
        ),
        Alert(
            "GpushareNodeAgentFailing",
            f"increase({of(metrics_node.FAILED_TURNS)}[10m]) > 3",
            Severity.WARNING,
            f"Turns of the node agent at {TARGET} fail",
            f"{COUNT} turns of its loop failed within 10 minutes; its log says why.",
        ),
        Alert(
            "GpushareNodeAgentViewOld",
            f"{of(metrics_node.SILENCE)} > 120",
            Severity.WARNING,
            f"The node agent at {TARGET} hears nothing from the API server",
            f"For {WHILE} the API server has told {TARGET} nothing of its pods; a healthy watch is below 90 s.",
            patience="1m",
        ),
    ),
)
