# SPDX-License-Identifier: Apache-2.0
"""
What in a pod would take it out of its promise: refused, each with what to change.

Decides about everything of a pod that asks for shares but the amounts, which are `request_of`'s
business. All containers count, also those without cards: they share the pod's volumes and its
cards' processes. Knows no cluster. What it cannot see (the image's own variables, `envFrom`, a
volume's content) is overridden by the node agent's delivery, or is the threat model's business.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import At, show
from isolation.contract.names import ALLOCATION, DEFAULT_SCHEDULER, RESERVATION, SHARED
from isolation.scheduler.admission.core import forbidden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from isolation.contract.names import Dialect

KINDS: Final = ("initContainers", "containers", "ephemeralContainers")
# Reading more of one pod would hold up everybody else's admission.
MOST_BYTES: Final = 1 << 20
MOST_CONTAINERS: Final = 256
MOST_TERMS: Final = 64
MOST_ANNOTATIONS: Final = 256
"""On a pod with shares: the API server walks over them at each of its updates."""
"""Alternatives of node affinity: each gets additions of ours."""
MOST_PROBLEMS: Final = 8
_KNOWN_RUNTIMES: Final = frozenset({"", "runc", "crun"})


def record_annotations(dialect: Dialect) -> tuple[str, ...]:
    """Annotations that say where a pod was placed: the scheduler writes them, with the binding."""
    return (ALLOCATION, dialect.allocation_annotation, RESERVATION)


def asks_for_shares(spec: At, dialect: Dialect) -> bool:
    """Whether a container names one of the resources of shared cards, with whatever amount."""
    return any(
        part[dialect.memory] or part[dialect.compute]
        for resources in _resources(spec)
        for part in (resources["limits"], resources["requests"])
    )


def _resources(spec: At) -> Iterator[At]:
    """What the pod and its containers ask for; fast, since a pod may have any number of containers."""
    yield spec["resources"]
    for kind in KINDS[:2]:
        listed = spec[kind]
        if not isinstance(listed.value, list):
            listed.items()  # absent, or an error
            continue
        for i, value in enumerate(listed.value):
            if not isinstance(value, dict) or value.get("resources") is not None:
                yield At(value, (*listed.path, i))["resources"]


def find_forged(metadata: At, dialect: Dialect, *, asks: bool) -> Iterator[str]:
    """What only we write, in an object that is being made."""
    annotations, label = metadata["annotations"], metadata["labels"][SHARED]
    for key in record_annotations(dialect):
        if annotations[key]:
            yield f"annotation {key} is an allocation record, which only the scheduler writes; remove it"
    if label and not asks:
        yield f"label {SHARED} is set on a pod that does not request {dialect.memory}; remove it"
    elif label and label.text() != "true":
        yield f'label {SHARED} is {show(label.text())}; remove it: admission sets it to "true"'


def explain_too_large(spec: At, size: int) -> str | None:
    """More than anybody needs; said before the rest is read. `size` is the whole review's, in bytes."""
    if size > MOST_BYTES:
        return f"the object has {size} bytes; with GPU shares, at most {MOST_BYTES} are accepted"
    containers = sum(len(spec[kind].items()) for kind in KINDS)
    if containers > MOST_CONTAINERS:
        return f"the pod has {containers} containers; with GPU shares, at most {MOST_CONTAINERS} are accepted"
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = len(required["nodeSelectorTerms"].items())
    if terms > MOST_TERMS:
        return f"the pod has {terms} node selector terms; with GPU shares, at most {MOST_TERMS} are accepted"
    return None


def explain_too_many_annotations(annotations: At, before: At | None = None) -> str | None:
    """On a pod with shares more than may be, unless an update adds none to them."""
    count = len(annotations.mapping())
    if count <= MOST_ANNOTATIONS or (before is not None and count <= len(before.mapping())):
        return None
    return f"the pod has {count} annotations; with GPU shares, at most {MOST_ANNOTATIONS} are accepted"


