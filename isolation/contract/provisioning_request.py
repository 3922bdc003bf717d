# SPDX-License-Identifier: Apache-2.0
"""
ProvisioningRequest, cluster-autoscaler's kind by which Kueue asks for room for all pods of a job at once.

JSON and values only: what a request asks for, what was said about it, and the status to write. Whether there is room
is decided elsewhere. What it contains is written by tenants.

    apiVersion: autoscaling.x-k8s.io/v1
    kind: ProvisioningRequest
    metadata: {name: job-train-cards-1, namespace: ml}
    spec:
      provisioningClassName: cards.gpushare.dev
      parameters: {ValidUntilSeconds: "300"}    # keep trying for so long; default: once
      podSets: [{podTemplateRef: {name: ppt-job-train-cards-1-main}, count: 8}]

Source: kubernetes/autoscaler 3a1ecdc, cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1/types.go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pod import seconds_of, time_of
from isolation.contract.codec.request import request_of
from isolation.contract.model import Refusal, Request, Why
from isolation.contract.names import ACK, PROVISIONING_CLASS, PROVISIONING_GROUP, PROVISIONING_REQUESTS
from isolation.contract.quantity import GIB
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

PROVISIONING_PATH: Final = f"/apis/{PROVISIONING_GROUP}/v1/{PROVISIONING_REQUESTS}"
MAX_PODS: Final = 256
"""Of one request: so many reservations are written one after another before any of its pods starts."""
LONGEST_WAIT_SECONDS: Final = 86400.0
"""Most that `ValidUntilSeconds` counts for."""
_WAIT: Final = "ValidUntilSeconds"
_LONGEST_NUMBER: Final = 9
_LONGEST_MESSAGE: Final = 1024
"""The API server takes 32768; people read the first line."""
_MAX_COUNT: Final = (1 << 31) - 1
_DEFAULT_SCHEDULER: Final = "default-scheduler"


class ProvisioningCondition(StrEnum):
    """Types of conditions, as cluster-autoscaler names them."""

    ACCEPTED = "Accepted"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"
    EXPIRED = "BookingExpired"
    REVOKED = "CapacityRevoked"


_OVER: Final = (ProvisioningCondition.FAILED, ProvisioningCondition.EXPIRED, ProvisioningCondition.REVOKED)


@dataclass(frozen=True, slots=True)
class PodSet:
    """So many pods of one template."""

    template: str
    count: int


@dataclass(frozen=True, slots=True)
class ProvisioningRequest:
    """One request of our class."""

    namespace: str
    name: str
    uid: str
    created: float
    """Seconds since the epoch."""
    pod_sets: tuple[PodSet, ...]
    wait_seconds: float = 0.0
    """For so long after its creation it is tried again."""
    version: str = ""
    """resourceVersion, under which the status is written."""
    conditions: tuple[Mapping[str, Any], ...] = ()
    """As they are stored."""

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Where it is read."""
        return request_path(self.namespace, self.name)

    @property
    def pods(self) -> int:
        """Of all pod sets."""
        return sum(one.count for one in self.pod_sets)

    def since(self, state: ProvisioningCondition) -> float | None:
        """Since when the condition is true, in seconds since the epoch; None: it is not."""
        for one in self.conditions:
            if one.get("type") == state and one.get("status") == "True":
                return seconds_of(At(one.get("lastTransitionTime")))
        return None

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return any(self.since(state) is not None for state in _OVER)


def provisioning_request_of(thing: object) -> ProvisioningRequest | None:
    """A stored object; None: of another class. CodecError where one of ours cannot be read."""
    at = At(thing)
    metadata, spec = at["metadata"], at["spec"]
    if spec["provisioningClassName"].text() != PROVISIONING_CLASS:
        return None
    conditions = tuple(item.mapping() for item in at["status"]["conditions"].items())
    for item in at["status"]["conditions"].items():
        seconds_of(item["lastTransitionTime"])
    return ProvisioningRequest(
        namespace=metadata["namespace"].label_name(),
        name=metadata["name"].name(),
        uid=metadata["uid"].name(),
        created=seconds_of(metadata["creationTimestamp"]),
        pod_sets=tuple(
            PodSet(item["podTemplateRef"]["name"].name(), item["count"].integer(0, 0, _MAX_COUNT))
            for item in spec["podSets"].items()
        ),
        wait_seconds=_seconds(spec["parameters"][_WAIT].text()),
        version=metadata["resourceVersion"].text(),
        conditions=conditions,
    )


