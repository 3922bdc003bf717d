# SPDX-License-Identifier: Apache-2.0
"""
One card as NVML tells of it: which figures are asked for, how often, and in which units.

Asked each cycle: memory, processes, samples, power, energy, temperature, clocks, reasons for throttling.
Asked now and then: what changes rarely or costs much (`slow_readings`). Whose processes these are is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exporter.pipeline.snapshot import CardSample
from exporter.sources.nvml.processes import CardProcesses
from exporter.sources.nvml.slow_readings import NO_READINGS, Gpm, read_slow
from isolation.host.card_events import Board

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from exporter.pipeline.busy_time import BusyMeter
    from exporter.sources.nvml.library import Library

_MAX_GAP: Final = 60.0
"""Seconds; nothing is believed to have stayed the same for longer than this."""
_MHZ: Final = 1e6
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_THROTTLE: Final = {
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
}
"""nvmlClocksEventReasons; 1, the low clock of an idle card, is none."""
ZERO_REASONS: Final = ("power_cap", "thermal", "hardware_thermal", "hardware_slowdown", "power_brake")
"""Those that slow a program down against its owner's will: reported from the start, so the first second shows."""


@dataclass(slots=True)
class CardState:
    """What is remembered of a card by its UUID, also when NVML was restarted."""

    meter: BusyMeter
    xids: Mapping[int, int] = field(default_factory=dict)
    joules: float = 0.0
    """Power by time, where the driver keeps no account of energy."""
    powered_at: float | None = None
    worked: float = 0.0
    """Load by time in seconds, where the driver keeps no samples of it."""
    worked_at: float | None = None
    throttled: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ZERO_REASONS, 0.0))
    """Seconds by reason."""
    throttling: tuple[str, ...] = ()
    """Reasons at the last reading."""
    throttled_at: float | None = None

    def work(self, load: float | None, now: float) -> float | None:
        """Seconds of work by loads that are known at some moments only."""
        if load is None:
            return None
        before, self.worked_at = self.worked_at, now
        if before is not None:
            self.worked += load * max(0.0, min(now - before, _MAX_GAP))
        return self.worked


