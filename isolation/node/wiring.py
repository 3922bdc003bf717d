# SPDX-License-Identifier: Apache-2.0
"""
The parts of an agent on a real node.

Decides nothing else; a backend that cannot work here is reported at the start, with the reason.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.backends import AUTO, BACKENDS
from isolation.contract.model import Mode
from isolation.host import process
from isolation.host.backend_record import write_backend
from isolation.host.card_events import NvmlCardEvents
from isolation.host.health_record import RECORD
from isolation.host.machine import NvmlMachine
from isolation.node.backend import KernelBackend, LibraryBackend, MigBackend, NoBackend, NodeBackends
from isolation.node.delivery import ALLOC
from isolation.node.feeding import Feeding
from isolation.node.hardware import NvidiaHardware, SimulatedHardware
from isolation.node.memory_limits import SOCKET
from isolation.node.mps.backend import MpsBackend
from isolation.node.mps.exchange import MpsExchange
from isolation.node.time_slices import NvidiaDriver, SimulatedDriver, TimeSlices
from isolation.node.unhealthy_cards import HealthWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from isolation.contract.host_allocation import HostAllocation
    from isolation.host.memory_limits import MemoryLimits
    from isolation.node.allocations import Allocations
    from isolation.node.hardware import CardAccess
    from isolation.node.inventory import NodeInventory
    from isolation.node.settings import Settings


_log: Final = logging.getLogger(__name__)


class WiringError(Exception):
    """A part cannot work here; the message says what to change."""


def backends_of(
    settings: Settings, inventory: NodeInventory, driver: MemoryLimits, tell: Callable[[], None]
) -> NodeBackends:
    """What this node enforces promises by: what the node's label names, else the option; WiringError."""
    names = (AUTO, *BACKENDS)
    if settings.backend not in names:
        raise WiringError(f"--backend {settings.backend} is unknown: choose one of {', '.join(names)}")
    run_dir = settings.run_dir

    def uuids() -> tuple[str, ...]:
        return tuple(card.uuid for card in inventory.cards() if card.healthy)

    kernel = KernelBackend(run_dir, driver=driver, cgroup=settings.cgroup, place=limits_socket(settings), uuids=uuids)
    exchange = MpsExchange(run_dir)
    mps = MpsBackend(run_dir, cards=inventory.cards, tell=tell)
    made = (kernel, MigBackend(run_dir, cards=inventory.cards), LibraryBackend(run_dir), mps, NoBackend())
    return NodeBackends(
        {one.name: one for one in made},
        wanted=lambda: inventory.backend() or settings.backend,
        mode=inventory.mode,
        told=partial(_record_backend, run_dir),
        state=lambda: (uuids(), inventory.mode() is Mode.MPS and exchange.keeper_lives()),
    )


def _record_backend(run_dir: Path, name: str) -> None:
    try:
        write_backend(run_dir, name)
    except OSError as exc:
        _log.warning("cannot write %s: %s", exc.filename, exc.strerror)


def limits_socket(settings: Settings) -> Path:
    """Where the guard asks for memory limits of the driver."""
    return settings.marks_dir.parent / SOCKET


def hardware_of(settings: Settings, machine: NvmlMachine, looks_up: Callable[[], bool]) -> CardAccess:
    """How containers reach the cards; `looks_up`: whether the container runtime takes CDI devices by name."""
    if settings.simgpu is None:
        return NvidiaHardware(settings.cdi_dir, looks_up=looks_up)
    libraries = Path(machine.environment()["LD_LIBRARY_PATH"])
    return SimulatedHardware(settings.simgpu, libraries, settings.run_dir)


def feeding_of(settings: Settings, allocations: Allocations) -> Feeding:
    """Whoever tells containers their own GPU time and memory."""

    def processes(hold: HostAllocation) -> frozenset[int] | None:
        return allocations.processes(hold.id)

    machine = NvmlMachine(settings.simgpu)
    return Feeding(settings.run_dir / ALLOC, machine, processes, process.boot(), settings.over_limit)


def slices_of(settings: Settings) -> TimeSlices:
    """Whoever sets how long processes have a card."""
    return TimeSlices(NvidiaDriver() if settings.simgpu is None else SimulatedDriver(settings.simgpu))


def health_watch(settings: Settings) -> HealthWatch:
    """What follows the health of the cards."""
    return HealthWatch(NvmlCardEvents(settings.simgpu), settings.health, settings.run_dir / RECORD, process.boot())
