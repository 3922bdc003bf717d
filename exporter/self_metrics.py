# SPDX-License-Identifier: Apache-2.0
"""
What the exporter itself costs: memory, CPU, descriptors, as every Prometheus client tells it.

These are the only metrics outside the catalogue: their names are a convention that dashboards for any process know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector

from isolation.contract.metrics import Family, Group, Kind, MetricSpec, Unit, family

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KINDS: Final = {"counter": Kind.COUNTER, "gauge": Kind.GAUGE}
_UNITS: Final = {"bytes": Unit.BYTES, "seconds": Unit.SECONDS}
_SUMMED: Final = frozenset({"process_cpu_seconds_total", "process_resident_memory_bytes"})
"""What the processes of one exporter cost together; of the others, those of the one that reads."""


def process_families(others: Sequence[int] = ()) -> Iterator[Family]:
    """One sample of each for this process, and what `others`, by pid, add to its CPU time and memory."""
    more = [_figures(pid) for pid in others]
    for name, (spec, value) in _figures("self").items():
        added = sum(found[name][1] for found in more if name in found) if name in _SUMMED else 0.0
        yield family(spec, [((), value + added)])


def resident_bytes() -> float:
    """Memory that this process has now."""
    return _figures("self")["process_resident_memory_bytes"][1]


def _figures(pid: int | str) -> dict[str, tuple[MetricSpec, float]]:
    """By name; what the kernel does not tell is absent."""
    found = {}
    for metric in ProcessCollector(pid=lambda: pid, registry=None).collect():
        for sample in metric.samples:
            unit = _UNITS.get(sample.name.removesuffix("_total").rpartition("_")[2], Unit.NONE)
            spec = MetricSpec(sample.name, _KINDS[metric.type], (), unit, metric.documentation, Group.EXPORTER)
            found[sample.name] = (spec, sample.value)
    return found
