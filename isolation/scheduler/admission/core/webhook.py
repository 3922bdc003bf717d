# SPDX-License-Identifier: Apache-2.0
"""
The admission of pods that ask for shares, and of whatever makes such pods: bytes in, bytes out.

Decides what is refused, what is added and what is only remarked. Pure: the cluster is one value
and one question about it. Never raises; in doubt about a pod with shares the answer is no, and
objects that have nothing to do with shares are never in doubt.

The namespaces that admission passes by (kube-system, ours, `gpushare.dev/exempt: "true"`) are the
webhook configuration's `namespaceSelector`: what arrives here is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.request import request_of
from isolation.contract.model import Refusal, Request
from isolation.contract.names import ACK, AUTOSCALER, NODE_AGENT, SCHEDULER, SHARED, SYSTEM_NAMESPACE, Dialect
from isolation.contract.quantity import GIB
from isolation.scheduler.admission.core import pod_security
from isolation.scheduler.admission.core.admission_review import (
    ALLOWED,
    FORBIDDEN,
    INVALID,
    AdmissionRequest,
    AdmissionResponse,
    InvalidReview,
    deny,
    encode_response,
    read_review,
)
from isolation.scheduler.admission.core.node_sizes import UNKNOWN, NodeSizes, explain_misfit, explain_wrong_mode
from isolation.scheduler.admission.core.patch import patch_annotations, patch_label, patch_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from isolation.contract.codec.cursor import Path
    from isolation.contract.handover import Ours
    from isolation.contract.model import Node

TEMPLATES: Final[dict[str, Path]] = {
    "replicationcontrollers": ("spec", "template"),
    "deployments.apps": ("spec", "template"),
    "replicasets.apps": ("spec", "template"),
    "statefulsets.apps": ("spec", "template"),
    "daemonsets.apps": ("spec", "template"),
    "jobs.batch": ("spec", "template"),
    "cronjobs.batch": ("spec", "jobTemplate", "spec", "template"),
    "podtemplates": ("template",),
}
"""Where each kind of workload keeps the pods that it makes."""
_EVERYWHERE: Final = "daemonsets.apps"
EPHEMERAL: Final = "ephemeralcontainers"
BINDING: Final = "binding"
GPUSHARE_ACCOUNTS: Final = frozenset(
    f"system:serviceaccount:{SYSTEM_NAMESPACE}:{name}" for name in (SCHEDULER, NODE_AGENT, AUTOSCALER)
)
"""Ours: they keep the records."""
SCHEDULER_ACCOUNT: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{SCHEDULER}"


@dataclass(frozen=True, slots=True)
class ReviewContext:
    """What admission knows beside the object itself."""

    is_shared: Callable[[str, str], bool | None]
    """Whether a stored pod (namespace, name) asks for shares; None: cannot tell now."""
    fleet: NodeSizes = UNKNOWN
    """Empty while the live view is not whole."""
    pools: Sequence[tuple[Node, Ours]] = ()
    """A fresh node of each pool, and what gpushare does there in cluster-autoscaler's place."""
    scheduler: str = SCHEDULER
    """The `schedulerName` of pods with shares: ours, or an existing scheduler that asks our extender."""
    growth: NodeSizes | None = None
    """Nodes that pools may bring; None: not known."""
    dialect: Dialect = ACK
    unit_bytes: int = GIB


def review(body: bytes, world: ReviewContext) -> bytes:
    """The answer to one AdmissionReview, whatever the body is."""
    question = read_review(body)
    if isinstance(question, InvalidReview):
        return encode_response(question.uid, deny(question.reason, INVALID))
    return encode_response(question.uid, decide(question, world))


