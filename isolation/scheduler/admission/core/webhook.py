# SPDX-License-Identifier: Apache-2.0
"""
The mutating webhook's decision about pods with GPU shares, and workloads that create them: bytes in, bytes out.

Decides what is denied, what is patched and what is only a warning. Pure: what it knows of the cluster is one
`ReviewContext`. Never raises; a pod with shares that cannot be judged is denied, and objects without shares are always
allowed.

The namespaces without admission (kube-system, gpushare's own, `gpushare.dev/exempt: "true"`) are excluded by the
webhook configuration's `namespaceSelector`: what arrives here is decided.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.recommendations import Recommended
from isolation.contract.codec.request import request_of
from isolation.contract.dialects import SYSTEMS, Offered, Translation, spoken, translate
from isolation.contract.model import Refusal, Request
from isolation.contract.names import (
    ACK,
    AUTOSCALER,
    COMPUTE_ANNOTATIONS,
    DIALECT,
    NODE_AGENT,
    SCHEDULER,
    SHARED,
    SYSTEM_NAMESPACE,
    TRUST_GROUP,
    Dialect,
)
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
from isolation.scheduler.admission.core.compute import compute_annotations, find_compute_problems
from isolation.scheduler.admission.core.node_sizes import UNKNOWN, NodeSizes, explain_misfit, explain_wrong_mode
from isolation.scheduler.admission.core.patch import patch_annotations, patch_difference, patch_label, patch_pod
from isolation.scheduler.admission.core.right_sizing import find_right_size_problems, size_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from isolation.contract.cluster_autoscaler_annotations import Ours
    from isolation.contract.codec.cursor import Path
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
"""Where each kind of workload has its pod template."""
_EVERYWHERE: Final = "daemonsets.apps"
EPHEMERAL: Final = "ephemeralcontainers"
BINDING: Final = "binding"
SLICED: Final = "time-slices"
"""Last step of the path for pods of namespaces of time slices: a review does not show a namespace's labels."""
GPUSHARE_ACCOUNTS: Final = frozenset(
    f"system:serviceaccount:{SYSTEM_NAMESPACE}:{name}" for name in (SCHEDULER, NODE_AGENT, AUTOSCALER)
)
"""gpushare's service accounts: they may change allocation records."""
SCHEDULER_ACCOUNT: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{SCHEDULER}"


_NO_OTHER: Final = Offered(frozenset({ACK.name}))
_NOTHING_RECOMMENDED: Final = Recommended()


@dataclass(frozen=True, slots=True)
class ReviewContext:
    """What admission knows besides the object itself."""

    is_shared: Callable[[str, str], bool | None]
    """Whether a stored pod (namespace, name) requests shares; None: not known now."""
    fleet: NodeSizes = UNKNOWN
    """Empty while the informers are not synced."""
    pools: Sequence[tuple[Node, Ours]] = ()
    """An empty node of each pool, and what gpushare does there instead of cluster-autoscaler."""
    scheduler: str = SCHEDULER
    """The `schedulerName` of pods with shares: our own, or an existing scheduler that calls our extender."""
    growth: NodeSizes | None = None
    """Nodes that the pools can add; None: not known."""
    dialect: Dialect = ACK
    unit_bytes: int = GIB
    offered: Offered = _NO_OTHER
    """For pods in other dialects."""
    trust_groups: Mapping[str, str] = field(default_factory=dict)
    """By namespace, the group of which pods may share a card under MPS; a namespace that is not there is its own."""
    recommended: Recommended = _NOTHING_RECOMMENDED
    """What the autoscaler recommends for new pods that want it."""


def review(body: bytes, context: ReviewContext) -> bytes:
    """Answer one AdmissionReview, whatever the body is."""
    request = read_review(body)
    if isinstance(request, InvalidReview):
        return encode_response(request.uid, deny(request.reason, INVALID))
    return encode_response(request.uid, decide(request, context))


def decide(request: AdmissionRequest, context: ReviewContext) -> AdmissionResponse:
    """Decide about one admission request."""
    try:
        if (request.resource, request.sub) in {("pods", BINDING), ("bindings", "")}:
            return _review_binding(request, context)
        if request.resource == "pods":
            return _review_pod(request, context)
        if request.resource in TEMPLATES and not request.sub and request.operation in ("CREATE", "UPDATE"):
            return _review_workload(request, context)
    except CodecError as exc:
        return deny(str(exc), INVALID)
    except RecursionError:
        return deny("the object is nested too deeply", INVALID)
    return ALLOWED


def _review_pod(request: AdmissionRequest, context: ReviewContext) -> AdmissionResponse:
    if request.operation == "CREATE" and not request.sub:
        return _review_new_pod(request, context)
    if request.operation == "UPDATE":
        return _review_pod_update(request, context)
    return ALLOWED


