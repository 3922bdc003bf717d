# SPDX-License-Identifier: Apache-2.0
"""What outlives the controller reads back as it was, whatever was done to it; whose home a reservation is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.observation import Nomination
from autoscaler.kube.observe.nominations import match_reservations
from autoscaler.kube.state import VERSION, ControllerState, decode, encode
from autoscaler.kube.watches import StoredReservation
from isolation.contract.codec.template import NodeTemplate
from isolation.contract.model import Card, Mode, Placement, Pod, Request, Slice
from isolation.contract.reservation import Reservation

GIB = 1 << 30
NOW = 1_800_000_000.0
TEMPLATE = NodeTemplate(Mode.CGPU, cards=(Card("card/0", 0, 8 * GIB),), cpu_milli=4000, memory_bytes=GIB)


def test_what_is_kept_reads_back():
    """
    Through JSON; who stands and is well is not kept, its node says how old it is.
    """
    coming = PoolMachine("a/0", "a", MachineState.REQUESTED, 12.5)
    machines = {"a/0": coming, "n1": PoolMachine("n1", "a", MachineState.READY, 1.0)}
    state = ControllerState(machines=machines, homes={"p": Nomination("a/0", (0, 1))}, profiles={"a": TEMPLATE})

    read = decode(encode(state), NOW)

    assert {"a/0": coming} == read.machines
    assert {"p": Nomination("a/0", (0, 1))} == read.homes
    assert {"a": TEMPLATE} == read.profiles


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"machines": JSON, "homes": JSON, "profiles": JSON}) | JSON)
def test_a_broken_state_is_forgotten(thing):
    """
    Never an error: a restart must not hang on what somebody wrote into a ConfigMap.
    """
    text = json.dumps({"version": VERSION, "memory": {"last_add": 7.0}, "kept": thing}, allow_nan=False)

    assert 7.0 == decode(text, NOW).memory.last_add


def stored(name, moved, holder="rs", expires=100.0):
    """A reservation of ours."""
    place = Placement("to", (Slice("GPU-1", 0, GIB),))
    return name, StoredReservation(Reservation(name, holder, place, expires), 0.0, moved)


def replica(uid, node="", reservation="", **more):
    """One of a ReplicaSet."""
    place = Placement(node, (Slice("GPU-9", 0, GIB),)) if node else None
    return uid, Pod(uid, uid, request=Request(1, GIB), placement=place, owner_uid="rs", reservation=reservation, **more)


@pytest.mark.parametrize(
    ("reservations", "pods", "expected"),
    [
        pytest.param([stored("r1", "p1")], [replica("p1", "from")], {"p1": "r1"}, id="its own"),
        pytest.param([stored("r1", "p1", expires=5.0)], [replica("p1", "from")], {}, id="lapsed"),
        pytest.param([stored("r1", "p1")], [replica("s1", "to", "r1")], {}, id="used up"),
        pytest.param(
            [stored("r1", "p1", holder="other")], [replica("s1", "to", "r1")], {"p1": "r1"}, id="named by a stranger"
        ),
        pytest.param([stored("r1", "p1")], [replica("s1")], {"p1": "r1"}, id="the successor waits"),
        pytest.param(
            [stored("r1", "p1"), stored("r2", "p2")],
            [replica("p2", "from"), replica("s1", "to", "r2")],
            {"p2": "r1"},
            id="a sibling took it and left its own",
        ),
        pytest.param(
            [stored("r1", "p1")], [replica("p2", "from"), replica("s1")], {"p1": "r1"}, id="kept for who waits"
        ),
        pytest.param(
            [stored("r1", "p1", holder="other")], [replica("p2", "from")], {"p1": "r1"}, id="another controller's"
        ),
        pytest.param([stored("r1", "p1")], [replica("p2", "stays")], {"p1": "r1"}, id="a node that stays"),
    ],
)
def test_homes_are_told_by_controller_and_shape(reservations, pods, expected):
    """
    A sibling that was robbed of its home has the one that was left over, and nobody else's.
    """
    assert expected == match_reservations(dict(reservations), dict(pods), {"from"}, now=10.0)
