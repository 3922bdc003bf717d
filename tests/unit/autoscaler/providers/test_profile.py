# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a pool's nodes, and what of it is believed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.pools import Pool
from autoscaler.providers.core.profile import MAX_TEXT, NodeTemplate, decode, encode, learn, make_template
from isolation.contract.codec.cursor import CodecError
from isolation.contract.model import Card, CardChoice, Cluster, Mode, Node, Request, Taint
from isolation.contract.names import POOL
from isolation.contract.quantity import GIB
from isolation.placement.place import place


def node(name="n1", pool="a", cards=2, gib=15, **more):
    """A node of a pool."""
    labels = {"kubernetes.io/hostname": name, POOL: pool, **more.pop("labels", {})}
    made = tuple(Card(f"GPU-{name}-{i}", i, gib * GIB, model="Tesla-T4") for i in range(cards))
    about = {"mode": Mode.CGPU, "choice": CardChoice.BINPACK, "cpu_milli": 16_000, "memory_bytes": 64 * GIB}
    return Node(name, made, labels=labels, pool=pool, **{**about, **more})


def test_a_pool_without_nodes_has_the_room_that_its_last_node_had():
    """
    Learnt, stored, read again: a template on which the pod is placed that the node would have taken.
    """
    known, problems = decode(encode(learn({}, [node()])))
    pool = Pool("a", known["a"].node("a"))
    placed = place(Request(cards=1, card_bytes=15 * GIB), Cluster((pool.node("fresh"),)))

    assert () == problems
    assert "fresh" == placed.node
    assert {POOL: "a"} == dict(pool.template.labels)


def test_only_what_all_nodes_of_a_pool_have_is_promised_of_a_fresh_one():
    """
    The least of the amounts, the labels that agree, every taint that stays.
    """
    one = node("n1", labels={"zone": "a", "tier": "x"}, cpu_milli=15_900, taints=(Taint("dedicated"),))
    two = node("n2", labels={"zone": "b", "tier": "x"}, memory_bytes=63 * GIB)

    found = learn({}, [one, two])["a"]

    assert {"tier": "x", POOL: "a"} == dict(found.labels)
    assert (15_900, 63 * GIB) == (found.cpu_milli, found.memory_bytes)
    assert (Taint("dedicated"),) == found.taints


@pytest.mark.parametrize("order", [False, True])
def test_of_two_kinds_in_one_pool_the_smaller_is_expected(order):
    """
    Whatever comes, it is no less; the order in which nodes are listed says nothing.
    """
    nodes = [node("n1", cards=4), node("n2", cards=2)]

    assert 2 == len(learn({}, reversed(nodes) if order else nodes)["a"].cards)


@pytest.mark.parametrize(
    "changed",
    [
        {"ready": False},
        {"cordoned": True},
        {"serving": False},
        {"cards": 0},
    ],
    ids=str,
)
def test_a_node_that_is_not_itself_teaches_nothing(changed):
    """
    Down, cordoned, its agent leaving or its cards not registered yet: what was known stays.
    """
    known = learn({}, [node("n1")])

    assert known == learn(known, [node("n2", gib=99, **changed)])


def test_an_unhealthy_card_is_not_expected_of_a_fresh_node():
    """
    Nor is a smaller node learnt from it.
    """
    unhealthy = node()
    unhealthy = replace(unhealthy, cards=(unhealthy.cards[0], replace(unhealthy.cards[1], healthy=False)))

    assert {} == learn({}, [unhealthy])


def test_taints_of_the_moment_are_not_remembered():
    """
    A drain, a boot or a failing kubelet is nobody's kind.
    """
    taints = [Taint(f"{prefix}x") for prefix in ("gpushare.dev/", "node.kubernetes.io/")]
    taints += [Taint("ToBeDeletedByClusterAutoscaler"), Taint("nvidia.com/gpu", "", "NoSchedule")]

    assert ("nvidia.com/gpu",) == tuple(t.key for t in make_template(node(taints=tuple(taints))).taints)


def test_the_zone_of_the_last_node_is_not_the_zone_of_the_pool():
    """
    Two zones were seen once; the one node that is left does not make its zone a promise.
    """
    zone = "topology.kubernetes.io/zone"
    both = learn({}, [node("n1", labels={zone: "a"}), node("n2", labels={zone: "b"})])
    one = learn(both, [node("n1", labels={zone: "a", "new": "x"})])["a"]

    assert zone not in one.labels
    assert "x" == one.labels["new"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "mapping"),
        ('{"version": 2}', "reads version 1"),
        ('{"version": 1, "pools": []}', "mapping"),
        ("[" * 100_000, "not JSON"),
        ("x" * (MAX_TEXT + 1), "the maximum is"),
        (json.dumps({"version": 1, "pools": {str(n): {} for n in range(1001)}}), "the maximum is 1000"),
    ],
    ids=["empty", "list", "future", "pools", "deep", "long", "many"],
)
def test_a_memory_that_is_none_is_refused_with_the_reason(text, said):
    """
    Anybody with rights on the ConfigMap may have written it.
    """
    with pytest.raises(CodecError, match=said):
        decode(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu", -1),
        ("cpu", 1 << 70),
        ("memory", "64Gi"),
        ("mode", "everything"),
        ("choice", 3),
        ("pods", 1 << 40),
        ("labels", {"k": "v" * 64}),
        ("labels", {str(n): "" for n in range(300)}),
        ("taints", [{"effect": "Explode"}]),
        ("taints", [{}] * 65),
        ("cards", {"version": 1, "cards": [{"uuid": "x", "index": 0}]}),
        ("cards", {"version": 1, "cards": [{}] * 5000}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_one_bad_profile_costs_the_others_nothing(field, value):
    """
    It is left out and named; the pool is learnt again from its next node.
    """
    good = json.loads(encode(learn({}, [node()])))
    good["pools"]["bad"] = good["pools"]["a"] | {field: value}

    known, problems = decode(json.dumps(good))

    assert ["a"] == list(known)
    assert 1 == len(problems)
    assert "bad" in problems[0]


def test_more_than_a_configmap_holds_is_never_written():
    """
    The last pools are left out, and what is written can be read.
    """
    big = make_template(node(labels={f"label-{n}": "v" * 60 for n in range(200)}))
    text = encode({f"pool-{n:04}": big for n in range(200)})
    known, problems = decode(text)

    assert len(text) <= MAX_TEXT
    assert () == problems
    assert 20 < len(known) < 200


@given(
    st.builds(
        NodeTemplate,
        mode=st.sampled_from(Mode),
        choice=st.sampled_from(CardChoice),
        cards=st.integers(0, 16).map(lambda n: tuple(Card(f"card/{i}", i, (i + 1) * GIB) for i in range(n))),
        cpu_milli=st.integers(0, 1 << 40),
        memory_bytes=st.integers(0, 1 << 60),
        pods=st.integers(0, 1000),
        labels=st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=20), max_size=5),
        taints=st.lists(st.builds(Taint, st.text(max_size=9), st.text(max_size=9)), max_size=3).map(tuple),
    )
)
def test_what_is_remembered_is_what_was_learnt(kind):
    """
    There and back, whatever the names are made of.
    """
    assert ({"p": kind}, ()) == decode(encode({"p": kind}))
