# SPDX-License-Identifier: Apache-2.0
"""
Builders of snapshots for the exporter's pure parts: what a test does not name is plausible and harmless.

`Node` collects who is on which card, the way a test tells a story; `snapshot` makes the facts of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from exporter.pipeline.snapshot import (
    CardProcess,
    CardSample,
    ContainerIdentity,
    DeviceGrant,
    HoldSample,
    IdentitySample,
    KernelSample,
    KubeletSample,
    MachineSample,
    ProcessSample,
    PromiseSample,
    RegionSample,
    Snapshot,
    SourceOutcome,
)
from isolation.contract.abi import CardLedger, RegionReading, SlotReading
from isolation.contract.host_allocation import HostAllocation, Process, Tenant
from isolation.contract.model import Slice
from isolation.contract.quantity import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from isolation.contract.breach_ring import BreachRecord

RESERVED = 512 * MIB


def uuid(index: int = 0) -> str:
    """UUID of the card with that index."""
    return f"GPU-{UUID(int=0xA0 + index)}"


def card(index: int = 0, processes: Sequence[CardProcess] | None = (), **more: Any) -> CardSample:
    """A card of 16 GiB whose used memory is what its processes have, plus the driver's part."""
    fields: dict[str, Any] = {
        "uuid": uuid(index),
        "index": index,
        "model": "Tesla T4",
        "total_bytes": 16 * GIB,
        "reserved_bytes": RESERVED,
        "processes": None if processes is None else tuple(processes),
        "busy": {},
        "utilisation_ratio": 0.5,
        "power_watts": 40.0,
        "energy_joules": 1000.0,
        "temperature_celsius": 50.0,
        "minor": index,
    }
    used = sum(one.bytes or 0 for one in processes or ()) + RESERVED
    fields["free_bytes"] = fields["total_bytes"] - used
    return CardSample(**(fields | more))


def region(
    *,
    used: int = 0,
    denied: int = 0,
    slots: Iterable[int] = (),
    card_index: int = 0,
    uuid_text: str | None = None,
    breaches: Iterable[BreachRecord] = (),
    limit: int = 5 * GIB,
    ghost: Collection[int] = (),
    overrun_ns: int = 0,
    event_ns: int = 0,
) -> RegionSample:
    """A region as a container's library would write it; `slots` are pids in the container's own counting."""
    zeros: dict[str, Any] = dict.fromkeys(
        ("denied_bytes", "charged_ns", "event_ns", "launches", "throttled_ns", "wanted_ns", "rate_ppm"), 0
    )
    ident = (uuid_text or uuid(card_index)).removeprefix("GPU-").removeprefix("MIG-")
    zeros |= {
        "event_ns": event_ns,
        "peak_bytes": used,
        "denied": denied,
        "uncorrected": False,
        "overrun_ns": overrun_ns,
    }
    book = CardLedger(uuid=UUID(ident), used_bytes=used, limit_bytes=limit, **zeros)
    taken = tuple(SlotReading(i, pid, 1, 0, "python", (), 0, ghost=pid in ghost) for i, pid in enumerate(slots))
    return RegionSample(RegionReading("p", "0.1", 1, (book,), taken), breaches=tuple(breaches))


def hold(
    name: str = "job",
    *,
    ident: str | None = None,
    gib: int = 5,
    core: int = 0,
    index: int = 0,
    tenant: tuple[str, str, str, str] | None = None,
    policy: str = "fixed",
    slices: tuple[Slice, ...] | None = None,
) -> HostAllocation:
    """A hold: of `gpushare run`, or of a pod's container (`tenant`: namespace, pod, uid, container)."""
    return HostAllocation(
        id=ident or f"run-{name}",
        name=name,
        boot="b",
        created=1.0,
        uid=0,
        runner=Process(1, 1),
        command=("python",),
        slices=slices or (Slice(uuid(index), index, gib * GIB, core),),
        policy=policy,
        tenant=None if tenant is None else Tenant(*tenant),
    )


