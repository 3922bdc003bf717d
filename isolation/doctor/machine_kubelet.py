"""
Findings about the kubelet of this machine: gates, managers, sockets, other device plugins.

Pure. A machine without a kubelet is not worse for it: then nothing is said of one.

Sources: Kubernetes' feature gate reference (DevicePluginCDIDevices: on since 1.29; KubeletPodResourcesGet:
on since 1.34, locked in 1.36), kubelet.config.k8s.io/v1beta1 KubeletConfiguration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from isolation.doctor.finding import Finding, named, ok, problem, unknown, warning
from isolation.doctor.peek import Folder, Missing, Unreadable

if TYPE_CHECKING:
    from isolation.doctor.machine_facts import Kubelet

_CDI_GATE: Final = "DevicePluginCDIDevices"
_GET_GATE: Final = "KubeletPodResourcesGet"
_MOST_DEPTH: Final = 50
_OURS: Final = "gpushare"


def look(kubelet: Kubelet, *, whole_cards: bool = False) -> list[Finding]:
    """Everything about the kubelet; `whole_cards`: this node is meant for the vendor's plugin."""
    if isinstance(kubelet.config, Missing) and isinstance(kubelet.plugins, Missing) and not kubelet.running:
        return []
    return [*_configured(kubelet), _sockets(kubelet), _other_plugins(kubelet, whole_cards=whole_cards)]


def flags_of(words: tuple[str, ...]) -> dict[str, str]:
    """The flags of a command line: `--name=value` and `--name value`."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        after = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
        found[name] = value if equals else after
    return found


def _configured(kubelet: Kubelet) -> list[Finding]:
    check, where = "machine.kubelet", "run as root on the node; `kubectl get --raw /api/v1/nodes/NAME/proxy/configz`"
    settings = _settings(kubelet)
    if isinstance(settings, str):
        return [unknown(check, f"the kubelet's configuration {settings}", where)]
    return [_gates(settings), _managers(settings), _driver(settings)]


def _settings(kubelet: Kubelet) -> dict[str, Any] | str:
    """File and command line together, flags winning; or why they cannot be told."""
    if isinstance(kubelet.config, Unreadable):
        return kubelet.config.why
    table: Any = {}
    if isinstance(kubelet.config, str):
        if _aliased(kubelet.config):
            return "uses YAML anchors: not read"
        try:
            table = yaml.safe_load(kubelet.config) or {}
        except (yaml.YAMLError, RecursionError, ValueError) as exc:
            return f"is no YAML ({type(exc).__name__})"
        if not isinstance(table, dict):
            return "is no table"
    flags = flags_of(kubelet.running or ())
    names = {
        "topology-manager-policy": "topologyManagerPolicy",
        "cpu-manager-policy": "cpuManagerPolicy",
        "cgroup-driver": "cgroupDriver",
    }
    merged = dict(table) | {names[flag]: value for flag, value in flags.items() if flag in names}
    gates = merged.get("featureGates")
    given = {
        key: value == "true" for key, _, value in (p.partition("=") for p in flags.get("feature-gates", "").split(","))
    }
    merged["featureGates"] = (gates if isinstance(gates, dict) else {}) | given
    return merged


def _word(settings: dict[str, Any], key: str, default: str) -> str:
    """A setting as text, whatever stands there."""
    return str(settings.get(key) or default)[:100]


def _aliased(text: str) -> bool:
    """Whether it may blow up when read: a few anchors can stand for gigabytes."""
    try:
        return any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError):
        return False  # said when it is read


def _gates(settings: dict[str, Any]) -> Finding:
    check, gates = "machine.gates", settings["featureGates"]
    if gates.get(_CDI_GATE) is False:
        return problem(check, f"{_CDI_GATE} is switched off: no container gets its card", "remove that feature gate")
    if gates.get(_GET_GATE) is False:
        told = f"{_GET_GATE} is switched off: the agent cannot tell which pod is being admitted"
        return problem(check, told, "remove that feature gate")
    if gates.get(_GET_GATE) is True:
        return ok(check, f"{_GET_GATE} is switched on")
    return ok(check, f"{_CDI_GATE} and {_GET_GATE} are as the kubelet has them (on since 1.29 and 1.34)")


def _managers(settings: dict[str, Any]) -> Finding:
    check = "machine.managers"
    topology, cpu = _word(settings, "topologyManagerPolicy", "none"), _word(settings, "cpuManagerPolicy", "none")
    if topology in {"restricted", "single-numa-node"}:
        return warning(
            check,
            f"Topology Manager {topology}: a pod whose CPUs and card cannot be aligned is refused by the kubelet",
            "shares publish no topology, so only other devices decide; use policy best-effort where pods are refused",
        )
    if cpu == "static":
        told = "static CPU manager: changing it on a node in use leaves old assignments"
        return ok(check, f"Topology Manager {topology}; {told}")
    return ok(check, f"Topology Manager {topology}, CPU manager {cpu}")


def _driver(settings: dict[str, Any]) -> Finding:
    check, driver = "machine.cgroup_driver", _word(settings, "cgroupDriver", "cgroupfs")
    if driver not in {"cgroupfs", "systemd"}:
        return unknown(check, f"cgroup driver {driver!r}", "the kubelet knows cgroupfs and systemd")
    return ok(check, f"cgroup driver {driver}")


def _sockets(kubelet: Kubelet) -> Finding:
    check = "machine.kubelet_sockets"
    if isinstance(kubelet.plugins, Unreadable):
        return unknown(check, f"the kubelet's device-plugins folder {kubelet.plugins.why}", "run as root")
    if isinstance(kubelet.plugins, Missing) or "kubelet.sock" not in kubelet.plugins.names:
        return problem(
            check, "no kubelet listens for device plugins", "start the kubelet; --kubelet-dir names its folder"
        )
    if not kubelet.pod_resources:
        fix = "look whether --root-dir of the kubelet is another; give it with --kubelet-dir"
        return problem(check, "the kubelet has no pod-resources socket", fix)
    return ok(check, "device-plugins and pod-resources sockets are there")


def _other_plugins(kubelet: Kubelet, *, whole_cards: bool) -> Finding:
    check = "machine.other_plugins"
    if not isinstance(kubelet.plugins, Folder):
        return unknown(check, "other device plugins cannot be told", "run as root")
    vendors = [name for name in kubelet.plugins.names if name.endswith(".sock") and "nvidia" in name.lower()]
    others = [name for name in kubelet.plugins.names if name.endswith(".sock") and _shares(name)]
    if others:
        told = f"another plugin for shares of cards has its socket here: {named(others)}"
        return problem(check, told, "one owner of shares per node: remove it, or keep our agent off this node")
    if vendors and not whole_cards:
        return warning(
            check,
            f"the vendor's plugin is here ({named(vendors)}): while it offers whole cards our agent offers no shares",
            "keep its DaemonSet off nodes that serve shares (a nodeSelector on their mode label); old sockets may stay",
        )
    return ok(check, "no other plugin offers these cards")


def _shares(name: str) -> bool:
    return ("aliyun" in name or "gpushare" in name) and not name.startswith(_OURS)
