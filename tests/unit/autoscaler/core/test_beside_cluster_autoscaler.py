# SPDX-License-Identifier: Apache-2.0
"""The stand-in for cluster-autoscaler decides as that one documents it; see `e2e.cluster_autoscaler`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from e2e.cluster_autoscaler import scale_down, scale_up
from e2e.cluster_autoscaler.cloud import Cloud
from e2e.cluster_autoscaler.loop import Autoscaler
from e2e.cluster_autoscaler.objects import (
    SAFE_TO_EVICT,
    SCALE_DOWN_DISABLED,
    SCALE_UP_DELAY,
    Budget,
    duration,
    node_of,
    pod_of,
)
from e2e.cluster_autoscaler.options import Options
from e2e.cluster_autoscaler.scale_up import Group
from e2e.cluster_autoscaler.snapshot import Snapshot, allowed
from support.rpc_harness import GENERATIONS

NOW = 1_800_000_000.0
OPTIONS = Options()
SHARE = "gpushare-scheduler"


def a_node(name, cpu="8", units="0", **more):
    """A node that is ready."""
    room = {"cpu": cpu, "memory": "64Gi", "pods": "50", "aliyun.com/gpu-mem": units}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}, **more}
    spec = {"providerID": f"test://{name}"}
    status = {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    return node_of({"metadata": meta, "spec": spec, "status": status})


def a_pod(name, on="", *, cpu="1", units="0", owner="ReplicaSet", scheduler="default-scheduler", **more):
    """A pod; without a node its scheduler has given up on it."""
    owners = [{"kind": owner, "controller": True}] if owner else []
    meta = {"name": name, "namespace": more.pop("namespace", "default"), "uid": name, "ownerReferences": owners}
    meta |= {"annotations": more.pop("annotations", {}), "labels": more.pop("labels", {})}
    asked = {"cpu": cpu, "aliyun.com/gpu-mem": units}
    spec = {"schedulerName": scheduler, "containers": [{"name": "main", "resources": {"requests": asked}}], **more}
    said = [] if on else [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return pod_of({"metadata": meta, "spec": spec | {"nodeName": on}, "status": {"conditions": said}})


@pytest.mark.parametrize(
    ("text", "seconds"), [("8760h", 8760 * 3600.0), ("1m30s", 90.0), ("300ms", 0.3), ("1 h", None), ("", None)]
)
def test_durations_are_gos(text, seconds):
    """As `time.ParseDuration`."""
    assert seconds == duration(text)


def test_an_allowed_scheduler_hides_pods_that_run_too():
    """The flag is applied to the whole list."""
    pods = [a_pod("share", "n1", scheduler=SHARE), a_pod("waits", scheduler=SHARE), a_pod("plain", "n1")]
    every, some = (
        scale_up.seen(pods, replace(OPTIONS, allowed_scheduler_names=frozenset(names)))
        for names in ((), ("default-scheduler",))
    )
    assert ["share", "plain"] == [pod.name for pod in every.allocated]
    assert ["waits"] == [pod.name for pod in every.unschedulable]
    assert (["plain"], ()) == ([pod.name for pod in some.allocated], some.unschedulable)


def test_who_fits_by_sums_is_not_bought_for():
    """Two cards of 16 with 8 free on each are 16 to it."""
    snapshot = Snapshot([a_node("n1", units="32")], [a_pod("a", "n1", units="8"), a_pod("b", "n1", units="8")])
    assert [] == scale_up.unserved([a_pod("fragmented", units="16")], snapshot)
    assert ["more"] == [pod.name for pod in scale_up.unserved([a_pod("more", units="1")], snapshot)]


@pytest.mark.parametrize(("delay", "helped"), [("8760h", False), ("10s", True), ("nonsense", True), ("", True)])
def test_a_pod_is_left_alone_for_as_long_as_its_annotation_says(delay, helped):
    """`pod-scale-up-delay` counts where it is a duration."""
    pod = a_pod("p", annotations={SCALE_UP_DELAY: delay} if delay else {})
    assert helped is bool(scale_up.old_enough([pod], {"p": 60.0}, OPTIONS))


def test_options_are_packed_on_fresh_nodes_and_bounded_by_the_group():
    """First-fit-decreasing by CPU and memory; a group that is full, backed off or unknown is none."""
    pods = [a_pod(str(at), cpu="3") for at in range(5)]
    group = Group("a", 0, 10, 8, a_node("template"))
    found = scale_up.options_for(pods, [group], OPTIONS)
    assert [("a", 2, 4)] == [(one.group, one.count, len(one.pods)) for one in found]
    for other in (replace(group, target=10), replace(group, backed_off=True), replace(group, template=None)):
        assert [] == scale_up.options_for(pods, [other], OPTIONS)
    assert [] == scale_up.options_for([a_pod("big", cpu="9")], [group], OPTIONS)


def test_least_waste_takes_the_group_that_fits_best():
    """By CPU and memory that would stand idle."""
    groups = [Group(name, 0, 5, 0, a_node(name, cpu)) for name, cpu in (("large", "64"), ("small", "4"))]
    assert scale_up.least_waste(scale_up.options_for([a_pod("p", cpu="3")], groups, OPTIONS)).group == "small"
    assert scale_up.least_waste([]) is None


def test_selectors_affinity_and_taints_are_honoured():
    """As the scheduler's filters do."""
    node = replace(a_node("n1"), taints=({"key": "gpu", "value": "1", "effect": "NoSchedule"},))
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    assert not allowed(a_pod("p"), node)
    assert allowed(a_pod("p", tolerations=tolerations), node)
    assert not allowed(a_pod("p", tolerations=tolerations, nodeSelector={"disk": "fast"}), node)
    assert not allowed(a_pod("p", tolerations=tolerations, affinity=affinity), node)


