# SPDX-License-Identifier: Apache-2.0
"""
What a provider's own description says of a node that does not exist yet.

Pure. Decides nothing about cards that nobody described: a pool whose description names neither CPU nor memory
is unknown (None), and its profile is learnt from its first node instead.

Sources: Cluster API, "Scale from zero" (annotations `capacity.cluster-autoscaler.kubernetes.io/*` on the scaled
object); cluster-autoscaler on AWS, "Scaling a node group to 0" (tags `k8s.io/cluster-autoscaler/node-template/*`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoscaler.providers.core.profile import make_template
from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.node import node_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.codec.cursor import At
    from isolation.contract.codec.template import NodeTemplate

_CAPI: Final = "capacity.cluster-autoscaler.kubernetes.io/"
_AWS: Final = "k8s.io/cluster-autoscaler/node-template/"
_MAX_ITEMS: Final = 256
"""Labels, taints or resources of one description."""


def capi_template(parent: At) -> NodeTemplate | None:
    """From the annotations of a MachineDeployment (or of whatever is scaled)."""
    said = {
        key[len(_CAPI) :]: text
        for key, text in parent["metadata"]["annotations"].texts().items()
        if key.startswith(_CAPI)
    }
    resources = {key: text for key, text in said.items() if key in {"cpu", "memory"}}
    if "maxPods" in said:
        resources["pods"] = said["maxPods"]
    if said.get("gpu-type") and said.get("gpu-count"):
        resources[said["gpu-type"]] = said["gpu-count"]
    labels = dict(_pair(item, "=") for item in _split(said.get("labels", "")))
    return _template(resources, labels, [_taint(*_pair(item, "=")) for item in _split(said.get("taints", ""))])


def aws_template(tags: Mapping[str, str]) -> NodeTemplate | None:
    """From the tags of a scaling group; `resources/<name>` may name extended resources, ours included."""
    said = {key[len(_AWS) :]: text for key, text in tags.items() if key.startswith(_AWS)}
    resources = {key.removeprefix("resources/"): text for key, text in said.items() if key.startswith("resources/")}
    labels = {key.removeprefix("label/"): text for key, text in said.items() if key.startswith("label/")}
    taints = [_taint(key.removeprefix("taint/"), text) for key, text in said.items() if key.startswith("taint/")]
    return _template(resources, labels, taints)


def _template(
    resources: Mapping[str, str], labels: Mapping[str, str], taints: Iterable[Mapping[str, str]]
) -> NodeTemplate | None:
    """Read as the node itself would be; None where it says too little, or nothing that a node can be."""
    if not {"cpu", "memory"} <= resources.keys() or max(len(resources), len(labels)) > _MAX_ITEMS:
        return None
    node = {
        "metadata": {"name": "template", "labels": dict(labels)},
        "spec": {"taints": [dict(taint) for taint in taints][:_MAX_ITEMS]},
        "status": {"capacity": dict(resources), "allocatable": dict(resources)},
    }
    try:
        return make_template(node_of(node))
    except CodecError:
        return None


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()][:_MAX_ITEMS]


def _pair(item: str, sign: str) -> tuple[str, str]:
    key, _, value = item.partition(sign)
    return key.strip(), value.strip()


def _taint(key: str, value: str) -> dict[str, str]:
    """`key=value:Effect`, the key apart."""
    text, _, effect = value.rpartition(":")
    return {"key": key, "value": text, "effect": effect}
