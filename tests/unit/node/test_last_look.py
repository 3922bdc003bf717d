# SPDX-License-Identifier: Apache-2.0
"""The last plugin of the runtime: what the agent did not prepare is refused, what it did not close is closed."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from isolation.contract.names import ALLOCATION, START_NONCE
from isolation.contract.quantity import GIB
from isolation.node.device_plugin.exchange import Offer
from isolation.node.device_plugin.final_check import PLUGIN, FinalCheck
from isolation.node.guard_device import GuardDevice
from isolation.node.nri.model import Container, NriRefusedError, Sandbox
from isolation.node.nri.session import AGENT

UID = "6f0f5a5e-0000-4000-8000-000000000001"
MAIN = Container("c1", "main", Sandbox("s1", UID, "ml", "train"))
CUDA = {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VERSION": "13.0"}
NONCE = {START_NONCE: "0" * 32}


@pytest.fixture
def world(tmp_path):
    """`offer` is what the agent said last."""
    gate = GuardDevice(tmp_path / "run", tmp_path / "cdi", tmp_path / "marks")
    made = SimpleNamespace(offer=Offer(obstacle="", shares=True, exempt=frozenset({"monitoring"})), gate=gate)
    made.last = FinalCheck(lambda: made.offer, gate)
    return made


def record(uid=UID, name="main"):
    """A sandbox with an allocation for a container of that name."""
    card = {"uuid": "GPU-1", "bytes": 4 * GIB, "core": 0}
    whole = [{"uuid": "GPU-1", "index": 0, "bytes": 4 * GIB, "core": 0}]
    text = {"version": 1, "promise": uid, "cards": whole, "containers": [{"name": name, "cards": [card]}]}
    return replace(MAIN.sandbox, annotations={ALLOCATION: json.dumps(text)})


def test_it_is_asked_after_the_agent_and_about_creates_alone():
    """The runtime asks in this order, and shows it what the agent has changed."""
    assert PLUGIN.index > AGENT.index
    assert ["CREATE_CONTAINER"] == [event.name for event in PLUGIN.events]


@pytest.mark.parametrize("by", ["the kubelet's device", "the record"])
def test_a_share_that_the_agent_did_not_prepare_is_refused_and_one_that_it_did_is_left_alone(world, by):
    """Whether the agent was away, late, or died amid the call: what counts is that its nonce is not there."""
    hooks = (world.gate.hook[0],) if by == "the kubelet's device" else ()
    sandbox = record() if by == "the record" else MAIN.sandbox
    container = replace(MAIN, hooks=hooks, sandbox=sandbox)
    for times in (1, 2):
        with pytest.raises(
            NriRefusedError, match=r"ml/train/main: the node agent did not answer.*the kubelet will retry"
        ):
            world.last.create(container)
        assert times == world.last.refused
    assert world.last.create(replace(container, annotations=NONCE, env=CUDA)) is None
    assert world.last.refused == 2


@pytest.mark.parametrize("sandbox", [record("another-pod"), record(name="other"), MAIN.sandbox])
def test_a_record_that_is_not_this_containers_asks_for_nothing(world, sandbox):
    assert world.last.create(replace(MAIN, sandbox=sandbox)) is None


@pytest.mark.parametrize("annotations", [{}, NONCE], ids=["plain", "with a forged nonce"])
@pytest.mark.parametrize(
    ("env", "closed"),
    [(CUDA, True), ({"CUDA_VERSION": "13.0"}, True), ({"NVIDIA_VISIBLE_DEVICES": "void"}, False), ({}, False)],
)
def test_a_container_without_a_share_sees_no_card(world, env, closed, annotations):
    """One that the agent has closed is left alone: two plugins that set the same variable make a create fail."""
    answer = world.last.create(replace(MAIN, env=env, annotations=annotations))
    assert closed is (answer is not None)
    if closed:
        assert ({"NVIDIA_VISIBLE_DEVICES": "void"}, (), ()) == (answer.env, answer.mounts, answer.cdi_devices)


@pytest.mark.parametrize(
    ("namespace", "offer"),
    [
        ("kube-system", Offer(shares=True)),
        ("gpushare-system", Offer(shares=True)),
        ("monitoring", Offer(shares=True, exempt=frozenset({"monitoring"}))),
        ("ml", Offer(shares=False)),
        ("ml", Offer()),
    ],
    ids=["system", "ours", "exempt", "no shares here", "the agent never spoke"],
)
def test_system_software_and_nodes_without_shares_are_left_alone(world, namespace, offer):
    """The agent's own pod starts after this plugin: it sees every card, and nothing may keep it from starting."""
    world.offer = offer
    sandbox = replace(MAIN.sandbox, namespace=namespace)
    assert world.last.create(replace(MAIN, env=CUDA, devices=("/dev/nvidia0",), sandbox=sandbox)) is None


def test_device_nodes_are_refused(world):
    with pytest.raises(NriRefusedError, match="asks for /dev/nvidia0 by a CDI device"):
        world.last.create(replace(MAIN, devices=("/dev/nvidia0",)))
