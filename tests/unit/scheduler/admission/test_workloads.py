# SPDX-License-Identifier: Apache-2.0
"""What admission says of what makes pods, and of amounts that no node could ever hold."""

from __future__ import annotations

import pytest
from support.admission_pods import (
    COUNT,
    MEM,
    TEMPLATED,
    amount,
    good,
    labelled,
    patched,
    pod,
    spec,
    template_of,
    workload,
)
from support.admission_reviews import asked, respond, world
from support.builders import node

from isolation.contract.codec.pools import PublishedPool, encode_pools
from isolation.contract.model import ComputePolicy, Mode
from isolation.scheduler.admission.core.messages import ClusterUpdate, ClusterView
from isolation.scheduler.admission.core.node_sizes import NodeSizes, measure_nodes
from isolation.scheduler.admission.core.serving import parse_trust_groups


@pytest.mark.parametrize("kind", TEMPLATED)
def test_every_kind_of_workload_is_looked_into(kind):
    """
    A sound template passes as it is; a bad one does not; without a change it always passes.
    """
    resource = f"{TEMPLATED[kind][1]}.{TEMPLATED[kind][0].rpartition('/')[0]}".rstrip(".")
    sound, bad = workload(kind, pod()), workload(kind, good(spec(hostPID=True)))

    answers = [
        respond(asked(sound, resource=resource), world()),
        respond(asked(bad, resource=resource), world()),
        respond(asked(bad, "UPDATE", sound, resource=resource), world()),
        respond(asked(bad, "UPDATE", bad, resource=resource), world()),
        respond(asked(None, "DELETE", bad, resource=resource), world()),
    ]

    assert [True, False, False, True, True] == [answer["allowed"] for answer in answers]
    assert [] == answers[0]["patch"]


@pytest.mark.parametrize("kind", TEMPLATED)
def test_a_count_on_the_workload_alone_reaches_its_pods(kind):
    """
    The label is copied to the template, with a remark; the template's own wins.
    """
    resource = f"{TEMPLATED[kind][1]}.{TEMPLATED[kind][0].rpartition('/')[0]}".rstrip(".")
    made = workload(kind, pod("8"), labels={COUNT: "4"})
    answer = respond(asked(made, resource=resource), world())
    own = workload(kind, good(labelled(COUNT, "2")), labels={COUNT: "4"})
    uneven = workload(kind, pod("8"), labels={COUNT: "3"})
    del template_of(uneven)["metadata"]["labels"]
    bare = workload(kind, pod("8"), labels={COUNT: "4"})
    del template_of(bare)["metadata"]
    bare_answer = respond(asked(bare, resource=resource), world())

    assert "4" == template_of(patched(made, answer["patch"]))["metadata"]["labels"][COUNT]
    assert "4" == template_of(patched(bare, bare_answer["patch"]))["metadata"]["labels"][COUNT]
    assert "copied to the pod template" in answer["warnings"][0]
    assert [] == respond(asked(own, resource=resource), world())["patch"]
    assert "does not divide" in respond(asked(uneven, resource=resource), world())["message"]


def test_a_daemon_set_of_shares_for_all_nodes_is_a_remark():
    """
    Its pods for nodes without cards would wait for ever; with a selector it is what it says.
    """
    everywhere = respond(asked(workload("DaemonSet", pod()), resource="daemonsets.apps"), world())
    chosen = workload("DaemonSet", good(spec(nodeSelector={"cards": "yes"})))

    assert "add a nodeSelector" in everywhere["warnings"][0]
    assert "warnings" not in respond(asked(chosen, resource="daemonsets.apps"), world())


FLEET = [node(cards=4, size=15), node(cards=1, size=79), node(cards=2, size=23, mode=Mode.CORE_MEM)]


@pytest.mark.parametrize(
    ("change", "told_so"),
    [
        (amount(MEM, "80"), "the largest card offers 79"),
        (labelled(COUNT, "5", amount(MEM, "5")), "the largest node has 4"),
        (labelled(COUNT, "2", amount(MEM, "40")), "on a node with 2 cards offers 15"),
        (lambda p: (amount(MEM, "30")(p), amount("aliyun.com/gpu-core.percentage", "5")(p)), "offers 23"),
    ],
    ids=["too-large", "too-many", "too-large-for-several", "compute"],
)
def test_what_no_node_could_ever_hold_is_refused_unless_the_fleet_may_grow(change, told_so):
    """
    A pool that is empty now may bring larger cards: there it is a remark, since a refused pod makes no pool grow.
    """
    closed = respond(asked(good(change)), world(fleet=measure_nodes(FLEET)))
    open_ = respond(asked(good(change)), world(fleet=measure_nodes(FLEET, may_grow=True)))
    unknown = respond(asked(good(change)), world(fleet=NodeSizes()))

    assert (False, True, True) == (closed["allowed"], open_["allowed"], unknown["allowed"])
    assert told_so in closed["message"]
    assert told_so in open_["warnings"][0]
    assert "warnings" not in unknown