class Node:
    """A node with people on its cards; every method returns the node."""

    def __init__(self, cards: int = 1, **more: Any) -> None:
        self.cards: dict[int, list[CardProcess]] = {i: [] for i in range(cards)}
        self.card_more: dict[int, dict[str, Any]] = {}
        self.processes: dict[int, ProcessSample] = {}
        self.containers: dict[str, ContainerIdentity] = {}
        self.holds: list[HoldSample] = []
        self.grants: list[DeviceGrant] = []
        self.live: set[str] = set()
        self.agent = False
        self.unanswered: set[tuple[str, str]] = set()
        self.pods: dict[Any, Any] = {}
        self.kubelet_ok = self.promises_ok = self.identities_ok = self.kernel_ok = self.machine_ok = True
        self.kubernetes = self.host_pids = True
        self.mps = False
        self.at = 100.0
        for name, value in more.items():
            setattr(self, name, value)

    def lives(self, pod_uid: str) -> Self:
        """A pod with a control group."""
        self.live.add(pod_uid)
        return self

    def container(
        self,
        pod: str,
        container: str = "main",
        *,
        namespace: str = "team",
        pod_uid: str | None = None,
        ident: str | None = None,
    ) -> Self:
        """A running container that the kubelet's records name."""
        pod_uid = pod_uid or f"uid-{pod}"
        self.containers[ident or f"{pod_uid}/{container}"] = ContainerIdentity(namespace, pod, container, pod_uid)
        return self.lives(pod_uid)

    def grant(
        self,
        pod: str,
        ids: Iterable[str],
        *,
        container: str = "main",
        namespace: str = "team",
        resource: str = "nvidia.com/gpu",
        pod_uid: str = "",
    ) -> Self:
        """Devices that the kubelet gave to a container."""
        self.grants.append(DeviceGrant(namespace, pod, container, resource, tuple(ids), pod_uid))
        return self

    def hold(
        self,
        made: HostAllocation,
        reading: RegionSample | None = None,
        pids: Iterable[int] = (),
        limits_error: str = "",
    ) -> Self:
        """A promise that somebody wrote down."""
        self.holds.append(HoldSample(made, reading, tuple(pids), limits_error))
        if made.tenant is not None:
            self.lives(made.tenant.uid)
        return self

    def pod_hold(
        self,
        pod: str,
        *,
        container: str = "main",
        namespace: str = "team",
        pod_uid: str | None = None,
        reading: RegionSample | None = None,
        limits_error: str = "",
        **more: Any,
    ) -> Self:
        """A promise to a pod's container, which runs."""
        pod_uid = pod_uid or f"uid-{pod}"
        made = hold(pod, ident=f"p-{pod_uid}-{container}", tenant=(namespace, pod, pod_uid, container), **more)
        return self.hold(made, reading, limits_error=limits_error).container(
            pod, container, namespace=namespace, pod_uid=pod_uid
        )

    def process(
        self,
        pid: int,
        gib: float | None,
        *,
        index: int = 0,
        pod: str = "",
        container: str = "main",
        run: str = "",
        kind: str = "compute",
        seen: bool = True,
        **more: Any,
    ) -> Self:
        """A process on a card: of a pod's container, of a hold of `gpushare run`, or of nobody."""
        amount = None if gib is None else int(gib * GIB)
        self.cards[index].append(CardProcess(pid, amount, kind))
        pod_uid = more.pop("pod_uid", f"uid-{pod}" if pod else "")
        fields: dict[str, Any] = {
            "pid": pid,
            "start_ticks": pid,
            "uid": 0,
            "name": "python",
            "pod_uid": pod_uid,
            "container_id": f"{pod_uid}/{container}" if pod_uid else "",
            "hold": run,
            "namespace_pid": pid,
        }
        if seen:
            self.processes[pid] = ProcessSample(**(fields | more))
        return self.lives(pod_uid) if pod_uid else self

    def card(self, index: int = 0, **more: Any) -> Self:
        """Figures of a card that are not those of the builder."""
        self.card_more.setdefault(index, {}).update(more)
        return self

    def snapshot(self, **more: Any) -> Snapshot:
        """The facts of it all."""
        cards = tuple(card(i, **({"processes": found} | self.card_more.get(i, {}))) for i, found in self.cards.items())
        machine = MachineSample(cards, "580.65", mps=self.mps)
        kernel = KernelSample(dict(self.processes), self.host_pids, frozenset(self.live))
        sample = KubeletSample(tuple(self.grants), frozenset(self.unanswered))
        records = IdentitySample(dict(self.containers), pods=dict(self.pods))
        made = Snapshot(
            at=self.at,
            epoch=1.7e9 + self.at,
            machine=outcome(machine, self.machine_ok),
            kernel=outcome(kernel, self.kernel_ok),
            promises=outcome(PromiseSample(tuple(self.holds), agent=self.agent), self.promises_ok),
            kubelet=outcome(sample, self.kubelet_ok) if self.kubernetes else None,
            identities=outcome(records, self.identities_ok) if self.kubernetes else None,
        )
        return replace(made, **more)


def outcome(value: Any, ok: bool = True) -> SourceOutcome[Any]:  # noqa: FBT001, FBT002 (read aloud: this outcome, ok or not)
    """A source that worked, or failed."""
    return SourceOutcome(value) if ok else SourceOutcome(None, "it did not work")
