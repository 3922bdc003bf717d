# SPDX-License-Identifier: Apache-2.0
"""
What a container runtime makes of CDI names: the specs of a folder applied to a container.

    found = resolve(folder, ["gpushare.dev/gate=closed"])     # Unresolvable where a name is not known
    env, mounts = found.over(tenants_env, tenants_mounts)   # CDI comes last and wins

Keeps the rules of CDI 0.6 as far as they are used here: JSON files, a device's and its spec's own edits; a
mount whose source is missing becomes a directory, as containerd makes one (`missing` tells which).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The name of a device and of a kind, by CDI's own grammar.
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_KIND = re.compile(r"[a-z0-9A-Z.-]+/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")


class UnresolvableError(Exception):
    """The runtime refuses to create the container; the kubelet tries again later."""


@dataclass
class Edits:
    """What the named devices put into a container."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    """Host path by container path."""
    devices: list[str] = field(default_factory=list)
    """Paths of device nodes in the container."""
    hooks: list[tuple[str, ...]] = field(default_factory=list)
    """Command lines at createRuntime."""

    @property
    def missing(self) -> list[str]:
        """Sources that are not there: the runtime would make a directory and go on."""
        return [source for source in self.mounts.values() if not Path(source).exists()]

    def over(self, env: dict[str, str], mounts: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Environment and mounts of the container: the tenant's, with ours over them."""
        return env | self.env, mounts | self.mounts


def resolve(folder: Path, names: list[str]) -> Edits:
    """The edits of these devices, in order."""
    known: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            spec = json.loads(file.read_text())
            kind, devices = spec["kind"], spec["devices"]
        except (OSError, ValueError, KeyError):
            continue  # a file that cannot be read is left out, as the CDI library does
        if not _KIND.fullmatch(kind) or not spec.get("cdiVersion"):
            continue
        for device in devices:
            if _DEVICE.fullmatch(device["name"]):
                known[f"{kind}={device['name']}"] = (device.get("containerEdits") or {}, spec.get("containerEdits", {}))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnresolvableError(f"failed to inject CDI devices: unresolvable CDI devices {', '.join(unknown)}")
    made = Edits()
    shared: list[dict[str, Any]] = []
    for name in names:
        own, whole = known[name]
        _apply(own, made)
        if whole not in shared:
            shared.append(whole)
    for whole in shared:
        _apply(whole, made)
    return made


def _apply(edits: dict[str, Any], made: Edits) -> None:
    for text in edits.get("env", ()):
        key, _, value = text.partition("=")
        made.env[key] = value
    for mount in edits.get("mounts", ()):
        made.mounts[mount["containerPath"]] = mount["hostPath"]
    made.devices += [device["path"] for device in edits.get("deviceNodes", ())]
    made.hooks += [tuple(hook["args"]) for hook in edits.get("hooks", ()) if hook["hookName"] == "createRuntime"]