BLOCKING = {
    "not replicated": a_pod("p", "n1", owner=""),
    "custom controller": a_pod("p", "n1", owner="Whatever"),
    "kube-system": a_pod("p", "n1", namespace="kube-system"),
    "not safe to evict": a_pod("p", "n1", annotations={SAFE_TO_EVICT: "false"}),
    "local storage": a_pod("p", "n1", volumes=[{"name": "v", "emptyDir": {}}]),
    "budget": a_pod("p", "n1", labels={"app": "kept"}),
}
MOVING = {
    "replicated": a_pod("p", "n1"),
    "told to be safe": a_pod("p", "n1", owner="", annotations={SAFE_TO_EVICT: "true"}),
    "memory as storage": a_pod("p", "n1", volumes=[{"name": "v", "emptyDir": {"medium": "Memory"}}]),
}
STAYING = {
    "DaemonSet": a_pod("p", "n1", owner="DaemonSet"),
    "mirror": a_pod("p", "n1", owner="", annotations={"kubernetes.io/config.mirror": "x"}),
}
BUDGETS = (Budget("default", {"app": "kept"}, 0),)


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        *((pod, why) for why, pod in BLOCKING.items()),
        *((pod, "") for pod in MOVING.values()),
        *((pod, None) for pod in STAYING.values()),
    ],
    ids=[*BLOCKING, *MOVING, *STAYING],
)
def test_what_keeps_a_node(pod, why):
    """The documented rules, one each."""
    assert why == scale_down.blocked(pod, BUDGETS, OPTIONS, NOW)


def situation(*pods, nodes=("n1", "n2"), cpu="8", units="0", deleting=(), least=0):
    """Nodes of one group."""
    snapshot = Snapshot([a_node(name, cpu, units) for name in nodes], pods)
    group = Group("a", least, 10, len(nodes))
    return scale_down.Situation(snapshot, {"a": group}, dict.fromkeys(nodes, "a"), BUDGETS, deleting)


def test_a_node_goes_after_ten_minutes_below_the_threshold_whose_pods_fit_elsewhere():
    """Unneeded since the first look; utilisation is the larger of CPU and memory."""
    here = situation(a_pod("p", "n1", cpu="2"), a_pod("q", "n2", cpu="5"))
    found, memory = scale_down.find(here, scale_down.Memory(), OPTIONS, NOW)
    assert (("n1",), {"n2": "not underutilized"}) == (found.removable, found.kept)
    assert () == scale_down.due(found, memory, here, OPTIONS, NOW)
    found, memory = scale_down.find(here, memory, OPTIONS, NOW + 601)
    assert ("n1",) == scale_down.due(found, memory, here, OPTIONS, NOW + 601)


def test_full_cards_that_it_does_not_see_look_like_an_empty_node():
    """Without the pods in its list the node has only the ordinary pod, which fits elsewhere."""
    shares = [a_pod("s1", "n1", cpu="3", units="16", scheduler=SHARE), a_pod("s2", "n2", units="16", scheduler=SHARE)]
    ordinary = a_pod("p", "n1")
    sees = scale_down.find(situation(*shares, ordinary, units="16"), scale_down.Memory(), OPTIONS, NOW)[0]
    blind = scale_down.find(situation(ordinary, units="16"), scale_down.Memory(), OPTIONS, NOW)[0]
    assert () == sees.removable
    assert "n2" in blind.removable


def test_a_pod_that_has_no_place_elsewhere_keeps_its_node_for_five_minutes():
    """Then it is tried again."""
    here = situation(a_pod("p", "n1", units="8"), a_pod("q", "n2", units="12"), units="16")
    found, memory = scale_down.find(here, scale_down.Memory(), OPTIONS, NOW)
    assert "default/p: no place elsewhere" == found.kept["n1"]
    room = situation(a_pod("p", "n1", units="8"), a_pod("q", "n2", units="2"), units="16")
    assert "recently unremovable" == scale_down.find(room, memory, OPTIONS, NOW + 299)[0].kept["n1"]
    assert scale_down.find(room, memory, OPTIONS, NOW + 301)[0].removable