def _seconds(text: str) -> float:
    """What a parameter says; what is no number of seconds is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        return 0.0
    return min(float(text), LONGEST_WAIT_SECONDS)


def request_path(namespace: str, name: str) -> str:
    """Where a ProvisioningRequest is read; both are names that were checked."""
    base, _, plural = PROVISIONING_PATH.rpartition("/")
    return f"{base}/namespaces/{namespace}/{plural}/{name}"


def template_path(namespace: str, name: str) -> str:
    """Where a PodTemplate is read; both are names that were checked."""
    return f"/api/v1/namespaces/{namespace}/podtemplates/{name}"


def request_of_template(
    thing: object, namespace: str, *, schedulers: Collection[str] = (), unit_bytes: int = GIB
) -> Request | Refusal | None:
    """
    What each pod of a PodTemplate asks of cards; None: nothing. Raises no error.

    Refused is whatever a reservation of cards cannot answer for: the pods would start in part.
    """
    try:
        template = At(thing)["template"]
        metadata, spec = template["metadata"], template["spec"]
        request = request_of({**metadata.mapping(), "namespace": namespace}, spec.mapping(), unit_bytes=unit_bytes)
        scheduler, ties = spec["schedulerName"].text(), _ties(spec)
    except CodecError as exc:
        return Refusal(Why.INVALID, str(exc))
    if isinstance(request, Refusal):
        return request
    if request.whole:
        return Refusal(Why.INVALID, f"whole cards cannot be reserved: request {ACK.memory}, or leave the check out")
    if not request.shared:
        return None
    if scheduler not in {"", _DEFAULT_SCHEDULER, *schedulers}:
        return Refusal(Why.INVALID, f"schedulerName {printable(scheduler, 63)} is another scheduler's: leave it empty")
    if request.rules.mps or not request.compute.online:
        return Refusal(Why.INVALID, "cards are not reserved for offline pods, nor for pods that select mode mps")
    if ties:
        return Refusal(
            Why.INVALID, f"a reservation of cards cannot keep {', '.join(ties)}: make it preferred, or remove it"
        )
    return request


def _ties(spec: At) -> list[str]:
    """Rules that tie pods to each other or to other things than cards, and that must hold."""
    required, affinity = "requiredDuringSchedulingIgnoredDuringExecution", spec["affinity"]
    spreads = [item["whenUnsatisfiable"].text() for item in spec["topologySpreadConstraints"].items()]
    found = {
        "required pod affinity": bool(affinity["podAffinity"][required].items()),
        "required pod anti-affinity": bool(affinity["podAntiAffinity"][required].items()),
        "topology spread constraints": any(when != "ScheduleAnyway" for when in spreads),
        "resource claims (DRA)": bool(spec["resourceClaims"].items()),
        "host ports": spec["hostNetwork"].flag()
        or any(port["hostPort"] for box in spec["containers"].items() for port in box["ports"].items()),
    }
    return [phrase for phrase, present in found.items() if present]


def with_conditions(
    asked: ProvisioningRequest, said: Sequence[tuple[ProvisioningCondition, bool, str, str]], now: float
) -> tuple[Mapping[str, Any], ...]:
    """Its conditions with these (type, status, reason, message) put in; a time changes only with the status."""
    found = {str(one.get("type")): one for one in asked.conditions}
    for state, holds, reason, message in said:
        status, before = "True" if holds else "False", found.get(state, {})
        changed = before.get("status") != status
        found[state] = {
            "type": str(state),
            "status": status,
            # Cut to whole seconds as Kubernetes does: rounded up, so that a booking is never shorter than it says.
            "lastTransitionTime": time_of(math.ceil(now)) if changed else before["lastTransitionTime"],
            "reason": reason,
            "message": printable(message, _LONGEST_MESSAGE),
        }
    return tuple(found.values())


def status_of(asked: ProvisioningRequest, conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A merge patch of the status; refused by the API server where the object has changed meanwhile."""
    return {
        "metadata": {"uid": asked.uid, "resourceVersion": asked.version},
        "status": {"conditions": list(conditions)},
    }
