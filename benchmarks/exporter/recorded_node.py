# SPDX-License-Identifier: Apache-2.0
"""
A node whose sources answer from memory: so many cards, so many pods that come and go with time.

For the benchmarks of the exporter. What an answer says is plausible and adds up: every pod has a hold on one
card, a region, a process in a control group of its own; figures change from reading to reading. Time is an
argument, so that a day can pass in minutes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_OID, UUID, uuid5

from exporter.cycle import IDENTITIES, KERNEL, KUBELET, MACHINE, PROMISES
from exporter.pipeline.snapshot import (
    CardProcess,
    CardSample,
    ContainerIdentity,
    HoldSample,
    IdentitySample,
    KernelSample,
    KubeletSample,
    MachineSample,
    ProcessSample,
    PromiseSample,
    RegionSample,
)
from isolation.contract.abi import CardLedger, RegionReading, SlotReading
from isolation.contract.host_allocation import HostAllocation, Process, Tenant
from isolation.contract.model import Slice
from isolation.contract.quantity import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CARD_BYTES: Final = 80 * GIB
RESERVED_BYTES: Final = 600 * MIB
FIRST_PID: Final = 1000


class RecordedNode:
    """
    `pods` of them at any moment, each living `life` seconds (0: for ever), begun one after the other.

    The sources of a cycle, and the runner that reads them: no threads.
    """

    def __init__(self, cards: int, pods: int, life: float = 0.0) -> None:
        self.cards, self.pods, self.life = cards, pods, life
        self.uuids = [f"GPU-{uuid5(NAMESPACE_OID, str(index))}" for index in range(cards)]
        self._known: dict[int, tuple[HoldSample, ProcessSample, ContainerIdentity]] = {}

    def alive(self, now: float) -> range:
        """Serial numbers of the pods that live then."""
        gone = int(now * self.pods / self.life) if self.life else 0
        return range(gone, gone + self.pods)

    def read_first(self, now: float) -> Mapping[str, Callable[[], Any]]:
        """Cards and promises."""
        return {MACHINE: partial(self.machine, now), PROMISES: partial(self.promises, now)}

    def read_kernel(self, now: float, *_: object) -> Mapping[str, Callable[[], Any]]:
        """Processes."""
        return {KERNEL: partial(self.kernel, now)}

    def read_kubelet(self, now: float, *_: object) -> Mapping[str, Callable[[], Any]]:
        """Names."""
        return {KUBELET: lambda: KubeletSample(()), IDENTITIES: partial(self.identities, now)}

    def machine(self, now: float) -> MachineSample:
        """Every card with the processes on it."""
        on: list[list[int]] = [[] for _ in range(self.cards)]
        for serial in self.alive(now):
            on[serial % self.cards].append(serial)
        return MachineSample(tuple(self._card(index, on[index], now) for index in range(self.cards)), "615.71.05")

    def _card(self, index: int, serials: list[int], now: float) -> CardSample:
        each = (CARD_BYTES - RESERVED_BYTES) // max(8, len(serials)) // 2
        sizes = {serial: each + (serial * 7919 + int(now)) % 64 * MIB for serial in serials}
        busy = {FIRST_PID + serial: 1 / (1 + len(serials)) for serial in serials}
        return CardSample(
            uuid=self.uuids[index],
            index=index,
            model="NVIDIA A100-SXM4-80GB",
            total_bytes=CARD_BYTES,
            reserved_bytes=RESERVED_BYTES,
            free_bytes=CARD_BYTES - RESERVED_BYTES - sum(sizes.values()),
            processes=tuple(CardProcess(FIRST_PID + serial, size) for serial, size in sizes.items()),
            busy=busy,
            utilisation_ratio=sum(busy.values()),
            memory_utilisation_ratio=0.25,
            power_watts=250.0 + index + now % 7,
            power_limit_watts=400.0,
            energy_joules=250.0 * now,
            temperature_celsius=60.0,
            sm_clock_hertz=1.41e9,
            memory_clock_hertz=1.593e9,
            throttled_seconds={"power_cap": 0.0, "thermal": 0.0},
            ecc_corrected=0,
            ecc_uncorrected=0,
            pcie_replays=0,
            nvlink_errors=0,
            minor=index,
        )

    def promises(self, now: float) -> PromiseSample:
        """A hold with its region for each pod."""
        return PromiseSample(tuple(one[0] for one in self._pods(now)), agent=True)

    def kernel(self, now: float) -> KernelSample:
        """Every pod's process, in its control group."""
        processes = {one[1].pid: one[1] for one in self._pods(now)}
        return KernelSample(processes, True, frozenset(one.pod_uid for one in processes.values()))

    def identities(self, now: float) -> IdentitySample:
        """Names by container ID."""
        return IdentitySample({one[1].container_id: one[2] for one in self._pods(now)}, "pods-api")

    def _pods(self, now: float) -> list[tuple[HoldSample, ProcessSample, ContainerIdentity]]:
        """What stays the same of a pod is made once, as the real sources remember it."""
        alive = self.alive(now)
        for serial in [serial for serial in self._known if serial not in alive]:
            del self._known[serial]
        for serial in alive:
            if serial not in self._known:
                self._known[serial] = self._pod(serial)
        return [self._known[serial] for serial in alive]

    def _pod(self, serial: int) -> tuple[HoldSample, ProcessSample, ContainerIdentity]:
        uid = str(uuid5(NAMESPACE_OID, f"pod {serial}"))
        names = ("production", f"inference-server-7d9f8b6c5-{serial:05d}", "main")
        uuid, room = self.uuids[serial % self.cards], CARD_BYTES // max(8, -(-self.pods // self.cards)) // GIB * GIB
        part = Slice(uuid, serial % self.cards, max(GIB, room), 10)
        hold = HostAllocation(
            id=f"promise-{serial}",
            name=names[1],
            boot="b",
            created=0.0,
            uid=0,
            runner=Process(1, 1),
            command=(),
            slices=(part,),
            policy="fixed",
            tenant=Tenant(names[0], names[1], uid, names[2]),
        )
        book = CardLedger(UUID(uuid.removeprefix("GPU-")), 0, part.bytes, 0, 0, 0, 0, 0, 0, 0, 0, 0, uncorrected=False)
        slots = (SlotReading(0, 7, 1, 1, "python", (0,) * 16, 0),)
        region = RegionSample(RegionReading(hold.id, "1", 1, (book,), slots))
        pid = FIRST_PID + serial
        container = f"{serial:064x}"
        process = ProcessSample(pid, 1, 0, "python", uid, container, namespace_pid=7)
        return HoldSample(hold, region), process, ContainerIdentity(*names, uid)
