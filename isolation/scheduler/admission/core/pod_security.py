# SPDX-License-Identifier: Apache-2.0
"""
Pod security for pods with GPU shares: what would take a pod out of its promise is refused, with what to change.

The tables come first: host paths, environment variables, capabilities and annotations by which a container reaches
other tenants' cards. They are read here in Python and by `cel` for the API server's own policies: what one of the two
allows is a way past the other one. A path must be plain, without `//`, `.` and `..`: CEL cannot clean one, and a path
that two readers understand differently passes one of them. Amounts are `request_of`'s business. All containers count,
also those without cards: they share the pod's volumes and its cards' processes. Knows no cluster. What it cannot see
(the image's own variables, `envFrom`, a volume's content) is overridden by the node agent's delivery, or is the threat
model's business.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import At, show
from isolation.contract.names import (
    ALLOCATION,
    CDI_DIR,
    DEFAULT_SCHEDULER,
    IN_CONTAINER,
    PRELOAD,
    RESERVATION,
    RESIZE,
    RESIZE_STATUS,
    RUN_DIR,
    SHARED,
    TRUST_GROUP,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from isolation.contract.names import Dialect

KINDS: Final = ("initContainers", "containers", "ephemeralContainers")
# Reading more of one pod would delay the admission of all others.
MAX_BYTES: Final = 1 << 20
MAX_CONTAINERS: Final = 256
MAX_TERMS: Final = 64
"""Alternatives of node affinity: the patch adds to each."""
MAX_ANNOTATIONS: Final = 256
"""On a pod with shares: the API server walks over them at each of its updates."""
MAX_PROBLEMS: Final = 8
_KNOWN_RUNTIMES: Final = frozenset({"", "runc", "crun"})

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
SECCOMP: Final = "RuntimeDefault"
"""Set where a pod names no seccomp profile: without one, a program in a user namespace may mount over our files."""
UNCONFINED: Final = "Unconfined"
"""Refused by policy alone: only there the labels of the namespace are seen."""
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


def match_touching(trees: Iterable[str]) -> str:
    """A regular expression for plain paths that are one of the trees, lie inside one, or contain one."""
    roots = [tree.strip("/") for tree in _aliases(trees)]
    above = {"/".join(steps[:n]) for steps in (root.split("/") for root in roots) for n in range(len(steps))}
    # The aliases themselves are links: whoever mounts over one, mounts over the other.
    choices = sorted(re.escape(path) for path in above) + [f"{re.escape(root)}(/.*)?" for root in sorted(roots)]
    return f"(?s)/?({'|'.join(choices)})/?"


def match_inside(trees: Iterable[str]) -> str:
    """A regular expression for plain paths that are one of the trees or lie inside one."""
    return f"(?s)/?({'|'.join(re.escape(tree.strip('/')) for tree in sorted(trees))})(/.*)?"


HOST_PATHS: Final = match_touching(HOST_TREES)
HOST_PATHS_HARMLESS: Final = match_inside(HOST_HARMLESS)
OWN_PATHS: Final = match_touching(OWN_TREES)
_CAPABILITY: Final = re.compile(CAPABILITY)
_UNPLAIN, _HOST, _HARMLESS, _OWN = (re.compile(p) for p in (UNPLAIN, HOST_PATHS, HOST_PATHS_HARMLESS, OWN_PATHS))


def is_unplain(path: str) -> bool:
    """Whether a path has steps that need cleaning."""
    return _UNPLAIN.fullmatch(path) is not None


def is_forbidden_host_path(path: str) -> bool:
    """Whether a plain path of the host leads to devices, other containers or our files."""
    return _HOST.fullmatch(path) is not None and _HARMLESS.fullmatch(path) is None


def covers_own_files(path: str) -> bool:
    """Whether something mounted at a plain path of the container could cover or move our files."""
    return _OWN.fullmatch(path) is not None


def promise_env(dialect: Dialect) -> tuple[str, ...]:
    """The variables that tell the container its promise, beside those of `ENV_PREFIXES`."""
    return (dialect.env_visible, dialect.env_container_memory, dialect.env_card_memory)


def is_forbidden_env(name: str, dialect: Dialect) -> bool:
    """Whether a variable is not the pod's to set."""
    return (name.startswith(ENV_PREFIXES) or name in promise_env(dialect)) and name not in ENV_HARMLESS


