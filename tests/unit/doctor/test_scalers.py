# SPDX-License-Identifier: Apache-2.0
"""What the doctor finds of a cluster-autoscaler beside us."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.doctor_facts import NOW, WHOLE, certificate, facts, node, share

from isolation.contract.cluster_autoscaler_annotations import Ours
from isolation.contract.codec.pools import PublishedPool, encode_pools
from isolation.contract.model import Mode, Node
from isolation.contract.names import SAFE_TO_EVICT, SCALE_UP_DELAY
from isolation.doctor.checks.cluster.facts import AutoscalerFacts, Caller, ScalerFacts, Secret, Unavailable, Workload
from isolation.doctor.checks.cluster.findings import check_cluster
from isolation.doctor.checks.cluster.parse import caller, ungoverned
from isolation.doctor.checks.cluster.scalers import is_cluster_autoscaler
from isolation.doctor.checks.finding import FindingState

FLAG = "--allowed-scheduler-names=default-scheduler"
POOLS = encode_pools([PublishedPool("gpu-a", Node("gpu-a", mode=Mode.CGPU), ours=Ours(buys=True, drains=True))])
LEADS = AutoscalerFacts({"spec": {"holderIdentity": "pod_x", "renewTime": "2027-01-15T08:00:00.5Z"}})
GONE = AutoscalerFacts({"spec": {"holderIdentity": "pod_x", "renewTime": "2027-01-15T07:00:00.5Z"}})


def beside(*words, key="kube-system/ca", image="registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.1"):
    """A cluster-autoscaler."""
    return Workload("Deployment", key, (image,), 1, 1, words)


def find(check, **changed):
    """The finding of this name; None: there is none."""
    found = [one for one in check_cluster(facts(**changed), NOW) if one.check == check]
    return (found[0].state, found[0].evidence) if found else None


def protected(name, **annotations):
    """A pod with these annotations."""
    pod = share(name)
    pod["metadata"]["annotations"] |= annotations
    return pod


@pytest.mark.parametrize(
    "ca",
    [
        beside("./cluster-autoscaler", FLAG),
        beside("sh", "-c", f"exec /cluster-autoscaler --v=4 {FLAG}", image="mirror/scaler"),
        beside("--allowed-scheduler-names", "default-scheduler"),
    ],
)
def test_the_dangerous_flag_is_found_wherever_it_stands(ca):
    """
    And one without it is fine.
    """
    state, said = find("cluster.cluster_autoscaler", scalers=ScalerFacts((ca,)))
    assert FindingState.PROBLEM is state
    assert "kube-system/ca" in said
    well = replace(ca, words=("./cluster-autoscaler",), images=("cluster-autoscaler",))
    assert FindingState.OK is find("cluster.cluster_autoscaler", scalers=ScalerFacts((well,)))[0]
    assert find("cluster.cluster_autoscaler") is None


def test_static_pods_are_looked_at_and_pods_of_controllers_are_not():
    """
    Their Deployment tells.
    """
    pod = {
        "metadata": {"name": "ca", "namespace": "kube-system", "ownerReferences": [{"kind": "Node"}]},
        "spec": {"containers": [{"image": "cluster-autoscaler@sha256:0", "command": ["cluster-autoscaler", FLAG]}]},
    }
    found = ungoverned(pod)
    assert ("Pod", "kube-system/ca") == (found.kind, found.key)
    assert is_cluster_autoscaler(found)
    assert FLAG in found.words
    assert ungoverned(pod | {"metadata": {"ownerReferences": [{"kind": "ReplicaSet"}]}}) is None
    assert not any(map(is_cluster_autoscaler, WHOLE))


@pytest.mark.parametrize(
    ("items", "pools", "state"),
    [
        ([share("a")], POOLS, FindingState.WARNING),
        ([protected("a", **{SAFE_TO_EVICT: "false"})], POOLS, FindingState.OK),
        ([share("a")], None, FindingState.OK),
        ([share("a")], "{", FindingState.WARNING),
        ([share("a")], Unavailable("forbidden"), FindingState.UNKNOWN),
    ],
)
def test_pods_on_nodes_that_we_drain_without_protection_are_named(items, pools, state):
    """
    Only where a cluster-autoscaler runs.
    """
    nodes = (node(**{"gpushare.dev/pool": "gpu-a"}),)
    scalers = ScalerFacts((beside("cluster-autoscaler"),), pools)
    assert state is find("cluster.handover", items=items, nodes=nodes, scalers=scalers, autoscaler=LEADS)[0]


def test_pools_that_wait_for_an_autoscaler_that_is_gone():
    """
    And what to do.
    """
    waits = protected("a", **{SCALE_UP_DELAY: "8760h"})
    waits["spec"]["nodeName"] = ""
    found = facts(items=[waits], scalers=ScalerFacts((), POOLS), autoscaler=GONE)
    (finding,) = [one for one in check_cluster(found, NOW) if one.check == "cluster.handover"]
    assert "1 pool and 1 pending pod wait for it" in finding.evidence
    assert "hand-back" in finding.fix
    assert find("cluster.handover", items=[waits], scalers=ScalerFacts((), POOLS), autoscaler=LEADS) is None


DAY = 86_400.0
GOOD = Secret(certificate(890), certificate(890))
"""Made ten days ago."""


@pytest.mark.parametrize(
    ("kept", "days", "state", "words"),
    [
        (GOOD, 9, FindingState.OK, "valid until"),
        (GOOD, 11, FindingState.WARNING, "kube-system/ca-1 started and read the one before"),
        (Secret(certificate(5), certificate(890)), 1, FindingState.WARNING, "expires on"),
        (Secret(certificate(-1), certificate(890)), 1, FindingState.PROBLEM, "expired on"),
        (Secret(certificate(890)), 9, FindingState.WARNING, "is not what is in Secret gpushare-system"),
        (Secret(b"x"), 1, FindingState.WARNING, "no readable certificate"),
        (None, 1, FindingState.WARNING, "no readable certificate"),
        (Unavailable("403"), 1, FindingState.UNKNOWN, "403"),
    ],
)
def test_cluster_autoscalers_certificate_is_looked_at_where_it_runs(kept, days, state, words):
    """
    Its end, whether it is the one that was made last, and whether it was there when the pod read it.
    """
    shown = {"kube-system": kept, "gpushare-system": None if isinstance(kept, Secret) and kept.authority else GOOD}
    scalers = ScalerFacts((), callers=(Caller("kube-system/ca-1", NOW - days * DAY),), shown=shown)

    found = find("cluster.cluster_autoscaler_certificate", scalers=scalers)

    assert state is found[0]
    assert words in found[1]
    assert find("cluster.cluster_autoscaler_certificate", scalers=ScalerFacts()) is None


def test_what_a_pod_has_read_is_from_when_its_container_started():
    """
    Of pods that mount the Secret and run; the longest of several.
    """
    volumes = [{"name": "tls", "secret": {"secretName": "gpushare-cluster-autoscaler"}}]
    times = ("2027-01-14T08:00:00Z", "2027-01-15T08:00:00Z")
    boxes = [{"state": {"running": {"startedAt": at}}} for at in times]
    pod = {
        "metadata": {"namespace": "kube-system", "name": "ca-1"},
        "spec": {"volumes": volumes},
        "status": {"containerStatuses": boxes},
    }

    assert Caller("kube-system/ca-1", NOW - DAY) == caller(pod)
    for other in ({"spec": {}}, {"status": {}}, {"status": {"containerStatuses": [{"state": {"waiting": {}}}]}}):
        assert caller(pod | other) is None
    boxes[0]["state"]["running"]["startedAt"] = "soon"
    assert caller(pod) is None
