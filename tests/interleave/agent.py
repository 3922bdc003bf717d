# SPDX-License-Identifier: Apache-2.0
"""
The node agent as it runs on a machine of the simulator: its real deciders and the real watch.

In memory stand what is no decision: files, marks, control groups, the looks into a container. Each of them is a point
at which the process may die, or another of its threads may come between. A life begins with the files on the disk and
ends by `stop`, by a crash, or with the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

from interleave.loop import Process
from interleave.machine import Files
from interleave.plug import Link
from interleave.runtime import CARD, GUARD
from interleave.server import EPOCH
from interleave.strands import pause
from interleave.wire import Wire

from isolation.contract import host_allocation
from isolation.contract.codec.resize import decode_applied, encode_applied
from isolation.contract.model import Mode
from isolation.contract.names import ACK, GATE_DEVICE, RESIZED, START_NONCE
from isolation.contract.quantity import GIB
from isolation.kube.background import Background
from isolation.kube.core.errors import ClusterError
from isolation.node.allocations import Allocations
from isolation.node.cdi import Edits, Mount
from isolation.node.containers import Containers, Parts
from isolation.node.core.units import offer
from isolation.node.delivery import Delivered, promise_id
from isolation.node.device_plugin.exchange import Offer
from isolation.node.nri.session import AGENT
from isolation.node.resizing import Resizing
from isolation.node.watch import NodePods

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from interleave.kubelet import Kubelet
    from interleave.machine import Machine
    from interleave.runtime import Runtime
    from interleave.wire import Net

    from isolation.contract.host_allocation import HostAllocation, Tenant
    from isolation.contract.model import Applied, Card
    from isolation.node.core.container_check import Given

TICK_SECONDS = 1.0
UNSEEN_SECONDS = 5.0
"""As in `isolation.node.app`: without a runtime for so long, no units are offered."""


class Delivery:
    """Files of containers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def deliver(self, tenant: Tenant, given: Given, _cards: Mapping[str, Card]) -> Delivered:
        """A folder, the limits, a region that is kept within a boot, the promise."""
        disk, ident, boot = self._machine.disk, promise_id(tenant), self._machine.boots
        self._pause()
        if ident not in disk or disk[ident].boot != boot:
            disk[ident] = Files(boot)
        self._pause()
        disk[ident].slices = given.slices
        self._pause()
        hold = disk[ident].hold = self._hold(tenant, given)
        self._pause()
        devices = tuple(CARD + part.uuid for part in given.slices)
        return Delivered(Edits(mounts=(Mount(ident, "/limits"),), devices=devices), hold)

    def change(self, tenant: Tenant, given: Given, _cards: Mapping[str, Card]) -> HostAllocation:
        """The limits, the promise."""
        files = self._machine.disk[promise_id(tenant)]
        self._pause()
        files.slices = given.slices
        self._pause()
        files.hold = self._hold(tenant, given)
        return files.hold

    def stands(self, ident: str) -> bool:
        """Whether there is a promise."""
        files = self._machine.disk.get(ident)
        return files is not None and files.hold is not None

    def uncount(self, ident: str) -> None:
        """The promise goes."""
        self._pause()
        if ident in self._machine.disk:
            self._machine.disk[ident].hold = None

    def retire(self, ident: str) -> None:
        """The promise, then all of it."""
        self.uncount(ident)
        self._pause()
        self._machine.disk.pop(ident, None)

    def standing(self) -> Iterator[tuple[str, HostAllocation | None]]:
        """A promise of another boot is none."""
        for ident, files in tuple(self._machine.disk.items()):
            self._pause()
            yield ident, files.hold if files.boot == self._machine.boots else None

    def _hold(self, tenant: Tenant, given: Given) -> HostAllocation:
        runner, now = host_allocation.Process(1, 1), EPOCH + self._machine.loop.time()
        boot = f"boot {self._machine.boots}"
        ident, policy = promise_id(tenant), given.compute.policy.value
        return host_allocation.HostAllocation(
            ident, tenant.pod, boot, now, 0, runner, (), given.slices, policy, tenant=tenant, enforced=given.enforced
        )

    def _pause(self) -> None:
        pause(self._machine.stall())


class GuardDevice:
    """Marks."""

    device, hook = GATE_DEVICE, (GUARD,)

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def is_guarded(self, hooks: Iterable[str]) -> bool:
        """Whether the guard is among them."""
        return GUARD in hooks

    def mark(self, container: str, _mounts: Iterable[Mount], _limits: str = "") -> dict[str, str]:
        """Half a mark, then the whole one."""
        marks, nonce = self._machine.marks, f"{self._machine.draw.getrandbits(64):016x}"
        self._pause()
        marks[container] = ""
        self._pause()
        marks[container] = nonce
        self._pause()
        return {START_NONCE: nonce}

    def forget(self, container: str) -> str:
        """One mark."""
        self._pause()
        self._machine.marks.pop(container, None)
        return ""

    def sweep(self, known: Callable[[], Collection[str]]) -> None:
        """As `guard_device.GuardDevice` does it, file by file."""
        self._pause()
        found = tuple(self._machine.marks)
        self._pause()
        still = known()
        for name in found:
            if name not in still:
                self._pause()
                self._machine.marks.pop(name, None)

    def _pause(self) -> None:
        pause(self._machine.draw.random() * 0.002)


