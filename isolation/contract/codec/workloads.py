# SPDX-License-Identifier: Apache-2.0
"""
The pods that a Kubernetes object would make.

Decides how many and what they are called, and what of an object contains no pod at all; what a
pod asks for is `codec.request`'s business. The card-count label may stand on the pod template
or on the workload itself; the template's wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import At, CodecError, Path, show
from isolation.contract.codec.request import request_of
from isolation.contract.codec.rules import pinned
from isolation.contract.model import Refusal, Request, Why
from isolation.contract.names import ACK, Dialect
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

Translator = Callable[[dict[str, object], object, str], tuple[object, object] | Refusal]
"""(metadata, spec, namespace) of a pod in any dialect into canonical metadata and spec, or why not."""


def canonical(metadata: dict[str, object], spec: object, namespace: str) -> tuple[object, object]:
    """The pod as it is."""
    del namespace
    return metadata, spec


MAX_PODS: Final = 10_000
"""In one object: more is a typing error rather than a plan."""
MAX_NESTED: Final = 8
"""Lists within lists."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One pod that an object would make."""

    name: str
    namespace: str
    containers: tuple[str, ...]
    """App containers, in order."""
    request: Request | Refusal
    node: str = ""
    """The node that the manifest itself names (`spec.nodeName`)."""

    @property
    def key(self) -> str:
        """The pod's name, with its namespace unless that is the default one."""
        return self.name if self.namespace == "default" else f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """An object that makes no pod that placement could place, and why."""

    what: str
    reason: str


def objects_in(document: object, path: Path = (), depth: int = 0) -> Iterator[tuple[Path, At]]:
    """Every object of a document with its path; a List counts as its items."""
    at = At(document, path)
    kind = at["kind"].text()
    if not kind or not at["apiVersion"].text():
        missing = "kind" if not kind else "apiVersion"
        raise at.wrong(f"not a Kubernetes object: {missing} is missing; add apiVersion: and kind:")
    if not (kind == "List" or (kind.endswith("List") and isinstance(at.mapping().get("items"), list))):
        yield path, at
        return
    if depth >= MAX_NESTED:
        raise at.wrong(f"lists are nested more than {MAX_NESTED} deep; flatten them")
    # A raw PodList leaves the kind of its items to its own.
    implied = {"apiVersion": at["apiVersion"].value, "kind": kind.removesuffix("List")}
    for item in at["items"].items():
        value = item.mapping() if kind == "List" else {**implied, **item.mapping()}
        yield from objects_in(value, item.path, depth + 1)


def pods_of(
    workload: object,
    *,
    dialect: Dialect = ACK,
    unit_bytes: int = GIB,
    translated: Translator = canonical,
) -> tuple[Planned, ...] | Skipped:
    """The pods of one object, in the order in which they would be made; `translated` reads other dialects."""
    at = At(workload)
    group, kind = at["apiVersion"].text().rpartition("/")[0], at["kind"].text()
    reader = _READERS.get((group, kind))
    if reader is not None:
        return reader(at, _Maker(at, dialect, unit_bytes, translated))
    if group in _GROUPS and (meant := _SPELLINGS.get(kind.lower())):
        raise at["kind"].wrong(f"API version {show(at['apiVersion'].value)} has no kind {show(kind)}; write {meant}")
    return Skipped(_title(at), "is skipped: gpushare reads no pods from this kind")


@dataclass(frozen=True, slots=True)
class _Maker:
    """Pods from one template of one workload."""

    workload: At
    dialect: Dialect
    unit_bytes: int
    translated: Translator

    def make(self, template: At, names: list[str]) -> tuple[Planned, ...]:
        """One pod per name, all alike."""
        if not template["spec"]:
            raise template["spec"].wrong("the pod spec is missing")
        metadata = dict(template["metadata"].mapping())
        label = self.workload["metadata"]["labels"][self.dialect.card_count]
        labels = template["metadata"]["labels"].mapping()
        if label and labels.get(self.dialect.card_count) is None:
            metadata["labels"] = {**labels, self.dialect.card_count: label.text()}
        spec = template["spec"]
        namespace = self.workload["metadata"]["namespace"].label_name("default")
        try:
            found = self.translated(metadata, spec.value, namespace)
            request = (
                found
                if isinstance(found, Refusal)
                else request_of(*found, dialect=self.dialect, unit_bytes=self.unit_bytes)
            )
        except CodecError as exc:
            raise exc.under(template.path) from None
        node = spec["nodeName"].name("?") if spec["nodeName"] else ""
        if isinstance(request, Request):
            request = replace(request, owner=request.owner or self._owner())
            if node:
                request = replace(request, rules=pinned(request.rules, node))
        containers = tuple(c["name"].text() for c in spec["containers"].items())
        return tuple(Planned(name, namespace, containers, request, node) for name in names)

    def _owner(self) -> str:
        if self.workload["kind"].text() == "Pod":
            return ""
        namespace = self.workload["metadata"]["namespace"].label_name("default")
        return f"{self.workload['kind'].text()}/{namespace}/{_name(self.workload)}"


