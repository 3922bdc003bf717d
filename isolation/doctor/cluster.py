"""
All findings about one cluster.

Pure: joins what the parts say, and judges what stands between them: the server, who else owns these names,
the rights of our accounts, and what Prometheus is told. Where we only watch, nothing of admission is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.names import ACK, AUTOSCALER, NODE_AGENT, SCHEDULER
from isolation.doctor import (
    cluster_admission,
    cluster_autoscaler,
    cluster_certificates,
    cluster_metrics_apis,
    cluster_nodes,
    cluster_pods,
    cluster_running,
)
from isolation.doctor.cluster_facts import ClusterFacts, Monitoring, Untold
from isolation.doctor.cluster_shape import shape_of
from isolation.doctor.finding import Finding, counted, named, ok, problem, unknown
from isolation.doctor.machine_runtime import version_of
from isolation.doctor.rights import MOVING, sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.doctor.cluster_shape import Shape

_OLDEST: Final = (1, 30)
"""ValidatingAdmissionPolicy and matchConditions are stable since."""
_NEWEST: Final = (1, 36)
"""Tested against."""


def judged(facts: ClusterFacts, now: float) -> list[Finding]:
    """The server first: without it nothing else can be told."""
    if isinstance(facts.version, Untold):
        fix = "check --kubeconfig, --context and the network: `kubectl version` must work"
        return [unknown("cluster.server", f"no API server: {facts.version.why}", fix)]
    exempt = () if isinstance(facts.exempt, Untold) else facts.exempt
    shape = shape_of(facts)
    return [
        _server(facts.version),
        _vendor(facts, shape),
        _others(facts, shape),
        *([] if shape.watches else cluster_admission.look(facts, shape)),
        *cluster_running.look(facts, shape, now),
        *cluster_autoscaler.look(facts.autoscaler, now),
        cluster_metrics_apis.look(facts.services, shape),
        *cluster_certificates.look(facts.secrets, shape, now),
        _rights(facts.rights, shape),
        _monitoring(facts.monitoring),
        *cluster_nodes.look(facts.nodes, facts.version, ours=not shape.watches),
        *cluster_pods.look(facts.pods, facts.nodes, None if shape.watches else exempt, now),
    ]


def _server(version: str) -> Finding:
    check, numbers = "cluster.server", version_of(version)
    if numbers is None:
        return unknown(check, f"the server calls itself {version!r}", "kubectl version")
    if numbers < _OLDEST:
        return problem(check, f"Kubernetes {version}", "1.30 or newer is needed: admission policies are stable since")
    if numbers > _NEWEST:
        return ok(check, f"Kubernetes {version}, newer than what we were tested with (1.36)")
    return ok(check, f"Kubernetes {version}")


def _vendor(facts: ClusterFacts, shape: Shape) -> Finding:
    check = "cluster.vendor"
    if isinstance(facts.nodes, Untold) or shape.vendors is None:
        why = facts.nodes.why if isinstance(facts.nodes, Untold) else "not told"
        return unknown(check, f"nodes: {why}", "run with credentials that may list nodes")
    if not shape.vendors:
        return ok(check, "no node is of a cloud that owns these names")
    if isinstance(facts.workloads, Untold) or isinstance(facts.webhooks, Untold):
        told = "nodes of ACK; what of ours runs beside its own scheduler cannot be told"
        return unknown(check, told, "run with credentials that may list workloads and webhook configurations")
    beside = [name for name in (SCHEDULER, NODE_AGENT) if name in (shape.installed or {})]
    beside += ["our webhook"] if shape.webhooks else []
    if beside:
        return problem(
            check,
            f"{named(shape.vendors)} belong to ACK, where {ACK.memory} is the vendor's; {named(beside)} is here too",
            f"remove {named(beside)}; {shape.apply} is exporter and autoscaler alone",
        )
    nodes = counted(len(shape.vendors), "node")
    return ok(check, f"ACK ({nodes}), and neither scheduler, agent nor webhook of ours beside it")


def _others(facts: ClusterFacts, shape: Shape) -> Finding:
    check = "cluster.other_owners"
    if isinstance(facts.workloads, Untold):
        return unknown(check, f"workloads: {facts.workloads.why}", "run with credentials that may list them")
    if not shape.others:
        return ok(check, f"nobody else serves {ACK.memory}")
    if shape.watches:
        return ok(check, f"{named(shape.others)} serve {ACK.memory}; ours only measure and scale")
    fix = "one owner of these names per cluster: remove theirs before ours is installed, or leave ours out"
    return problem(check, f"{named(shape.others)} serve {ACK.memory} too", fix)


def _rights(rights: Mapping[str, bool | None] | Untold, shape: Shape) -> Finding:
    check, ask = "cluster.rights", "run with credentials that may list service accounts and create subjectaccessreviews"
    if isinstance(rights, Untold):
        return unknown(check, f"accounts of ours: {rights.why}", ask)
    moving = {sentence(AUTOSCALER, verb, resource) for resource, verb in MOVING} if shape.watches else set()
    asked = {what: allowed for what, allowed in rights.items() if what not in moving}
    missing = [what for what, allowed in asked.items() if allowed is False]
    untold = [what for what, allowed in asked.items() if allowed is None]
    if missing:
        more = " ..." if len(missing) > 3 else ""  # noqa: PLR2004 (examples)
        return problem(check, f"not allowed: {'; '.join(missing[:3])}{more}", shape.apply)
    if untold:
        return unknown(check, f"not answered: {counted(len(untold), 'question')}", ask)
    if asked:
        return ok(check, f"{len(asked)} rights are there")
    if shape.watches:
        return ok(check, "none of our accounts that need rights is here")
    return problem(check, "none of our accounts is here", shape.apply)


def _monitoring(found: Monitoring | Untold) -> Finding:
    """Optional: whoever scrapes otherwise is not told that something is wrong."""
    check = "cluster.monitoring"
    if isinstance(found, Untold):
        return unknown(check, f"what Prometheus is told of us: {found.why}", "run with credentials that may list it")
    if not found.operator:
        return ok(check, "no Prometheus operator: scraped by a configuration of your own, or not (docs/alerts.md)")
    if not found.scrapes:
        return ok(check, "the Prometheus operator is not told of us: components/monitoring, where it should be")
    parts = ((found.scrapes, "scrape"), (found.rules, "rule object"), (found.dashboards, "dashboard"))
    return ok(check, f"for the Prometheus operator: {', '.join(counted(number, what) for number, what in parts)}")