class NvmlCard:
    """One card, or one MIG instance of `parent`, under one start of NVML. LostError where it is off the bus."""

    def __init__(self, library: Library, handle: Any, index: int, parent: NvmlCard | None = None) -> None:
        self.handle, self.index, self.parent = handle, index, parent
        self._library = library
        self._scope = str(library.ask(None, "nvmlDeviceGetName", handle) or "unknown")
        self.model, _, self.profile = self._scope.partition(" MIG ")
        self.uuid = str(library.ask(None, "nvmlDeviceGetUUID", handle) or f"unknown-{index}")
        self.minor = None if parent else self._ask("nvmlDeviceGetMinorNumber")
        self.gpu_instance = self._ask("nvmlDeviceGetGpuInstanceId") if parent else None
        self._total = 0
        self._slow = NO_READINGS
        self._processes = CardProcesses(library, self._scope, handle)
        self._gpm = Gpm(partial(library.ask, None), self._ask, library.gpm_request)

    def close(self) -> None:
        """Give back what the driver keeps for us."""
        self._gpm.close()

    def is_divided(self) -> bool:
        """Whether MIG divides it now."""
        mode = self._ask("nvmlDeviceGetMigMode")
        return mode is not None and mode[0] == 1

    def instances(self) -> list[NvmlCard]:
        """Its MIG instances; places of the layout that none takes are passed over."""
        found = []
        for place in range(self._ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
            handle = self._library.ask(None, "nvmlDeviceGetMigDeviceHandleByIndex", self.handle, place)
            if handle is not None:
                found.append(NvmlCard(self._library, handle, self.index, self))
        return found

    def sample(self, state: CardState, micros: int) -> None:
        """Take the driver's samples, unless nobody is there to be sampled."""
        if self._processes.maybe:
            self._add_samples(state, micros)

    def read_whole(self, state: CardState, now: float, micros: int) -> CardSample:
        """A card that nothing divides."""
        facts = self.read_board(state, now)
        loads = self._library.loads(self._scope, self.handle, state.meter.loads_since)
        known = self._add_samples(state, micros)
        busy = state.meter.take(loads or (), micros)
        load = facts.utilisation_ratio if busy.load is None else busy.load
        return replace(
            self._with_memory(facts, now),
            utilisation_ratio=load,
            busy=busy.ratios if known else None,
            compute_seconds=busy.seconds if known else None,
            busy_seconds=facts.busy_seconds if busy.card_seconds is None else busy.card_seconds,
            copy_busy=busy.copy if known else None,
            encoder_busy=busy.encoder if known else None,
            samples_shared=state.meter.is_shared,
            decoder_busy=busy.decoder if known else None,
            peaks=self._processes.peaks,
        )

    def read_instance(self, state: CardState, now: float) -> CardSample:
        """A MIG instance: memory and processes; NVML has nothing else of it."""
        return self._with_memory(self.identify(state), now)

    def read_board(self, state: CardState, now: float) -> CardSample:
        """What belongs to the physical card, divided or not."""
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        power = _scale(self._ask("nvmlDeviceGetPowerUsage"), 1e-3)
        slow = self._slow
        load = None if rates is None else rates.gpu / 100
        return replace(
            self.identify(state),
            utilisation_ratio=load,
            busy_seconds=state.work(load, now),
            memory_utilisation_ratio=None if rates is None else rates.memory / 100,
            power_watts=power,
            power_limit_watts=slow.power_limit_watts,
            energy_joules=self._energy(state, power, now),
            temperature_celsius=_scale(self._temperature(), 1),
            sm_clock_hertz=_scale(self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK), _MHZ),
            memory_clock_hertz=_scale(self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK), _MHZ),
            throttled_seconds=_throttled_seconds(state, self._reasons(), now),
            ecc_corrected=slow.ecc_corrected,
            ecc_uncorrected=slow.ecc_uncorrected,
            pcie_replays=slow.pcie_replays,
            nvlink_errors=slow.nvlink_errors,
            compute_mode=slow.compute_mode,
            hardware=slow.hardware,
        )

    def with_total(self, facts: CardSample) -> CardSample:
        """A divided card's memory, without processes: those are its instances'."""
        return self._with_figures(facts, self._library.memory(self._scope, self.handle))

    def board(self, instances: Iterable[NvmlCard] | None) -> Board:
        """What its health is judged by."""
        cards = (self,) if instances is None else tuple(instances)
        hardware = self._slow.hardware
        return Board(
            self.uuid, tuple(card.uuid for card in cards), hardware.recovery_action, bool(hardware.remap_failed)
        )

    def read_slow(self, groups: Container[str]) -> None:
        """Ask for what changes rarely; `groups` as `--collect` names them."""
        self._slow = read_slow(self._ask, groups)
        if "gpm" in groups:
            self._slow = replace(self._slow, hardware=replace(self._slow.hardware, **self._gpm.read()))
        if self._slow.accounting:
            self._processes.account()

    def identify(self, state: CardState) -> CardSample:
        """What is known without asking."""
        return CardSample(
            uuid=self.uuid,
            index=self.index,
            model=self.model,
            total_bytes=self._total,
            reserved_bytes=None,
            free_bytes=None,
            processes=None,
            busy=None,
            xids=state.xids,
            parent=self.parent.uuid if self.parent else "",
            profile=self.profile,
            minor=self.minor,
            gpu_instance=self.gpu_instance,
        )

    def lost(self, state: CardState) -> CardSample:
        """A card that does not answer."""
        self._processes.gone()
        return replace(self.identify(state), unhealthy="lost", lost=True)

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._library.ask(self._scope, name, self.handle, *arguments)

    def _temperature(self) -> Any:
        found = self._ask("nvmlDeviceGetTemperatureV", 0)
        return self._ask("nvmlDeviceGetTemperature", 0) if found is None else found

    def _reasons(self) -> int | None:
        found = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        found = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if found is None else found
        return None if found is None else int(found)

    def _energy(self, state: CardState, power: float | None, now: float) -> float | None:
        """The driver's account; else power by time since the first look, which never goes back."""
        if (millijoules := self._ask("nvmlDeviceGetTotalEnergyConsumption")) is not None:
            return int(millijoules) / 1000
        if power is None:
            return None
        before, state.powered_at = state.powered_at, now
        if before is not None:
            state.joules += power * max(0.0, min(now - before, _MAX_GAP))
        return state.joules

    def _add_samples(self, state: CardState, micros: int) -> bool:
        """Whether the driver tells of processes at all."""
        samples = self._library.samples(self._scope, self.handle, state.meter.since)
        if samples is not None:
            state.meter.add(samples, micros)
        return samples is not None

    def _with_memory(self, facts: CardSample, now: float) -> CardSample:
        """Processes, and the memory of the card right after them."""
        compute = self._processes.computing()
        memory = self._library.memory(self._scope, self.handle)
        used = memory[0] - memory[2] if memory else 0
        processes = self._processes.note(compute, used, now, accounting=self._slow.accounting)
        return replace(self._with_figures(facts, memory), processes=processes)

    def _with_figures(self, facts: CardSample, memory: tuple[int, int | None, int] | None) -> CardSample:
        if memory is None:
            return facts
        self._total = memory[0]
        return replace(facts, total_bytes=memory[0], reserved_bytes=memory[1], free_bytes=memory[2])


def _throttled_seconds(state: CardState, bits: int | None, now: float) -> dict[str, float] | None:
    """Seconds by reason: what two readings in a row show held in between; what one of them shows, for half of it."""
    reasons, before = throttle_reasons(bits), state.throttled_at
    if reasons is None:
        state.throttled_at = None
        return None
    if before is not None and 0 < now - before <= _MAX_GAP:
        for reason in (*state.throttling, *reasons):
            state.throttled[reason] = state.throttled.get(reason, 0.0) + (now - before) / 2
    state.throttling, state.throttled_at = reasons, now
    return dict(state.throttled)


def throttle_reasons(bits: int | None) -> tuple[str, ...] | None:
    """Names of what holds the clocks down."""
    if bits is None:
        return None
    known = tuple(name for bit, name in _THROTTLE.items() if bits & bit)
    other = bits & ~(sum(_THROTTLE) | 1)
    return (*known, "other") if other else known


def _scale(value: Any, unit: float) -> float | None:
    return None if value is None else float(value) * unit
