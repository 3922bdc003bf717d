# SPDX-License-Identifier: Apache-2.0
"""The expander, asked through real gRPC by clients of both generations: what is worth growing, card by card."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.builders import ask, node
from support.rpc_harness import GENERATIONS, channel_to
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.rpc.core.options import ExpansionOption, score_options
from autoscaler.apis.rpc.expander import Expander
from autoscaler.apis.rpc.handler import CallPolicy
from autoscaler.core.pools import Pool
from isolation.contract.codec.node import encode_cards
from isolation.contract.model import Mode, Requirement, Rules, Taint
from isolation.contract.names import ACK, CARDS

both = pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.name)


class Ours:
    """Pools that we know ourselves."""

    def __init__(self, *pools):
        self._pools = {pool.name: pool for pool in pools}

    def pools(self):
        """By name."""
        return self._pools


def pod(generation, units, name="p", *, count=None):
    """A pod as protobuf, asking for so many GiB of one card (or of `count`)."""
    amounts = {ACK.memory: generation.core["Quantity"](string=str(units))}
    labels = {} if count is None else {ACK.card_count: str(count)}
    container = {"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    return generation.core["Pod"](
        metadata={"name": name, "namespace": "default", "labels": labels}, spec={"containers": [container]}
    )


def fresh(generation, cards, size, *, listed=True):
    """A node of shared cards as protobuf; with our annotation, or with sums alone."""
    made = node("t", cards, size)
    quantity = generation.core["Quantity"]
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", ACK.memory: str(cards * size), ACK.card_count: str(cards)}
    stated = {name: quantity(string=amount) for name, amount in amounts.items()}
    return generation.core["Node"](
        metadata={
            "name": "template",
            "labels": {ACK.mode_label: "cgpu"},
            "annotations": {CARDS: encode_cards(made.cards)} if listed else {},
        },
        status={"capacity": stated, "allocatable": stated, "conditions": [{"type": "Ready", "status": "True"}]},
    )


def chosen(generation, options, nodes, *ours):
    """The groups that the expander names, in its order."""

    async def run():
        async with channel_to(Expander(Ours(*ours), CallPolicy(seconds=PATIENCE_SECONDS))) as channel:
            return [one.nodeGroupId for one in (await generation.best(channel, options, nodes)).options]

    return asyncio.run(run())


@both
@pytest.mark.parametrize("listed", [True, False], ids=["cards", "sums"])
def test_a_group_on_whose_cards_nobody_fits_is_left_out(generation, listed):
    """
    20 GiB fit on eight cards of 16 GiB in sum and on none of them: cluster-autoscaler would buy for nothing.
    """
    wanted = [pod(generation, 20)]
    nodes = {"small": fresh(generation, 8, 16, listed=listed), "large": fresh(generation, 1, 24, listed=listed)}

    assert ["large"] == chosen(generation, {"small": wanted, "large": wanted}, nodes)


@both
def test_no_option_that_helps_is_an_empty_answer(generation):
    """
    Which cluster-autoscaler takes for a veto.
    """
    assert [] == chosen(generation, {"a": [pod(generation, 20)]}, {"a": fresh(generation, 8, 16)})


@both
def test_a_pod_over_several_cards_needs_as_many_with_room(generation):
    """
    30 GiB over 2 cards are 15 GiB on each of two: one card of 30 GiB is none of them.
    """
    wanted = [pod(generation, 30, count=2)]
    nodes = {"one": fresh(generation, 1, 32), "two": fresh(generation, 2, 16)}

    assert ["two"] == chosen(generation, {"one": wanted, "two": wanted}, nodes)


@both
def test_what_we_know_of_a_pool_outweighs_what_sums_say(generation):
    """
    The price decides between groups that both help; our own profile replaces a node without cards.
    """
    wanted = [pod(generation, 8, f"p{at}") for at in range(4)]
    nodes = {"costly": fresh(generation, 2, 16), "cheap": fresh(generation, 2, 16, listed=False)}
    ours = (Pool("costly", node("d", 2, 16), price=3.0), Pool("cheap", node("c", 2, 16), price=1.0))

    assert ["cheap"] == chosen(generation, {"costly": wanted, "cheap": wanted}, nodes, *ours)
    assert ["cheap", "costly"] == sorted(chosen(generation, {"costly": wanted, "cheap": wanted}, nodes))


@both
def test_what_cannot_be_read_is_never_vetoed(generation):
    """
    A group without a node, or with pods that are rubbish, stays: a veto needs knowledge.
    """
    odd = generation.core["Pod"](spec={"containers": []})

    assert ["a"] == chosen(generation, {"a": [pod(generation, 20)]}, {})
    assert ["a"] == chosen(generation, {"a": [odd]}, {"a": fresh(generation, 8, 16)})


def test_rubbish_in_the_newer_fields_is_no_veto_and_no_crash():
    """
    Bytes that are no node and no pod leave the choice to cluster-autoscaler.
    """
    newer = GENERATIONS[1]

    async def run():
        async with channel_to(Expander(Ours())) as channel:
            call = newer._call(
                channel, "/grpcplugin.Expander/BestOptions", ("BestOptions", "BestAnswer"), PATIENCE_SECONDS
            )
            option = {"nodeGroupId": "a\n\x1b[2J", "podBytes": [b"\xff\xff", b""]}
            return (await call(options=[option], nodeBytesMap={"a\n\x1b[2J": b"\x0a\xff"})).options

    assert ["a\n\x1b[2J"] == [one.nodeGroupId for one in asyncio.run(run())]


def test_what_cluster_autoscaler_has_simulated_is_not_weighed_again():
    """
    Its node has no labels of zones and carries start-up taints that it knows to be passing.
    """
    rules = Rules(((Requirement("zone", "In", ("a",)),),))
    booting = replace(node("n", 1, 16), taints=(Taint("node.example/booting"),), ready=False, cordoned=True)

    (only,), _ = score_options([ExpansionOption("a", booting, (ask(8, rules=rules),))])

    assert ("a", 1, 1) == (only.group, only.served, only.nodes)


def test_no_options_are_no_error():
    """
    Nothing asked, nothing answered.
    """
    assert [] == chosen(GENERATIONS[1], {}, {})


def test_a_pod_that_no_fleet_could_serve_helps_no_option():
    """
    A fraction of a unit is refused by admission too; a node bought for it would stay empty.
    """
    newer = GENERATIONS[1]

    assert [] == chosen(newer, {"a": [pod(newer, "1500m")]}, {"a": fresh(newer, 8, 16)})


def test_pods_without_cards_are_weighed_as_well():
    """
    A CPU pool is no stranger: it is kept for pods that ask for CPU only.
    """
    plain = node("cpu", 0, 1, mode=Mode.NONE, cpu_milli=4000)

    (only,), _ = score_options([ExpansionOption("cpu", plain, (ask(0, 0, cpu_milli=1000),))])

    assert ("cpu", 1) == (only.group, only.served)


def test_the_same_pods_in_many_options_are_answered():
    """
    500 pods in 10 options.
    """
    newer = GENERATIONS[1]
    wanted = [pod(newer, 1 + at % 12, f"p{at}") for at in range(500)]
    options = {f"g{at}": wanted for at in range(10)}
    nodes = {f"g{at}": fresh(newer, 8, 16 + at) for at in range(10)}

    assert ["g9"] == chosen(newer, options, nodes)
