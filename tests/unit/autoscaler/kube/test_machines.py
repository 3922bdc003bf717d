# SPDX-License-Identifier: Apache-2.0
"""What a provider and a node say together: which state that is, since when, and under which name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.scale_down import find_failed_machines
from autoscaler.kube.annotations import DrainRecord, NodeNote, read_drain
from autoscaler.kube.observe.machines import MachineInputs, join_machines
from autoscaler.providers.base import InstanceState, PoolState, ProviderInstance
from isolation.contract.model import Card, Mode, Node, Taint
from isolation.contract.names import DRAIN

CARDS = (Card("GPU-1", 0, 1 << 34),)


def node(name="n1", **more):
    """A node that is well."""
    return Node(name, **({"cards": CARDS, "mode": Mode.CGPU, "pool": "a"} | more))


def look(state, nodes=(), before=(), notes=None, busy=("n1",)):
    """One pool's machines."""
    known = {one.name: NodeNote(uid=one.name, created=900.0) for one in nodes} | (notes or {})
    standing = MachineInputs(1000.0, {one.name: one for one in nodes}, known, {one.name: one for one in before})
    standing = replace(standing, busy=frozenset(busy), young_seconds=500.0)
    return join_machines(standing, {"a": state}, (), {"a": Mode.CGPU})


def running(*names):
    """Instances that are nodes."""
    return tuple(ProviderInstance(f"id-{name}", name) for name in names)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(node(), MachineState.READY, id="well"),
        pytest.param(node(cards=()), MachineState.DELETING, id="has pods, and its cards are gone"),
        pytest.param(node(ready=False), MachineState.DELETING, id="was usable and is silent"),
        pytest.param(node(cordoned=True), MachineState.DELETING, id="cordoned by somebody"),
        pytest.param(node(serving=False), MachineState.DELETING, id="its agent left"),
        pytest.param(
            node(taints=(Taint("ToBeDeletedByClusterAutoscaler"),)), MachineState.DELETING, id="somebody removes it"
        ),
        pytest.param(node(taints=(Taint(DRAIN),)), MachineState.DRAINING, id="half a mark of ours"),
    ],
)
def test_a_node_is_what_it_says_of_itself(seen, expected):
    """
    Usable with its cards registered; what was usable and is not is nobody's to give back.
    """
    fleet = look(PoolState("a", 1, running("n1")), [seen])

    assert expected is fleet.machines["n1"].state
    assert (expected is MachineState.DELETING) is ("n1" in fleet.lost)


def test_an_old_node_that_has_just_joined_a_pool_has_its_time_to_register_cards():
    """
    Its creation was long ago: what counts is since when it is seen there, whoever is asked again.
    """
    notes = {"n1": NodeNote(uid="n1", created=-86_400.0)}
    first = look(PoolState("a", 1, running("n1")), [node(cards=())], notes=notes, busy=()).machines["n1"]
    again = look(PoolState("a", 1, running("n1")), [node(cards=())], [first], notes, busy=()).machines["n1"]

    assert (MachineState.NO_DEVICES, 1000.0) == (first.state, first.since)
    assert first == again
    assert [] == list(find_failed_machines({"n1": first}, ScalingLimits(), 1299.0, ()))
    assert ["n1"] == [step.node for step in find_failed_machines({"n1": first}, ScalingLimits(), 1301.0, ())]


@pytest.mark.parametrize(
    ("before", "busy", "expected"),
    [
        pytest.param((), (), MachineState.NO_DEVICES, id="young, and nobody knows it"),
        pytest.param((PoolMachine("n1", "a", MachineState.BOOTING),), (), MachineState.NO_DEVICES, id="was coming"),
        pytest.param((PoolMachine("n1", "a", MachineState.READY),), (), MachineState.DELETING, id="was usable"),
        pytest.param((), ("n1",), MachineState.DELETING, id="has pods"),
    ],
)
@pytest.mark.parametrize(
    "seen",
    [node(ready=False), node(taints=(Taint("node.kubernetes.io/not-ready"),)), node(cards=())],
    ids=["not ready", "still tainted", "no cards yet"],
)
def test_a_node_that_has_not_been_up_yet_is_still_coming(seen, before, busy, expected):
    """
    Otherwise its pods, for which there is no room yet, would be bought for again.
    """
    fleet = look(PoolState("a", 1, running("n1")), [seen], before, busy=busy)

    assert expected is fleet.machines["n1"].state


def test_a_machine_that_changes_its_name_while_it_boots_is_the_same_machine():
    """
    From its object's name to its provider's: who waits for it goes on waiting for it.
    """
    fleet = look(
        PoolState("a", 1, running("n1")), before=[PoolMachine("default/a-m1", "a", MachineState.BOOTING, 50.0)]
    )

    assert {"default/a-m1": "n1"} == fleet.renamed


def test_a_lost_node_is_named_and_counted_against_the_largest_size():
    """
    Its provider still counts it.
    """
    fleet = look(PoolState("a", 1, running("n1")), [node(ready=False)])

    assert {"n1": "it is not ready"} == fleet.lost
    assert {"a": 1} == fleet.count


