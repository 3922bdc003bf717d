"""What the doctor finds of a cluster-autoscaler beside us."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doctor_facts import NOW, WHOLE, facts, node, share

from isolation.contract.codec_pools import PublishedPool, encode_pools
from isolation.contract.handover import Ours
from isolation.contract.model import Mode, Node
from isolation.contract.names import SAFE_TO_EVICT, SCALE_UP_DELAY
from isolation.doctor.cluster import judged
from isolation.doctor.cluster_facts import AutoscalerFacts, ScalerFacts, Untold, Workload
from isolation.doctor.cluster_read import ungoverned
from isolation.doctor.cluster_scalers import scales
from isolation.doctor.finding import State

FLAG = "--allowed-scheduler-names=default-scheduler"
POOLS = encode_pools([PublishedPool("gpu-a", Node("gpu-a", mode=Mode.CGPU), ours=Ours(buys=True, drains=True))])
LEADS = AutoscalerFacts({"spec": {"holderIdentity": "pod_x", "renewTime": "2027-01-15T08:00:00.5Z"}})
GONE = AutoscalerFacts({"spec": {"holderIdentity": "pod_x", "renewTime": "2027-01-15T07:00:00.5Z"}})


def beside(*words, key="kube-system/ca", image="registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.1"):
    """A cluster-autoscaler."""
    return Workload("Deployment", key, (image,), 1, 1, words)


def told(check, **changed):
    """The finding of this name; None: there is none."""
    found = [one for one in judged(facts(**changed), NOW) if one.check == check]
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
    state, said = told("cluster.cluster_autoscaler", scalers=ScalerFacts((ca,)))
    assert State.PROBLEM is state
    assert "kube-system/ca" in said
    well = replace(ca, words=("./cluster-autoscaler",), images=("cluster-autoscaler",))
    assert State.OK is told("cluster.cluster_autoscaler", scalers=ScalerFacts((well,)))[0]
    assert told("cluster.cluster_autoscaler") is None


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
    assert scales(found)
    assert FLAG in found.words
    assert ungoverned(pod | {"metadata": {"ownerReferences": [{"kind": "ReplicaSet"}]}}) is None
    assert not any(map(scales, WHOLE))


@pytest.mark.parametrize(
    ("items", "pools", "state"),
    [
        ([share("a")], POOLS, State.WARNING),
        ([protected("a", **{SAFE_TO_EVICT: "false"})], POOLS, State.OK),
        ([share("a")], None, State.OK),
        ([share("a")], "{", State.WARNING),
        ([share("a")], Untold("forbidden"), State.UNKNOWN),
    ],
)
def test_pods_on_nodes_that_we_drain_without_protection_are_named(items, pools, state):
    """
    Only where a cluster-autoscaler runs.
    """
    nodes = (node(**{"gpushare.dev/pool": "gpu-a"}),)
    scalers = ScalerFacts((beside("cluster-autoscaler"),), pools)
    assert state is told("cluster.handover", items=items, nodes=nodes, scalers=scalers, autoscaler=LEADS)[0]


def test_pools_that_wait_for_an_autoscaler_that_is_gone():
    """
    And what to do.
    """
    waits = protected("a", **{SCALE_UP_DELAY: "8760h"})
    waits["spec"]["nodeName"] = ""
    found = facts(items=[waits], scalers=ScalerFacts((), POOLS), autoscaler=GONE)
    (finding,) = [one for one in judged(found, NOW) if one.check == "cluster.handover"]
    assert "1 pool and 1 pending pod wait for it" in finding.evidence
    assert "hand-back" in finding.fix
    assert told("cluster.handover", items=[waits], scalers=ScalerFacts((), POOLS), autoscaler=LEADS) is None
