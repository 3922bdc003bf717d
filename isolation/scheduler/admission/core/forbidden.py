# SPDX-License-Identifier: Apache-2.0
"""
What a pod that asks for shares may not bring along: paths, variables, capabilities, annotations.

One closed table for both judges, the webhook and the API server's own policies (CEL): a path is
judged by the same regular expressions in both. Decides nothing about amounts of memory.

A path must be written plainly, without `//`, `.` and `..`: the policies cannot clean one, and
a path that two readers understand differently is a way past one of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from isolation.contract.names import CDI_DIR, IN_CONTAINER, PRELOAD, RUN_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.names import Dialect

ENV_PREFIXES: Final = ("GPUSHARE_", "LD_", "NVIDIA_")
"""Variables that choose devices or libraries. What the image sets cannot be seen: CDI overrides it."""
ENV_HARMLESS: Final = (
    # Libraries are preloaded by absolute path; images of CUDA set this one themselves.
    "LD_LIBRARY_PATH",
    # What of the driver is used and which versions are demanded: not which cards.
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_REQUIRE_CUDA",
    "NVIDIA_TF32_OVERRIDE",
)
CAPABILITIES: Final = ("ALL", "BPF", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO")
"""Each of them reaches other tenants' cards, or takes our files out of the container."""
CAPABILITY: Final = r"[A-Za-z0-9_]*"
"""Names that everybody raises alike: runtimes make `I` of a dotless i too, the policies of ASCII alone."""
ANNOTATION_PREFIXES: Final = (
    *("cdi.k8s.io/", "io.kubernetes.cri-o.Devices", "nvidia.cdi.k8s.io/"),
    # Of NRI's device injector, both its domains; also bare, without `/pod` or `/container.NAME`.
    *("cdi-devices.noderesource.dev", "devices.noderesource.dev", "mounts.noderesource.dev"),
    *("cdi-devices.nri.io", "devices.nri.io", "mounts.nri.io"),
)
"""Requests for devices past the kubelet, for runtimes that listen to them."""

_RUN_ALIAS: Final = "/var/run"  # a link to /run wherever systemd runs
HOST_TREES: Final = (
    # /sys: a card's registers (`resource0`), its removal and reset, and what the kernel runs on events.
    *("/dev", "/proc", "/sys"),
    *(RUN_DIR, CDI_DIR, "/run/nvidia"),
    *("/var/lib/kubelet", "/var/spool"),
    # By their names the exporter tells pods apart, and the kubelet follows links there as root.
    *("/var/log/containers", "/var/log/pods"),
    *("/run/containerd", "/run/crio", "/run/docker", "/run/docker.sock", "/run/k3s"),
    *("/run/buildkit", "/run/cri-dockerd.sock", "/run/k0s", "/run/podman"),
    *("/run/dbus", "/run/modprobe.d", "/run/sysctl.d", "/run/systemd", "/run/tmpfiles.d", "/run/udev", "/run/user"),
    *("/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/rancher"),
    *("/snap", "/var/lib/k0s", "/var/snap"),
    # Run as root by the container runtime (CNI), the kubelet or the next boot.
    *("/home/kubernetes", "/opt/cni", "/opt/containerd", "/var/lib/cloud"),
    # Programs of the host, and what tells them what to do: root in a container would become root of the node.
    *("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/root", "/sbin", "/usr"),
)
"""Host folders from which a container reaches devices, other containers, the host's programs or our files."""
HOST_HARMLESS: Final = (
    *("/dev/hugepages", "/dev/infiniband", "/dev/shm"),  # noqa: S108 (a table of paths, nothing is written there)
    *("/etc/localtime", "/etc/timezone", "/usr/share/zoneinfo"),
)
OWN_TREES: Final = (PRELOAD, IN_CONTAINER, "/run/nvidia-container-devices")
"""What the node agent puts into a container, and where a mount's name chooses cards for NVIDIA's toolkit."""

UNPLAIN: Final = r"(?s).*(//|(^|/)\.\.?(/|$)).*"
"""A path with an empty, `.` or `..` step."""


def _aliases(trees: Iterable[str]) -> list[str]:
    """Each tree, and the other name of what lies under /run or /var/run."""
    both: list[str] = []
    for tree in trees:
        both.append(tree)
        if tree.startswith("/run/"):
            both.append(_RUN_ALIAS + tree.removeprefix("/run"))
        elif tree.startswith(f"{_RUN_ALIAS}/"):
            both.append(tree.removeprefix("/var"))
    return both


def touching(trees: Iterable[str]) -> str:
    """A regular expression for plain paths that are one of the trees, lie inside one, or contain one."""
    roots = [tree.strip("/") for tree in _aliases(trees)]
    above = {"/".join(steps[:n]) for steps in (root.split("/") for root in roots) for n in range(len(steps))}
    # The aliases themselves are links: whoever mounts over one, mounts over the other.
    choices = sorted(re.escape(path) for path in above) + [f"{re.escape(root)}(/.*)?" for root in sorted(roots)]
    return f"(?s)/?({'|'.join(choices)})/?"


def inside(trees: Iterable[str]) -> str:
    """A regular expression for plain paths that are one of the trees or lie inside one."""
    return f"(?s)/?({'|'.join(re.escape(tree.strip('/')) for tree in sorted(trees))})(/.*)?"


HOST_PATHS: Final = touching(HOST_TREES)
HOST_PATHS_HARMLESS: Final = inside(HOST_HARMLESS)
OWN_PATHS: Final = touching(OWN_TREES)
_CAPABILITY: Final = re.compile(CAPABILITY)
_UNPLAIN, _HOST, _HARMLESS, _OWN = (re.compile(p) for p in (UNPLAIN, HOST_PATHS, HOST_PATHS_HARMLESS, OWN_PATHS))


def unplain(path: str) -> bool:
    """Whether a path has steps that need cleaning."""
    return _UNPLAIN.fullmatch(path) is not None


def forbidden_on_host(path: str) -> bool:
    """Whether a plain path of the host leads to devices, other containers or our files."""
    return _HOST.fullmatch(path) is not None and _HARMLESS.fullmatch(path) is None


def ours_in_container(path: str) -> bool:
    """Whether something mounted at a plain path of the container could cover or move our files."""
    return _OWN.fullmatch(path) is not None


def own_env(dialect: Dialect) -> tuple[str, ...]:
    """The variables that tell the container its promise, beside those of `ENV_PREFIXES`."""
    return (dialect.env_visible, dialect.env_container_memory, dialect.env_card_memory)


def forbidden_env(name: str, dialect: Dialect) -> bool:
    """Whether a variable is not the pod's to set."""
    return (name.startswith(ENV_PREFIXES) or name in own_env(dialect)) and name not in ENV_HARMLESS


def forbidden_capability(name: str) -> bool:
    """Whether a capability is not the pod's to add, in either spelling that runtimes take."""
    return _CAPABILITY.fullmatch(name) is None or name.upper().replace("CAP_", "") in CAPABILITIES
