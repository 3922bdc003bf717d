# SPDX-License-Identifier: Apache-2.0
"""
Findings about our own processes: whether they run, of one version, and who of them leads.

Pure. Which there must be follows from the installation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pod import seconds_of
from isolation.contract.names import ACK, EXPORTER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE
from isolation.doctor.checks.cluster.facts import ClusterFacts, Unavailable
from isolation.doctor.checks.finding import Finding, named, ok, problem, unknown, warning
from isolation.doctor.checks.machine.runtime import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.doctor.checks.cluster.facts import Workload
    from isolation.doctor.checks.cluster.installation import Installation

_IMAGES: Final = ("gpushare-exporter", "gpushare-node", "gpushare-controller")
_STALE_SECONDS: Final = 60.0
"""A holder renews every 1.5 s; clocks of people's machines may be wrong by some."""
_ASK: Final = "use credentials that may list them"
_PODS: Final = f"kubectl -n {SYSTEM_NAMESPACE} get pods"


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """What a Lease says."""

    holder: str = ""
    wrong: str = ""
    """Why nobody acts; empty: the holder does."""
    untold: str = ""
    """Why this cannot be told."""


def check_processes(facts: ClusterFacts, installation: Installation, now: float) -> list[Finding]:
    """Everything about them."""
    found = [_check_running(facts, installation), *_check_versions(installation)]
    found += _check_kube_scheduler(facts.version, installation)
    return found if installation.watches else [*found, _check_leader(facts.lease, now)]


def _check_running(facts: ClusterFacts, installation: Installation) -> Finding:
    check = "cluster.components"
    if isinstance(facts.workloads, Unavailable) or installation.installed is None:
        why = facts.workloads.why if isinstance(facts.workloads, Unavailable) else "unknown"
        return unknown(check, f"cannot list workloads: {why}", _ASK)
    mine = installation.installed
    if not mine:
        return problem(check, f"no gpushare component runs in {SYSTEM_NAMESPACE}", installation.apply)
    needed = () if installation.watches else (SCHEDULER, NODE_AGENT)
    missing = [name for name in needed if name not in mine]
    if missing:
        return problem(check, f"missing in {SYSTEM_NAMESPACE}: {named(missing)}", installation.apply)
    short = [one for one in mine.values() if one.ready < one.wanted]
    if short:
        return warning(check, f"not all replicas are ready: {_listed(short)}", _PODS)
    if EXPORTER not in mine:
        return warning(check, f"no {EXPORTER}: usage is not measured", installation.apply)
    if not needed and not installation.vendors and not installation.others:
        evidence = f"only {named(mine)} installed: gpushare neither places nor limits {ACK.memory}"
        return warning(check, evidence, f"nothing if this is intended; otherwise {installation.apply}")
    if SCHEDULER in mine and mine[SCHEDULER].wanted < 2:  # noqa: PLR2004 (a pair)
        return warning(
            check, "the scheduler has one replica", "set replicas: 2, so that admission has no gap while one restarts"
        )
    return ok(check, _listed(mine.values()))


def _listed(workloads: Iterable[Workload]) -> str:
    return ", ".join(f"{one.key} {one.ready} of {one.wanted}" for one in workloads)


def _check_versions(installation: Installation) -> list[Finding]:
    """Tags of our own images, where they have any: one that is named by its digest does not tell its version."""
    check = "cluster.versions"
    tags: dict[str, set[str]] = {}
    for name, one in sorted((installation.installed or {}).items()):
        for image in one.images:
            tag = _tag(image)
            if tag:
                tags.setdefault(tag, set()).add(name)
    if not tags:
        return []
    if len(tags) > 1:
        versions = "; ".join(f"{named(names)} {tag}" for tag, names in sorted(tags.items())[:4])
        fix = "use one version (`images:` of your kustomization); for upgrades see docs/upgrade.md"
        return [warning(check, f"components have different versions: {versions}", fix)]
    return [ok(check, f"all components have version {next(iter(tags))}")]


def _tag(image: str) -> str:
    """The version of an image of ours; empty: not ours, or it does not tell."""
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    return tag if name in _IMAGES else ""


def _check_kube_scheduler(server: str | Unavailable, installation: Installation) -> list[Finding]:
    """The stock kube-scheduler beside ours, by its tag, against the API server."""
    check, ours = "cluster.kube_scheduler", (installation.installed or {}).get(SCHEDULER)
    names = [image.partition("@")[0].rpartition("/")[2] for image in (ours.images if ours else ())]
    version = next(
        (parse_version(name.partition(":")[2]) for name in names if name.startswith("kube-scheduler:")), None
    )
    own = None if isinstance(server, Unavailable) else parse_version(server)
    if version is None or own is None:
        return []
    shown = f"kube-scheduler {version[0]}.{version[1]}, API server {own[0]}.{own[1]}"
    if version[0] == own[0] and own[1] - 1 <= version[1] <= own[1]:
        return [ok(check, shown)]
    wrong = "newer than the API server" if version > own else "more than one minor version older than the API server"
    fix = f"use the image of {own[0]}.{own[1]}: run `helm upgrade`, or name it in `images:` of your kustomization"
    return [warning(check, f"{shown}: {wrong}, which Kubernetes does not support", fix)]


def _check_leader(lease: Mapping[str, Any] | Unavailable | None, now: float) -> Finding:
    check, stands = "cluster.scheduler_leader", read_holder(lease, SCHEDULER, now)
    if stands.untold:
        return unknown(check, stands.untold, "use credentials that may read Leases")
    if stands.wrong:
        fix = (
            f"see `kubectl -n {SYSTEM_NAMESPACE} get pods` and the logs of {SCHEDULER}; if clocks may differ, compare "
            "`date` with the API server"
        )
        return problem(check, f"{stands.wrong}: no pod is bound", fix)
    return ok(check, f"{stands.holder} is the leader")


def read_holder(lease: Mapping[str, Any] | Unavailable | None, name: str, now: float) -> LeaseHolder:
    """Who holds a Lease of ours."""
    where = f"Lease {SYSTEM_NAMESPACE}/{name}"
    if isinstance(lease, Unavailable):
        return LeaseHolder(untold=f"cannot read {where}: {lease.why}")
    if lease is None:
        return LeaseHolder(wrong=f"{where} does not exist: {name} never ran")
    spec = At(lease)["spec"]
    try:
        holder, renewed = spec["holderIdentity"].text(), seconds_of(spec["renewTime"])
    except CodecError as exc:
        return LeaseHolder(untold=f"cannot read {where}: {exc}")
    if not holder:
        return LeaseHolder(wrong=f"{where} has no holder")
    age = now - renewed
    return LeaseHolder(holder, f"{holder} last renewed {where} {age:.0f} s ago" if age > _STALE_SECONDS else "")
