# SPDX-License-Identifier: Apache-2.0
"""Whoever is on a node and whatever fails: figures add up, stand once, and are nobody else's to change."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.attributed import look, values
from support.budget import examples
from support.node_facts import GIB, MIB, RESERVED, Node, hold, region, uuid

TENANTS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "whole", "slice", "run", "stranger", "host", "gone"]),
        st.integers(0, 2),
        st.lists(st.one_of(st.integers(0, 4000), st.none()), max_size=3),
        st.sampled_from(["c", "c2"]),
    ),
    max_size=8,
)
SOURCES = st.fixed_dictionaries(
    {
        name: st.sampled_from([True, True, True, False])
        for name in ("kernel_ok", "promises_ok", "kubelet_ok", "identities_ok", "host_pids")
    }
)


def populated(tenants, **flags):
    """A node of three cards with all these people on them."""
    node = Node(3, agent=True, **flags)
    pid = 0
    for at, (kind, index, sizes, container) in enumerate(tenants):
        pod, run = f"p{at}", ""
        match kind:
            case "hold":
                node.pod_hold(pod, index=index, container=container, reading=region(card_index=index, used=at * MIB))
            case "whole":
                node.container(pod, container).grant(pod, [uuid(index)], container=container)
            case "slice":
                node.container(pod, container).grant(pod, [f"{uuid(index)}::{at}"], container=container)
            case "run":
                pod, run = "", f"run-{at}"
                node.hold(hold(f"r{at}", ident=run, index=index))
            case "stranger":
                node.container(pod, container)
            case _:
                pod = ""
        for size in sizes:
            pid += 1
            gib = None if size is None else size / 1024
            node.process(pid, gib, index=index, pod=pod, container=container, run=run, seen=kind != "gone")
    return node


@settings(max_examples=examples(60), deadline=None)
@given(TENANTS, st.lists(st.integers(-500, 500), min_size=3, max_size=3))
def test_every_byte_stands_once(tenants, hidden):
    """Used = containers + unattributed + reserved + remainder, exactly, and the remainder is what no process has."""
    node = populated(tenants)
    for index, amount in enumerate(hidden):
        explained = sum(p.bytes or 0 for p in node.cards[index])
        node.card(index, free_bytes=16 * GIB - RESERVED - explained - amount * MIB)
    found = look(node)
    shown = values(found)

    for key, left in shown["card_memory_unaccounted_bytes"].items():
        parts = sum(v for k, v in shown["container_memory_used_bytes"].items() if k[3:6] == key)
        parts += shown["card_memory_unattributed_bytes"][key] + shown["card_memory_reserved_bytes"][key]
        assert shown["card_memory_used_bytes"][key] == parts + left
        if "allocation" not in {c.source for c in found.reading.containers if c.uuid == key[1]}:
            assert hidden[int(key[2])] * MIB == left


@settings(max_examples=examples(60), deadline=None)
@given(TENANTS, SOURCES)
def test_one_series_per_container_and_card(tenants, flags):
    """Whatever works and whoever is there: each series stands once, and used has the labels of what was promised."""
    shown = values(look(populated(tenants, **flags)))

    infos = [labels[:7] for labels in shown["container_info"]]
    assert len(set(infos)) == len(infos)
    assert set(shown["container_memory_used_bytes"]) <= set(infos)
    assert set(shown["container_memory_allocated_bytes"]) <= set(infos)


@settings(max_examples=examples(60), deadline=None)
@given(TENANTS)
def test_allocated_and_used_carry_the_same_labels(tenants):
    """With every source and every figure known, and memory promised, both families have the same series."""
    known = [(kind, at, [s for s in sizes if s is not None], c) for kind, at, sizes, c in tenants if kind != "slice"]

    shown = values(look(populated(known)))

    assert set(shown["container_memory_allocated_bytes"]) == set(shown["container_memory_used_bytes"])


@settings(max_examples=examples(60), deadline=None)
@given(TENANTS, st.integers(0, 2**31 - 1), st.lists(st.integers(0, 99), max_size=5), st.integers(0, 2**64 - 1))
def test_nobodys_figure_depends_on_what_a_neighbour_writes(tenants, bytes_used, pids, denied):
    """A tenant that writes its region again changes what its own library says, and no figure that NVML tells."""
    before, after = populated(tenants), populated(tenants)
    forged = {"reading": region(used=bytes_used, slots=pids, denied=denied)}
    quiet = {"reading": region()}
    for node, written in ((before, quiet), (after, forged)):
        node.pod_hold("mallory", **written).process(900, 1, pod="mallory")

    one, other = look(before).reading, look(after).reading

    assert one.cards == other.cards
    assert [replace(c, denied=None) for c in one.containers] == [replace(c, denied=None) for c in other.containers]
    assert [c for c in one.containers if c.pod != "mallory"] == [c for c in other.containers if c.pod != "mallory"]


@settings(max_examples=examples(60), deadline=None)
@given(TENANTS, st.randoms())
def test_order_does_not_matter(tenants, random):
    """Processes, holds and assignments in any order give the same reading."""
    node, shuffled = populated(tenants), populated(tenants)
    for people in (*shuffled.cards.values(), shuffled.holds, shuffled.grants):
        random.shuffle(people)

    assert look(node).reading == look(shuffled).reading


@settings(max_examples=examples(60), deadline=None)
@given(TENANTS, SOURCES)
def test_nothing_is_negative_and_nothing_unknown_is_zero(tenants, flags):
    """No container has less than nothing, and a figure without a source has no value."""
    for one in look(populated(tenants, **flags)).reading.containers:
        assert (one.used_bytes is None) == (one.source == "")
        assert (one.used_core_ratio is None) == (one.core_source == "")
        assert one.used_bytes is None or one.used_bytes >= 0
