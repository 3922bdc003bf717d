# SPDX-License-Identifier: Apache-2.0
"""
Findings about the kubelet of this machine: gates, managers, sockets, other device plugins, devices it gave away.

Pure. A machine without a kubelet is not worse for it: then nothing is said of one.

Sources: Kubernetes' feature gate reference (DevicePluginCDIDevices: on since 1.29; KubeletPodResourcesGet:
on since 1.34), kubelet.config.k8s.io/v1beta1 KubeletConfiguration, pkg/kubelet/cm/devicemanager/checkpoint.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import yaml

from isolation.contract.names import ACK
from isolation.doctor.bounded_files import Folder, Missing, Unreadable
from isolation.doctor.checks.device_ids import of_another_release
from isolation.doctor.checks.finding import Finding, named, ok, problem, unknown, warning

if TYPE_CHECKING:
    from isolation.doctor.bounded_files import Text
    from isolation.doctor.checks.machine.facts import Kubelet

_CDI_GATE: Final = "DevicePluginCDIDevices"
_GET_GATE: Final = "KubeletPodResourcesGet"
_OURS: Final = "gpushare"


def check_kubelet(kubelet: Kubelet, *, whole_cards: bool = False) -> list[Finding]:
    """Everything about the kubelet; `whole_cards`: this node is meant for the vendor's plugin."""
    if isinstance(kubelet.config, Missing) and isinstance(kubelet.plugins, Missing) and not kubelet.running:
        return []
    return [
        *_check_configuration(kubelet),
        _check_sockets(kubelet),
        _check_other_plugins(kubelet, whole_cards=whole_cards),
        _check_devices(kubelet.checkpoint),
    ]