def find_pod_problems(metadata: At, spec: At, schedulers: frozenset[str], dialect: Dialect) -> Iterator[str]:
    """Everything about a pod that asks for shares."""
    if spec["nodeName"].text():
        yield f"nodeName {show(spec['nodeName'].text())} is set; remove it: the scheduler chooses node and card"
    scheduler = spec["schedulerName"].text()
    if scheduler and scheduler not in schedulers | {DEFAULT_SCHEDULER}:
        yield (
            f"schedulerName {show(scheduler)} cannot place GPU shares; remove it, "
            f"or use {' or '.join(sorted(schedulers))}"
        )
    if spec["hostPID"].flag():
        yield "hostPID exposes the processes of all tenants; remove it"
    if much := explain_too_many_annotations(metadata["annotations"]):
        yield much
    else:
        yield from find_runtime_annotations(metadata["annotations"])
    for volume in spec["volumes"].items():
        yield from _volume(volume)
    for kind in KINDS:
        for container in spec[kind].items():
            yield from find_container_problems(container, dialect)


def find_runtime_annotations(annotations: At, before: Mapping[str, object] = MappingProxyType({})) -> Iterator[str]:
    """Annotations that were not there before, and ask for devices past the kubelet: a runtime reads them at start."""
    for key, at in annotations.fields():
        if key.startswith(forbidden.ANNOTATION_PREFIXES) and at.value != before.get(key):
            yield f"annotation {show(key)} requests devices from the container runtime; remove it"


def find_container_problems(container: At, dialect: Dialect) -> Iterator[str]:
    """Everything about one container of such a pod, of whichever kind."""
    where = f"container {show(container['name'].text())}"
    security = container["securityContext"]
    if security["privileged"].flag():
        yield f"{where} is privileged and can access every card of the node; remove privileged"
    for item in security["capabilities"]["add"].items():
        if forbidden.forbidden_capability(item.text()):
            yield f"{where} adds capability {show(item.text())}, which gives access to other tenants' cards; remove it"
    for item in container["env"].items():
        name = item["name"].text()
        if forbidden.forbidden_env(name, dialect):
            yield f"{where} sets {show(name)}, which would select cards or libraries; remove it"
    for item in container["envFrom"].items():
        prefix = item["prefix"].text()
        if prefix.startswith(forbidden.ENV_PREFIXES):
            yield f"{where} sets variables {show(prefix)}..., which would select cards or libraries; change the prefix"
    yield from _mounts(where, container)


def _volume(volume: At) -> Iterator[str]:
    if not volume["hostPath"]:
        return
    where, path = f"volume {show(volume['name'].text())}", volume["hostPath"]["path"].text()
    if forbidden.unplain(path):
        yield f"{where}: hostPath {show(path)} contains //, . or ..; use a plain path"
    elif forbidden.forbidden_on_host(path):
        what = "devices, the container runtime or files of the host system"
        yield f"{where}: hostPath {show(path)} exposes {what}; mount another directory"


def _mounts(where: str, container: At) -> Iterator[str]:
    mounts = [("mounts", mount["mountPath"].text()) for mount in container["volumeMounts"].items()]
    mounts += [("has a device at", device["devicePath"].text()) for device in container["volumeDevices"].items()]
    if message := container["terminationMessagePath"].text():
        # The kubelet mounts a file there that the tenant may write.
        mounts.append(("has its terminationMessagePath at", message))
    for verb, path in mounts:
        if forbidden.unplain(path):
            yield f"{where} {verb} {show(path)}, which contains //, . or ..; use a plain path"
        elif forbidden.ours_in_container(path):
            yield f"{where} {verb} {show(path)}, which covers files of gpushare; use another path, such as /run/app"


def find_warnings(spec: At, dialect: Dialect) -> Iterator[str]:
    """What may or may not work, or mean what it seems to: warnings."""
    amounts = (part for resources in _resources(spec) for part in (resources["limits"], resources["requests"]))
    if any(part[dialect.card_count] for part in amounts):
        yield f"{dialect.card_count} has no effect as a container resource; set it as a label of the pod"
    runtime = spec["runtimeClassName"].text()
    if runtime not in _KNOWN_RUNTIMES:
        yield f"runtimeClassName {show(runtime)}: GPU shares are isolated only with runc and crun"
