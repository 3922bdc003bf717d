# SPDX-License-Identifier: Apache-2.0
"""
Which devices the kubelet gave to which container, from its pod-resources API (v1).

Two ways to ask: `List`, once a reading, or `Get` for each of some pods. `List` can make the kubelet hand out the
same IDs twice while it admits another pod; who may use it is decided elsewhere (`exporter.kubelet`).

The kubelet refuses calls beyond a rate that all callers share, so `Get` is asked sparingly: a few pods at
each reading, new pods first. The devices of a pod are fixed when it is admitted, for as long as it lives,
so an answer stands until `KEPT_SECONDS` have passed or the pod is no longer asked for; an empty one may be an
admission under way and is asked again while the pod is `YOUNG_SECONDS` young: most pods have no device at all.
A pod whose answer is refused or due is in `unanswered`: a rejection is never taken for "has nothing". Whether what
is told is true is decided elsewhere; old kubelets also tell of pods that have ended.

Dynamic resources are grants of the resource `claim:<namespace>/<claim>` with devices
`<driver>/<pool>/<device>[/<share>]`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from exporter.pipeline.snapshot import DeviceGrant, KubeletSample
from exporter.sources.errors import SourceError
from exporter.sources.grpc_channel import GrpcConnection, NoAnswer
from isolation.contract import kubelet_api as api

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

DEADLINE_SECONDS: Final = 1.0
KEPT_SECONDS: Final = 60.0
YOUNG_SECONDS: Final = 10.0
ASKED_AT_ONCE: Final = 8
"""Of a burst of ten for everybody together."""
PACE_SECONDS: Final = 0.02
"""Between calls beyond these: half of the rate is left to others."""
ASKING_SECONDS: Final = 0.5
"""How long a reading asks pod by pod, so that a start with many pods is over in a few readings."""
CLAIM: Final = "claim:"
MAX_TEXT: Final = 253

Asked = tuple[str, ...]
"""Namespace and name of a pod and, where it is known, its UID."""


class NoSinglePodsError(SourceError):
    """This kubelet knows no `Get`."""


class KubeletSource:
    """See the module. Not for several threads at once."""

    def __init__(self, socket: Path, deadline: float = DEADLINE_SECONDS) -> None:
        self._connection = GrpcConnection(socket, deadline)
        self._answers: dict[Asked, tuple[float, tuple[DeviceGrant, ...]]] = {}
        self._first: dict[Asked, float] = {}
        """When a pod was first asked for."""

    def read(self, now: float, pods: Collection[Asked] | None = None) -> KubeletSample:
        """
        Every grant the kubelet tells of. `now`: monotonic seconds.

        `pods`: those to ask for one by one; the UID tells same-named successors apart. None: ask for all, with List.
        """
        if pods is None:
            self._answers.clear()
            return KubeletSample(tuple(self._list()))
        return self._each(now, frozenset(pods))

    def close(self) -> None:
        """Let the connection go."""
        self._connection.close()

    def _list(self) -> Iterator[DeviceGrant]:
        until = time.monotonic() + self._connection.deadline
        answer = self._connection.call(api.LIST, api.ListPodResourcesRequest(), api.ListPodResourcesResponse, until)
        if isinstance(answer, NoAnswer):
            raise SourceError(
                f"the kubelet's pod-resources API does not list pods: {answer.value}; its rate limit covers all clients"
            )
        for pod in answer.pod_resources:
            yield from _grants(pod)

    def _each(self, now: float, pods: frozenset[Asked]) -> KubeletSample:
        self._answers = {pod: answer for pod, answer in self._answers.items() if pod in pods}
        self._first = {pod: self._first.get(pod, now) for pod in pods}
        if not pods and not self._connection.socket.exists():
            raise SourceError(f"kubelet socket {self._connection.socket} does not exist: set --kubelet-socket")
        refused = self._ask(now, self._order(now, pods))
        fresh = {pod for pod, (at, _) in self._answers.items() if now - at < 2 * KEPT_SECONDS}
        if refused and pods and not fresh:
            raise SourceError(
                "the kubelet's rate limit rejects every call to its pod-resources API: find clients that call it often"
            )
        grants = tuple(grant for pod in sorted(fresh) for grant in self._answers[pod][1])
        return KubeletSample(grants, frozenset((pod[0], pod[1]) for pod in pods - fresh))

    def _order(self, now: float, pods: frozenset[Asked]) -> list[Asked]:
        """New pods, then those that are due, and always somebody: else a kubelet that is gone goes unnoticed."""
        never = sorted(pods - self._answers.keys())
        known = sorted(self._answers, key=lambda pod: (self._answers[pod][0], pod))
        due = [pod for pod in known if now - self._answers[pod][0] >= KEPT_SECONDS or self._young(pod, now)]
        return [*never, *due] or known[:1]

    def _young(self, pod: Asked, now: float) -> bool:
        """Whether it may still be given what it does not have."""
        return not self._answers[pod][1] and now - self._first[pod] < YOUNG_SECONDS

    def _ask(self, now: float, order: list[Asked]) -> bool:
        """Keep what is answered; whether the kubelet had enough of it."""
        began = time.monotonic()
        for count, pod in enumerate(order):
            if count and time.monotonic() - began >= ASKING_SECONDS:
                break
            if count >= ASKED_AT_ONCE:
                time.sleep(PACE_SECONDS)
            answer = self._get(pod, began + ASKING_SECONDS + self._connection.deadline)
            if answer is None:
                return True
            self._answers[pod] = (now, answer)
        return False

    def _get(self, pod: Asked, until: float) -> tuple[DeviceGrant, ...] | None:
        """Its grants; None where the rate limit refused us."""
        request = api.GetPodResourcesRequest(pod_namespace=pod[0], pod_name=pod[1])
        answer = self._connection.call(api.GET, request, api.GetPodResourcesResponse, until)
        match answer:
            case NoAnswer.NOT_FOUND:
                return ()
            case NoAnswer.REFUSED:
                return None
            case NoAnswer():
                kind = NoSinglePodsError if answer is NoAnswer.UNKNOWN_METHOD else SourceError
                raise kind(
                    f"the kubelet does not answer requests for single pods ({answer.value}): upgrade it to 1.34 or "
                    "newer, or run it with --feature-gates=KubeletPodResourcesGet=true"
                )
        return tuple(_grants(answer.pod_resources))


def _grants(pod: Any) -> Iterator[DeviceGrant]:
    """One per container and resource, however many entries the kubelet makes of it."""
    for container in pod.containers:
        found: dict[str, list[str]] = {}
        for devices in container.devices:
            found.setdefault(devices.resource_name[:MAX_TEXT], []).extend(devices.device_ids)
        for dynamic in container.dynamic_resources:
            name = f"{CLAIM}{dynamic.claim_namespace}/{dynamic.claim_name}"
            for one in dynamic.claim_resources:
                parts = (one.driver_name, one.pool_name, one.device_name, one.share_id)
                found.setdefault(name, []).append("/".join(part for part in parts if part))
        for resource, ids in found.items():
            if ids:
                unique = tuple(dict.fromkeys(one[:MAX_TEXT] for one in ids))
                yield DeviceGrant(pod.namespace, pod.name, container.name, resource, unique)