def test_one_node_with_pods_at_a_time_and_never_below_the_minimum():
    """Empty ones go side by side."""
    pods = [a_pod("p", "n1"), a_pod("q", "n2")]
    here = situation(*pods, nodes=("n1", "n2", "n3", "n4", "n5"), least=3)
    found, memory = scale_down.find(here, scale_down.Memory(), OPTIONS, NOW)
    due = scale_down.due(found, memory, here, OPTIONS, NOW + 601)
    assert ("n3", "n4") == due
    wide = replace(here, groups={"a": Group("a", 0, 10, 5)})
    found, memory = scale_down.find(wide, scale_down.Memory(), OPTIONS, NOW)
    assert len([name for name in scale_down.due(found, memory, wide, OPTIONS, NOW + 601) if found.moves[name]]) <= 1


def test_the_annotation_of_a_node_keeps_it():
    """`scale-down-disabled`."""
    snapshot = Snapshot([a_node("n1", annotations={SCALE_DOWN_DISABLED: "true"}), a_node("n2")])
    here = scale_down.Situation(snapshot, {"a": Group("a", 0, 10, 2)}, {"n1": "a", "n2": "a"})
    assert {"n1": "scale-down disabled"} == scale_down.find(here, scale_down.Memory(), OPTIONS, NOW)[0].kept


class Recorder:
    """A server of one group that notes what it is asked."""

    def __init__(self, least=0, target=1):
        self.asked, self.least, self.target = [], least, target

    def unary_unary(self, path, request_serializer, response_deserializer):
        """As gRPC."""
        del request_serializer, response_deserializer

        async def call(message, timeout):  # noqa: ASYNC109 (gRPC's own name)
            del timeout
            method = path.rpartition("/")[2]
            name = message.node.name if method == "NodeGroupForNode" else ""
            self.asked.append(f"{method} {name}".strip())
            return self._answer(method, name, message)

        return call

    def _answer(self, method, name, message):
        messages = GENERATIONS[1].messages
        group = messages["NodeGroup"](id="a", minSize=self.least, maxSize=5)
        if method == "NodeGroups":
            return messages["Groups"](nodeGroups=[group])
        if method == "NodeGroupForNode":
            return messages["OneGroup"](nodeGroup=group if name.startswith("n") else messages["NodeGroup"]())
        if method == "NodeGroupIncreaseSize":
            self.target += message.delta
        if method == "NodeGroupTargetSize":
            return messages["Size"](targetSize=self.target)
        if method == "NodeGroupNodes":
            return messages["Instances"](instances=[messages["Instance"](id="test://n1")])
        return messages["Label"]() if method == "GPULabel" else messages["Empty"]()


class Memory:
    """A cluster that nobody changes, and a clock that stands still."""

    def __init__(self, nodes, pods=()):
        self._nodes, self._pods = nodes, pods

    async def nodes(self):
        """All."""
        return self._nodes

    async def pods(self):
        """All."""
        return list(self._pods)

    async def budgets(self):
        """None."""
        return []

    def now(self):
        """Always."""
        return NOW

    def at(self, wall):
        """The same."""
        return wall


def loops(server, *pods, count=2, **flags):
    """What is asked in the last of so many loops."""
    cluster = Memory([a_node("plain"), a_node("n1")], pods)
    autoscaler = Autoscaler(cluster, Cloud(server, None), cluster, replace(OPTIONS, **flags))

    async def run():
        for _ in range(count):
            server.asked.clear()
            await autoscaler.run_once()

    asyncio.run(run())
    return server.asked


def test_calls_of_one_loop_in_their_order():
    """A node of no pool is asked about eight times, one of a pool once; the GPU label only ever once."""
    asked = loops(Recorder(), enforce_node_group_min_size=True)
    assert ["Refresh", "NodeGroups", "NodeGroupForNode plain", "NodeGroupForNode n1", "NodeGroupTargetSize"] == asked[
        :5
    ]
    assert (8, 1) == (asked.count("NodeGroupForNode plain"), asked.count("NodeGroupForNode n1"))
    assert "NodeGroupTargetSize" == asked[-1]
    assert "GPULabel" not in asked


def test_calls_of_a_loop_that_buys():
    """A node of no pool is asked about once more for the resources left, and the loop ends with the purchase."""
    server = Recorder()
    asked = loops(
        server, a_pod("waits", cpu="8"), a_pod("runs", "n1", cpu="2"), a_pod("too", "plain", cpu="2"), count=1
    )
    assert "NodeGroupIncreaseSize" == asked[-1]
    assert 2 == server.target


def test_a_group_is_raised_to_its_minimum_after_everything_else():
    """With the flag; without it nobody buys."""
    server = Recorder(least=3)
    assert "NodeGroupIncreaseSize" == loops(server, count=1, enforce_node_group_min_size=True)[-1]
    assert 3 == server.target
    assert "NodeGroupIncreaseSize" not in loops(Recorder(least=3), count=1)
