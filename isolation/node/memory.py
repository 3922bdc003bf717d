# SPDX-License-Identifier: Apache-2.0
"""
The pods of this node as they were told last, over a restart of the agent.

Decides what of a pod's object is kept: what `bound` reads. An agent that comes back while the API server is
away knows from here whose containers start again. Believed only until the server's first word; a pod that is
gone by then asks for nothing, for its UID is nobody else's.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec import CodecError
from isolation.contract.names import ACK, ALLOCATION
from isolation.files import replace_file
from isolation.node.bound import bound_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from isolation.node.world import Bound

log = logging.getLogger(__name__)
_FORMAT: Final = 1
_MOST_BYTES: Final = 64 << 20
_META: Final = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
_STATUS: Final = ("phase", "initContainerStatuses", "containerStatuses")


def essence(pod: Mapping[str, Any]) -> dict[str, Any]:
    """As much of a pod as `bound_of` reads. pre: `bound_of` could read it."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    record = (meta.get("annotations") or {}).get(ALLOCATION)
    return {
        "metadata": {key: meta[key] for key in _META if key in meta}
        | ({"annotations": {ALLOCATION: record}} if record is not None else {}),
        "spec": {key: [_container(one) for one in spec.get(key) or ()] for key in ("initContainers", "containers")},
        "status": {key: status[key] for key in _STATUS if key in status},
    }


def _container(one: Mapping[str, Any]) -> dict[str, Any]:
    limits = (one.get("resources") or {}).get("limits") or {}
    kept = {ACK.memory: limits[ACK.memory]} if ACK.memory in limits else {}
    return {"name": one["name"], "restartPolicy": one.get("restartPolicy"), "resources": {"limits": kept}}


def save(file: Path, pods: Mapping[str, dict[str, Any]]) -> None:
    """Keep them. OSError."""
    replace_file(file, json.dumps({"format": _FORMAT, "pods": list(pods.values())}), 0o600)


def load(file: Path) -> dict[str, tuple[Bound, dict[str, Any]]]:
    """Those that were kept, by UID; none where the file cannot be read."""
    try:
        with file.open("rb") as kept:
            record = json.loads(kept.read(_MOST_BYTES))
        if record["format"] != _FORMAT:
            return {}
        return {(pod := bound_of(thing)).uid: (pod, thing) for thing in record["pods"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CodecError) as exc:
        log.warning("ignoring unreadable file %s: %s", file, exc)
        return {}
