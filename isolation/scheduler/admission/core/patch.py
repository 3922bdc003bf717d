# SPDX-License-Identifier: Apache-2.0
"""
What admission adds to a pod that asks for shares, as a JSON patch: scheduler, label, seccomp, affinity, annotations.

Decides the least change, none where it is already there: the API server may ask again after
other webhooks. The affinity (cards large enough, cards enough) tells simulators that know node
sums only, such as cluster-autoscaler, which nodes are out of the question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isolation.contract.cluster_autoscaler_annotations import changes
from isolation.contract.codec.request import goes_with_its_node
from isolation.contract.names import CARD_COUNT, CARD_UNITS, DEFAULT_SCHEDULER, SHARED
from isolation.placement.node_rules import ours_of
from isolation.scheduler.admission.core.pod_security import KINDS, MAX_ANNOTATIONS, SECCOMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from isolation.contract.cluster_autoscaler_annotations import Ours
    from isolation.contract.codec.cursor import At
    from isolation.contract.model import Node, Request

    Change = dict[str, Any]

_STEPS: Final = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
_TERMS: Final = "nodeSelectorTerms"
_NEEDS: Final = "matchExpressions"
_FIELDS: Final = "matchFields"


def patch_difference(before: object, after: object, where: str) -> Iterator[Change]:
    """The changes from one value to another; what is the same object on both sides is not looked into."""
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from ({"op": "remove", "path": f"{where}/{_escaped(key)}"} for key in before if key not in after)
        for key, value in after.items():
            if key in before:
                yield from patch_difference(before[key], value, f"{where}/{_escaped(key)}")
            else:
                yield _add(f"{where}/{_escaped(key)}", value)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from patch_difference(old, new, f"{where}/{at}")
    elif before != after:
        yield _add(where, after)


def patch_pod(metadata: At, spec: At, request: Request, scheduler: str, unit_bytes: int) -> Iterator[Change]:
    """The patch of one pod."""
    if spec["schedulerName"].text() in ("", DEFAULT_SCHEDULER) and scheduler != spec["schedulerName"].text():
        yield _add("/spec/schedulerName", scheduler)
    yield from patch_label(metadata, "/metadata", SHARED, "true")
    yield from _seccomp(spec)
    yield from _affinity(spec, _needs(request, unit_bytes))


def patch_annotations(
    metadata: At, request: Request, pools: Iterable[tuple[Node, Ours]], compute: Mapping[str, str]
) -> Iterator[Change]:
    """
    Annotations for cluster-autoscaler, where gpushare buys or drains for the pod; none for a DaemonSet's.

    `compute`: annotations that stand for what the pod says of its compute in another way.
    """
    said = metadata["annotations"].texts()
    changed: dict[str, str | None] = dict(compute)
    if not goes_with_its_node(request.owner):
        changed |= changes(said, ours_of(request, pools))
    if len(said.keys() | changed.keys()) > MAX_ANNOTATIONS:
        return  # what a policy would refuse; the autoscaler adds them to the stored pod
    if changed and not said:
        yield _add("/metadata/annotations", {key: value for key, value in changed.items() if value is not None})
        return
    for key, value in changed.items():
        path = f"/metadata/annotations/{_escaped(key)}"
        yield {"op": "remove", "path": path} if value is None else _add(path, value)


def patch_label(metadata: At, where: str, key: str, value: str) -> Iterator[Change]:
    """A label of an object or template, unless it is there."""
    if metadata["labels"][key].value == value:
        return
    if not metadata:
        yield _add(where, {"labels": {key: value}})
    elif not metadata["labels"]:
        yield _add(f"{where}/labels", {key: value})
    else:
        yield _add(f"{where}/labels/{_escaped(key)}", value)


def _seccomp(spec: At) -> Iterator[Change]:
    """The runtime's own profile for containers that name none, unless the pod names one."""
    if spec["securityContext"]["seccompProfile"]:
        return
    for kind in KINDS[:2]:
        for i, container in enumerate(spec[kind].items()):
            security, where = container["securityContext"], f"/spec/{kind}/{i}/securityContext"
            if not security:
                yield _add(where, {"seccompProfile": {"type": SECCOMP}})
            elif not security["seccompProfile"]:
                yield _add(f"{where}/seccompProfile", {"type": SECCOMP})


def _needs(request: Request, unit_bytes: int) -> list[Change]:
    """Node labels that must be larger than something; one card is what every node of ours has."""
    needs = {CARD_UNITS: request.card_bytes // unit_bytes, CARD_COUNT: request.cards}
    return [
        {"key": key, "operator": "Gt", "values": [str(least - 1)]}
        for key, least in needs.items()
        if key == CARD_UNITS or least > 1
    ]


def _affinity(spec: At, needs: list[Change]) -> Iterator[Change]:
    """Every alternative must say it; an empty one matches no node and stays as it is."""
    where, at = "/spec", spec
    fresh: object = {_TERMS: [{_NEEDS: needs}]}
    for depth, step in enumerate(_STEPS):
        where, at = f"{where}/{step}", at[step]
        if not at:
            for inner in reversed(_STEPS[depth + 1 :]):
                fresh = {inner: fresh}
            yield _add(where, fresh)
            return
    for i, term in enumerate(at[_TERMS].items()):
        said = [item.value for item in term[_NEEDS].items()]
        if not said and not term[_FIELDS].items():
            continue
        missing = [need for need in needs if need not in said]
        if missing and not said:
            yield _add(f"{where}/{_TERMS}/{i}/{_NEEDS}", missing)
        else:
            yield from (_add(f"{where}/{_TERMS}/{i}/{_NEEDS}/-", need) for need in missing)


def _add(path: str, value: object) -> Change:
    return {"op": "add", "path": path, "value": value}


def _escaped(step: str) -> str:
    """One step of a JSON pointer (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")
