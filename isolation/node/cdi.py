# SPDX-License-Identifier: Apache-2.0
"""
What goes into a container, and the CDI spec of this node's cards.

Pure. Our own files and variables are the runtime's adjustment of each container; a card's device nodes and the driver
come by a CDI device for each card, which the runtime knows how to make. Container Device Interface specification 0.5.0
and 0.6.0: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. The driver's own libraries come
from the vendor's spec (`nvidia-ctk cdi generate`), whose common edits are taken over; its devices are not, for which
cards a container gets is for the record to say.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import CARD_KIND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VERSION: Final = (0, 5, 0)
"""Device names may begin with a digit since then."""
_MAX_VERSION: Final = (1, 0, 0)
"""A runtime refuses a spec of a version that it does not know; what is taken over is in every version up to this."""
_VERSION: Final = re.compile(r"v?([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})")
_LISTS: Final = ("deviceNodes", "hooks", "mounts")
"""Of the vendor's edits; its environment says what our own says otherwise."""
_OTHERS: Final = ("additionalGids",)
_FIELDS: Final = {
    "prestart": "prestart",
    "createRuntime": "create_runtime",
    "createContainer": "create_container",
    "startContainer": "start_container",
    "poststart": "poststart",
    "poststop": "poststop",
}
"""Fields of NRI's Hooks by CDI's hookName."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path in a container."""

    host: str
    container: str
    writable: bool = False
    replaces: bool = False
    """Whether every container has a mount there already, which goes."""

    @property
    def options(self) -> list[str]:
        """As a runtime takes them; private, or a mount of the tenant's on top of it could appear on the host."""
        return ["rw" if self.writable else "ro", "nosuid", "nodev", "rprivate", "bind"]


@dataclass(frozen=True, slots=True)
class Injected:
    """What CDI devices stand for, in the words of NRI (api.proto): for a runtime that ignores the names."""

    devices: tuple[dict[str, Any], ...] = ()
    """LinuxDevice."""
    mounts: tuple[dict[str, Any], ...] = ()
    """Mount."""
    hooks: tuple[tuple[str, dict[str, Any]], ...] = ()
    """The field of Hooks, and a Hook."""

    def __add__(self, other: Injected) -> Injected:
        return Injected(self.devices + other.devices, self.mounts + other.mounts, self.hooks + other.hooks)


@dataclass(frozen=True, slots=True)
class Edits:
    """What goes into a container."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    """CDI devices, by full name."""
    injected: Injected = Injected()
    """The same devices, where the runtime does not look names up."""

    @property
    def guarded(self) -> tuple[Mount, ...]:
        """
        Mounts that the guard checks and that nothing may hide.

        Not those in the place of the container's own, below its /dev, which is a file system of its own: the guard
        binds on the container's root only, and they limit nothing.
        """
        return tuple(one for one in self.mounts if not one.replaces)

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.env | other.env,
            self.mounts + other.mounts,
            self.devices + other.devices,
            self.injected + other.injected,
        )


@dataclass(frozen=True, slots=True)
class Vendor:
    """What the vendor's spec gives every container."""

    version: tuple[int, int, int]
    edits: dict[str, Any]


def vendor_of(document: object, kind: str) -> Vendor | None:
    """The common edits of a spec; None where it is no spec of that kind."""
    if not isinstance(document, dict) or document.get("kind") != kind:
        return None
    match = _VERSION.fullmatch(str(document.get("cdiVersion")))
    edits = document.get("containerEdits")
    if match is None or not isinstance(edits, dict):
        return None
    taken = {key: edits[key] for key in (*_LISTS, *_OTHERS) if isinstance(edits.get(key), list)}
    return Vendor((int(match[1]), int(match[2]), int(match[3])), taken)


def cards_spec(nodes: Mapping[str, Sequence[str]], common: Sequence[str], vendor: Vendor) -> str:
    """The spec of this node's cards, as a file's text: device nodes by UUID, and what every container gets once."""
    edits = dict(vendor.edits)
    named = {node.get("path") for node in edits.get("deviceNodes", ()) if isinstance(node, dict)}
    edits["deviceNodes"] = [
        *edits.get("deviceNodes", ()),
        *({"path": path} for path in common if path not in named),
    ]
    document = {
        "cdiVersion": ".".join(map(str, min(max(VERSION, vendor.version), _MAX_VERSION))),
        "kind": CARD_KIND,
        "devices": [
            {"name": uuid, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}
            for uuid, paths in sorted(nodes.items())
        ],
        "containerEdits": {key: value for key, value in edits.items() if value},
    }
    return json.dumps(document, indent=1) + "\n"


def resolve(spec: str, names: Sequence[str], numbers: Callable[[str], tuple[int, int]]) -> Injected:
    """
    What devices of a spec of ours stand for; each host path once.

    `numbers`: major and minor of a character device by its path on the host; its OSError is passed on. Groups
    (additionalGids) are left out: NRI has no word for them, and NVIDIA's device nodes may be used by everybody.
    """
    document = json.loads(spec)
    wanted = {name.partition("=")[2] for name in names}
    edits = [one["containerEdits"] for one in document["devices"] if one["name"] in wanted]
    edits.append(document["containerEdits"])
    devices, mounts, hooks = {}, [], []
    for edit in edits:
        for node in edit.get("deviceNodes", ()):
            major, minor = numbers(node.get("hostPath") or node["path"])
            devices[node["path"]] = {"path": node["path"], "type": "c", "major": major, "minor": minor}
        mounts += [
            {
                "destination": mount["containerPath"],
                "type": mount.get("type") or "bind",
                "source": mount["hostPath"],
                "options": mount.get("options") or ["ro", "nosuid", "nodev", "rprivate", "bind"],
            }
            for mount in edit.get("mounts", ())
        ]
        hooks += [(_FIELDS[hook["hookName"]], _hook(hook)) for hook in edit.get("hooks", ())]
    return Injected(tuple(devices.values()), tuple(mounts), tuple(hooks))


def _hook(hook: Mapping[str, Any]) -> dict[str, Any]:
    made = {"path": hook["path"], "args": hook.get("args") or [], "env": hook.get("env") or []}
    return made | ({"timeout": {"value": hook["timeout"]}} if hook.get("timeout") else {})
