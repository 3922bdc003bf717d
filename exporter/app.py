# SPDX-License-Identifier: Apache-2.0
"""
The exporter of one node, put together: sources, the cycle, pages.

Decides which sources and collectors there are; nothing of what is read or shown.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exporter import process_list as processes
from exporter.compat.ack import ack_families
from exporter.compat.averages import Averages
from exporter.cycle import KERNEL, MACHINE, PROMISES, ExporterCycle, outcomes
from exporter.evaluate import Evaluator
from exporter.http.pages import Exposition
from exporter.pipeline.attribution import NodeLabels
from exporter.pipeline.breach_log import to_json
from exporter.pipeline.counters import Counters
from exporter.pipeline.families import card_families, collected_families, container_families
from exporter.runner import Runner
from exporter.self_metrics import process_families
from exporter.settings import enforcement
from exporter.sources.kernel import KernelSource
from exporter.sources.nvml.health import CardHealth
from exporter.sources.nvml.source import NvmlSource
from exporter.sources.promises import PromiseSource, default_stores
from isolation.contract import metrics
from isolation.distribution import release
from isolation.host import process
from isolation.host.backend_record import read_backend
from isolation.host.health_record import RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from exporter.evaluate import CycleResult
    from exporter.front import Front
    from exporter.kubelet import KubeletReads
    from exporter.pipeline.snapshot import KernelSample, MachineSample, PromiseSample
    from exporter.settings import ExporterSettings
    from isolation.contract.metrics import Family
    from isolation.contract.reading import NodeReading

    Collector = Callable[[CycleResult], Iterable[Family]]

ATTRIBUTION: Final = "attribution"
"""Collector name of everything between sources and pages."""


class NodeExporter:
    """A context manager: its sources are let go when it is left."""

    def __init__(self, chosen: ExporterSettings, front: Front | None = None) -> None:
        self._sources = NodeSources(chosen)
        self._runner = Runner()
        self._node, self._front = chosen.node, front
        # An operator's word comes first: a node without an agent of ours may have another enforcer.
        enforcer = str if chosen.isolation else partial(read_backend, chosen.agent_state_dir)
        self.evaluator = Evaluator(_labels(chosen), enforcer=enforcer)
        processes = (front.pid,) if front is not None else ()
        found = collectors(chosen.compat_metrics, processes, chosen.collect)
        self.pages = Exposition(found, clock=time.perf_counter, release=release())
        self.cycle = ExporterCycle(self._sources, self._runner, self.evaluator, self._publish, period=chosen.period)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()
        self._sources.close()

    def page(self) -> str:
        """The metrics as they are now."""
        return self.pages.page().body.decode()

    def _publish(self, result: CycleResult) -> None:
        self.pages.publish(result, result.snapshot.epoch, ready=True)
        if self._front is not None:
            documents = {"/breaches": self.breaches(), "/processes": processes.to_json(result, self._node).encode()}
            self._front.publish(self.pages.pages, documents)

    def breaches(self) -> bytes:
        """Recent breaches as a JSON document."""
        return to_json(self.evaluator.state.breaches, self._node).encode()


class NodeSources:
    """The sources of this machine (`exporter.cycle.Sources`)."""

    def __init__(self, chosen: ExporterSettings) -> None:
        self._chosen = chosen
        self._nvml = NvmlSource(chosen.simgpu, health=_health(chosen), groups=chosen.driver_groups)
        self._kernel = KernelSource(chosen.proc, chosen.cgroup)
        stores = default_stores(chosen.simgpu, chosen.state_dir)
        self._promises = PromiseSource(stores, chosen.agent_state_dir, chosen.proc, chosen.cgroup)
        self._kubelet: KubeletReads | None = None
        self._find_kubelet()

    def read_first(self, now: float) -> Mapping[str, Callable[[], Any]]:
        """Reads that need no other."""
        return {MACHINE: partial(self._nvml.read, now), PROMISES: partial(self._promises.read, now)}

    def read_kernel(
        self, now: float, machine: MachineSample | None, promises: PromiseSample | None
    ) -> Mapping[str, Callable[[], Any]]:
        """Reads that need to know the processes."""
        pids = {process.pid for card in (machine.cards if machine else ()) for process in card.processes or ()}
        holds = promises.holds if promises else ()
        return {KERNEL: partial(self._kernel.read, now, pids, holds)}

    def read_kubelet(
        self, now: float, promises: PromiseSample | None, kernel: KernelSample | None
    ) -> Mapping[str, Callable[[], Any]]:
        """Reads that need to know the pods and containers."""
        self._find_kubelet()
        return self._kubelet.reads(now, promises, kernel) if self._kubelet is not None else {}

    def close(self) -> None:
        """Let the driver and the kubelet go."""
        self._nvml.close()
        if self._kubelet is not None:
            self._kubelet.close()

    def _find_kubelet(self) -> None:
        """One that stops is a failure, not a machine without one."""
        if self._kubelet is None and _has_kubelet(self._chosen):
            from exporter.kubelet import KubeletReads  # noqa: PLC0415 (gRPC is half of the process: not without a kubelet)

            self._kubelet = KubeletReads(self._chosen)


def _health(chosen: ExporterSettings) -> CardHealth:
    try:
        boot = process.boot(str(chosen.proc))
    except OSError:
        boot = ""
    own = None if chosen.health_dir is None else chosen.health_dir / RECORD
    return CardHealth(boot, own, chosen.agent_state_dir / RECORD)


def _has_kubelet(chosen: ExporterSettings) -> bool:
    """Its folder is there, or somebody says so."""
    return chosen.kubelet_socket.parent.is_dir() if chosen.kubernetes is None else chosen.kubernetes


def _labels(chosen: ExporterSettings) -> NodeLabels:
    """What stays the same of this node for as long as the exporter runs."""
    enforced = chosen.isolation or enforcement(
        chosen.mode, kubernetes=_has_kubelet(chosen), agent=(chosen.agent_state_dir / "alloc").is_dir()
    )
    return NodeLabels(chosen.node, chosen.pool, chosen.mode, enforced, chosen.unit_bytes)


def collectors(
    compat: frozenset[str], processes: Sequence[int] = (), groups: frozenset[str] = frozenset()
) -> Mapping[str, Collector]:
    """Families by collector; what others call them as well, where that is wanted; `processes`: of ours beside this."""
    found: dict[str, Collector] = {
        "cards": partial(_of, card_families),
        "containers": _container_pages(),
    }
    if groups:
        found["collect"] = partial(_of, partial(collected_families, groups=groups))
    if "ack" in compat:
        found["ack"] = _ack_pages()
    return found | {"sources": source_families, "process": lambda _cycle: process_families(processes)}


def _container_pages() -> Collector:
    counters = Counters()

    def families(nodes: list[NodeReading]) -> Iterable[Family]:
        counters.turn()
        return container_families(nodes, counters)

    return partial(_of, families)


def _ack_pages() -> Collector:
    averages = Averages()

    def families(result: CycleResult) -> Iterable[Family]:
        if result.found is None:
            return ()
        averages.take(result.snapshot.at, result.found)
        return ack_families(result.found, result.snapshot.machine.value, averages)

    return families


def _of(families: Callable[[list[NodeReading]], Iterable[Family]], result: CycleResult) -> Iterable[Family]:
    return families([result.reading]) if result.reading is not None else ()


def source_families(result: CycleResult) -> Iterator[Family]:
    """Success and duration of each source, and of the evaluation."""
    fared = outcomes(result.snapshot)
    success = {name: float(outcome.ok) for name, outcome in fared.items()}
    seconds = {name: outcome.seconds for name, outcome in fared.items()}
    success[ATTRIBUTION], seconds[ATTRIBUTION] = float(result.reading is not None), result.seconds
    yield metrics.family(metrics.COLLECTOR_SUCCESS, (((name,), value) for name, value in success.items()))
    yield metrics.family(metrics.COLLECTOR_DURATION, (((name,), value) for name, value in seconds.items()))
