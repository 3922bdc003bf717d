"""
All findings about one cluster.

Pure: joins what the parts say, and judges what stands between them: the server, who else owns these names,
our own processes, their Lease and their rights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec_pod import seconds_of
from isolation.contract.codec_shape import At, CodecError
from isolation.contract.names import ACK, SCHEDULER, SYSTEM_NAMESPACE
from isolation.doctor import cluster_admission, cluster_nodes, cluster_pods
from isolation.doctor.cluster_facts import ClusterFacts, Untold
from isolation.doctor.finding import Finding, counted, named, ok, problem, unknown, warning
from isolation.doctor.machine_runtime import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_OLDEST: Final = (1, 30)
"""ValidatingAdmissionPolicy and matchConditions are stable since."""
_NEWEST: Final = (1, 36)
"""Tested against."""
_METRICS: Final = ("custom.metrics.k8s.io", "external.metrics.k8s.io")
_OTHERS: Final = ("gpushare-device-plugin", "gpushare-schd-extender", "gpushare-scheduler-extender", "cgpu")
"""In the images of those who serve the same names: Alibaba's open gpushare, and ACK's own."""
_STALE_SECONDS: Final = 60.0
"""A holder renews every 1.5 s; clocks of people's machines may be wrong by some."""


def judged(facts: ClusterFacts, now: float) -> list[Finding]:
    """The server first: without it nothing else can be told."""
    if isinstance(facts.version, Untold):
        fix = "check --kubeconfig, --context and the network: `kubectl version` must work"
        return [unknown("cluster.server", f"no API server: {facts.version.why}", fix)]
    exempt = () if isinstance(facts.exempt, Untold) else facts.exempt
    return [
        _server(facts.version),
        _vendor(facts),
        _others(facts),
        _metrics(facts),
        *cluster_admission.look(facts, now),
        _processes(facts),
        _lease(facts.lease, now),
        _rights(facts.rights),
        *cluster_nodes.look(facts.nodes, facts.version),
        *cluster_pods.look(facts.pods, facts.nodes, exempt, now),
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


def _ours(facts: ClusterFacts) -> list[str]:
    """Our own Deployments and DaemonSets."""
    workloads = () if isinstance(facts.workloads, Untold) else facts.workloads
    return [one.key for one in workloads if one.key.startswith(f"{SYSTEM_NAMESPACE}/")]


def _vendor(facts: ClusterFacts) -> Finding:
    check = "cluster.vendor"
    if isinstance(facts.nodes, Untold):
        return unknown(check, f"nodes: {facts.nodes.why}", "run with credentials that may list nodes")
    theirs = [one.name for one in facts.nodes if one.vendors]
    if not theirs:
        return ok(check, "no node is of a cloud that owns these names")
    if _ours(facts):
        return problem(
            check,
            f"{named(theirs)} belong to ACK, where {ACK.memory} is the vendor's: two would place the same cards",
            "use the overlay for ACK (exporter, autoscaler and views), without our scheduler and agent",
        )
    return ok(check, f"ACK ({len(theirs)} nodes), and no scheduler or agent of ours beside it")


def _others(facts: ClusterFacts) -> Finding:
    check = "cluster.other_owners"
    if isinstance(facts.workloads, Untold):
        return unknown(check, f"workloads: {facts.workloads.why}", "run with credentials that may list them")
    found = [
        one.key
        for one in facts.workloads
        if not one.key.startswith(f"{SYSTEM_NAMESPACE}/")
        and any(word in image for image in one.images for word in _OTHERS)
    ]
    if found:
        fix = "one owner of these names per cluster: remove theirs before ours is installed, or leave ours out"
        return problem(check, f"{named(found)} serve {ACK.memory} too", fix)
    return ok(check, f"nobody else serves {ACK.memory}")


def _metrics(facts: ClusterFacts) -> Finding:
    check = "cluster.metrics_apis"
    if isinstance(facts.services, Untold):
        return unknown(check, f"APIServices: {facts.services.why}", "run with credentials that may list them")
    owners = {}
    for one in facts.services:
        spec: Any = one.get("spec")
        service = spec.get("service") if isinstance(spec, dict) else None
        if isinstance(service, dict) and spec.get("group") in _METRICS:
            owners[str(spec["group"])] = f"{service.get('namespace')}/{service.get('name')}"
    foreign = {group: owner for group, owner in owners.items() if not owner.startswith(f"{SYSTEM_NAMESPACE}/")}
    if foreign:
        listed = ", ".join(f"{group} by {owner}" for group, owner in sorted(foreign.items()))
        return ok(check, f"{listed}: our own metrics APIs must stay off (they are, unless you add the component)")
    return ok(check, "served by us" if owners else "nobody serves custom or external metrics")


def _processes(facts: ClusterFacts) -> Finding:
    check = "cluster.processes"
    if isinstance(facts.workloads, Untold):
        return unknown(check, f"workloads: {facts.workloads.why}", "run with credentials that may list them")
    mine = [one for one in facts.workloads if one.key in _ours(facts)]
    if not mine:
        return problem(check, f"nothing of ours runs in {SYSTEM_NAMESPACE}", "kubectl apply -k manifests/base")
    short = [one for one in mine if one.ready < one.wanted]
    if short:
        listed = ", ".join(f"{one.key} {one.ready} of {one.wanted}" for one in short)
        return warning(check, f"not all are ready: {listed}", f"kubectl -n {SYSTEM_NAMESPACE} get pods")
    single = [one for one in mine if one.key == f"{SYSTEM_NAMESPACE}/{SCHEDULER}" and one.wanted < 2]  # noqa: PLR2004 (a pair)
    if single:
        fix = "replicas: 2, so that admission has no gap while one restarts"
        return warning(check, "one replica of the scheduler", fix)
    return ok(check, ", ".join(f"{one.key} {one.ready} of {one.wanted}" for one in mine))


def _lease(lease: Mapping[str, Any] | Untold | None, now: float) -> Finding:
    check, name = "cluster.leader", f"{SYSTEM_NAMESPACE}/{SCHEDULER}"
    if isinstance(lease, Untold):
        return unknown(check, f"Lease {name}: {lease.why}", "run with credentials that may read Leases")
    if lease is None:
        return problem(check, f"no Lease {name}: no scheduler of ours has ever run", "see cluster.processes")
    spec = At(lease)["spec"]
    try:
        holder, renewed = spec["holderIdentity"].text(), seconds_of(spec["renewTime"])
    except CodecError as exc:
        return unknown(check, f"Lease {name}: {exc}", f"kubectl -n {SYSTEM_NAMESPACE} get lease {SCHEDULER} -o yaml")
    if not holder:
        return problem(check, f"nobody holds Lease {name}: nothing is bound", "see cluster.processes, and their logs")
    age = now - renewed
    if age > _STALE_SECONDS:
        told = f"{holder} renewed Lease {name} {age:.0f} s ago: nothing is bound"
        return problem(check, told, "look at its log; where clocks differ, compare with `date` on the API server")
    return ok(check, f"{holder} leads, renewed {max(0.0, age):.0f} s ago")


def _rights(rights: Mapping[str, bool | None]) -> Finding:
    check = "cluster.rights"
    missing = [what for what, allowed in rights.items() if allowed is False]
    untold = [what for what, allowed in rights.items() if allowed is None]
    if missing:
        fix = "kubectl apply -f manifests/base/scheduler/rights.yaml -f manifests/base/node/rights.yaml"
        return problem(check, f"not allowed: {'; '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}", fix)  # noqa: PLR2004 (examples)
    if untold or not rights:
        what = f"not answered: {counted(len(untold), 'question')}"
        return unknown(check, what, "run with credentials that may create subjectaccessreviews")
    return ok(check, f"{len(rights)} rights are there")