def test_shares_where_all_nodes_serve_whole_cards_are_refused():
    """
    And the label that would change it is named.
    """
    exclusive = world(fleet=measure_nodes([node(mode=Mode.EXCLUSIVE), node(cards=0, mode=Mode.NONE)]))

    assert "label a node ack.node.gpu.schedule=cgpu or share" in respond(asked(pod()), exclusive)["message"]


@pytest.mark.parametrize(
    ("mode", "compute", "says"),
    [
        (Mode.CORE_MEM, "", "also request aliyun.com/gpu-core.percentage, for nodes of mode core_mem, label a node"),
        (Mode.CGPU, "30", "request aliyun.com/gpu-mem without aliyun.com/gpu-core.percentage, label a node"),
    ],
)
def test_a_share_of_the_other_kind_is_named_where_the_nodes_serve_it(mode, compute, says):
    """
    Somebody who cannot label nodes can change the pod.
    """
    limits = {MEM: "2"} | ({"aliyun.com/gpu-core.percentage": compute} if compute else {})
    wanted = pod(containers=[{"name": "main", "image": "i", "resources": {"limits": limits, "requests": limits}}])
    answer = respond(asked(wanted), world(fleet=measure_nodes([node(mode=mode)])))
    assert not answer["allowed"]
    assert says in answer["message"]


def test_a_node_that_has_not_named_its_cards_yet_may_have_any():
    """
    While agents start nothing is refused for size; what other nodes have does not matter then.
    """
    starting = world(fleet=measure_nodes([node(cards=0, mode=Mode.CGPU), node(cards=1, size=15)]))

    assert respond(asked(good(amount(MEM, "80"))), starting)["allowed"]


POOLS = [node(cards=1, size=96), node(cards=2, size=47, mode=Mode.CORE_MEM), node(cards=8, size=15)]


@pytest.mark.parametrize(
    ("change", "told_so"),
    [
        (amount(MEM, "80"), ""),
        (amount(MEM, "97"), "the largest card offers 79 on existing nodes and 96 on nodes that the pools can add"),
        (labelled(COUNT, "8", amount(MEM, "8")), ""),
        (labelled(COUNT, "9", amount(MEM, "9")), "node has 4 on existing nodes and 8 on nodes that the pools can add"),
        (
            labelled(COUNT, "8", amount(MEM, "128")),
            "on a node with 8 cards offers none on existing nodes and 15 on nodes that the pools can add",
        ),
    ],
    ids=["larger", "too-large", "more", "too-many", "too-large-for-several"],
)
@pytest.mark.parametrize("may_grow", [True, False])
def test_what_a_pool_may_bring_is_known_once_it_is_published(change, told_so, may_grow):
    """
    Cards that are up do not hide those that an empty pool has; what neither could ever hold is refused, naming both.
    """
    answer = respond(
        asked(good(change)), world(fleet=measure_nodes(FLEET, may_grow=may_grow), growth=measure_nodes(POOLS))
    )

    assert (not told_so) == answer["allowed"]
    assert told_so in answer.get("message", "")
    assert "warnings" not in answer


def test_in_an_empty_cluster_the_pools_alone_decide():
    """Without a node nothing was known; nodes of a pool whose cards nobody knows yet leave it open."""
    large, compute = good(amount(MEM, "97")), good(labelled(COUNT, "1", amount(MEM, "50")))
    amount("aliyun.com/gpu-core.percentage", "5")(compute)
    refused = [respond(asked(one), world(fleet=NodeSizes(), growth=measure_nodes(POOLS))) for one in (large, compute)]
    bare = measure_nodes([*POOLS, node(cards=0, mode=Mode.CGPU)])

    assert [False, False] == [one["allowed"] for one in refused]
    assert "none on existing nodes and 96" in refused[0]["message"]
    assert respond(asked(large), world(fleet=NodeSizes(), growth=bare))["allowed"]


def _published(*pools, complete=True):
    return encode_pools([PublishedPool(f"p{i}", one, 0, 3) for i, one in enumerate(pools)], complete=complete)