def is_forbidden_capability(name: str) -> bool:
    """Whether a capability is not the pod's to add, in either spelling that runtimes take."""
    return _CAPABILITY.fullmatch(name) is None or name.upper().replace("CAP_", "") in CAPABILITIES


def record_annotations(dialect: Dialect) -> tuple[str, ...]:
    """Annotations with the allocation: the scheduler writes them, with the binding or a resize."""
    return (ALLOCATION, dialect.allocation_annotation, RESERVATION, RESIZE_STATUS)


def asks_for_shares(spec: At, dialect: Dialect) -> bool:
    """Whether a container names one of the shared resources, with whatever amount."""
    return any(
        part[dialect.memory] or part[dialect.compute]
        for resources in _resources(spec)
        for part in (resources["limits"], resources["requests"])
    )


def _resources(spec: At) -> Iterator[At]:
    """What the pod and its containers ask for; fast, since a pod may have any number of containers."""
    yield spec["resources"]
    for kind in KINDS[:2]:
        listed = spec[kind]
        if not isinstance(listed.value, list):
            listed.items()  # absent, or an error
            continue
        for i, value in enumerate(listed.value):
            if not isinstance(value, dict) or value.get("resources") is not None:
                yield At(value, (*listed.path, i))["resources"]


def find_forged(metadata: At, dialect: Dialect, group: str = "", *, asks: bool) -> Iterator[str]:
    """Records and labels that only gpushare writes, in a new object; `group`: its trust group, if it is in one."""
    annotations, label = metadata["annotations"], metadata["labels"][SHARED]
    for key in record_annotations(dialect):
        if annotations[key]:
            yield f"annotation {key} is an allocation record, which only the scheduler writes; remove it"
    if annotations[TRUST_GROUP] and annotations[TRUST_GROUP].value != group:
        yield f"annotation {TRUST_GROUP} is the operator's word (gpushare scheduler --trust-group); remove it"
    if annotations[RESIZE]:
        yield f"annotation {RESIZE} is for running pods; remove it, and request the amount"
    if label and not asks:
        yield f"label {SHARED} is set on a pod that does not request {dialect.memory}; remove it"
    elif label and label.text() != "true":
        yield f'label {SHARED} is {show(label.text())}; remove it: admission sets it to "true"'


def explain_too_large(spec: At, size: int) -> str | None:
    """Why the pod is too large to be read further, or None; `size` is the whole review's, in bytes."""
    if size > MAX_BYTES:
        return f"the object has {size} bytes; with GPU shares, at most {MAX_BYTES} are accepted"
    containers = sum(len(spec[kind].items()) for kind in KINDS)
    if containers > MAX_CONTAINERS:
        return f"the pod has {containers} containers; with GPU shares, at most {MAX_CONTAINERS} are accepted"
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = len(required["nodeSelectorTerms"].items())
    if terms > MAX_TERMS:
        return f"the pod has {terms} node selector terms; with GPU shares, at most {MAX_TERMS} are accepted"
    return None


def explain_too_many_annotations(annotations: At, before: At | None = None) -> str | None:
    """Why a pod with shares has too many annotations, or None; an update that adds none passes."""
    count = len(annotations.mapping())
    if count <= MAX_ANNOTATIONS or (before is not None and count <= len(before.mapping())):
        return None
    return f"the pod has {count} annotations; with GPU shares, at most {MAX_ANNOTATIONS} are accepted"


