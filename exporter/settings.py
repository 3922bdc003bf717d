# SPDX-License-Identifier: Apache-2.0
"""
What a person may choose of the exporter, and how it is spelled.

Pure. Every setting is a flag and an environment variable, GPUSHARE_EXPORTER_ and the flag's name; no name may
look like what Kubernetes puts into the environment for a Service called gpushare-exporter (`.._PORT`,
`.._SERVICE_..`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from isolation.contract.metrics.card import COLLECTED

PORT: Final = 9445
SHORTEST_CYCLE: Final = 0.1
LONGEST_CYCLE: Final = 60.0
STALE_CYCLES: Final = 5
STALE_SECONDS: Final = 10.0
"""A reading older than this, and than so many cycles, is no longer shown."""

MODES: Final = ("share", "cgpu", "core_mem", "mps", "default")
GROUPS: Final = tuple(COLLECTED)
"""Groups of further metrics."""
ISOLATIONS: Final = ("none", "library", "mps", "kernel")
_ENFORCED: Final = MappingProxyType({"cgpu": "library", "core_mem": "library", "mps": "mps"})
"""What enforces promises, by mode, where nothing else is known."""

_OF_ACK: Final = frozenset({"engines", "memory", "gpm"})
_DURATION: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s|m)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_LISTEN: Final = re.compile(r"(?:(\[[0-9a-fA-F:.%a-z]*\]|[^:\[\]]*):)?(\d{1,5})")
_MAX_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Everything that was chosen."""

    node: str
    host: str = "0.0.0.0"  # noqa: S104 (a pod is scraped from outside)
    port: int = PORT
    period: float = 2.0
    """Seconds from one turn to the next."""
    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    agent_state_dir: Path = Path("/var/lib/gpushare")
    """Where the node agent keeps what it promised."""
    health_dir: Path | None = None
    """Where unhealthy cards are remembered over a restart; None: nowhere."""
    state_dir: Path | None = None
    """Of `gpushare run`; None: where it usually is."""
    kubelet_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    pods_socket: Path = Path("/var/lib/kubelet/pods-api/pods-api.sock")
    log_dir: Path = Path("/var/log/containers")
    """The kubelet's links by which containers get their names where it has no pods socket."""
    kubernetes: bool | None = None
    """Whether a kubelet is asked; None: where there is one."""
    simgpu: Path | None = None
    """A simulated machine's file instead of the machine."""
    compat_metrics: frozenset[str] = frozenset()
    """Further families under other people's names: ack."""
    collect: frozenset[str] = frozenset()
    """Groups of `metrics.card.COLLECTED`."""
    pool: str = ""
    mode: str = ""
    isolation: str = ""
    """What enforces promises; empty: what follows from the mode."""
    unit_bytes: int = 1 << 30

    @property
    def driver_groups(self) -> frozenset[str]:
        """Groups of figures that the driver is asked for: those that are shown under somebody's names."""
        return self.collect | (_OF_ACK if "ack" in self.compat_metrics else frozenset())

    @property
    def stale_seconds(self) -> float:
        """Age from which on a reading is not shown."""
        return max(STALE_SECONDS, STALE_CYCLES * self.period)


def enforcement(mode: str, *, kubernetes: bool, agent: bool) -> str:
    """
    What enforces promises on a node of that mode; empty: nobody said.

    Labels of a card must not change while it is watched: this is known before anybody is promised anything.
    Where no mode is named, the library is what an agent of ours and `gpushare run` enforce with.
    """
    if mode:
        return _ENFORCED.get(mode, "none")
    return "library" if agent or not kubernetes else ""


def groups(text: str) -> frozenset[str]:
    """Names of groups, or all: pcie,gpm."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := sorted(names - {*GROUPS, "all"}):
        raise ValueError(f"{unknown[0][:40]!r} is not a group of metrics: use {', '.join(GROUPS)} or all")
    return frozenset(GROUPS if "all" in names else names)


def seconds(text: str) -> float:
    """A duration: 2s, 500ms, 1m, or plain seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a duration: use for example 2s or 500ms")
    return float(found[1]) * _SECONDS[found[2]]


def cycle_seconds(text: str) -> float:
    """A duration that a cycle may have."""
    found = seconds(text)
    if not SHORTEST_CYCLE <= found <= LONGEST_CYCLE:
        raise ValueError(f"{text[:40]!r} is out of range: a cycle must take 100ms to 1m")
    return found


def address(text: str) -> tuple[str, int]:
    """Host and port: 0.0.0.0:9445, [::]:9445, :9445 or 9445."""
    found = _LISTEN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:60]!r} is not an address: use for example 0.0.0.0:9445, [::]:9445 or :9445")
    port = int(found[2])
    if port > 0xFFFF:  # noqa: PLR2004 (16 bits)
        raise ValueError(f"{port} is not a port: use 0 (any free port) to 65535")
    return (found[1] or "0.0.0.0").strip("[]"), port  # noqa: S104 (as above)


def node_name(text: str) -> str:
    """A name that can stand in a label."""
    name = text.strip()
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise ValueError(f"{name[:40]!r} is not a node name: use 1 to {_MAX_NAME} printable characters")
    return name
