# SPDX-License-Identifier: Apache-2.0
"""
Pods of the tenant's image and the records that they are bound with, for tests on a real node.

The records are spelt out by hand, as another scheduler would have to write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from realkubelet.configuration import TENANT

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY = "aliyun.com/gpu-mem"
GIB = 1 << 30
PODS = "/api/v1/namespaces/default/pods"


def container(name: str = "main", units: int = 0, *words: str, **more: Any) -> dict[str, Any]:
    """A container of the tenant's image; `words`: MiB that its client takes at once, else a command."""
    limits = {MEMORY: str(units)} if units else {}
    made = {"name": name, "image": TENANT, "imagePullPolicy": "Never", "resources": {"limits": limits}}
    if words:
        made |= {"args": list(words)} if words[0].isdigit() else {"command": list(words)}
    return made | more


def pod_of(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod that no scheduler takes, and that ends within a second."""
    spec = {"terminationGracePeriodSeconds": 1, "schedulerName": "nobody", **spec}
    labels = {"gpushare.dev/shared": "true"}
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": list(containers), **spec}}


def facts(lines: list[str]) -> dict[str, list[str]]:
    """What the client said, by word."""
    told: dict[str, list[str]] = {}
    for line in lines:
        word, _, value = line.partition(" ")
        told.setdefault(word, []).append(value)
    return told


def record(pod: dict[str, Any], cards: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """Our record, version 1: every container evenly over all of these cards, by index and UUID."""
    spec, count = pod["spec"], len(cards)
    asks = [(c, _units(c), True) for c in spec.get("initContainers", ()) if _units(c)]
    asks += [(c, _units(c), False) for c in spec["containers"] if _units(c)]
    stays = sum(units for c, units, init in asks if not init or c.get("restartPolicy") == "Always")
    whole = max([stays, *(units for _, units, init in asks if init)])
    each = [
        {"name": c["name"], "cards": [{"uuid": uuid, "bytes": units * GIB // count, "core": 0} for _, uuid in cards]}
        for c, units, _ in asks
    ]
    taken = [{"uuid": uuid, "index": index, "bytes": whole * GIB // count, "core": 0} for index, uuid in cards]
    made = {"version": 1, "promise": pod["metadata"]["uid"], "cards": taken, "containers": each}
    user = spec.get("securityContext", {}).get("runAsUser")
    return made if user is None else made | {"trust": {"group": "default", "uid": user}}


def _units(one: dict[str, Any]) -> int:
    return int(one["resources"].get("limits", {}).get(MEMORY, "0"))
