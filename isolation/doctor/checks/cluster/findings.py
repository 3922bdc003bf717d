# SPDX-License-Identifier: Apache-2.0
"""
All findings about one cluster.

Pure: joins what the parts say, and judges what stands between them: the server, who else owns these names,
the rights of our accounts, and what Prometheus scrapes. Where we only watch, nothing of admission is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import ACK, AUTOSCALER, NODE_AGENT, PROVISIONING_GROUP, SCHEDULER
from isolation.contract.rbac import MOVING, sentence
from isolation.doctor.checks import minimum
from isolation.doctor.checks.cluster import admission, autoscaler, certificates, metrics_apis, pods, processes, scalers
from isolation.doctor.checks.cluster import nodes as cluster_nodes
from isolation.doctor.checks.cluster.facts import ClusterFacts, Monitoring, Unavailable
from isolation.doctor.checks.cluster.installation import find_installation
from isolation.doctor.checks.cluster.parse import table
from isolation.doctor.checks.finding import Finding, counted, named, ok, problem, unknown, warning
from isolation.doctor.checks.machine.runtime import parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.doctor.checks.cluster.installation import Installation

_REQUEST_VERSION: Final = "v1"
"""Of ProvisioningRequest: the one that the scheduler watches."""
_NEWEST: Final = (1, 36)
"""Tested against."""


def check_cluster(facts: ClusterFacts, now: float) -> list[Finding]:
    """The server first: without it nothing else is known."""
    if isinstance(facts.version, Unavailable):
        fix = "check --kubeconfig, --context and the network: `kubectl version` must work"
        return [unknown("cluster.server_version", f"cannot reach the API server: {facts.version.why}", fix)]
    exempt = () if isinstance(facts.exempt, Unavailable) else facts.exempt
    installation = find_installation(facts)
    return [
        _check_server_version(facts.version),
        _check_ack(facts, installation),
        _check_other_plugins(facts, installation),
        *([] if installation.watches else admission.check_admission(facts, installation)),
        *processes.check_processes(facts, installation, now),
        *([] if installation.watches else [_check_provisioning_requests(facts.provisioning)]),
        *autoscaler.check_autoscaler(facts.autoscaler, now),
        *scalers.check_scalers(facts.scalers, facts.pods, facts.nodes, facts.autoscaler, now),
        metrics_apis.check_metrics_apis(facts.services, installation),
        *certificates.check_certificates(facts.secrets, installation, now),
        *certificates.check_client_certificates(facts.scalers, now),
        _check_rights(facts.rights, installation),
        _check_monitoring(facts.monitoring),
        *cluster_nodes.check_nodes(facts.nodes, facts.version, ours=not installation.watches),
        *pods.check_pods(facts.pods, facts.nodes, None if installation.watches else exempt, now),
    ]


def _check_server_version(version: str) -> Finding:
    check, numbers = "cluster.server_version", parse_version(version)
    if numbers is None:
        return unknown(check, f"the server reports version {version!r}", "check `kubectl version`")
    if numbers < minimum.KUBERNETES:
        return problem(
            check, f"Kubernetes {version} is too old", f"upgrade to {minimum.dotted(minimum.KUBERNETES)} or newer"
        )
    if numbers > _NEWEST:
        return ok(check, f"Kubernetes {version}, newer than the newest tested version (1.36)")
    return ok(check, f"Kubernetes {version}")


def _check_provisioning_requests(definition: Mapping[str, Any] | Unavailable | None) -> Finding:
    """An optional kind, of cluster-autoscaler's: Kueue asks by it for cards for all pods of a job."""
    check, name = "cluster.provisioning_requests", f"kind ProvisioningRequest of {PROVISIONING_GROUP}"
    if isinstance(definition, Unavailable):
        return unknown(check, f"cannot read {name}: {definition.why}", "use credentials that may read definitions")
    if definition is None:
        return ok(check, f"{name} is not installed: pods of a job cannot start together by Kueue (optional)")
    versions = [one for one in table(definition, "spec").get("versions") or [] if isinstance(one, dict)]
    if not any(one.get("name") == _REQUEST_VERSION and one.get("served") is True for one in versions):
        evidence = f"{name} is not served as {_REQUEST_VERSION}: the scheduler does not see the requests of jobs"
        return warning(check, evidence, "install the definition of cluster-autoscaler 1.31 or newer (docs/kueue.md)")
    return ok(check, f"{name} is served as {_REQUEST_VERSION}: pods of a job can start together")


