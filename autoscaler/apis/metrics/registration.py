# SPDX-License-Identifier: Apache-2.0
"""
Which server each metrics API has: ours is registered where there is none, and no other server is replaced.

A cluster has one server for each of these groups, for all its versions: whoever adds a newer version of a
group takes the clients of the older one with it. So a group of which anybody else serves any version is
left alone, with an error that says who has it. `register` creates
what is absent, and renews the authority of what is ours.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoscaler.apis.metrics.core.responses import VERSIONS
from isolation.kube.core.errors import ConflictError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.kube.access import Access

PATH: Final = "/apis/apiregistration.k8s.io/v1/apiservices"
_PRIORITY: Final = 100
"""As every server of these groups has it."""


class ServedElsewhereError(Exception):
    """Another server has the group."""


@dataclass(frozen=True, slots=True)
class ServiceRef:
    """The Service by which kube-apiserver reaches this server."""

    namespace: str
    name: str
    port: int = 443

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class RegistrationChange:
    """One write."""

    name: str
    body: Mapping[str, Any]
    """The whole object where it is new, else a merge patch."""
    new: bool


def build_api_services(groups: Iterable[str], service: ServiceRef, authority: bytes | None) -> list[dict[str, Any]]:
    """The APIServices that make the Service the server of these groups."""
    made = []
    for group in sorted(groups):
        for rank, version in enumerate(reversed(VERSIONS[group])):
            spec: dict[str, Any] = {
                "group": group,
                "version": version,
                "groupPriorityMinimum": _PRIORITY,
                "versionPriority": _PRIORITY * (rank + 1),
                "service": {"namespace": service.namespace, "name": service.name, "port": service.port},
            }
            if authority is not None:
                spec["caBundle"] = base64.b64encode(authority).decode()
            made.append(
                {
                    "apiVersion": "apiregistration.k8s.io/v1",
                    "kind": "APIService",
                    "metadata": {
                        "name": f"{version}.{group}",
                        "labels": {"app.kubernetes.io/part-of": "gpushare"},
                    },
                    "spec": spec,
                }
            )
    return made


def plan_changes(
    existing: Iterable[Mapping[str, Any]], wish: Iterable[Mapping[str, Any]], service: ServiceRef
) -> list[RegistrationChange]:
    """What to write; raises TakenError."""
    wish = list(wish)
    groups = {each["spec"]["group"] for each in wish}
    ours = {}
    for found in existing:
        spec, name = found.get("spec") or {}, (found.get("metadata") or {}).get("name", "")
        if spec.get("group") not in groups:
            continue
        server = spec.get("service") or {}
        if (server.get("namespace"), server.get("name")) != (service.namespace, service.name):
            raise ServedElsewhereError(_taken(spec["group"], name, server, service))
        ours[name] = found
    changes = []
    for each in wish:
        name = each["metadata"]["name"]
        if name not in ours:
            changes.append(RegistrationChange(name, each, new=True))
            continue
        bundle, spec = each["spec"].get("caBundle"), ours[name]["spec"]
        if bundle is not None and spec.get("caBundle") != bundle:
            version = ours[name]["metadata"].get("resourceVersion")
            patch = {"metadata": {"resourceVersion": version}, "spec": {"caBundle": bundle}}
            changes.append(RegistrationChange(name, patch, new=False))
    return changes


async def register(access: Access, wish: list[dict[str, Any]], service: ServiceRef, *, write: bool) -> list[str]:
    """
    Check that no other server has the groups, and register where `write`; the names of what is still missing.

    Raises TakenError, ClusterError.
    """
    changes = plan_changes(await _existing(access), wish, service)
    if not write:
        return [change.name for change in changes if change.new]
    for change in changes:
        try:
            if change.new:
                await access.send("POST", PATH, change.body)
            else:
                await access.send("PATCH", f"{PATH}/{change.name}", change.body, "merge-patch")
        except ConflictError:
            # created meanwhile: by another replica, or by another server, which raises
            plan_changes(await _existing(access), wish, service)
    return []


async def _existing(access: Access) -> list[dict[str, Any]]:
    try:
        items = json.loads(await access.page(PATH, {}))["items"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise MalformedError("invalid list of APIServices") from None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise MalformedError("list of APIServices contains other objects")
    return items


def _taken(group: str, name: str, server: Mapping[str, Any], service: ServiceRef) -> str:
    who = f"{server.get('namespace')}/{server.get('name')}" if server else "the API server itself"
    short = group.partition(".")[0]
    return (
        f"{group} is already served by {who} (APIService {name}), and a cluster has one server for it. To switch to "
        f"{service}: stop that server, run `kubectl delete apiservice {name}`, restart this process. To keep it: "
        f"remove {short} from --metrics-api"
    )
