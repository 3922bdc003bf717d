"""
What the exporter itself costs: memory, CPU, descriptors, under the names that every Prometheus client uses.

Reads /proc of this process alone; what the kernel does not tell is absent. These are the only metrics outside
the catalogue: their names are a convention that dashboards for any process know.
"""

from __future__ import annotations

import os
import resource
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.metrics import Family, Group, Kind, MetricSpec, Unit, family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SELF: Final = Path("/proc/self")
_PAGE: Final = resource.getpagesize()
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_START_FIELD: Final = 19
"""Of /proc/<pid>/stat, counted behind the name: ticks from boot to the start."""


def _spec(name: str, kind: Kind, unit: Unit, text: str) -> MetricSpec:
    return MetricSpec(f"process_{name}", kind, (), unit, text, Group.EXPORTER)


CPU: Final = _spec("cpu_seconds_total", Kind.COUNTER, Unit.SECONDS, "Total user and system CPU time spent in seconds.")
RESIDENT: Final = _spec("resident_memory_bytes", Kind.GAUGE, Unit.BYTES, "Resident memory size in bytes.")
VIRTUAL: Final = _spec("virtual_memory_bytes", Kind.GAUGE, Unit.BYTES, "Virtual memory size in bytes.")
OPEN_FDS: Final = _spec("open_fds", Kind.GAUGE, Unit.NONE, "Number of open file descriptors.")
MAX_FDS: Final = _spec("max_fds", Kind.GAUGE, Unit.NONE, "Maximum number of open file descriptors.")
START: Final = _spec(
    "start_time_seconds", Kind.GAUGE, Unit.SECONDS, "Start time of the process since unix epoch in seconds."
)
PROCESS: Final = (CPU, RESIDENT, VIRTUAL, OPEN_FDS, MAX_FDS, START)


def process_families() -> Iterator[Family]:
    """One sample of each."""
    for spec, read in _FIGURES.items():
        try:
            value = read()
        except (OSError, ValueError, IndexError):
            continue
        yield family(spec, [((), value)])


def _cpu() -> float:
    used = os.times()
    return used.user + used.system


def _pages(field: int) -> float:
    return float(int((_SELF / "statm").read_text("ascii").split()[field]) * _PAGE)


def resident_bytes() -> float:
    """Memory that this process has now."""
    return _pages(1)


@cache
def _started() -> float:
    """Told once: a wall clock that is set would move the beginning."""
    stat = (_SELF / "stat").read_text("utf-8", "replace")
    ticks = int(stat[stat.rindex(")") + 2 :].split()[_START_FIELD])
    # CLOCK_BOOTTIME is what the kernel counts start times on
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / _TICKS


_FIGURES: Final[dict[MetricSpec, Callable[[], float]]] = {
    CPU: _cpu,
    RESIDENT: resident_bytes,
    VIRTUAL: lambda: _pages(0),
    OPEN_FDS: lambda: float(sum(1 for _ in (_SELF / "fd").iterdir()) - 1),  # the listing has one of its own
    MAX_FDS: lambda: float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    START: _started,
}
