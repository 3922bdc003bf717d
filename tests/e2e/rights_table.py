# SPDX-License-Identifier: Apache-2.0
"""
What each account's token may do: one request after the other, tried by every account that the manifests ship.

The table of docs/threats.md is made from this; the answers are the real API server's. A request that RBAC and policies
let pass is 2xx (all of them are dry runs), one that they refuse is 403 or 422; anything else is a mistake in here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.model import Placement, Slice
from isolation.contract.names import (
    AUTOSCALER,
    CARD_UNITS,
    CARDS,
    DRAIN,
    EXPORTER,
    KUBE_LEASE,
    KUBE_SCHEDULER,
    MOVED,
    MPS_ENDED,
    NODE_AGENT,
    RESIZE,
    RESIZE_STATUS,
    RESIZED,
    SAFE_TO_EVICT,
    SCALE_UP_DELAY,
    SCHEDULER,
    SHARED,
    SYSTEM_NAMESPACE,
    USER_SAFE_TO_EVICT,
    USER_SCALE_UP_DELAY,
    WOKEN,
)
from isolation.contract.reservation import Reservation, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Body = Callable[[dict[str, Any]], dict[str, Any]]

ACCOUNTS: Final = (NODE_AGENT, SCHEDULER, KUBE_SCHEDULER, AUTOSCALER, EXPORTER)
N, S, K, A = NODE_AGENT, SCHEDULER, KUBE_SCHEDULER, AUTOSCALER
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON: Final = "application/json"
HOME: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
PODS: Final = "/api/v1/namespaces/default/pods"
NODES: Final = "/api/v1/nodes"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces"
CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/default/events"
VOLUMES: Final = "/api/v1/persistentvolumes"
RESERVATIONS: Final = "/apis/gpushare.dev/v1alpha1/reservations"
REQUESTS: Final = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
MACHINES: Final = "/apis/cluster.x-k8s.io/v1beta1/namespaces/default"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
RULES: Final = "/apis/admissionregistration.k8s.io/v1"
MODE: Final = "ack.node.gpu.schedule"
CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
OWN, OTHER, BARE, MASTER = "table-own", "table-other", "table-bare", "table-control-plane"
"""Nodes: the agent's, another of shares, one that says nothing of shares, one of the control plane."""
SCALED, UNNAMED = "gpu-a", "gpu-b"
MAX_REPLICAS: Final = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One request, and who may make it."""

    verb: str
    what: str
    """For people."""
    method: str
    path: str
    body: dict[str, Any] | Body | None = None
    """As it is sent, or what it is for the object as it stands."""
    may: tuple[str, ...] = ()
    kind: str = JSON

    @property
    def line(self) -> str:
        """In the page."""
        cells = ["yes" if account in self.may else "no" for account in ACCOUNTS]
        return f"| {self.verb} | {self.what} | {' | '.join(cells)} |"


def _get(what: str, path: str, *may: str) -> Row:
    return Row("list" if what.startswith("all") else "get", what, "GET", path, may=may)


def _patch(what: str, path: str, body: dict[str, Any] | Body, *may: str, kind: str = MERGE) -> Row:
    return Row("patch", what, "PATCH", path, body, may, kind)


def _create(what: str, path: str, body: dict[str, Any], *may: str) -> Row:
    return Row("create", what, "POST", path, body, may)


def _delete(what: str, path: str, *may: str) -> Row:
    return Row("delete", what, "DELETE", path, {"dryRun": ["All"]}, may)


def labels(**given: Any) -> dict[str, Any]:
    """A patch of labels."""
    return {"metadata": {"labels": given}}


def notes(**given: Any) -> dict[str, Any]:
    """A patch of annotations."""
    return {"metadata": {"annotations": given}}


def _taint(key: str = DRAIN, effect: str = "NoSchedule", *, gone: bool = False) -> Body:
    """Added, or taken away: those of others stay."""

    def body(node: dict[str, Any]) -> dict[str, Any]:
        rest = [one for one in node["spec"].get("taints", ()) if one["key"] != key]
        return {"spec": {"taints": [*rest, *([] if gone else [{"key": key, "effect": effect}])]}}

    return body


def _eviction(space: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": space}}


def _binding(name: str, **annotations: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "annotations": annotations}
    target = {"apiVersion": "v1", "kind": "Node", "name": OTHER}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}


def lease(space: str, name: str) -> dict[str, Any]:
    """One that somebody holds."""
    meta = {"name": name, "namespace": space}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {"holderIdentity": "x"}}


def _scale(replicas: int) -> Body:
    return lambda scale: scale | {"spec": {"replicas": replicas}}


def _held(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"spec": {"holderIdentity": "me"}}


def _leases(name: str, account: str) -> tuple[Row, Row]:
    path = f"{LEASES}/{SYSTEM_NAMESPACE}/leases"
    return (
        _create(f"Lease `{name}`", path, lease(SYSTEM_NAMESPACE, name), account),
        Row("update", f"Lease `{name}`", "PUT", f"{path}/{name}", _held, (account,)),
    )


def _event(node: str, reason: str = "Tried") -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": "default", "name": "plain"}
    event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "eventTime": "2026-11-21T00:00:00.000000Z"}
    event |= {"reportingController": "gpushare.dev", "reportingInstance": f"{NODE_AGENT}/{node}", "regarding": about}
    words = {"action": reason, "reason": reason, "type": "Normal"}
    return event | words | {"metadata": {"name": "new", "namespace": "default"}}


def _map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def reservation(name: str, **annotations: str) -> dict[str, Any]:
    """Room for somebody."""
    made = manifest_of(Reservation(name, "somebody", Placement(OTHER, (Slice("GPU-x", 0, 1 << 30, 0),)), 2e9))
    made["metadata"]["annotations"] = annotations
    return made


def purchase(name: str) -> dict[str, Any]:
    """Room for somebody on a node that is not there yet."""
    return manifest_of(Reservation(name, "somebody", Placement("", (Slice("", 0, 1 << 30),)), 2e9, pool="a"))


def claim_ref(name: str) -> dict[str, Any]:
    """The patch by which a volume is given to a claim."""
    ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name, "uid": "u2"}
    return {"spec": {"claimRef": ref}}


IMAGE: Final = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
CONDITION: Final = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}
NOT_READY: Final = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}]}}
POD: Final = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"}}
POD["spec"] = {"containers": [{"name": "main", "image": "x"}]}
TOKEN: Final = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
RECORD: Final = {"gpushare.dev/allocation": "{}"}

NODE_ROWS: Final = (
    _get("all nodes", f"{NODES}?limit=1", N, S, K, A),
    _patch(
        "labels `gpushare.dev/card-*`, `aliyun.accelerator/*` of its own node",
        f"{NODES}/{OWN}",
        labels(**{CARD_UNITS: "7", "aliyun.accelerator/nvidia_name": "T4"}),
        N,
    ),
    _patch("annotation `gpushare.dev/cards` of its own node", f"{NODES}/{OWN}", notes(**{CARDS: "{}"}), N),
    _patch("annotation `gpushare.dev/resized` of its own node", f"{NODES}/{OWN}", notes(**{RESIZED: "{}"}), N),
    _patch("the same of another node", f"{NODES}/{OTHER}", notes(**{CARDS: "{}"})),
    _patch(
        "status: amounts of `aliyun.com/gpu-count`, `gpu-core.percentage` of its own node",
        f"{NODES}/{OWN}/status",
        {"status": {"capacity": {"aliyun.com/gpu-count": "2"}}},
        N,
    ),
    _patch(
        "the same of another node", f"{NODES}/{OTHER}/status", {"status": {"capacity": {"aliyun.com/gpu-count": "2"}}}
    ),
    _patch(
        "status: other amounts (`cpu`, `nvidia.com/gpu`)",
        f"{NODES}/{OWN}/status",
        {"status": {"capacity": {"nvidia.com/gpu": "8"}}},
    ),
    _patch("status: allocatable of others", f"{NODES}/{OWN}/status", {"status": {"allocatable": {"cpu": "1k"}}}),
    _patch("status: conditions", f"{NODES}/{OWN}/status", NOT_READY, kind=STRATEGIC),
    _patch(
        "status: addresses",
        f"{NODES}/{OWN}/status",
        {"status": {"addresses": [{"type": "InternalIP", "address": "9.9.9.9"}]}},
        kind=STRATEGIC,
    ),
    _patch(
        "label `node-restriction.kubernetes.io/*`",
        f"{NODES}/{OWN}",
        labels(**{"node-restriction.kubernetes.io/x": "y"}),
    ),
    _patch("the same through the status", f"{NODES}/{OWN}/status", labels(**{"node-restriction.kubernetes.io/x": "y"})),
    _patch("label `node-role.kubernetes.io/*`", f"{NODES}/{OWN}", labels(**{CONTROL_PLANE: ""})),
    _patch("the mode label", f"{NODES}/{OWN}", labels(**{MODE: "share"})),
    _patch("annotations of others", f"{NODES}/{OWN}", notes(x="y")),
    _patch("taints away", f"{NODES}/{OWN}", _taint("test.dev/kept", gone=True)),
    _patch("cordon", f"{NODES}/{OWN}", {"spec": {"unschedulable": True}}),
    _patch("finalizers", f"{NODES}/{OWN}", {"metadata": {"finalizers": ["x.y/z"]}}),
    _patch("taint `gpushare.dev/drain` on a node of shares", f"{NODES}/{OTHER}", _taint(), A),
    _patch("the same with NoExecute", f"{NODES}/{OTHER}", _taint(effect="NoExecute")),
    _patch("another taint", f"{NODES}/{OTHER}", _taint("x.y/z")),
    _patch("taint `gpushare.dev/drain` on a node of the control plane", f"{NODES}/{MASTER}", _taint()),
    _patch("the same on a node without mode label", f"{NODES}/{BARE}-free", _taint()),
    _patch("taint `gpushare.dev/drain` away, from any node", f"{NODES}/{BARE}", _taint(gone=True), A),
    _create("a node", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "new"}}),
    _delete("a node", f"{NODES}/{OWN}"),
)
POD_ROWS: Final = (
    _get("all pods", "/api/v1/pods?limit=1", N, S, K, A),
    _create("a pod", PODS, POD),
    _patch("image", f"{PODS}/shares", IMAGE, kind=STRATEGIC),
    _patch(
        "ephemeral container",
        f"{PODS}/plain/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [{"name": "d", "image": "x"}]}},
        kind=STRATEGIC,
    ),
    _create("exec", f"{PODS}/plain/exec?command=sh&container=main", {}),
    _patch(
        "annotation `gpushare.dev/requeued` of a pod with shares", f"{PODS}/shares/status", notes(**{WOKEN: "1"}), S
    ),
    _patch("the same of another pod", f"{PODS}/plain/status", notes(**{WOKEN: "1"})),
    _patch(
        "annotations for cluster-autoscaler of a pod with shares",
        f"{PODS}/shares/status",
        notes(**{SCALE_UP_DELAY: "8760h", USER_SCALE_UP_DELAY: "", SAFE_TO_EVICT: "false", USER_SAFE_TO_EVICT: ""}),
        A,
    ),
    _patch("the same with other values", f"{PODS}/shares/status", notes(**{SAFE_TO_EVICT: "true"})),
    _patch("the same with another delay", f"{PODS}/shares/status", notes(**{USER_SCALE_UP_DELAY: "10m"})),
    _patch("the same of another pod", f"{PODS}/plain/status", notes(**{SAFE_TO_EVICT: "false"})),
    _patch(
        "label `gpushare.dev/shared` of a running pod whose card another scheduler wrote down",
        f"{PODS}/classic/status",
        labels(**{SHARED: "true"}),
        S,
    ),
    _patch("the same of another pod", f"{PODS}/plain/status", labels(**{SHARED: "true"})),
    _patch("annotations, labels of others", f"{PODS}/shares/status", notes(x="y")),
    _patch("the allocation record of a pod with shares", f"{PODS}/shares/status", notes(**RECORD), S),
    _patch("annotation `gpushare.dev/resize-status`", f"{PODS}/shares/status", notes(**{RESIZE_STATUS: "{}"}), S),
    _patch(
        "annotation `gpushare.dev/resize` of a pod that allows it", f"{PODS}/live/status", notes(**{RESIZE: "{}"}), A
    ),
    _patch("the same of another pod", f"{PODS}/shares/status", notes(**{RESIZE: "{}"})),
    _patch(
        "label `gpushare.dev/role` of our own pods", f"{HOME}/pods/ours/status", labels(**{"gpushare.dev/role": "x"}), S
    ),
    _patch("status: conditions", f"{PODS}/shares/status", CONDITION, K, kind=STRATEGIC),
    _patch("status: phase", f"{PODS}/shares/status", {"status": {"phase": "Failed"}}),
    _create("binding with an allocation record", f"{PODS}/shares/binding", _binding("shares", **RECORD), S),
    _create("binding without", f"{PODS}/plain/binding", _binding("plain"), S, K),
    _create("eviction", f"{PODS}/elsewhere/eviction", _eviction("default", "elsewhere"), S, A),
    _create(
        "eviction in kube-system",
        "/api/v1/namespaces/kube-system/pods/system/eviction",
        _eviction("kube-system", "system"),
    ),
    _create("eviction in gpushare-system", f"{HOME}/pods/ours/eviction", _eviction(SYSTEM_NAMESPACE, "ours")),
    _delete("a pod on its own node", f"{PODS}/here", K),
    _delete("a pod on another node", f"{PODS}/elsewhere", K),
)
OTHER_ROWS: Final = (
    _create("an event", EVENTS, _event(OWN), S, K, A),
    _create("event `MPSServerEnded` in the name of its own node", EVENTS, _event(OWN, MPS_ENDED), N, S, K, A),
    _create("the same in the name of another node", EVENTS, _event(OTHER, MPS_ENDED), S, K, A),
    _get("all secrets", "/api/v1/secrets"),
    _get("a secret of our namespace (certificates, tokens)", f"{HOME}/secrets/{K}-token"),
    _create("a token of another account", f"{HOME}/serviceaccounts/{K}/token", TOKEN),
    _get("all roles", f"{RBAC}/clusterroles"),
    _create(
        "a binding of a role",
        f"{RBAC}/clusterrolebindings",
        {
            "metadata": {"name": "x"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        },
    ),
    _delete("our admission policies", f"{RULES}/validatingadmissionpolicybindings/gpushare-agent-nodes"),
    _get("all webhook configurations", f"{RULES}/mutatingwebhookconfigurations", S),
    _delete("webhooks", f"{RULES}/mutatingwebhookconfigurations/{S}"),
    _patch("a Deployment", f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments/{S}", {"spec": {"replicas": 0}}),
    _patch("`claimRef` of a free volume", f"{VOLUMES}/table-free", claim_ref("mine"), K),
    _patch("`claimRef` of a volume that is meant for that claim", f"{VOLUMES}/table-meant", claim_ref("later"), K),
    _patch("`claimRef` of a volume that is meant for another", f"{VOLUMES}/table-meant", claim_ref("other")),
    _patch("`claimRef` of a volume that has a claim", f"{VOLUMES}/table-taken", claim_ref("other")),
    _patch("the same away", f"{VOLUMES}/table-taken", {"spec": {"claimRef": None}}),
    _patch(
        "reclaim policy of a volume", f"{VOLUMES}/table-free", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}
    ),
    _patch(
        "annotation `selected-node` of a claim",
        f"{CLAIMS}/mine",
        notes(**{"volume.kubernetes.io/selected-node": OWN}),
        K,
    ),
    _patch("size, finalizers of a claim", f"{CLAIMS}/mine", {"metadata": {"finalizers": None}}),
    *_leases(SCHEDULER, S),
    *_leases(KUBE_LEASE, K),
    *_leases(AUTOSCALER, A),
    Row(
        "update",
        "Lease `kube-scheduler` of the cluster's own",
        "PUT",
        f"{LEASES}/kube-system/leases/kube-scheduler",
        _held,
    ),
    _create("another Lease", f"{LEASES}/kube-system/leases", lease("kube-system", "new")),
    _create("reservation for a pod that moves", RESERVATIONS, reservation("new", **{MOVED: "uid"}), S, A),
    _create("reservation for a pod on a node to come", RESERVATIONS, purchase("new"), S, A),
    _create("another reservation", RESERVATIONS, reservation("new"), S),
    _delete("reservation for a pod that moves", f"{RESERVATIONS}/table-moves", S, A),
    _delete("reservation for a pod on a node to come", f"{RESERVATIONS}/table-bought", S, A),
    _delete("another reservation", f"{RESERVATIONS}/table-kept", S),
    _patch("status of a ProvisioningRequest", f"{REQUESTS}/table-asked/status", {"status": {"a": "b"}}, S),
    _patch("anything else of a ProvisioningRequest", f"{REQUESTS}/table-asked", {"spec": {"a": "b"}}),
    _create("ConfigMap of the autoscaler's state", f"{HOME}/configmaps", _map("gpushare-autoscaler-state"), A),
    _patch("the same", f"{HOME}/configmaps/gpushare-autoscaler-state", {"data": {"x": "y"}}, A),
    _create("ConfigMap of recommendations", f"{HOME}/configmaps", _map("gpushare-right-sizing"), A),
    _create("another ConfigMap", f"{HOME}/configmaps", _map("new")),
    _patch(
        "the autoscaler's configuration or switch", f"{HOME}/configmaps/gpushare-autoscaler", {"data": {"enabled": "x"}}
    ),
    Row(
        "update",
        "`/scale` of a named object, within its bounds",
        "PUT",
        f"{MACHINES}/machinedeployments/{SCALED}/scale",
        _scale(MAX_REPLICAS),
        (A,),
    ),
    Row("update", "the same, beyond", "PUT", f"{MACHINES}/machinedeployments/{SCALED}/scale", _scale(MAX_REPLICAS + 1)),
    Row("update", "the same, below", "PUT", f"{MACHINES}/machinedeployments/{SCALED}/scale", _scale(0)),
    Row("update", "`/scale` of another object", "PUT", f"{MACHINES}/machinedeployments/{UNNAMED}/scale", _scale(2)),
    _patch(
        "`/scale` of a Deployment", "/apis/apps/v1/namespaces/default/deployments/web/scale", {"spec": {"replicas": 0}}
    ),
    _patch(
        "the mark of a Machine that is to go",
        f"{MACHINES}/machines/m1",
        notes(**{"cluster.x-k8s.io/delete-machine": "x"}),
        A,
    ),
    _patch("anything else of a Machine", f"{MACHINES}/machines/m1", {"spec": {"a": "c"}}),
)
ROWS: Final = (*NODE_ROWS, *POD_ROWS, *OTHER_ROWS)


def table() -> str:
    """As it stands in the page."""
    short = " | ".join(account.removeprefix("gpushare-") for account in ACCOUNTS)
    parts = (("nodes", NODE_ROWS), ("pods", POD_ROWS), ("everything else", OTHER_ROWS))
    found = []
    for name, rows in parts:
        head = f"| verb | {name} | {short} |\n|---|---|{'---|' * len(ACCOUNTS)}"
        found.append("\n".join([head, *(row.line for row in rows)]))
    return "\n\n".join(found) + "\n"
