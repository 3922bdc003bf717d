# SPDX-License-Identifier: Apache-2.0
"""
An API server: objects under versions, preconditions, one transaction per request, a log for watchers.

Pure of time: a request takes effect at the moment of `handle`; how long it travels and whether its
answer arrives is `wire`'s business. Follows Kubernetes where something of ours depends on it: a bound
pod is never bound again, a Binding's annotations are merged in the same write, UIDs are preconditions,
a pod that nobody runs is deleted at once and any other is marked and left to its kubelet, a selector
turns a change into ADDED or DELETED. Answers errors as `RefusedError`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from isolation.kube.core.errors import GoneError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Thing = dict[str, Any]
_PLURALS: Final = frozenset(
    {"pods", "nodes", "leases", "reservations", "events", "namespaces", "poddisruptionbudgets", "resourcequotas"}
)
_MERGE: Final = "merge-patch"
_JSON: Final = "json-patch"
EPOCH: Final = 1_795_262_400.0
"""2026-11-21T12:00:00Z, at which every run begins."""


@dataclass(frozen=True, slots=True)
class Route:
    """One path, read."""

    kind: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Of the object within its kind."""
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Happened:
    """One committed change: the object before and after, None where it was not or is no more."""

    version: int
    kind: str
    before: Thing | None
    after: Thing | None