class Cgroups:
    """Processes of pods; a sandbox has one."""

    def __init__(self, machine: Machine, runtime: Runtime) -> None:
        self._machine, self._runtime = machine, runtime

    def pids(self, uid: str, container: str) -> frozenset[int] | None:
        """As `cgroups.KernelCgroups`."""
        pause(self._machine.draw.random() * 0.001)
        if not self._machine.grouped:
            return None
        return frozenset(one.pid for one in self._machine.living(uid) if container in one.cid)

    def strays(self, uid: str, known: Collection[str]) -> frozenset[int] | None:
        """As `cgroups.KernelCgroups`."""
        pause(self._machine.draw.random() * 0.001)
        if not self._machine.grouped:
            return None
        found = {one.pid for one in self._machine.living(uid) if one.cid not in known}
        return frozenset(found | self._pauses(uid, known))

    def _pauses(self, uid: str, known: Collection[str]) -> set[int]:
        made, lost = self._runtime.sandboxes.values(), self._runtime.lost
        return {int(one.id[1:]) for one in made if one.uid == uid and one.id not in lost and one.id not in known}


class Inventory:
    """Cards and mode; they do not change here."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def cards(self) -> Sequence[Card]:
        """All of them."""
        return self._machine.cards

    def mode(self) -> Mode:
        """Memory is enforced."""
        return Mode.CGPU

    def whole(self) -> bool:
        """Nobody does."""
        return False


class Root:
    """A container's root in which all is as it should be."""

    def __init__(self, _pid: int, _proc: str) -> None:
        pause(0.001)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hidden(self, _mounts: Iterable[Mount]) -> str:
        """Nothing."""
        return ""

    def preload_problem(self) -> str:
        """None."""
        return ""


class NodeAgent:
    """One machine's agent through all its lives; `make` puts other deciders in the place of the real ones."""

    def __init__(self, net: Net, kubelet: Kubelet, make: Callable[[Net, Parts], Containers] | None = None) -> None:
        self._net, self._kubelet, self._machine = net, kubelet, kubelet.machine
        self._make = make or (lambda _net, parts: Containers(parts))
        self.process = Process(f"agent {self._machine.name}")
        self.process.alive = False
        self.allocations: Allocations | None = None
        self._seen = 0.0

    def start(self) -> None:
        """A new life."""
        self.process = Process(f"agent {self._machine.name}")
        self._seen = self._net.loop.time()
        self._net.loop.spawn(self.process, self._live(), self.process.name)

    def stop(self) -> None:
        """It is gone, at once: an upgrade or a crash."""
        self.process.die()

    async def _live(self) -> None:
        net, machine = self._net, self._machine
        pods = NodePods(Wire(net, f"agent {machine.name}"), machine.name)  # type: ignore[arg-type]
        wire, path = Wire(net, f"agent {machine.name}"), f"/api/v1/nodes/{machine.name}"
        allocations = self.allocations = Allocations(Cgroups(machine, self._kubelet.runtime))
        self._pods = pods
        resizing = self._resizing = Resizing(pods, allocations, self._stated, lambda _: {}, net.loop.time)
        parts = Parts(pods, Inventory(machine), allocations, Delivery(machine), GuardDevice(machine), resizing)
        containers = self._make(net, parts)
        await asyncio.to_thread(containers.load)
        async with contextlib.AsyncExitStack() as stack:
            background = Background()
            for name, follower in pods.followers.items():
                await stack.enter_async_context(background.keep(name, follower.run))
            link = Link(net, self.process, self._kubelet.runtime, containers, AGENT)
            net.loop.create_task(link.run())
            while True:
                await asyncio.to_thread(containers.tidy)
                if link.in_force and machine.gate:
                    self._seen = net.loop.time()
                await asyncio.to_thread(self._publish)
                await self._report(wire, path)
                await asyncio.sleep(TICK_SECONDS)

    def _stated(self) -> int:
        """Units that the kubelet has stated last."""
        node = self._net.server.things["nodes"]["", self._machine.name]
        return int(node["status"]["allocatable"].get(ACK.memory, "0"))

    def _said(self) -> Mapping[str, Applied]:
        """What the node's object says of resized pods."""
        said = self._net.server.things["nodes"]["", self._machine.name]["metadata"]["annotations"].get(RESIZED)
        return decode_applied(said) if said else {}

    async def _report(self, wire: Wire, path: str) -> None:
        """As `isolation.node.status` does: what is in force of changed records."""
        if not self._pods.synced():
            return
        self._resizing.seed(self._said())
        now = encode_applied(self._resizing.report().applied)
        if now != encode_applied(self._said()):
            with contextlib.suppress(ClusterError):
                await wire.send("PATCH", path, {"metadata": {"annotations": {RESIZED: now}}}, "merge-patch", 5.0)

    def _publish(self) -> None:
        """As `isolation.node.app` does: what the device plugin is to say."""
        shares = self._net.loop.time() - self._seen <= UNSEEN_SECONDS
        in_force = self.allocations.bytes_by_card() if self.allocations is not None else {}
        units, pods = self._kubelet.units, self._pods
        if not pods.follower.synced.is_set() and self._machine.offer.devices:
            return
        self._resizing.seed(self._said())
        gone = units.pods.keys() - pods.uids() if pods.synced() else ()
        ended = {one for uid in gone for ids in units.pods[uid].values() for one in ids}
        extra = self._resizing.extra()[0] // GIB
        cards = self._machine.cards
        devices = offer(cards, GIB, units.used(), in_force, shares=shares, extra=extra, ended=ended)
        self._machine.offer = Offer(tuple(devices), "", shares=True, exempt=frozenset())
        total = sum(card.allocatable_bytes // GIB for card in cards)
        self._resizing.offered(devices, total + extra if shares else None)