def test_what_was_asked_for_and_left_no_trace_yet_keeps_its_name_and_age():
    """
    Three are missing: two were asked for before and stay who they are, the third is somebody else's purchase.
    """
    before = [
        PoolMachine("a/0", "a", MachineState.REQUESTED, 10.0),
        PoolMachine("a/1", "a", MachineState.REQUESTED, 20.0),
    ]

    fleet = look(PoolState("a", 3), before=before)

    assert {"a/0": 10.0, "a/1": 20.0, "a/2": 1000.0} == {one.name: one.since for one in fleet.machines.values()}
    assert {MachineState.REQUESTED} == {one.state for one in fleet.machines.values()}
    assert {"a/0", "a/1", "a/2"} == fleet.slots


def test_who_waited_longest_becomes_the_first_machine_that_appears():
    """
    One of two has a name now: it is the older request, so that pods which wait for it go on waiting for it.
    """
    before = [
        PoolMachine("a/0", "a", MachineState.REQUESTED, 10.0),
        PoolMachine("a/1", "a", MachineState.REQUESTED, 20.0),
    ]

    fleet = look(PoolState("a", 2, (ProviderInstance("id-x", "", InstanceState.COMING),)), before=before)

    assert {"a/0": "id-x"} == fleet.renamed
    assert {"id-x": MachineState.BOOTING, "a/1": MachineState.REQUESTED} == {
        one.name: one.state for one in fleet.machines.values()
    }


def test_a_machine_that_has_become_a_node_is_known_under_both_names():
    """
    By the node's provider ID where the provider does not tell.
    """
    before = [PoolMachine("id-n1", "a", MachineState.BOOTING, 50.0)]
    notes = {"n1": NodeNote(provider_id="id-n1", created=900.0)}

    fleet = look(PoolState("a", 1, (ProviderInstance("id-n1"),)), [node()], before, notes)

    assert {"id-n1": "n1"} == fleet.renamed
    assert {"n1": MachineState.READY} == {one.name: one.state for one in fleet.machines.values()}


def test_without_stock_what_is_missing_has_failed():
    """
    With the provider's words; a machine that boots all the same is none of it.
    """
    nodes = (
        ProviderInstance("id-b", "", InstanceState.COMING, "booting"),
        ProviderInstance("id-s", "", InstanceState.COMING, "none"),
    )

    fleet = look(PoolState("a", 3, nodes, short="none"))

    assert {"id-b": MachineState.BOOTING, "id-s": MachineState.FAILED, "a/0": MachineState.FAILED} == {
        one.name: one.state for one in fleet.machines.values()
    }
    assert {"id-s": "none", "a/0": "none"} == fleet.trouble


def test_ages_survive_a_restart_by_what_objects_say():
    """
    Nothing is remembered: a node is as old as its object, a drain as old as its mark.
    """
    marked = {"n2": NodeNote(created=100.0, drain=DrainRecord(700.0, "why"))}

    fleet = look(PoolState("a", 2, running("n1", "n2")), [node(), node("n2")], notes=marked)

    assert {"n1": 900.0, "n2": 700.0} == {one.name: one.since for one in fleet.machines.values()}


def test_a_pool_whose_provider_cannot_tell_keeps_its_machines():
    """
    What was coming is still coming, its nodes are what they say; nothing is lost or bought again.
    """
    before = {
        one.name: one
        for one in (PoolMachine("a/0", "a", MachineState.REQUESTED, 10.0), PoolMachine("n1", "a", MachineState.READY))
    }
    standing = MachineInputs(1000.0, {"n1": node()}, {}, before)

    fleet = join_machines(standing, {}, ["a"], {"a": Mode.CGPU})

    assert {"a/0": MachineState.REQUESTED, "n1": MachineState.READY} == {
        one.name: one.state for one in fleet.machines.values()
    }


def test_nodes_of_nobodys_pool_take_pods_and_are_never_given_back():
    """
    They are ready machines of no pool.
    """
    fleet = look(PoolState("a", 0), [node("free", pool="")])

    assert {"free": ("", MachineState.READY)} == {one.name: (one.pool, one.state) for one in fleet.machines.values()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", None, id="none"),
        pytest.param('{"since": 5, "why": "idle"}', DrainRecord(5.0, "idle"), id="ours"),
        pytest.param("{", DrainRecord(0.0), id="no JSON"),
        pytest.param("[]", DrainRecord(0.0), id="no mapping"),
        pytest.param('{"since": NaN}', DrainRecord(0.0), id="no number"),
        pytest.param('{"since": 1e300}', DrainRecord(0.0), id="never"),
    ],
)
def test_a_mark_that_cannot_be_read_is_an_overdue_drain(text, expected):
    """
    So that it is called off, not waited for.
    """
    assert expected == read_drain(text)


def test_a_mark_reads_back_as_it_was_written():
    """
    With its time and its reason.
    """
    assert DrainRecord(12.5, 'so "it" is') == read_drain(DrainRecord(12.5, 'so "it" is').text())
