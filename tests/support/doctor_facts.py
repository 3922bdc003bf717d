# SPDX-License-Identifier: Apache-2.0
"""
Clusters as the doctor finds them: one in which all is well, and the parts to change in it.

Objects are those that an API server tells of; nothing here judges.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from isolation.contract.codec import encode_allocation, encode_cards
from isolation.contract.model import Ask, Card, Placement, Request, Slice
from isolation.contract.quantity import GIB
from isolation.doctor.checks.cluster.facts import ClusterFacts, Monitoring, Probe, Secret, Workload
from isolation.doctor.checks.cluster.parse import node_facts, pod_facts, unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.doctor.checks.cluster.facts import ClusterNode

NOW = 1_800_000_000.0
CARDS = (Card("GPU-a", 0, 15 * GIB), Card("GPU-b", 1, 15 * GIB))
WEBHOOK = {
    "metadata": {"name": "gpushare-admission"},
    "webhooks": [{"name": "pods.gpushare.dev", "failurePolicy": "Fail", "matchConditions": [{"name": "ours"}]}],
}


WHOLE = (
    Workload("Deployment", "gpushare-system/gpushare-scheduler", ("gpushare-controller:1.2.3",), 2, 2),
    Workload("DaemonSet", "gpushare-system/gpushare-node", ("gpushare-node:1.2.3",), 1, 1),
    Workload("DaemonSet", "gpushare-system/gpushare-exporter", ("gpushare-exporter:1.2.3",), 1, 1),
)


def certificate(days: float) -> bytes:
    """A certificate of our own that ends so many days from NOW."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x" * 60)])
    end = dt.datetime.fromtimestamp(NOW, dt.UTC) + dt.timedelta(days=days)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(end - dt.timedelta(days=900))
    made = builder.not_valid_after(end).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def node(
    name: str = "n1",
    *,
    units: int = 30,
    agent: str = "ready",
    mode: str = "cgpu",
    cards: Sequence[Card] = CARDS,
    kubelet: str = "v1.36.2",
    **labels: str,
) -> ClusterNode:
    """A node whose agent is well."""
    return node_facts(
        {
            "metadata": {
                "name": name,
                "labels": {
                    "ack.node.gpu.schedule": mode,
                    "gpushare.dev/card-units": "15",
                    "gpushare.dev/card-count": str(len(cards)),
                    **labels,
                },
                "annotations": {"gpushare.dev/agent": agent, "gpushare.dev/cards": encode_cards(cards)},
            },
            "status": {
                "allocatable": {"aliyun.com/gpu-mem": str(units), "aliyun.com/gpu-count": str(len(cards))},
                "nodeInfo": {"kubeletVersion": kubelet},
            },
        }
    )


def record(uid: str, units: int, uuid: str = "GPU-a") -> str:
    """Our record of a pod of one container on one card."""
    request = Request(cards=1, card_bytes=units * GIB, asks=(Ask("main", units * GIB),))
    return encode_allocation(uid, request, Placement("n1", (Slice(uuid, 0, units * GIB),)))


def share(
    name: str,
    units: int = 2,
    *,
    on: str = "n1",
    annotation: str | None = None,
    labelled: bool = True,
    scheduler: str = "gpushare-scheduler",
    phase: str = "Running",
) -> dict[str, Any]:
    """A pod that asks for shares, as the API server tells of it."""
    annotations = {"gpushare.dev/allocation": record(name, units) if annotation is None else annotation}
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": name,
            "labels": {"gpushare.dev/shared": "true"} if labelled else {},
            "annotations": annotations if on and annotation != "" else {},
            "creationTimestamp": "2027-01-15T07:00:00Z",
        },
        "spec": {
            "nodeName": on,
            "schedulerName": scheduler,
            "containers": [
                {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": str(units)}, "requests": {}}}
            ],
        },
        "status": {"phase": phase},
    }


def has(pod: dict[str, Any], *devices: str) -> dict[str, Any]:
    """The pod, with what its kubelet says that it has."""
    listed = [{"resourceID": device, "health": "Healthy"} for device in devices]
    status = {"name": "main", "allocatedResourcesStatus": [{"name": "aliyun.com/gpu-mem", "resources": listed}]}
    return pod | {"status": pod["status"] | {"containerStatuses": [status]}}


def facts(**changed: Any) -> ClusterFacts:
    """A cluster in which all is well."""
    nodes = changed.pop("nodes", (node(),))
    items = changed.pop("items", [share("a")])
    policy, bound = {"metadata": {"name": "gpushare-x"}}, {"policyName": "gpushare-x", "validationActions": ["Deny"]}
    crd = {
        "spec": {"versions": [{"name": "v1alpha1", "served": True}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    }
    well: dict[str, Any] = {
        "version": "v1.36.2",
        "definition": crd,
        "webhooks": (WEBHOOK,),
        "policies": (policy,),
        "bindings": ({"spec": bound},),
        "nodes": nodes,
        "pods": tuple(pod_facts(one, {n.name: n.node for n in nodes if n.node}, unit_of(nodes)) for one in items),
        "workloads": WHOLE,
        "lease": {"spec": {"holderIdentity": "pod-1", "renewTime": "2027-01-15T08:00:00.5Z"}},
        "secrets": {"gpushare-scheduler-tls": Secret(certificate(100))},
        "monitoring": Monitoring(operator=False),
        "good": Probe(shared=True, scheduler="gpushare-scheduler"),
        "bad": Probe('admission webhook "pods.gpushare.dev" denied the request: 3 do not split over 2'),
        "rights": {"gpushare-scheduler may list pods": True},
    }
    return ClusterFacts(**(well | changed))
