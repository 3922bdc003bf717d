# SPDX-License-Identifier: Apache-2.0
"""
The parts of an agent on a real node.

Decides nothing else; a backend that cannot work here is reported at the start, with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from isolation.host import process
from isolation.host.card_events import NvmlAlarms
from isolation.host.health_record import RECORD
from isolation.host.machine import NvmlMachine
from isolation.node.alarms import AlarmWatch
from isolation.node.backend import backends
from isolation.node.delivery import ALLOC
from isolation.node.feeding import Feeding
from isolation.node.hardware import NvidiaHardware, SimulatedHardware

if TYPE_CHECKING:
    from isolation.contract.host_allocation import HostAllocation
    from isolation.node.allocations import Allocations
    from isolation.node.backend import Backend
    from isolation.node.hardware import Hardware
    from isolation.node.settings import Settings


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
        return NvidiaHardware(settings.cdi_dir)
    libraries = Path(machine.environment()["LD_LIBRARY_PATH"])
    return SimulatedHardware(settings.simgpu, libraries, settings.run_dir)


def feeding_of(settings: Settings, allocations: Allocations) -> Feeding:
    """Whoever tells containers their own GPU time and memory."""

    def processes(hold: HostAllocation) -> frozenset[int] | None:
        return allocations.processes(hold.id)

    machine = NvmlMachine(settings.simgpu)
    return Feeding(settings.run_dir / ALLOC, machine, processes, process.boot(), settings.over_limit)


def alarms_of(settings: Settings) -> AlarmWatch:
    """Whoever hears of cards in trouble."""
    return AlarmWatch(NvmlAlarms(settings.simgpu), settings.health, settings.run_dir / RECORD, process.boot())