def decide(question: AdmissionRequest, world: ReviewContext) -> AdmissionResponse:
    """The answer to a question."""
    try:
        if (question.resource, question.sub) in {("pods", BINDING), ("bindings", "")}:
            return _review_binding(question, world)
        if question.resource == "pods":
            return _review_pod(question, world)
        if question.resource in TEMPLATES and not question.sub and question.operation in ("CREATE", "UPDATE"):
            return _review_workload(question, world)
    except CodecError as exc:
        return deny(str(exc), INVALID)
    except RecursionError:
        return deny("the object is nested too deeply", INVALID)
    return ALLOWED


def _review_pod(question: AdmissionRequest, world: ReviewContext) -> AdmissionResponse:
    if question.operation == "CREATE" and not question.sub:
        return _review_new_pod(question.new, question.size, world)
    if question.operation == "UPDATE":
        return _review_pod_update(question, world)
    return ALLOWED


def _review_new_pod(pod: At, size: int, world: ReviewContext) -> AdmissionResponse:
    metadata, spec = pod["metadata"], pod["spec"]
    made = _review_template(metadata, spec, size, world)
    if isinstance(made, AdmissionResponse):
        return made
    patch = (
        *patch_pod(metadata, spec, made.request, world.scheduler, world.unit_bytes),
        *patch_annotations(metadata, made.request, world.pools),
    )
    return AdmissionResponse(allowed=True, patch=patch, warnings=made.warnings)


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A pod or template that asks for shares and may have them."""

    request: Request
    warnings: tuple[str, ...]


def _review_template(metadata: At, spec: At, size: int, world: ReviewContext) -> _Accepted | AdmissionResponse:
    """A pod or a template of pods that is being made; a verdict where that ends it."""
    asks = pod_security.asks_for_shares(spec, world.dialect)
    problems = list(pod_security.find_forged(metadata, world.dialect, asks=asks))
    if not asks and not metadata["labels"][world.dialect.card_count]:
        return _deny_all(problems) if problems else ALLOWED
    if much := pod_security.explain_too_large(spec, size):
        return deny(much, INVALID)
    request = request_of(metadata.value, spec.value, dialect=world.dialect, unit_bytes=world.unit_bytes)
    if isinstance(request, Refusal):
        problems.insert(0, str(request))
    if asks:
        problems += pod_security.find_pod_problems(metadata, spec, frozenset({world.scheduler}), world.dialect)
    if isinstance(request, Refusal):
        return _deny_all(problems, INVALID)
    if wrong := explain_wrong_mode(request, world.dialect):
        problems.insert(0, wrong)
    warnings = tuple(pod_security.find_warnings(spec, world.dialect))
    if unfit := explain_misfit(request, world.fleet, world.dialect, world.unit_bytes, world.growth):
        if world.growth is not None or not world.fleet.may_grow:
            problems.insert(0, unfit)
        warnings = (f"the pod remains pending for now: {unfit}", *warnings)
    return _deny_all(problems) if problems else _Accepted(request, warnings)


def _deny_all(problems: Iterable[str], code: int = FORBIDDEN) -> AdmissionResponse:
    """All reasons at once, so that nobody mends one only to learn of the next."""
    found = list(dict.fromkeys(problems))
    more = [f"and {len(found) - pod_security.MOST_PROBLEMS} more"] if len(found) > pod_security.MOST_PROBLEMS else []
    return deny("; ".join(found[: pod_security.MOST_PROBLEMS] + more), code)


def _review_workload(question: AdmissionRequest, world: ReviewContext) -> AdmissionResponse:
    """A template that has not changed is let pass, or nobody could scale down or delete what was made before us."""
    path = TEMPLATES[question.resource]
    template, before = _descend(question.new, path), _descend(question.old, path)
    if not template or (question.operation == "UPDATE" and template.value == before.value):
        return ALLOWED
    metadata, spec = template["metadata"], template["spec"]
    asks = pod_security.asks_for_shares(spec, world.dialect)
    metadata, patch = _copy_card_count(question.new, metadata, path, world.dialect) if asks else (metadata, ())
    made = _review_template(metadata, spec, question.size // (2 if question.old else 1), world)
    if isinstance(made, AdmissionResponse):
        return made
    said = list(made.warnings)
    if patch:
        said.append(f"label {world.dialect.card_count} is copied to the pod template, from which pods get their labels")
    if question.resource == _EVERYWHERE and not made.request.rules.terms:
        said.append("a DaemonSet creates a pod on every node, even on nodes without cards; add a nodeSelector")
    return AdmissionResponse(allowed=True, patch=patch, warnings=tuple(said))


def _copy_card_count(
    workload: At, metadata: At, path: Path, dialect: Dialect
) -> tuple[At, tuple[dict[str, object], ...]]:
    """
    The template's metadata with the number of cards that stands on the workload itself alone.

    `gpushare place` reads it there too; without the copy the pods would silently get one card.
    """
    count = workload["metadata"]["labels"][dialect.card_count]
    if not count or metadata["labels"][dialect.card_count]:
        return metadata, ()
    where = "/".join(("", *(str(step) for step in path), "metadata"))
    patch = tuple(patch_label(metadata, where, dialect.card_count, count.text()))
    labels = {**metadata["labels"].texts(), dialect.card_count: count.text()}
    return At({**metadata.mapping(), "labels": labels}, metadata.path), patch


def _descend(at: At, path: Path) -> At:
    for step in path:
        at = at[str(step)]
    return at


def _review_pod_update(question: AdmissionRequest, world: ReviewContext) -> AdmissionResponse:
    """Records and the labels that count are kept as they are by everybody but us."""
    problems = (
        [] if question.user in GPUSHARE_ACCOUNTS else list(_find_altered(question.old, question.new, world.dialect))
    )
    spec = question.new["spec"]
    shared = pod_security.asks_for_shares(spec, world.dialect)
    if shared and question.user not in GPUSHARE_ACCOUNTS and not question.new["metadata"]["deletionTimestamp"]:
        before, after = question.old["metadata"]["annotations"], question.new["metadata"]["annotations"]
        much = pod_security.explain_too_many_annotations(after, before)
        problems += [much] if much else pod_security.find_runtime_annotations(after, before.mapping())
    if question.sub == EPHEMERAL and shared:
        if much := pod_security.explain_too_large(spec, question.size):
            return deny(much, INVALID)
        for container in spec["ephemeralContainers"].items():
            problems += pod_security.find_container_problems(container, world.dialect)
    return _deny_all(problems) if problems else ALLOWED


def _find_altered(old: At, new: At, dialect: Dialect) -> Iterable[str]:
    kept = [("annotation", key) for key in pod_security.record_annotations(dialect)]
    kept += [("label", SHARED), ("label", dialect.card_count)]
    for what, key in kept:
        before, after = (pod["metadata"][f"{what}s"][key].value for pod in (old, new))
        if before != after:
            yield f"{what} {key} of a pod is immutable; keep its value, or recreate the pod"


def _review_binding(question: AdmissionRequest, world: ReviewContext) -> AdmissionResponse:
    """What a Binding carries is merged into the pod: records by our scheduler alone, who alone binds such pods."""
    if question.operation != "CREATE" or question.user == SCHEDULER_ACCOUNT:
        return ALLOWED
    metadata = question.new["metadata"]
    carried = [key for key in pod_security.record_annotations(world.dialect) if metadata["annotations"][key]]
    carried += [key for key in (SHARED, world.dialect.card_count) if metadata["labels"][key]]
    if carried:
        return deny(f"the binding carries {carried[0]}, which only {SCHEDULER} writes; bind without it")
    shared = world.is_shared(question.namespace, question.name)
    if shared is None:
        return deny("it is not known yet whether this pod requests GPU shares; try again in a few seconds")
    if shared:
        return deny(f"this pod requests GPU shares; only {SCHEDULER} may bind it")
    return ALLOWED
