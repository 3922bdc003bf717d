# SPDX-License-Identifier: Apache-2.0
"""Our pools as cluster-autoscaler's cloud provider, asked through real gRPC by clients of both generations."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest
from support.builders import node
from support.rpc_harness import GENERATIONS, PROVIDER, Pools, channel_to
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.rpc.cloud_provider import CloudProvider
from autoscaler.apis.rpc.core.node_groups import (
    GroupInstance,
    InstancePhase,
    NodeGroup,
    NodeGroupError,
    NoStockError,
    OutcomeUnknownError,
)
from autoscaler.apis.rpc.core.templates import encode_template
from autoscaler.apis.rpc.core.wire.core import node_json
from autoscaler.apis.rpc.handler import CallPolicy
from isolation.contract.codec.node import node_of
from isolation.contract.model import Mode, Taint
from isolation.contract.names import ACK, CARD_COUNT, CARD_UNITS, POOL, WHOLE_CARDS

both = pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.name)
CODE = grpc.StatusCode


def asked(pools, play, policy=None, **how):
    """Run `play(client's channel)` against a server over these pools."""

    async def run():
        async with channel_to(CloudProvider(pools, policy or CallPolicy(seconds=PATIENCE_SECONDS)), **how) as channel:
            return await play(channel)

    return asyncio.run(run())


def code_of(pools, generation, method, policy=None, **fields):
    """The status of one call, and what was said."""

    async def play(channel):
        try:
            await generation.provider(channel)[method](**fields)
        except grpc.aio.AioRpcError as exc:
            return exc.code(), exc.details()
        return CODE.OK, ""

    return asked(pools, play, policy)


@both
def test_groups_are_reported_with_the_smallest_size_that_is_commanded(generation):
    """
    The floor is the pool's own, raised by a command, never above the largest.
    """
    pools = Pools(NodeGroup("a", 1, 5), NodeGroup("b", 1, 5, commanded=3), NodeGroup("c", 0, 2, commanded=9))

    async def play(channel):
        said = await generation.provider(channel)["NodeGroups"]()
        return [(group.id, group.minSize, group.maxSize) for group in said.nodeGroups]

    assert [("a", 1, 5), ("b", 3, 5), ("c", 2, 2)] == asked(pools, play)


@both
def test_a_template_is_a_node_whose_cards_are_capacity(generation):
    """
    Both generations read the same fresh node: amounts, labels that admission's affinity asks for, taints, Ready.
    """
    fresh = node("seen", 2, 15, cpu_milli=3500, labels={"zone": "a", "kubernetes.io/hostname": "seen"})
    fresh = replace(fresh, taints=(Taint("gpu", "yes"),))
    pools = Pools(NodeGroup("a", template=fresh, others={"ephemeral-storage": "10Gi"}))

    async def play(channel):
        return generation.node_of(await generation.provider(channel)["NodeGroupTemplateNodeInfo"](id="a"))

    said = asked(pools, play)
    amounts = {name: amount.string for name, amount in said.status.allocatable.items()}
    labels = dict(said.metadata.labels)
    assert {"cpu": "3500m", "pods": "1000", ACK.memory: "30", ACK.card_count: "2", "ephemeral-storage": "10Gi"} == {
        name: amount for name, amount in amounts.items() if name != "memory"
    }
    assert ("15", "2", "a", "a") == (labels[CARD_UNITS], labels[CARD_COUNT], labels[POOL], labels["zone"])
    assert "seen" not in labels.values()
    assert [("gpu", "yes", "NoSchedule")] == [(taint.key, taint.value, taint.effect) for taint in said.spec.taints]
    assert [("Ready", "True")] == [(one.type, one.status) for one in said.status.conditions]


@both
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.SHARE, {ACK.memory: "30", ACK.card_count: "2"}),
        (Mode.CORE_MEM, {ACK.memory: "30", ACK.card_count: "2", ACK.compute: "200"}),
        (Mode.EXCLUSIVE, {ACK.whole: "2"}),
        (Mode.NONE, {}),
    ],
)
def test_a_template_offers_what_its_mode_serves(generation, mode, expected):
    """
    A pool of one mode never looks as if it served another's pods.
    """
    pools = Pools(NodeGroup("a", template=node("seen", 2, 15, mode=mode)))

    async def play(channel):
        return generation.node_of(await generation.provider(channel)["NodeGroupTemplateNodeInfo"](id="a"))

    capacity = asked(pools, play).status.capacity
    resources = {ACK.memory, ACK.card_count, ACK.compute, ACK.whole}
    assert expected == {name: amount.string for name, amount in capacity.items() if name in resources}


def test_a_template_reads_back_as_the_node_that_it_was():
    """
    Cards, mode and room survive the way to protobuf and back, so that an expander can count card by card.
    """
    fresh = node("seen", 2, 15, mode=Mode.CORE_MEM, labels={ACK.mode_label: "core_mem"})

    back = node_of(node_json(encode_template(NodeGroup("a", template=fresh))))

    assert ([(c.index, c.total_bytes) for c in fresh.cards], fresh.cpu_milli, fresh.memory_bytes, Mode.CORE_MEM) == (
        [(c.index, c.total_bytes) for c in back.cards],
        back.cpu_milli,
        back.memory_bytes,
        back.mode,
    )
    assert {c.uuid for c in fresh.cards}.isdisjoint(c.uuid for c in back.cards)


@both
def test_a_node_belongs_to_the_group_that_has_its_machine(generation):
    """
    By its provider id, else by its name; an unknown one belongs to no group, which is an empty id and no error.
    """
    pools = Pools(NodeGroup("a"), NodeGroup("b", 0, 4))
    pools.arrive("b", "n1")

    async def play(channel):
        call = generation.provider(channel)["NodeGroupForNode"]
        nodes = ({"providerID": "test://n1"}, {"name": "n1"}, {"name": "n2", "providerID": "test://n2"}, {})
        return [(await call(node=one)).nodeGroup.id for one in nodes]

    assert ["b", "b", "", ""] == asked(pools, play)


@both
def test_a_group_grows_by_what_is_asked_and_its_target_says_so_at_once(generation):
    """
    cluster-autoscaler asks for the target right after the increase.
    """
    pools = Pools(NodeGroup("a", 0, 5, target=1))

    async def play(channel):
        client = generation.provider(channel)
        await client["NodeGroupIncreaseSize"](id="a", delta=3)
        return (await client["NodeGroupTargetSize"](id="a")).targetSize

    assert 4 == asked(pools, play)


@both
def test_nodes_leave_by_name_and_the_target_with_them(generation):
    """
    Named twice they leave once; one whose deletion runs already costs nothing more.
    """
    pools = Pools(NodeGroup("a", 0, 5, target=4))
    pools.arrive("a", "n1", "n2", "n3")
    gone = GroupInstance("test://n4", "n4", InstancePhase.DELETING)
    pools.change("a", instances=(*pools.now("a").instances, gone))

    async def play(channel):
        nodes = [{"providerID": "test://n1"}, {"name": "n1"}, {"name": "n2"}, {"name": "n4"}]
        client = generation.provider(channel)
        await client["NodeGroupDeleteNodes"](id="a", nodes=nodes)
        return [one.id for one in (await client["NodeGroupNodes"](id="a")).instances]

    assert ["test://n3", "test://n4"] == asked(pools, play)
    assert 2 == pools.now("a").target


@both
@pytest.mark.parametrize(
    ("method", "fields", "code"),
    [
        ("NodeGroupTargetSize", {"id": "x"}, CODE.NOT_FOUND),
        ("NodeGroupIncreaseSize", {"id": "a", "delta": 0}, CODE.INVALID_ARGUMENT),
        ("NodeGroupIncreaseSize", {"id": "a", "delta": -2}, CODE.INVALID_ARGUMENT),
        ("NodeGroupIncreaseSize", {"id": "a", "delta": 4}, CODE.FAILED_PRECONDITION),
        ("NodeGroupIncreaseSize", {"id": "a", "delta": (1 << 31) - 1}, CODE.FAILED_PRECONDITION),
        ("NodeGroupDeleteNodes", {"id": "a", "nodes": [{"name": "n1"}, {"name": "other"}]}, CODE.NOT_FOUND),
        ("NodeGroupDeleteNodes", {"id": "a", "nodes": [{"name": "n1"}, {"name": "n2"}]}, CODE.FAILED_PRECONDITION),
        ("NodeGroupDecreaseTargetSize", {"id": "a", "delta": 1}, CODE.INVALID_ARGUMENT),
        ("NodeGroupDecreaseTargetSize", {"id": "a", "delta": -1}, CODE.FAILED_PRECONDITION),
        ("NodeGroupDecreaseTargetSize", {"id": "a", "delta": -(1 << 31)}, CODE.FAILED_PRECONDITION),
        ("NodeGroupTemplateNodeInfo", {"id": "a"}, CODE.UNIMPLEMENTED),
        ("PricingNodePrice", {}, CODE.UNIMPLEMENTED),
        ("PricingPodPrice", {}, CODE.UNIMPLEMENTED),
        ("NodeGroupGetOptions", {"id": "a", "defaults": {"scaleDownUtilizationThreshold": 0.5}}, CODE.UNIMPLEMENTED),
    ],
)
def test_what_may_not_be_is_refused_and_nothing_changes(generation, method, fields, code):
    """
    All of a request or nothing of it: bounds, other pools' nodes, what is not implemented on purpose.
    """
    pools = Pools(NodeGroup("a", 1, 5, target=2))
    pools.arrive("a", "n1", "n2")

    assert code == code_of(pools, generation, method, **fields)[0]
    assert [] == pools.asked


@both
def test_a_machine_that_never_came_may_go_below_the_smallest_size(generation):
    """
    What holds nothing protects nobody; it is named by its id alone.
    """
    pools = Pools(
        NodeGroup("a", 1, 5, target=1, instances=(GroupInstance("test://x", trouble="no stock", out_of_stock=True),))
    )

    async def play(channel):
        client = generation.provider(channel)
        status = (await client["NodeGroupNodes"](id="a")).instances[0].status
        await client["NodeGroupDeleteNodes"](id="a", nodes=[{"name": "test://x"}])
        return status.instanceState, status.errorInfo.instanceErrorClass, status.errorInfo.errorMessage

    assert (2, 1, "no stock") == asked(pools, play)
    assert () == pools.now("a").instances


@both
def test_an_order_that_does_not_come_is_called_off(generation):
    """
    Down to the machines that are there, and no further; one that failed is not there.
    """
    pools = Pools(NodeGroup("a", 0, 5, target=3, instances=(GroupInstance("test://x", trouble="no stock"),)))
    pools.arrive("a", "n1")

    assert CODE.OK == code_of(pools, generation, "NodeGroupDecreaseTargetSize", id="a", delta=-2)[0]
    assert 1 == pools.now("a").target


@both
def test_only_whole_cards_are_gpus_to_cluster_autoscaler(generation):
    """
    A shared node under its GPU label would be called unready and empty, because no GPU it knows is on it.
    """
    whole = node("w", 1, 15, mode=Mode.EXCLUSIVE, model="T4")
    pools = Pools(NodeGroup("a", template=whole), NodeGroup("b", template=node("s", 1, 15, model="A100")))

    async def play(channel):
        client = generation.provider(channel)
        return (await client["GPULabel"]()).label, sorted((await client["GetAvailableGPUTypes"]()).gpuTypes)

    assert (WHOLE_CARDS, ["T4"]) == asked(pools, play)
    labels = node_json(encode_template(pools.now("a")))["metadata"]["labels"]
    assert ("T4", False) == (
        labels.get(WHOLE_CARDS),
        WHOLE_CARDS in node_json(encode_template(pools.now("b")))["metadata"]["labels"],
    )


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (NoStockError("no T4 in zone a"), CODE.RESOURCE_EXHAUSTED, "no T4 in zone a"),
        (OutcomeUnknownError("no answer"), CODE.UNAVAILABLE, "no answer"),
        (NodeGroupError("the pool is paused"), CODE.FAILED_PRECONDITION, "the pool is paused"),
        (RuntimeError("password is 1234"), CODE.INTERNAL, "log"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_failure_has_its_own_status_and_a_fault_tells_no_secrets(error, code, words):
    """
    Out of stock makes cluster-autoscaler back off; a fault of ours is in our log, not on the wire.
    """
    pools = Pools(NodeGroup("a", 0, 5))
    pools.fails = error

    found, said = code_of(pools, GENERATIONS[1], "NodeGroupIncreaseSize", id="a", delta=1)

    assert (code, True, False) == (found, words in said, "1234" in said)


def test_what_takes_too_long_is_answered_and_still_done():
    """
    The caller learns that time is over; the action is not cut in half, and the next one waits for it.
    """
    pools, policy = Pools(NodeGroup("a", 0, 2)), CallPolicy(seconds=0.1)
    may = asyncio.Event()

    async def play(channel):
        slow = pools.grow

        async def grow(group, by):
            await may.wait()
            await slow(group, by)

        pools.grow = grow
        call = GENERATIONS[1].provider(channel)["NodeGroupIncreaseSize"]
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await call(id="a", delta=1)
        object.__setattr__(policy, "seconds", PATIENCE_SECONDS)
        second = asyncio.ensure_future(call(id="a", delta=2))
        await asyncio.sleep(0.02)
        may.set()
        with pytest.raises(grpc.aio.AioRpcError) as over:
            await second
        return late.value.code(), over.value.code(), pools.now("a").target

    expected = (CODE.DEADLINE_EXCEEDED, CODE.FAILED_PRECONDITION, 1)
    assert expected == asked(pools, play, policy)


def test_two_increases_at_once_do_not_pass_the_largest_size_together():
    """
    The second sees what the first has done.
    """
    pools = Pools(NodeGroup("a", 0, 3))

    async def play(channel):
        call = GENERATIONS[0].provider(channel)["NodeGroupIncreaseSize"]
        return await asyncio.gather(*(call(id="a", delta=2) for _ in range(4)), return_exceptions=True)

    answers = asked(pools, play)
    assert (2, 3) == (pools.now("a").target, sum(isinstance(one, grpc.aio.AioRpcError) for one in answers))


@pytest.mark.parametrize("method", ["NodeGroupDeleteNodes", "NodeGroupForNode", "PricingPodPrice"])
def test_bytes_that_are_no_message_end_the_call_and_not_the_server(method):
    """
    Rubbish on the wire is an error of its sender.
    """
    pools = Pools(NodeGroup("a", 0, 5))

    async def play(channel):
        call = channel.unary_unary(f"/{PROVIDER}.CloudProvider/{method}")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\xff" * 100, timeout=PATIENCE_SECONDS)
        with pytest.raises(grpc.aio.AioRpcError) as large:
            await call(b"\x0a" + b"x" * (5 << 20), timeout=PATIENCE_SECONDS)
        return large.value.code(), len((await GENERATIONS[0].provider(channel)["NodeGroups"]()).nodeGroups)

    code, groups = asked(pools, play)
    assert (True, 1) == (code in {CODE.RESOURCE_EXHAUSTED, CODE.UNIMPLEMENTED}, groups)