def test_only_a_whole_list_of_pools_closes_the_fleet():
    """Nothing published, a pool left out, or no pool at all: other nodes may come, for all that is known."""
    known = ClusterView()
    seen = []
    for text in ("", _published(), _published(*POOLS, complete=False), _published(*POOLS), ""):
        known.apply(ClusterUpdate(whole=True, synced=True, pools=text))
        seen.append(known.growth)

    assert [None, None, None, measure_nodes(POOLS), None] == seen
    known.apply(
        ClusterUpdate(whole=True, synced=True, pools=encode_pools([PublishedPool("p", POOLS[0])], complete=True))
    )
    assert NodeSizes() == known.growth  # a pool that may have no node brings none


def test_a_weight_by_variable_becomes_an_annotation():
    """Of the pod, once; where the pod says the same by annotation nothing is added."""
    one = pod()
    one["spec"]["containers"][0]["env"] = [{"name": "ALIYUN_COM_GPU_SCHD_WEIGHT", "value": "3"}]
    both = patched(one, respond(asked(one), world())["patch"])

    assert {"gpushare.dev/weight": "3"} == both["metadata"]["annotations"]
    assert [] == respond(asked(both), world())["patch"]


MPS = {"nodeSelector": {"ack.node.gpu.schedule": "mps"}}
AS_USER = {**MPS, "securityContext": {"runAsUser": 1000}}


@pytest.mark.parametrize(
    ("spec", "fleet", "said"),
    [
        (AS_USER, [node(mode=Mode.MPS)], ""),
        (MPS, [node(mode=Mode.MPS)], "securityContext.runAsUser"),
        (AS_USER, [node()], "label a node ack.node.gpu.schedule=mps"),
        ({}, [node(mode=Mode.MPS)], "label a node ack.node.gpu.schedule=cgpu or share"),
    ],
)
def test_a_pod_for_mps_says_its_user_and_other_pods_are_kept_from_it(spec, fleet, said):
    """Nobody comes to share faults unasked."""
    answer = respond(asked(pod(**spec)), world(fleet=measure_nodes(fleet)))
    assert answer["allowed"] is not bool(said)
    assert said in answer.get("message", "")


def test_the_trust_group_is_the_operators_word():
    """Set from the list by namespace; a tenant that writes one of its own is refused, also in a binding or later."""
    key = "gpushare.dev/trust-group"
    own = world(trust_groups={"ml": "research"})
    made = patched(pod(**AS_USER), respond(asked(pod(**AS_USER), namespace="ml"), own)["patch"])
    assert made["metadata"]["annotations"][key] == "research"
    assert respond(asked(made, namespace="ml"), own)["allowed"], "the API server may ask again after another webhook"
    for group in ("research", "other"):
        forged = pod(**AS_USER)
        forged["metadata"]["annotations"] = {key: group}
        refused = respond(asked(forged), world())
        assert (False, True) == (refused["allowed"], "the operator's word" in refused["message"])
    later = respond(asked(made, "UPDATE", old=pod(**AS_USER)), own)
    bound = respond(asked({"metadata": {"annotations": {key: "research"}}}, sub="binding"), own)
    assert (False, False) == (later["allowed"], bound["allowed"])


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (["research=ml,vision", "ops=web"], (("ml", "research"), ("vision", "research"), ("web", "ops"))),
        ([], ()),
        (["research"], "GROUP=NAMESPACE"),
        (["research="], "GROUP=NAMESPACE"),
        (["re/search=ml"], "GROUP=NAMESPACE"),
        (["a=ml", "b=ml"], "in the groups a and b"),
    ],
)
def test_trust_groups_are_lists_of_namespaces(entries, found):
    if isinstance(found, tuple):
        assert parse_trust_groups(entries) == found
    else:
        with pytest.raises(ValueError, match=found):
            parse_trust_groups(entries)


def test_an_offline_pod_needs_a_node_that_makes_it_yield():
    """No node has policy priority: refused with the label, and admitted once one has it."""
    shy = pod()
    shy["metadata"]["annotations"] = {"gpushare.dev/online": "false"}
    fleets = [measure_nodes([node(policy=policy)]) for policy in (ComputePolicy.FIXED, ComputePolicy.PRIORITY)]
    fixed, priority = (respond(asked(shy), world(fleet=fleet)) for fleet in fleets)

    assert "gpushare.dev/compute-policy=priority" in fixed["message"]
    assert (False, True) == (fixed["allowed"], priority["allowed"])
