# SPDX-License-Identifier: Apache-2.0
"""
Findings about our own processes: whether they run, of one version, and who of them leads.

Pure. Which there must be, the shape of the installation says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pod import seconds_of
from isolation.contract.names import ACK, EXPORTER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE
from isolation.doctor.checks.cluster.facts import ClusterFacts, Untold
from isolation.doctor.checks.finding import Finding, named, ok, problem, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.doctor.checks.cluster.components import Shape
    from isolation.doctor.checks.cluster.facts import Workload

_IMAGES: Final = ("gpushare-exporter", "gpushare-node", "gpushare-controller")
_STALE_SECONDS: Final = 60.0
"""A holder renews every 1.5 s; clocks of people's machines may be wrong by some."""
_ASK: Final = "use credentials that may list them"
_PODS: Final = f"kubectl -n {SYSTEM_NAMESPACE} get pods"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a Lease says."""

    holder: str = ""
    wrong: str = ""
    """Why nobody acts; empty: the holder does."""
    untold: str = ""
    """Why this cannot be told."""


def look(facts: ClusterFacts, shape: Shape, now: float) -> list[Finding]:
    """Everything about them."""
    found = [_processes(facts, shape), *_versions(shape)]
    return found if shape.watches else [*found, _leader(facts.lease, now)]


def _processes(facts: ClusterFacts, shape: Shape) -> Finding:
    check = "cluster.components"
    if isinstance(facts.workloads, Untold) or shape.installed is None:
        why = facts.workloads.why if isinstance(facts.workloads, Untold) else "unknown"
        return unknown(check, f"cannot list workloads: {why}", _ASK)
    mine = shape.installed
    if not mine:
        return problem(check, f"no gpushare component runs in {SYSTEM_NAMESPACE}", shape.apply)
    needed = () if shape.watches else (SCHEDULER, NODE_AGENT)
    missing = [name for name in needed if name not in mine]
    if missing:
        return problem(check, f"missing in {SYSTEM_NAMESPACE}: {named(missing)}", shape.apply)
    short = [one for one in mine.values() if one.ready < one.wanted]
    if short:
        return warning(check, f"not all replicas are ready: {_listed(short)}", _PODS)
    if EXPORTER not in mine:
        return warning(check, f"no {EXPORTER}: usage is not measured", shape.apply)
    if not needed and not shape.vendors and not shape.others:
        told = f"only {named(mine)} installed: gpushare neither places nor limits {ACK.memory}"
        return warning(check, told, f"nothing if this is intended; otherwise {shape.apply}")
    if SCHEDULER in mine and mine[SCHEDULER].wanted < 2:  # noqa: PLR2004 (a pair)
        return warning(
            check, "the scheduler has one replica", "set replicas: 2, so that admission has no gap while one restarts"
        )
    return ok(check, _listed(mine.values()))


def _listed(workloads: Iterable[Workload]) -> str:
    return ", ".join(f"{one.key} {one.ready} of {one.wanted}" for one in workloads)


def _versions(shape: Shape) -> list[Finding]:
    """Tags of our own images, where they have any: one that is named by its digest does not tell its version."""
    check = "cluster.versions"
    tags: dict[str, set[str]] = {}
    for name, one in sorted((shape.installed or {}).items()):
        for image in one.images:
            tag = _tag(image)
            if tag:
                tags.setdefault(tag, set()).add(name)
    if not tags:
        return []
    if len(tags) > 1:
        told = "; ".join(f"{named(names)} {tag}" for tag, names in sorted(tags.items())[:4])
        fix = "use one version (`images:` of your kustomization); for upgrades see docs/install.md"
        return [warning(check, f"components have different versions: {told}", fix)]
    return [ok(check, f"all components have version {next(iter(tags))}")]


def _tag(image: str) -> str:
    """The version of an image of ours; empty: not ours, or it does not tell."""
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    return tag if name in _IMAGES else ""


def _leader(lease: Mapping[str, Any] | Untold | None, now: float) -> Finding:
    check, stands = "cluster.scheduler_leader", standing(lease, SCHEDULER, now)
    if stands.untold:
        return unknown(check, stands.untold, "use credentials that may read Leases")
    if stands.wrong:
        fix = "see cluster.processes and the pods' logs; if clocks may differ, compare `date` with the API server"
        return problem(check, f"{stands.wrong}: no pod is bound", fix)
    return ok(check, f"{stands.holder} is the leader")


def standing(lease: Mapping[str, Any] | Untold | None, name: str, now: float) -> Standing:
    """Who holds a Lease of ours."""
    where = f"Lease {SYSTEM_NAMESPACE}/{name}"
    if isinstance(lease, Untold):
        return Standing(untold=f"cannot read {where}: {lease.why}")
    if lease is None:
        return Standing(wrong=f"{where} does not exist: {name} never ran")
    spec = At(lease)["spec"]
    try:
        holder, renewed = spec["holderIdentity"].text(), seconds_of(spec["renewTime"])
    except CodecError as exc:
        return Standing(untold=f"cannot read {where}: {exc}")
    if not holder:
        return Standing(wrong=f"{where} has no holder")
    age = now - renewed
    return Standing(holder, f"{holder} last renewed {where} {age:.0f} s ago" if age > _STALE_SECONDS else "")