def _name(at: At) -> str:
    """The object's name, or the beginning that the API server would complete."""
    metadata = at["metadata"]
    if metadata["name"] or not metadata["generateName"]:
        return metadata["name"].name()
    return At(metadata["generateName"].text().rstrip("-."), metadata["generateName"].path).name()


def _title(at: At) -> str:
    name = at["metadata"]["name"].text() or at["metadata"]["generateName"].text()
    return f"{show(at['kind'].text())[1:-1]} {show(name)[1:-1] or '(no name)'}"


def _count(at: At, default: int = 1) -> int:
    return at.integer(default, 0, MAX_PODS)


def _pod(at: At, maker: _Maker) -> tuple[Planned, ...] | Skipped:
    if at["status"]["phase"].text() in ("Succeeded", "Failed"):
        return Skipped(_title(at), "is skipped: it has ended and uses no resources")
    return maker.make(at, [_name(at)])


def _replicas(at: At, maker: _Maker) -> tuple[Planned, ...]:
    spec, name = at["spec"], _name(at)
    first = spec["ordinals"]["start"].integer(0, 0) if at["kind"].text() == "StatefulSet" else 0
    return maker.make(spec["template"], [f"{name}-{first + i}" for i in range(_count(spec["replicas"]))])


def _job_pods(at: At, maker: _Maker, job: At) -> tuple[Planned, ...] | Skipped:
    """As many pods as run at one time."""
    if job["suspend"].flag():
        return Skipped(_title(at), "is skipped: it is suspended and creates no pods")
    count = _count(job["parallelism"])
    if job["completions"]:
        count = min(count, job["completions"].integer(1, 0))
    return maker.make(job["template"], [f"{_name(at)}-{i}" for i in range(count)])


def _job(at: At, maker: _Maker) -> tuple[Planned, ...] | Skipped:
    return _job_pods(at, maker, at["spec"])


def _cron_job(at: At, maker: _Maker) -> tuple[Planned, ...] | Skipped:
    if at["spec"]["suspend"].flag():
        return Skipped(_title(at), "is skipped: it is suspended and creates no pods")
    return _job_pods(at, maker, at["spec"]["jobTemplate"]["spec"])


def _pod_template(at: At, maker: _Maker) -> tuple[Planned, ...]:
    return maker.make(at["template"], [_name(at)])


def _daemon_set(at: At, maker: _Maker) -> tuple[Planned, ...] | Skipped:
    """One pod per node is not a placement; with cards it is refused rather than passed over."""
    (pod,) = maker.make(at["spec"]["template"], [_name(at)])
    if isinstance(pod.request, Request) and not pod.request.cards:
        return Skipped(
            _title(at), "is skipped: it runs one pod on every node; the CPU and memory of these pods are not counted"
        )
    reason = "a DaemonSet runs on every node and cannot be placed; use a Deployment for pods that request cards"
    return (replace(pod, request=pod.request if isinstance(pod.request, Refusal) else Refusal(Why.INVALID, reason)),)


_READERS: Final[dict[tuple[str, str], Callable[[At, _Maker], tuple[Planned, ...] | Skipped]]] = {
    ("", "Pod"): _pod,
    ("", "PodTemplate"): _pod_template,
    ("", "ReplicationController"): _replicas,
    ("apps", "Deployment"): _replicas,
    ("apps", "ReplicaSet"): _replicas,
    ("apps", "StatefulSet"): _replicas,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
}
# Kubernetes' own groups, `extensions` as it was until 1.16: others may have kinds of the same name.
_GROUPS: Final = frozenset({"extensions", *(group for group, _ in _READERS)})
_SPELLINGS: Final = {
    kind.lower(): f"apiVersion: {f'{group}/v1' if group else 'v1'} and kind: {kind}" for group, kind in _READERS
}