def _review_new_pod(request: AdmissionRequest, context: ReviewContext) -> AdmissionResponse:
    pod, size = request.new, request.size
    found = _translate(pod, request, context)
    if isinstance(found, AdmissionResponse):
        return found
    sized = size_pod(
        found.metadata,
        found.spec,
        request.namespace,
        context.recommended,
        unit_bytes=context.unit_bytes,
        dialect=context.dialect,
    )
    if sized is not None:
        warnings = (*found.warnings, *sized.warnings)
        found = found._replace(metadata=sized.metadata, spec=sized.spec, warnings=warnings)
    metadata, spec = found.metadata, found.spec
    group = context.trust_groups.get(request.namespace, "")
    made = _review_template(metadata, spec, size, context, group)
    translated = (
        *patch_difference(pod["metadata"].value or {}, metadata.value or {}, "/metadata"),
        *patch_difference(pod["spec"].value, spec.value, "/spec"),
    )
    if isinstance(made, AdmissionResponse):
        if made.allowed:
            return AdmissionResponse(allowed=True, patch=translated, warnings=found.warnings)
        return deny(f"{made.message}{_describe(found)}", made.code) if found.dialect else made
    ours = compute_annotations(metadata, spec)
    if group and not metadata["annotations"][TRUST_GROUP]:
        ours = {**ours, TRUST_GROUP: group}
    patch = (
        *translated,
        *patch_pod(metadata, spec, made.request, context.scheduler, context.unit_bytes),
        *patch_annotations(metadata, made.request, context.pools, ours),
    )
    return AdmissionResponse(allowed=True, patch=patch, warnings=(*found.warnings, *made.warnings))


def _translate(pod: At, request: AdmissionRequest, context: ReviewContext) -> Translation | AdmissionResponse:
    """The canonical form of a pod or template; a response where that is the end of it."""
    metadata, spec = pod["metadata"], pod["spec"]
    sliced = context.offered.slices is not None
    if spoken(metadata, spec, sliced=sliced) and (much := pod_security.explain_too_large(spec, request.size)):
        return deny(much, INVALID)
    found = translate(pod.mapping(), context.offered, request.namespace)
    return deny(found.refusal.reason, INVALID) if found.refusal is not None else found


def _describe(found: Translation) -> str:
    """What was translated, for a message that speaks of canonical names."""
    lines = [f"{line.before} became {line.after}" for line in found.lines if line.before and line.after]
    return f" (translated from {SYSTEMS[found.dialect].title}: {'; '.join(lines)})"


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A pod or template that requests shares and may have them."""

    request: Request
    warnings: tuple[str, ...]


def _review_template(
    metadata: At, spec: At, size: int, context: ReviewContext, group: str = ""
) -> _Accepted | AdmissionResponse:
    """Review a new pod or pod template; a response where that is the end of it. `group`: the trust group it gets."""
    asks = pod_security.asks_for_shares(spec, context.dialect)
    problems = list(pod_security.find_forged(metadata, context.dialect, group, asks=asks))
    if not asks and not metadata["labels"][context.dialect.card_count]:
        return _deny_all(problems) if problems else ALLOWED
    if much := pod_security.explain_too_large(spec, size):
        return deny(much, INVALID)
    request = request_of(metadata.value, spec.value, dialect=context.dialect, unit_bytes=context.unit_bytes)
    if isinstance(request, Refusal):
        problems.insert(0, str(request))
    if asks:
        problems += pod_security.find_pod_problems(metadata, spec, frozenset({context.scheduler}), context.dialect)
        problems += find_compute_problems(metadata, spec)
        problems += find_right_size_problems(metadata)
    if isinstance(request, Refusal):
        return _deny_all(problems, INVALID)
    if wrong := explain_wrong_mode(request, context.dialect):
        problems.insert(0, wrong)
    warnings = tuple(pod_security.find_warnings(spec, context.dialect))
    if unfit := explain_misfit(request, context.fleet, context.dialect, context.unit_bytes, context.growth):
        if context.growth is not None or not context.fleet.may_grow:
            problems.insert(0, unfit)
        warnings = (f"the pod remains pending for now: {unfit}", *warnings)
    return _deny_all(problems) if problems else _Accepted(request, warnings)


def _deny_all(problems: Iterable[str], code: int = FORBIDDEN) -> AdmissionResponse:
    """Deny with all reasons at once, so that the user can fix them together."""
    found = list(dict.fromkeys(problems))
    more = [f"and {len(found) - pod_security.MAX_PROBLEMS} more"] if len(found) > pod_security.MAX_PROBLEMS else []
    return deny("; ".join(found[: pod_security.MAX_PROBLEMS] + more), code)


def _review_workload(request: AdmissionRequest, context: ReviewContext) -> AdmissionResponse:
    """An unchanged template passes, or workloads older than gpushare could not be scaled down or deleted."""
    path = TEMPLATES[request.resource]
    template, before = _descend(request.new, path), _descend(request.old, path)
    if not template or (request.operation == "UPDATE" and template.value == before.value):
        return ALLOWED
    found = _translate(template, request, context)
    if isinstance(found, AdmissionResponse):
        # Its pods are refused; who else reads this template is not known.
        return AdmissionResponse(allowed=True, warnings=(f"its pods will be refused: {found.message}",))
    metadata, spec = found.metadata, found.spec
    asks = pod_security.asks_for_shares(spec, context.dialect)
    metadata, patch = _copy_card_count(request.new, metadata, path, context.dialect) if asks else (metadata, ())
    made = _review_template(metadata, spec, request.size // (2 if request.old else 1), context)
    if found.dialect:
        return AdmissionResponse(allowed=True, warnings=tuple(_warn_of_translation(found, made)))
    if isinstance(made, AdmissionResponse):
        return AdmissionResponse(allowed=True, warnings=found.warnings) if made.allowed else made
    said = [*found.warnings, *made.warnings]
    if patch:
        said.append(
            f"label {context.dialect.card_count} is copied to the pod template, from which pods get their labels"
        )
    if request.resource == _EVERYWHERE and not made.request.rules.terms:
        said.append("a DaemonSet creates a pod on every node, even on nodes without cards; add a nodeSelector")
    return AdmissionResponse(allowed=True, patch=patch, warnings=tuple(said))


def _warn_of_translation(found: Translation, made: _Accepted | AdmissionResponse) -> Iterator[str]:
    """What becomes of the pods of a template in another dialect, which stays as it is."""
    if isinstance(made, AdmissionResponse) and not made.allowed:
        yield f"its pods will be refused: {made.message}"
    else:
        yield f"its pods are translated when they are created{_describe(found)}"
    yield from found.warnings
    if isinstance(made, _Accepted):
        yield from made.warnings


def _copy_card_count(
    workload: At, metadata: At, path: Path, dialect: Dialect
) -> tuple[At, tuple[dict[str, object], ...]]:
    """
    The template's metadata with the card count of the workload, where only the workload itself has that label.

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