def find_pod_problems(metadata: At, spec: At, schedulers: frozenset[str], dialect: Dialect) -> Iterator[str]:
    """Problems of a pod that requests shares, its containers included."""
    if spec["nodeName"].text():
        yield f"nodeName {show(spec['nodeName'].text())} is set; remove it: the scheduler chooses node and card"
    scheduler = spec["schedulerName"].text()
    if scheduler and scheduler not in schedulers | {DEFAULT_SCHEDULER}:
        yield (
            f"schedulerName {show(scheduler)} cannot place GPU shares; remove it, "
            f"or use {' or '.join(sorted(schedulers))}"
        )
    if spec["hostPID"].flag():
        yield "hostPID exposes the processes of all tenants; remove it"
    if much := explain_too_many_annotations(metadata["annotations"]):
        yield much
    else:
        yield from find_runtime_annotations(metadata["annotations"])
    for volume in spec["volumes"].items():
        yield from _volume(volume)
    for kind in KINDS:
        for container in spec[kind].items():
            yield from find_container_problems(container, dialect)


def find_runtime_annotations(annotations: At, before: Mapping[str, object] = MappingProxyType({})) -> Iterator[str]:
    """New annotations that request devices past the kubelet: a container runtime reads them at the start."""
    for key, at in annotations.fields():
        if key.startswith(ANNOTATION_PREFIXES) and at.value != before.get(key):
            yield f"annotation {show(key)} requests devices from the container runtime; remove it"


def find_container_problems(container: At, dialect: Dialect) -> Iterator[str]:
    """Problems of one container of such a pod, of whichever kind."""
    where = f"container {show(container['name'].text())}"
    security = container["securityContext"]
    if security["privileged"].flag():
        yield f"{where} is privileged and can access every card of the node; remove privileged"
    for item in security["capabilities"]["add"].items():
        if is_forbidden_capability(item.text()):
            yield f"{where} adds capability {show(item.text())}, which gives access to other tenants' cards; remove it"
    for item in container["env"].items():
        name = item["name"].text()
        if is_forbidden_env(name, dialect):
            yield f"{where} sets {show(name)}, which would select cards or libraries; remove it"
    for item in container["envFrom"].items():
        prefix = item["prefix"].text()
        if prefix.startswith(ENV_PREFIXES):
            yield f"{where} sets variables {show(prefix)}..., which would select cards or libraries; change the prefix"
    yield from _mounts(where, container)


def _volume(volume: At) -> Iterator[str]:
    if not volume["hostPath"]:
        return
    where, path = f"volume {show(volume['name'].text())}", volume["hostPath"]["path"].text()
    if is_unplain(path):
        yield f"{where}: hostPath {show(path)} contains //, . or ..; use a plain path"
    elif is_forbidden_host_path(path):
        what = "devices, the container runtime or files of the host system"
        yield f"{where}: hostPath {show(path)} exposes {what}; mount another directory"


def _mounts(where: str, container: At) -> Iterator[str]:
    mounts = [("mounts", mount["mountPath"].text()) for mount in container["volumeMounts"].items()]
    mounts += [("has a device at", device["devicePath"].text()) for device in container["volumeDevices"].items()]
    if message := container["terminationMessagePath"].text():
        # The kubelet mounts a file there that the tenant may write.
        mounts.append(("has its terminationMessagePath at", message))
    for verb, path in mounts:
        if is_unplain(path):
            yield f"{where} {verb} {show(path)}, which contains //, . or ..; use a plain path"
        elif covers_own_files(path):
            yield f"{where} {verb} {show(path)}, which covers files of gpushare; use another path, such as /run/app"


def find_warnings(spec: At, dialect: Dialect) -> Iterator[str]:
    """Warnings: what may not work, or not mean what it seems to."""
    amounts = (part for resources in _resources(spec) for part in (resources["limits"], resources["requests"]))
    if any(part[dialect.card_count] for part in amounts):
        yield f"{dialect.card_count} has no effect as a container resource; set it as a label of the pod"
    runtime = spec["runtimeClassName"].text()
    if runtime not in _KNOWN_RUNTIMES:
        yield f"runtimeClassName {show(runtime)}: GPU shares are isolated only with runc and crun"
