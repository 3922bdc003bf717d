# SPDX-License-Identifier: Apache-2.0
"""
What was found on one machine: values only, as read, with "not there" and "cannot be read" kept apart.

Knows where things are on a Linux node; decides nothing about what is good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.doctor.bounded_files import Folder, Missing, Text, Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.model import Card
    from isolation.lib.native import Check

CONTAINERD: Final = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
)
"""containerd's own place, and where k3s and RKE2 keep theirs; the first one present counts."""
CONTAINERD_SOCKETS: Final = ("/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock")
CRIO: Final = "/etc/crio/crio.conf"
CRIO_PARTS: Final = "/etc/crio/crio.conf.d"
CRIO_SOCKET: Final = "/run/crio/crio.sock"
NVIDIA_RUNTIME: Final = "/etc/nvidia-container-runtime/config.toml"
KUBELET_CONFIG: Final = "/var/lib/kubelet/config.yaml"
"""Where kubeadm puts it; a running kubelet's own command line wins."""
PLUGINS: Final = "device-plugins"
CHECKPOINT: Final = f"{PLUGINS}/kubelet_internal_checkpoint"
POD_RESOURCES: Final = "pod-resources/kubelet.sock"
CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
NRI_PLUGINS: Final = "/opt/nri/plugins"
"""Programs that containerd and CRI-O start as plugins, in the order of their names."""
KERNEL: Final = "/proc/sys/kernel/osrelease"
PTRACE: Final = "/proc/sys/kernel/yama/ptrace_scope"
SELINUX: Final = "/sys/fs/selinux/enforce"
UNIFIED: Final = "/sys/fs/cgroup/cgroup.controllers"


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What NVML tells; `why` where it tells nothing."""

    cards: tuple[Card, ...] = ()
    driver: str | None = None
    simulated: bool = False
    divided: tuple[int, ...] = ()
    """Indices of cards with MIG switched on."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The container runtimes' configuration."""

    containerd: Text = Missing()  # noqa: RUF009 (frozen)
    containerd_parts: tuple[Text, ...] = ()
    """Files that it imports, in order: a later one wins."""
    containerd_version: str | None = None
    crio: tuple[Text, ...] = ()
    crio_version: str | None = None
    sockets: frozenset[str] = frozenset()
    """Those that are there."""
    nvidia: Text = Missing()  # noqa: RUF009 (frozen)
    nri_socket: bool | None = None
    """Whether plugins can connect; None: cannot tell."""
    nri_plugins: Folder | Missing | Unreadable = Missing()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The kubelet of this machine."""

    running: tuple[str, ...] | None = None
    """Its command line; empty: none runs; None: cannot tell."""
    config: Text = Missing()  # noqa: RUF009 (frozen)
    plugins: Folder | Missing | Unreadable = Missing()  # noqa: RUF009 (frozen)
    pod_resources: bool | None = None
    checkpoint: Text = Missing()  # noqa: RUF009 (frozen)
    """Which device IDs it has given to containers."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Where the agent's files would be."""

    path: str
    kind: str | None
    """Name of the file system; None: unknown."""
    free_bytes: int | None
    writable: bool
    shared: bool | None = None
    """Whether what is mounted below it is seen by others; None: cannot tell."""
    runs_programs: bool = True
    """Whether it is mounted without noexec."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """One look at a machine."""

    cards: CardFacts
    runtime: Runtime = Runtime()
    kubelet: Kubelet = Kubelet()
    cdi: Mapping[str, Folder | Missing | Unreadable] = field(default_factory=lambda: MappingProxyType({}))
    run_dir: Disk | None = None
    library: tuple[Check, ...] | str = ""
    """The self-check, or why there is none."""
    unified: bool | None = None
    """Control groups of version 2."""
    kernel: Text = Missing()  # noqa: RUF009 (frozen)
    """Its release."""
    selinux: Text = Missing()  # noqa: RUF009 (frozen)
    ptrace: Text = Missing()  # noqa: RUF009 (frozen)
    mps: tuple[str, ...] | None = None
    """MPS processes; None: cannot tell."""
