# SPDX-License-Identifier: Apache-2.0
"""
Findings about the metrics APIs: who serves each, and whether it answers.

Pure. A cluster has one server for each of them; ours stays off unless its component is added, and never takes one
over. An APIService whose server is away keeps every namespace from being deleted, whoever it belongs to.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE
from isolation.doctor.checks.cluster.facts import Unavailable
from isolation.doctor.checks.cluster.parse import table, tables
from isolation.doctor.checks.finding import Finding, named, ok, problem, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.doctor.checks.cluster.installation import Installation

_GROUPS: Final = {"custom": "custom.metrics.k8s.io", "external": "external.metrics.k8s.io"}
"""By the word of `--metrics-api`."""
_OPTION: Final = "--metrics-api"
_CHECK: Final = "cluster.metrics_apis"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One APIService of a metrics group."""

    name: str
    group: str
    owner: str
    available: bool | None
    why: str

    @property
    def ours(self) -> bool:
        return self.owner.startswith(f"{SYSTEM_NAMESPACE}/")


def check_metrics_apis(services: tuple[Mapping[str, Any], ...] | Unavailable, installation: Installation) -> Finding:
    """One finding: the worst of them."""
    if isinstance(services, Unavailable):
        return unknown(_CHECK, f"cannot list APIServices: {services.why}", "use credentials that may list them")
    entries = [one for one in map(_entry, services) if one is not None]
    scaler = (installation.installed or {}).get(AUTOSCALER)
    wanted = {_GROUPS[word] for word in _asked(scaler.words if scaler else ()) if word in _GROUPS}
    faults = (_taken(entries, wanted), _left(entries, wanted, installation), _silent(entries), _absent(entries, wanted))
    return next((fault for fault in faults if fault), _well(entries))


def _asked(words: tuple[str, ...]) -> list[str]:
    """Values of `--metrics-api`, in either spelling."""
    apart = [after for word, after in itertools.pairwise(words) if word == _OPTION]
    return apart + [word.removeprefix(f"{_OPTION}=") for word in words if word.startswith(f"{_OPTION}=")]


def _entry(item: Mapping[str, Any]) -> _Entry | None:
    spec = table(item, "spec")
    service, group = table(spec, "service"), str(spec.get("group", ""))
    if group not in _GROUPS.values() or not service:
        return None
    condition = next((one for one in tables(table(item, "status"), "conditions") if one.get("type") == "Available"), {})
    available = {"True": True, "False": False}.get(str(condition.get("status")))
    name = str(table(item, "metadata").get("name", ""))
    return _Entry(
        name, group, f"{service.get('namespace')}/{service.get('name')}", available, str(condition.get("message", ""))
    )


def _taken(entries: list[_Entry], wanted: set[str]) -> Finding | None:
    """Ours is configured to serve what another one serves."""
    taken = [one for one in entries if one.group in wanted and not one.ours]
    if not taken:
        return None
    fix = "only one server may serve it: leave gpushare's component out (docs/hpa.md), or remove the other server"
    return problem(_CHECK, f"{_listed(taken)}; gpushare's autoscaler is configured to serve it too and exits", fix)


def _left(entries: list[_Entry], wanted: set[str], installation: Installation) -> Finding | None:
    """Entered by ours, which does not serve it any more."""
    left = [] if installation.installed is None else [one for one in entries if one.ours and one.group not in wanted]
    if not left:
        return None
    evidence = f"{named(one.name for one in left)} points to gpushare's autoscaler, which is not configured to serve it"
    return problem(
        _CHECK,
        f"{evidence}: no namespace can be deleted",
        f"kubectl delete apiservice {' '.join(one.name for one in left)}",
    )


def _silent(entries: list[_Entry]) -> Finding | None:
    away = sorted((one for one in entries if not one.available), key=lambda one: (one.available is None, not one.ours))
    if not away:
        return None
    first = away[0]
    fix = f"kubectl describe apiservice {first.name}"
    if first.available is None:
        return unknown(_CHECK, f"the availability of {first.name} (by {first.owner}) is unknown", fix)
    evidence = f"{first.name} (by {first.owner}) is unavailable: {first.why or 'no reason given'}"
    if first.ours:
        return problem(_CHECK, evidence, f"{fix}; certificate and network: docs/hpa.md")
    return warning(_CHECK, f"{evidence}; meanwhile no namespace can be deleted", f"{fix}; it belongs to {first.owner}")


def _absent(entries: list[_Entry], wanted: set[str]) -> Finding | None:
    """What ours is configured to serve and did not register."""
    absent = wanted - {one.group for one in entries}
    if not absent:
        return None
    fix = f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/{AUTOSCALER}"
    return warning(
        _CHECK, f"{named(absent)} is not served yet, although gpushare's autoscaler is configured to serve it", fix
    )


def _well(entries: list[_Entry]) -> Finding:
    foreign = [one for one in entries if not one.ours]
    if foreign:
        return ok(_CHECK, f"{_listed(foreign)}; gpushare does not serve them")
    return ok(_CHECK, f"{_listed(entries)}" if entries else "no server for custom or external metrics")


def _listed(entries: list[_Entry]) -> str:
    return ", ".join(sorted({f"{one.group} by {one.owner}" for one in entries}))
