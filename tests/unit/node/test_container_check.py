# SPDX-License-Identifier: Apache-2.0
"""What becomes of a container by the record and the node: each refusal with the words that the pod's Events show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import Allocation
from isolation.contract.model import Card, Compute, ComputePolicy, Mode, Part, Slice, Trust
from isolation.contract.names import ACK
from isolation.contract.quantity import GIB
from isolation.node.core.container_check import (
    Given,
    InForce,
    NodeFacts,
    check_other,
    check_share,
    offers_shares,
    share_of,
)
from isolation.node.nri.model import Container, NriRefusedError, Sandbox

UID = "11111111-2222-3333-4444-555555555555"
MAIN = Container("c1", "main", Sandbox("s1", UID, "ml", "train"))
CARD = Card("GPU-1", 0, 16 * GIB)
PART = (Slice("GPU-1", 0, 4 * GIB, 30),)
RECORD = Allocation(UID, PART, (Part("main", PART),))
NODE = NodeFacts(Mode.CGPU, whole=False, cards={"GPU-1": CARD, "GPU-2": Card("GPU-2", 1, 16 * GIB)}, exempt=frozenset())


def judged(container=MAIN, record=RECORD, node=NODE, before=None, in_force=()):
    """With one thing that is different."""
    return check_share(container, record, node, before, in_force)


def changed(**more):
    """The node."""
    return replace(NODE, **more)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"record": None}, "the pod has no valid allocation annotation: only the gpushare scheduler may bind pods"),
        ({"record": replace(RECORD, promise="another")}, "has no valid allocation annotation"),
        ({"record": replace(RECORD, parts=())}, "the pod's allocation annotation has no entry for container main"),
        ({"record": replace(RECORD, parts=(Part("main", ()),))}, "has no entry for container main"),
        ({"node": changed(mode=Mode.NONE)}, f"this node offers no shares: its label {ACK.mode_label} is"),
        ({"node": changed(mode=Mode.EXCLUSIVE)}, "this node offers no shares: its label"),
        ({"node": changed(whole=True)}, "this node offers no shares: whole cards are offered here too"),
        ({"node": changed(cards={})}, "placed on card GPU-1, which this node does not have"),
        (
            {"in_force": [InForce("GPU-1", 7 * GIB), InForce("GPU-1", 6 * GIB)]},
            "4 GiB of card GPU-1 are not free yet: 13 GiB of 16 GiB are in use by containers of this node",
        ),
        ({"node": changed(cards={"GPU-1": Card("GPU-1", 0, 3 * GIB)})}, "0 B of 3 GiB are in use"),
    ],
)
def test_a_share_is_refused_with_a_reason(given, said):
    with pytest.raises(NriRefusedError) as refused:
        judged(**given)
    assert str(refused.value).startswith("ml/train/main: ")
    assert said in str(refused.value)


ML = Trust("ml", 1000)
BESIDE = [InForce("GPU-1", GIB, ML), InForce("GPU-2", GIB, Trust("web", 0))]


@pytest.mark.parametrize(
    ("trust", "in_force", "said"),
    [
        (None, (), "set securityContext.runAsUser"),
        (ML, (), ""),
        (ML, BESIDE, ""),
        (Trust("web", 1000), BESIDE, "in use by pods of another group or user"),
        (Trust("ml", 0), BESIDE, "in use by pods of another group or user"),
        (ML, [InForce("GPU-1", GIB)], "in use by pods of another group or user"),
    ],
)
def test_under_mps_a_card_is_one_groups_and_one_users(trust, in_force, said):
    """Whatever the record says: the scheduler's rule, seen from the node."""
    record = replace(RECORD, trust=trust)
    if not said:
        assert judged(record=record, node=changed(mode=Mode.MPS), in_force=in_force).trust == trust
    else:
        with pytest.raises(NriRefusedError, match=said):
            judged(record=record, node=changed(mode=Mode.MPS), in_force=in_force)
    assert judged(record=record, in_force=in_force).enforced, "in other modes they may be beside each other"


@pytest.mark.parametrize("mode", [Mode.CGPU, Mode.CORE_MEM])
@pytest.mark.parametrize(
    ("namespace", "exempt", "enforced"),
    [
        ("ml", frozenset(), True),
        ("ml", None, True),
        ("ml", frozenset({"ml"}), False),
        ("kube-system", None, False),
    ],
)
def test_limits_hold_but_for_system_software(mode, namespace, exempt, enforced):
    """A namespace that is not known yet to be exempt has limits."""
    container = replace(MAIN, sandbox=replace(MAIN.sandbox, namespace=namespace))
    assert Given(PART, enforced) == judged(container, node=changed(mode=mode, exempt=exempt))


