# SPDX-License-Identifier: Apache-2.0
"""
The owner of each process: pod and container, or an allocation of `gpushare run`.

Names come only from the kubelet's own records and from allocations that a node agent wrote. A container without a name
keeps its pod's UID. Cards play no part here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exporter.pipeline.snapshot import ContainerIdentity, KernelSample, ProcessSample, Snapshot

MAX_CHARS: Final = 253
"""Longest name of a Kubernetes object; nothing that becomes a label is longer."""


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """Whose one process is."""

    pid: int
    name: str
    namespace: str = ""
    pod: str = ""
    container: str = ""
    """Empty with a pod UID: nobody could name the container."""
    pod_uid: str = ""
    hold: str = ""
    start_ticks: int = 0
    namespace_pid: int | None = None

    @property
    def in_pod(self) -> bool:
        """Whether it runs in a pod's control group."""
        return bool(self.pod_uid)

    @property
    def named(self) -> bool:
        """Whether the container's name is known."""
        return bool(self.container)


def list_owners(snapshot: Snapshot) -> Mapping[int, ProcessOwner] | None:
    """Everybody whom the kernel source saw, by pid; None where it saw nothing or not the host's processes."""
    kernel = snapshot.kernel.value
    return None if kernel is None or not kernel.host_pids else _owners(snapshot, kernel.processes)


def list_departed(snapshot: Snapshot) -> Mapping[int, ProcessOwner]:
    """Owners of processes that ended a moment ago: samples of their computing still come."""
    kernel = snapshot.kernel.value
    return {} if kernel is None or not kernel.host_pids else _owners(snapshot, kernel.ended)


def _owners(snapshot: Snapshot, processes: Mapping[int, ProcessSample]) -> Mapping[int, ProcessOwner]:
    if not processes:
        return {}
    containers = snapshot.identities.value.containers if snapshot.identities and snapshot.identities.value else {}
    pods = pod_names(snapshot)
    return {pid: _owner(found, containers, pods) for pid, found in processes.items()}


def _owner(
    found: ProcessSample, containers: Mapping[str, ContainerIdentity], pods: Mapping[str, tuple[str, str]]
) -> ProcessOwner:
    namespace = pod = container = ""
    known = containers.get(found.container_id) if found.container_id else None
    if known is not None and known.pod_uid in {"", found.pod_uid}:
        namespace, pod, container = known.namespace, known.pod, known.container
    elif found.pod_uid:
        namespace, pod = pods.get(found.pod_uid, ("", ""))
    return ProcessOwner(
        pid=found.pid,
        name=bound_label(found.name),
        namespace=bound_label(namespace),
        pod=bound_label(pod),
        container=bound_label(container),
        pod_uid=bound_label(found.pod_uid),
        hold="" if found.pod_uid else found.hold,
        start_ticks=found.start_ticks,
        namespace_pid=found.namespace_pid,
    )


def pod_names(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    """Namespace and name by pod UID, from the kubelet's records and from holds."""
    found: dict[str, tuple[str, str]] = {}
    if snapshot.promises.value is not None:
        tenants = (one.hold.tenant for one in snapshot.promises.value.holds)
        found = {one.uid: (one.namespace, one.pod) for one in tenants if one is not None and one.uid}
    if snapshot.identities is not None and snapshot.identities.value is not None:
        known = snapshot.identities.value
        found |= {one.pod_uid: (one.namespace, one.pod) for one in known.containers.values()}
        found |= known.pods
    return found


def live_pods(kernel: KernelSample | None) -> frozenset[str] | None:
    """UIDs of pods that have a control group; None where unknown."""
    return None if kernel is None else kernel.live_pods


def bound_label(text: str) -> str:
    """Text that is fit to be a label: as it is, or cut and marked so that two long ones stay different."""
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[: MAX_CHARS - 9]}~{crc32(text.encode('utf-8', 'replace')):08x}"