@dataclass(slots=True)
class Server:
    """See the module."""

    now: Callable[[], float]
    version: int = 100
    compacted: int = 0
    """Watches from before this version get 410."""
    log: list[Happened] = field(default_factory=list)
    things: dict[str, dict[tuple[str, str], Thing]] = field(default_factory=lambda: {kind: {} for kind in _PLURALS})
    watchers: list[Callable[[Happened], None]] = field(default_factory=list)
    writes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By who wrote and what: for the bound on writes per pod."""
    serial: int = 0

    # What requests do.

    def handle(self, who: str, method: str, path: str, body: Any, kind: str = "json") -> Thing:
        """One request; the object that answers it, or RefusedError."""
        route = route_of(path)
        if method != "GET":
            self.writes[who, f"{method} {route.kind}{'/' if route.sub else ''}{route.sub}"] += 1
        if route.kind == "events":
            return {}
        if method == "GET":
            return self.one(route) if route.name else self.all(route.kind)
        if method == "POST":
            return self._post(route, body)
        if method == "PUT":
            return self._put(route, body)
        if method == "PATCH":
            return self._patch(route, body, kind)
        if method == "DELETE":
            return self._delete(route, body or {})
        raise RefusedError(405, "MethodNotAllowed", method)

    def one(self, route: Route) -> Thing:
        """The object; 404 without one."""
        found = self.things[route.kind].get(route.key)
        if found is None:
            raise RefusedError(404, "NotFound", f"{route.kind} {route.name} not found")
        return found

    def all(self, kind: str, chosen: Callable[[Thing], bool] = lambda _: True) -> Thing:
        """A list as it stands."""
        items = [thing for thing in self.things[kind].values() if chosen(thing)]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def since(self, kind: str, version: int) -> list[Happened]:
        """What happened to this kind after a version; GoneError where that is forgotten."""
        if version < self.compacted:
            raise GoneError(410, "Expired", "too old resource version")
        return [one for one in self.log if one.kind == kind and one.version > version]

    def compact(self) -> None:
        """Forget the past."""
        self.compacted = self.version
        self.log.clear()

    # How they do it.

    def _post(self, route: Route, body: Thing) -> Thing:
        if route.sub == "binding":
            return self._bind(route, body)
        if route.sub == "eviction":
            return self._delete(route, body.get("deleteOptions") or {})
        name = body["metadata"]["name"]
        made = Route(route.kind, route.namespace, name)
        if made.key in self.things[route.kind]:
            raise RefusedError(409, "AlreadyExists", f"{name} exists")
        return self.put(made, {**body, "metadata": {**body["metadata"], "uid": self.uid(), "generation": 1}})

    def _bind(self, route: Route, body: Thing) -> Thing:
        pod, meta = self.one(route), body["metadata"]
        if meta.get("uid") and meta["uid"] != pod["metadata"]["uid"]:
            raise RefusedError(409, "Conflict", "Precondition failed: UID in precondition")
        if pod["spec"].get("nodeName"):
            raise RefusedError(409, "Conflict", f"pod is already assigned to node {pod['spec']['nodeName']}")
        if "deletionTimestamp" in pod["metadata"]:
            raise RefusedError(409, "Conflict", "pod is being deleted, cannot be assigned to a host")
        annotations = {**pod["metadata"].get("annotations", {}), **meta.get("annotations", {})}
        status = {**pod["status"], "conditions": [{"type": "PodScheduled", "status": "True"}]}
        spec = {**pod["spec"], "nodeName": body["target"]["name"]}
        changed = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}, "spec": spec, "status": status}
        return self.put(route, changed)

    def _put(self, route: Route, body: Thing) -> Thing:
        old = self.one(route)
        asked = body["metadata"].get("resourceVersion")
        if asked and asked != old["metadata"]["resourceVersion"]:
            raise RefusedError(409, "Conflict", "the object has been modified")
        return self.put(route, {**body, "metadata": {**old["metadata"], **body["metadata"]}})

    def _patch(self, route: Route, body: Thing, kind: str) -> Thing:
        old = self.one(route)
        if kind == _JSON:
            return self.put(route, patched(old, body))
        if kind != _MERGE:
            raise RefusedError(415, "UnsupportedMediaType", kind)
        meta = body.get("metadata", {})
        for field_, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if meta.get(field_) and meta[field_] != old["metadata"][field_]:
                raise RefusedError(409, "Conflict", f"Precondition failed: {word}")
        return self.put(route, merged(old, body))

    def _delete(self, route: Route, options: Thing) -> Thing:
        old = self.one(route)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != old["metadata"]["uid"]:
            raise RefusedError(409, "Conflict", "Precondition failed: UID in precondition")
        if route.kind != "pods":
            return self.remove(route)
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = old["spec"].get("terminationGracePeriodSeconds", 30)
        ended = old["status"].get("phase") in ("Succeeded", "Failed")
        if grace == 0 or ended or not old["spec"].get("nodeName"):
            return self.remove(route)
        if "deletionTimestamp" in old["metadata"]:
            return old
        meta = {**old["metadata"], "deletionTimestamp": stamp(self.now()), "deletionGracePeriodSeconds": grace}
        return self.put(route, {**old, "metadata": meta})

    # Commits.

    def put(self, route: Route, thing: Thing) -> Thing:
        """Write an object, whatever was there."""
        before = self.things[route.kind].get(route.key)
        self.version += 1
        after = {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(self.version)}}
        self.things[route.kind][route.key] = after
        self._commit(Happened(self.version, route.kind, before, after))
        return after

    def remove(self, route: Route) -> Thing:
        """An object is no more."""
        before = self.things[route.kind].pop(route.key)
        self.version += 1
        last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}
        self._commit(Happened(self.version, route.kind, last, None))
        return last

    def uid(self) -> str:
        """A new one."""
        self.serial += 1
        return f"00000000-0000-4000-8000-{self.serial:012d}"

    def _commit(self, happened: Happened) -> None:
        self.log.append(happened)
        for watcher in tuple(self.watchers):
            watcher(happened)


def route_of(path: str) -> Route:
    """A path as Kubernetes spells it."""
    words = path.strip("/").split("/")
    words = words[2:] if words[0] == "api" else words[3:]
    namespace = ""
    if words[0] == "namespaces" and len(words) > 2:
        namespace, words = words[1], words[2:]
    if words[0] not in _PLURALS:
        raise RefusedError(404, "NotFound", path)
    padded = [*words, "", ""]
    return Route(words[0], namespace, padded[1], padded[2])


def merged(old: Any, patch: Mapping[str, Any]) -> Thing:
    """RFC 7386."""
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value) if isinstance(value, dict) else value
    return result


def patched(old: Thing, patch: Iterable[Mapping[str, Any]]) -> Thing:
    """RFC 6902 with `test`, `add`, `replace` and `remove` of fields of objects; 422 where one cannot be done."""
    result = json.loads(text(old))
    for step in patch:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at = result
        for part in path:
            at = at.get(part, {})
        if step["op"] != "add" and (last not in at or (step["op"] == "test" and at[last] != step["value"])):
            raise RefusedError(422, "Invalid", "the server rejected our request due to an error in our request")
        if step["op"] == "remove":
            del at[last]
        elif step["op"] != "test":
            at[last] = step["value"]
    return result


def stamp(seconds: float) -> str:
    """A moment of the run as Kubernetes writes times; the run begins at noon."""
    whole = int(seconds)
    return f"2026-11-21T{12 + whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}Z"


def text(thing: Thing) -> bytes:
    """As it travels."""
    return json.dumps(thing, separators=(",", ":")).encode()