@pytest.mark.parametrize(
    ("mode", "before", "enforced"),
    [
        (Mode.SHARE, None, False),
        (Mode.SHARE, Given(PART), True),
        (Mode.CGPU, Given(PART, enforced=False), True),
        (Mode.NONE, Given(PART), True),
    ],
)
def test_a_pod_keeps_its_limits_when_the_node_is_relabelled_and_starts_again(mode, before, enforced):
    """A node that serves no more takes no new pods; those that it has go on."""
    assert judged(node=changed(mode=mode), before=before).enforced is enforced


def test_a_changed_record_counts_for_the_next_start():
    more = (Slice("GPU-2", 1, 8 * GIB),)
    record = Allocation(UID, more, (Part("main", more),))
    assert Given(more) == judged(record=record, before=Given(PART))


@given(st.lists(st.tuples(st.sampled_from(["GPU-1", "GPU-2"]), st.integers(0, 20)), max_size=6), st.integers(1, 20))
def test_never_more_on_a_card_than_it_has(others, size):
    """Each card for itself, and to the byte."""
    in_force = [InForce(uuid, amount * GIB) for uuid, amount in others]
    part = (Slice("GPU-2", 1, size * GIB),)
    record = Allocation(UID, part, (Part("main", part),))
    used = sum(one.bytes for one in in_force if one.uuid == "GPU-2")
    if used + size * GIB <= 16 * GIB:
        assert part == judged(record=record, in_force=in_force).slices
    else:
        with pytest.raises(NriRefusedError):
            judged(record=record, in_force=in_force)


def test_each_of_several_cards_must_fit():
    two = (PART[0], Slice("GPU-2", 1, 4 * GIB))
    with pytest.raises(NriRefusedError, match="card GPU-2 are not free"):
        judged(record=Allocation(UID, two, (Part("main", two),)), in_force=[InForce("GPU-2", 13 * GIB)])


@pytest.mark.parametrize(("name", "found"), [("main", PART), ("other", None)])
def test_a_share_is_the_records_word_about_that_container(name, found):
    assert found == share_of(replace(MAIN, name=name), RECORD)
    assert share_of(replace(MAIN, name=name), None) is None


CUDA = {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VERSION": "13.0"}


@pytest.mark.parametrize(
    ("env", "devices", "exempt", "answer"),
    [
        ({}, (), frozenset(), False),
        ({"PATH": "/bin", "CUDA_HOME": "/c"}, ("/dev/fuse",), None, False),
        (CUDA, (), frozenset(), True),
        (CUDA, (), frozenset({"ml"}), False),
        (CUDA, (), None, "not known yet whether namespace ml is exempt"),
        ({"NVIDIA_VISIBLE_DEVICES": "0"}, (), frozenset(), True),
        ({"NVIDIA_VISIBLE_DEVICES": "none", "CUDA_VERSION": "1"}, (), None, True),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, (), None, False),
        ({"CUDA_VERSION": "13.0"}, (), frozenset(), True),
        ({"NVIDIA_DRIVER_CAPABILITIES": "all"}, (), frozenset(), True),
        ({}, ("/dev/nvidia0",), frozenset({"ml"}), False),
        ({}, ("/dev/nvidia0",), frozenset(), "asks for /dev/nvidia0 by a CDI device, but the cards of this node are"),
        ({}, ("/dev/fuse", "/dev/nvidia-uvm"), None, "not known yet whether"),
    ],
)
def test_a_container_without_a_share_is_closed_left_alone_or_refused(env, devices, exempt, answer):
    """Closed is no harm where nothing asks, so nobody waits for the namespaces then."""
    container = replace(MAIN, env=env, devices=devices)
    if isinstance(answer, bool):
        assert answer is check_other(container, exempt)
    else:
        with pytest.raises(NriRefusedError, match=f"ml/train/main: .*{answer}"):
            check_other(container, exempt)


@pytest.mark.parametrize("mode", Mode)
def test_shares_are_offered_in_four_modes_and_never_beside_whole_cards(mode):
    offered = mode in {Mode.SHARE, Mode.CGPU, Mode.CORE_MEM, Mode.MPS}
    assert (offered, False) == (offers_shares(mode, whole=False), offers_shares(mode, whole=True))


@pytest.mark.parametrize(
    ("env", "unisolated", "enforced"),
    [
        ({}, {"ml"}, True),
        ({"CGPU_DISABLE": "true"}, {"ml"}, False),
        ({"CGPU_DISABLE": "false"}, {"ml"}, True),
        ({"CGPU_DISABLE": "true"}, {"other"}, True),
        ({"CGPU_DISABLE": "true"}, set(), True),
    ],
)
def test_isolation_is_switched_off_only_in_namespaces_that_an_administrator_names(env, unisolated, enforced):
    """Also where the image sets the variable, which admission cannot see."""
    found = judged(replace(MAIN, env=env), node=changed(unisolated=frozenset(unisolated)))
    assert Given(PART, enforced) == found


def test_how_compute_is_shared_is_what_the_record_says():
    """Whatever the node's label says by now."""
    compute = Compute(ComputePolicy.WEIGHT, weight=3, ceiling=80)
    assert Given(PART, compute=compute) == judged(record=replace(RECORD, compute=compute))
