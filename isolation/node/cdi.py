# SPDX-License-Identifier: Apache-2.0
"""
What a container runtime is told to put into one container: a CDI spec of one device.

Pure. Edits of a CDI spec come after whatever the tenant wrote, so nothing of the tenant's wins against
them; that is why everything goes this way. Container Device Interface specification 0.5.0 and 0.6.0:
https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. The driver's own libraries come
from the vendor's spec (`nvidia-ctk cdi generate`), whose common edits are taken over; its devices are not,
for which cards a container gets is for the record to say.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import CDI_KIND

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = (0, 5, 0)
"""Device names may begin with a digit since then."""
_MOST: Final = (1, 0, 0)
"""A runtime refuses a spec of a version that it does not know; what is taken over is in every version up to this."""
_VERSION: Final = re.compile(r"v?([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})")
_LISTS: Final = ("deviceNodes", "hooks", "mounts")
"""Of the vendor's edits; its environment says what our own says otherwise."""
_OTHERS: Final = ("additionalGids",)


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path in a container."""

    host: str
    container: str
    writable: bool = False

    def record(self) -> dict[str, Any]:
        """As CDI writes it."""
        how = "rw" if self.writable else "ro"
        return {
            "hostPath": self.host,
            "containerPath": self.container,
            "options": [how, "nosuid", "nodev", "bind"],
        }


@dataclass(frozen=True, slots=True)
class Edits:
    """What goes into a container."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[str, ...] = ()
    """Device nodes, by path; the same on host and in the container."""

    def __add__(self, other: Edits) -> Edits:
        return Edits(self.env | other.env, self.mounts + other.mounts, self.nodes + other.nodes)


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


def spec(name: str, edits: Edits, vendor: Vendor | None) -> str:
    """The spec of one device, as a file's text. Ours comes last, so it wins."""
    common = dict(vendor.edits) if vendor else {}
    nodes = _once([*common.get("deviceNodes", ()), *({"path": path} for path in edits.nodes)], "path")
    mounts = [*common.get("mounts", ()), *(mount.record() for mount in edits.mounts)]
    made: dict[str, Any] = common | {
        "env": [f"{key}={value}" for key, value in edits.env.items()],
        "deviceNodes": nodes,
        "mounts": _once(mounts, "containerPath"),
    }
    version = min(max(VERSION, vendor.version), _MOST) if vendor else VERSION
    document = {
        "cdiVersion": ".".join(map(str, version)),
        "kind": CDI_KIND,
        "devices": [{"name": name, "containerEdits": {key: value for key, value in made.items() if value}}],
    }
    return json.dumps(document, indent=1) + "\n"


def _once(things: Sequence[Any], key: str) -> list[Any]:
    """Each path once, the last that names it."""
    found = {thing.get(key): thing for thing in things if isinstance(thing, dict)}
    return list(found.values())