def _check_ack(facts: ClusterFacts, installation: Installation) -> Finding:
    check = "cluster.ack"
    if isinstance(facts.nodes, Unavailable) or installation.vendors is None:
        why = facts.nodes.why if isinstance(facts.nodes, Unavailable) else "unknown"
        return unknown(check, f"cannot list nodes: {why}", "use credentials that may list nodes")
    if not installation.vendors:
        return ok(check, "no node is managed by ACK")
    if isinstance(facts.workloads, Unavailable) or isinstance(facts.webhooks, Unavailable):
        evidence = "nodes are managed by ACK; the installed gpushare components are unknown"
        return unknown(check, evidence, "use credentials that may list workloads and webhook configurations")
    installed = [name for name in (SCHEDULER, NODE_AGENT) if name in (installation.installed or {})]
    installed += ["gpushare's webhook"] if installation.webhooks else []
    if installed:
        return problem(
            check,
            f"ACK manages {named(installation.vendors)} and serves {ACK.memory} itself; "
            f"also installed: {named(installed)}",
            f"remove {named(installed)}; for exporter and autoscaler only: {installation.apply}",
        )
    nodes = counted(len(installation.vendors), "node")
    return ok(check, f"ACK manages {nodes}; gpushare's scheduler, node agent and webhook are not installed")


def _check_other_plugins(facts: ClusterFacts, installation: Installation) -> Finding:
    check = "cluster.other_plugins"
    if isinstance(facts.workloads, Unavailable):
        return unknown(check, f"cannot list workloads: {facts.workloads.why}", "use credentials that may list them")
    if not installation.others:
        return ok(check, f"no other workload serves {ACK.memory}")
    if installation.watches:
        return ok(check, f"{named(installation.others)} serve {ACK.memory}; gpushare only measures and scales")
    fix = (
        "only one owner per cluster may serve it: remove the other one and then install gpushare, or leave gpushare out"
    )
    return problem(check, f"{named(installation.others)} also serve {ACK.memory}", fix)


def _check_rights(rights: Mapping[str, bool | None] | Unavailable, installation: Installation) -> Finding:
    check, ask = "cluster.rights", "use credentials that may list service accounts and create subjectaccessreviews"
    if isinstance(rights, Unavailable):
        return unknown(check, f"cannot list gpushare's service accounts: {rights.why}", ask)
    moving = {sentence(AUTOSCALER, verb, resource) for resource, verb in MOVING} if installation.watches else set()
    asked = {what: allowed for what, allowed in rights.items() if what not in moving}
    missing = [what for what, allowed in asked.items() if allowed is False]
    untold = [what for what, allowed in asked.items() if allowed is None]
    if missing:
        more = " ..." if len(missing) > 3 else ""  # noqa: PLR2004 (examples)
        return problem(check, f"not allowed: {'; '.join(missing[:3])}{more}", installation.apply)
    if untold:
        return unknown(check, f"no answer to {counted(len(untold), 'access review')}", ask)
    if asked:
        return ok(check, f"{len(asked)} permissions are granted")
    if installation.watches:
        return ok(check, "no gpushare service account that needs permissions exists")
    return problem(check, "no gpushare service account exists", installation.apply)


def _check_monitoring(found: Monitoring | Unavailable) -> Finding:
    """Optional: whoever scrapes otherwise need not have it."""
    check = "cluster.monitoring"
    if isinstance(found, Unavailable):
        return unknown(check, f"cannot list monitoring objects: {found.why}", "use credentials that may list them")
    if not found.operator:
        return ok(check, "no Prometheus operator: configure scrapes in Prometheus itself (docs/monitoring.md)")
    if not found.scrapes:
        return ok(
            check,
            "no ServiceMonitor of gpushare: if the Prometheus operator should scrape it, add components/monitoring",
        )
    parts = ((found.scrapes, "ServiceMonitor"), (found.rules, "PrometheusRule"), (found.dashboards, "dashboard"))
    return ok(check, f"Prometheus operator: {', '.join(counted(number, what) for number, what in parts)}")