def parse_flags(words: tuple[str, ...]) -> dict[str, str]:
    """The flags of a command line: `--name=value` and `--name value`."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        after = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
        found[name] = value if equals else after
    return found


def _check_configuration(kubelet: Kubelet) -> list[Finding]:
    check, where = "machine.kubelet", "run as root on the node; or `kubectl get --raw /api/v1/nodes/NAME/proxy/configz`"
    settings = _settings(kubelet)
    if isinstance(settings, str):
        return [unknown(check, f"cannot read the kubelet's configuration: {settings}", where)]
    return [_check_feature_gates(settings), _check_managers(settings), _check_cgroup_driver(settings)]


def _settings(kubelet: Kubelet) -> dict[str, Any] | str:
    """File and command line together, flags winning; or why they cannot be read."""
    if isinstance(kubelet.config, Unreadable):
        return kubelet.config.why
    table: Any = {}
    if isinstance(kubelet.config, str):
        if _aliased(kubelet.config):
            return "YAML anchors are not supported"
        try:
            table = yaml.safe_load(kubelet.config) or {}
        except (yaml.YAMLError, RecursionError, ValueError) as exc:
            return f"invalid YAML ({type(exc).__name__})"
        if not isinstance(table, dict):
            return "not a mapping"
    flags = parse_flags(kubelet.running or ())
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


def _check_feature_gates(settings: dict[str, Any]) -> Finding:
    check, gates = "machine.feature_gates", settings["featureGates"]
    if gates.get(_CDI_GATE) is False:
        return problem(
            check, f"feature gate {_CDI_GATE} is off: no container gets its card", "remove it from featureGates"
        )
    if gates.get(_GET_GATE) is False:
        evidence = f"feature gate {_GET_GATE} is off: the exporter cannot ask which devices single pods have"
        return warning(check, evidence, "remove it from featureGates")
    return ok(check, f"feature gates {_CDI_GATE} and {_GET_GATE} are not off (on by default since 1.29 and 1.34)")


def _check_managers(settings: dict[str, Any]) -> Finding:
    check = "machine.topology_manager"
    topology, cpu = _word(settings, "topologyManagerPolicy", "none"), _word(settings, "cpuManagerPolicy", "none")
    if topology in {"restricted", "single-numa-node"}:
        return warning(
            check,
            f"Topology Manager policy {topology}: the kubelet rejects pods if it cannot align their CPUs and cards",
            "shares publish no topology, so only other devices matter; if pods are rejected, use policy best-effort",
        )
    if cpu == "static":
        evidence = "CPU Manager policy static: changing it on a node in use keeps old assignments"
        return ok(check, f"Topology Manager policy {topology}; {evidence}")
    return ok(check, f"Topology Manager policy {topology}, CPU Manager policy {cpu}")


def _check_cgroup_driver(settings: dict[str, Any]) -> Finding:
    check, driver = "machine.cgroup_driver", _word(settings, "cgroupDriver", "cgroupfs")
    if driver not in {"cgroupfs", "systemd"}:
        return unknown(check, f"unknown cgroup driver {driver!r}", "the kubelet supports cgroupfs and systemd")
    return ok(check, f"cgroup driver {driver}")


def _check_sockets(kubelet: Kubelet) -> Finding:
    check = "machine.kubelet_sockets"
    if isinstance(kubelet.plugins, Unreadable):
        return unknown(
            check, f"cannot read the kubelet's device-plugins directory: {kubelet.plugins.why}", "run as root"
        )
    if isinstance(kubelet.plugins, Missing) or "kubelet.sock" not in kubelet.plugins.names:
        return problem(
            check, "the kubelet has no device-plugins socket", "start the kubelet; set --kubelet-dir to its directory"
        )
    if not kubelet.pod_resources:
        fix = "if the kubelet runs with another --root-dir, set --kubelet-dir to it"
        return problem(check, "the kubelet has no pod-resources socket", fix)
    return ok(check, "device-plugins and pod-resources sockets exist")


def _check_other_plugins(kubelet: Kubelet, *, whole_cards: bool) -> Finding:
    check = "machine.other_plugins"
    if isinstance(kubelet.plugins, Missing):
        fix = "start the kubelet, or set --kubelet-dir if it runs with another --root-dir"
        return unknown(check, "there is no folder of device plugins", fix)
    if not isinstance(kubelet.plugins, Folder):
        return unknown(check, "cannot list other device plugins", "run as root")
    vendors = [name for name in kubelet.plugins.names if name.endswith(".sock") and "nvidia" in name.lower()]
    others = [name for name in kubelet.plugins.names if name.endswith(".sock") and _shares(name)]
    if others:
        evidence = f"another device plugin for shares is installed: {named(others)}"
        return problem(
            check,
            evidence,
            "only one plugin per node may serve shares: remove it, or keep gpushare's agent off this node",
        )
    if vendors and not whole_cards:
        return warning(
            check,
            f"the vendor's plugin is installed ({named(vendors)}): gpushare offers no shares while it offers cards",
            "keep its DaemonSet off nodes that serve shares (nodeSelector on the mode label); old sockets are harmless",
        )
    return ok(check, "no other plugin offers these cards")


def _check_devices(text: Text) -> Finding:
    """Device IDs of an earlier release of the agent name a card: it does not register while containers have any."""
    check = "machine.device_ids"
    if isinstance(text, Missing):
        return ok(check, "the kubelet has given no devices to containers yet")
    try:
        entries = json.loads(text)["Data"]["PodDeviceEntries"] or [] if isinstance(text, str) else None
        mine = [one["DeviceIDs"] for one in entries or () if one["ResourceName"] == ACK.memory]
        ids = sorted(str(one) for by_numa in mine for some in by_numa.values() for one in some)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        entries = None
    if entries is None:
        return unknown(check, "cannot read which devices the kubelet has given to containers", "run as root")
    old = of_another_release(ids)
    if old:
        fix = "drain the node, stop the kubelet, remove device-plugins/kubelet_internal_checkpoint, start the kubelet"
        return problem(check, f"containers have devices of another release of gpushare: {named(old)}", fix)
    return ok(check, f"the kubelet's checkpoint names {len(ids)} of our devices, all of this release")


def _shares(name: str) -> bool:
    return ("aliyun" in name or "gpushare" in name) and not name.startswith(_OURS)