def _review_pod_update(request: AdmissionRequest, context: ReviewContext) -> AdmissionResponse:
    """Only gpushare may change records and the labels of shared pods."""
    spec = request.new["spec"]
    shared = pod_security.asks_for_shares(spec, context.dialect)
    problems = (
        []
        if request.user in GPUSHARE_ACCOUNTS
        else list(_find_altered(request.old, request.new, context.dialect, shared=shared))
    )
    if shared and request.user not in GPUSHARE_ACCOUNTS and not request.new["metadata"]["deletionTimestamp"]:
        before, after = request.old["metadata"]["annotations"], request.new["metadata"]["annotations"]
        much = pod_security.explain_too_many_annotations(after, before)
        problems += [much] if much else pod_security.find_runtime_annotations(after, before.mapping())
    if request.sub == EPHEMERAL and shared:
        if much := pod_security.explain_too_large(spec, request.size):
            return deny(much, INVALID)
        for container in spec["ephemeralContainers"].items():
            problems += pod_security.find_container_problems(container, context.dialect)
    return _deny_all(problems) if problems else ALLOWED


def _find_altered(old: At, new: At, dialect: Dialect, *, shared: bool) -> Iterable[str]:
    kept = [("annotation", key) for key in pod_security.record_annotations(dialect)]
    kept += [("annotation", key) for key in COMPUTE_ANNOTATIONS if shared]
    kept += [("label", SHARED), ("label", dialect.card_count), ("annotation", DIALECT), ("annotation", TRUST_GROUP)]
    for what, key in kept:
        before, after = (pod["metadata"][f"{what}s"][key].value for pod in (old, new))
        if before != after:
            yield f"{what} {key} of a pod is immutable; keep its value, or recreate the pod"


def _review_binding(request: AdmissionRequest, context: ReviewContext) -> AdmissionResponse:
    """A Binding's annotations are merged into the pod: only our scheduler writes records, and binds such pods."""
    if request.operation != "CREATE" or request.user == SCHEDULER_ACCOUNT:
        return ALLOWED
    metadata = request.new["metadata"]
    written = (*pod_security.record_annotations(context.dialect), TRUST_GROUP)
    carried = [key for key in written if metadata["annotations"][key]]
    carried += [key for key in (SHARED, context.dialect.card_count) if metadata["labels"][key]]
    if carried:
        return deny(f"the binding carries {carried[0]}, which only {SCHEDULER} writes; bind without it")
    shared = context.is_shared(request.namespace, request.name)
    if shared is None:
        return deny("it is not known yet whether this pod requests GPU shares; try again in a few seconds")
    if shared:
        return deny(f"this pod requests GPU shares; only {SCHEDULER} may bind it")
    return ALLOWED
