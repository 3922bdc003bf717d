# SPDX-License-Identifier: Apache-2.0
"""
The agent's world on a real node: which parts stand behind its protocols.

Decides nothing else; a backend that cannot work here is told at the start, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isolation.host import process
from isolation.host.card_events import NvmlAlarms
from isolation.host.health_record import RECORD
from isolation.host.machine import NvmlMachine
from isolation.node.alarms import AlarmWatch
from isolation.node.backend import backends
from isolation.node.cgroups import KernelCgroups
from isolation.node.delivery import NodeDelivery, Places
from isolation.node.feeding import Feeding
from isolation.node.hardware import NvidiaHardware, SimulatedHardware
from isolation.node.shelf import FileShelf
from isolation.node.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from isolation.contract.host_allocation import HostAllocation
    from isolation.node.backend import Backend
    from isolation.node.hardware import Hardware
    from isolation.node.settings import Settings
    from isolation.node.world import Bound, Clock, Inventory, PodResources, Pods


class WiringError(Exception):
    """A part cannot work here; the message says what to change."""


def backend_of(settings: Settings) -> Backend:
    """The backend that was asked for; WiringError where it cannot work here."""
    known = backends(settings.run_dir)
    if settings.backend not in known:
        raise WiringError(f"--backend {settings.backend} is unknown: choose one of {', '.join(sorted(known))}")
    chosen = known[settings.backend]
    if why := chosen.available():
        raise WiringError(f"--backend {settings.backend} is not available here: {why}")
    return chosen


def hardware_of(settings: Settings, machine: NvmlMachine) -> Hardware:
    """How containers reach the cards."""
    if settings.simgpu is None:
        return NvidiaHardware()
    libraries = Path(machine.environment()["LD_LIBRARY_PATH"])
    return SimulatedHardware(settings.simgpu, libraries, settings.run_dir)


def delivery_of(settings: Settings, machine: NvmlMachine, inventory: Inventory) -> NodeDelivery:
    """Where containers' files are made."""
    places = Places(settings.run_dir, settings.cdi_dir)
    return NodeDelivery(places, hardware_of(settings, machine), backend_of(settings), inventory)


@dataclass(frozen=True, slots=True)
class Outside:
    """What is reached over the network and over sockets, and time."""

    pods: Pods
    resources: PodResources
    clock: Clock


def feeding_of(settings: Settings, pods: Callable[[], Mapping[str, Bound]]) -> Feeding:
    """Whoever tells containers their own GPU time; `pods`: by UID, also from another thread."""
    cgroups = KernelCgroups(settings.cgroup)

    def processes(hold: HostAllocation) -> frozenset[int] | None:
        tenant = hold.tenant
        pod = pods().get(tenant.uid) if tenant is not None else None
        if tenant is None or pod is None:
            return None
        known = pod.container(tenant.container)
        if known is not None and known.id:
            return cgroups.pids(pod.uid, known.id)
        # Not told yet which group is the container's: of a pod with one of ours, all are its own.
        return cgroups.pids(pod.uid) if len(pod.wanted) == 1 else None

    machine = NvmlMachine(settings.simgpu)
    return Feeding(Places(settings.run_dir).alloc, machine, processes, process.boot(), settings.over_limit)


def alarms_of(settings: Settings) -> AlarmWatch:
    """Whoever hears of cards in trouble."""
    return AlarmWatch(NvmlAlarms(settings.simgpu), settings.health, settings.run_dir / RECORD, process.boot())


def world_of(settings: Settings, outside: Outside, inventory: Inventory, delivery: NodeDelivery) -> World:
    """Everything that the agent asks."""
    return World(
        outside.pods,
        outside.resources,
        KernelCgroups(settings.cgroup),
        inventory,
        FileShelf(settings.run_dir),
        delivery,
        outside.clock,
    )
