# SPDX-License-Identifier: Apache-2.0
"""Live resize, step by step: what is booked is never less than what may be in force."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import CodecError, decode_allocation, encode_allocation
from isolation.contract.codec.resize import (
    RESERVED,
    ResizeCondition,
    ResizeReason,
    ResizeStatus,
    decode_applied,
    decode_status,
    encode_applied,
    encode_status,
    encode_wanted,
    target_of,
)
from isolation.contract.model import (
    Applied,
    Ask,
    Card,
    Mode,
    Node,
    Part,
    Phase,
    Placement,
    Pod,
    Refusal,
    Request,
    Resize,
    Slice,
    parts_of,
)
from isolation.contract.names import ACK
from isolation.contract.quantity import GIB
from isolation.scheduler.core.cache import SchedulerCache

NOW = 1_800_000_000.0


def node(applied=None, cards=2, gib=16, **more):
    """One whose agent understands resizes."""
    listed = tuple(Card(f"GPU-{at}", at, gib * GIB, model="T4") for at in range(cards))
    return Node("n", listed, Mode.CGPU, applied={} if applied is None else applied, **more)


def pod(uid, units, cards=(0,), **more):
    """A bound pod of one container."""
    each = units * GIB // len(cards)
    ask = Ask("main", units * GIB, position=0)
    request = Request(cards=len(cards), card_bytes=each, asks=(ask,))
    slices = tuple(Slice(f"GPU-{at}", at, each) for at in cards)
    return Pod(uid, uid, request=request, placement=Placement("n", slices), phase=Phase.RUNNING, **more)


def wanting(one, units, **amounts):
    """The same pod, asked to have so much."""
    return replace(one, wanted_resize=encode_wanted({"main": {ACK.memory: units, **amounts}}))


def cache_of(*pods, at=None):
    """A leader that has just read this."""
    made = SchedulerCache()
    made.set_node(at or node())
    for one in pods:
        made.set_pod(one)
    return made


def written(one, step):
    """The pod as the watch shows it after the step."""
    assert step.change is not None
    return replace(one, placement=step.change.booked, resize=step.change.resize)


def test_growth_books_at_once_and_is_over_when_the_node_says_so():
    """No room is lost or taken twice in between; another leader that begins here sees the same."""
    one = wanting(pod("a", 4), 10)
    cache = cache_of(one, pod("b", 6))
    step = cache.resize_step("a")
    assert (ResizeCondition.IN_PROGRESS, 6 * GIB) == (step.status.condition, step.grows_bytes)
    cache.book_resize("a", 1, step.change.booked)
    assert cache.resize_step("a") is None, "a write is under way"
    beside = cache.assume(replace(pod("c", 14), placement=None), "n", NOW)
    assert ["GPU-1"] == [part.uuid for part in beside.placement.slices]

    after = written(one, step)
    for fresh in (cache, cache_of(after, pod("b", 6))):
        fresh.set_pod(after)
        assert ResizeCondition.IN_PROGRESS is fresh.resize_step("a").status.condition
        fresh.set_node(node({"a": Applied(1)}))
        done = fresh.resize_step("a")
        assert (True, None, None) == (done.done, done.status, done.change)


def test_a_pod_that_shrinks_stays_booked_until_its_node_says_that_less_is_in_force():
    """First the containers' parts, then what is booked; why it takes long stands in the status."""
    one = wanting(pod("a", 12), 4)
    cache = cache_of(one)
    step = cache.resize_step("a")
    assert step.change.booked == one.placement
    assert (4 * GIB,) == tuple(part.slices[0].bytes for part in step.change.resize.parts)
    after = written(one, step)
    cache.set_pod(after)
    big = replace(pod("b", 12), placement=None)
    cache.set_node(node({"a": Applied(0, "container main uses 6 GiB")}, cards=1))
    assert isinstance(cache.assume(big, "n", NOW), Refusal)
    waits = cache.resize_step("a").status
    assert (ResizeReason.ERROR, "container main uses 6 GiB") == (waits.reason, waits.message)

    cache.set_node(node({"a": Applied(1)}, cards=1))
    last = cache.resize_step("a")
    assert (4 * GIB, 1) == (last.change.booked.slices[0].bytes, last.change.resize.generation)
    cache.set_pod(written(after, last))
    assert cache.resize_step("a").done
    assert not isinstance(cache.assume(big, "n", NOW), Refusal)


@pytest.mark.parametrize(
    ("units", "reason", "text"),
    [
        (17, ResizeReason.INFEASIBLE, "offers 16 GiB in all"),
        (11, ResizeReason.DEFERRED, "there is room on GPU-1"),
        (0, ResizeReason.INFEASIBLE, "must be 1 or a multiple"),
    ],
)
def test_what_cannot_be_is_said_with_the_reason(units, reason, text):
    """More than the card has, more than is free (and where there is room), no amount at all."""
    status = cache_of(wanting(pod("a", 4), units), pod("b", 6)).resize_step("a").status
    assert (ResizeCondition.PENDING, reason) == (status.condition, status.reason)
    assert text in status.message


def test_growth_waits_for_an_agent_that_understands_and_for_the_quota():
    """An older agent would change limits and leave the kubelet's count as it was."""
    one = wanting(pod("a", 4), 8)
    old = cache_of(one, at=replace(node(), applied=None)).resize_step("a").status
    assert (ResizeReason.DEFERRED, True) == (old.reason, "update it" in old.message)
    cache = cache_of(one)
    cache.set_quota("default", {"T4": 7})
    assert "exceeds the quota" in cache.resize_step("a").status.message


def test_an_older_event_never_takes_a_record_back():
    """Two watches, a list and our own write may show one pod in any order."""
    one = wanting(pod("a", 4), 8)
    cache = cache_of(one)
    step = cache.resize_step("a")
    cache.book_resize("a", 1, step.change.booked)
    cache.set_pod(one)
    beside = cache.assume(replace(pod("b", 9), placement=None), "n", NOW)
    assert ["GPU-1"] == [part.uuid for part in beside.placement.slices], "of GPU-0 8 of 16 GiB are booked"
    cache.set_pod(written(one, step))
    cache.set_pod(one)
    assert ResizeCondition.IN_PROGRESS is cache.resize_step("a").status.condition


@given(st.lists(st.tuples(st.sampled_from(("a", "b", "c")), st.integers(1, 20), st.booleans()), max_size=40))
def test_whatever_is_wanted_no_card_is_ever_booked_beyond_what_it_has(wishes):
    """Wishes, writes and the node's word in any order, with leaders that begin anew: the sum of records fits."""
    pods = {uid: pod(uid, 4, cards=(0,) if uid != "c" else (0, 1)) for uid in "abc"}
    said: dict[str, Applied] = {}
    for uid, units, speaks in wishes:
        pods[uid] = wanting(pods[uid], units)
        if speaks:
            said = {one.uid: Applied(one.resize.generation) for one in pods.values() if one.resize}
        cache = cache_of(*pods.values(), at=node(said))
        step = cache.resize_step(uid)
        if step.change is not None:
            assert step.change.booked.slices[0].bytes >= step.change.resize.card_bytes
            pods[uid] = written(pods[uid], step)
        for at in range(2):
            booked = [s.bytes for one in pods.values() for s in one.placement.slices if s.index == at]
            assert sum(booked) <= 16 * GIB


def test_a_record_of_a_resized_pod_is_read_back_and_never_promises_more_than_is_booked():
    """A reader that does not know the field gets what is booked; a record that contradicts itself is none."""
    one = pod("a", 8)
    parts = (Part("main", (Slice("GPU-0", 0, 2 * GIB),)),)
    change = Resize(3, 2 * GIB, 0, parts)
    text = encode_allocation("a", one.request, one.placement, resize=change)
    found = decode_allocation(text)
    assert (one.placement.slices, parts, change, (8 * GIB, 0)) == (
        found.slices,
        found.parts,
        found.resize,
        found.requested,
    )
    record = json.loads(text)
    assert 1 == record["version"]
    for wrong in ({"bytes": 9 * GIB, "core": 0}, {"bytes": -1, "core": 0}, {}):
        with pytest.raises(CodecError):
            decode_allocation(json.dumps(record | {"resize": record["resize"] | {"target": wrong}}))


@pytest.mark.parametrize(
    "wanted",
    [
        *("", "[]", "{}", "8", '{"main":8}', '{"other":{"aliyun.com/gpu-mem":1}}', '{"main":{"cpu":1}}', "x" * 5000),
        '{"main":{"aliyun.com/gpu-mem":-1}}',
        '{"main":{"aliyun.com/gpu-core.percentage":10}}',
    ],
)
def test_nonsense_is_refused_with_a_reason(wanted):
    """Anybody with the right may write anything there."""
    one = pod("a", 4)
    found = target_of(wanted, one.request, parts_of(one.request, one.placement))
    assert isinstance(found, Refusal)
    assert found.reason


def test_statuses_and_what_nodes_say_are_read_back():
    """Also what no program of ours has written."""
    status = ResizeStatus(
        ResizeCondition.PENDING, ResizeReason.DEFERRED, "no room", '{"main":{"aliyun.com/gpu-mem":8}}'
    )
    assert status == decode_status(encode_status(status))
    said = {"a": Applied(2), "b": Applied(0, "in use")}
    assert said == decode_applied(encode_applied(said))
    for text in ("", "[]", '{"a":1}', '{"type":"Done"}'):
        with pytest.raises(CodecError):
            decode_status(text)


def test_nothing_is_given_away_while_the_node_names_a_resized_pod_that_has_ended():
    """Its kubelet would reject the pod: it counts units as used that the cards have free."""
    grown = written(wanting(pod("a", 4), 10), cache_of(wanting(pod("a", 4), 10)).resize_step("a"))
    cache = cache_of(grown, at=node({"a": Applied(1)}))
    new = replace(pod("c", 2), placement=None)
    assert ["n"] == cache.filter(new, ["n"], NOW).fit
    cache.remove_pod("a")
    found = cache.filter(new, ["n"], NOW)
    assert ([], ["n"]) == (found.fit, list(found.failed))
    assert isinstance(cache.assume(new, "n", NOW), Refusal)
    cache.set_node(node({}))
    assert ["n"] == cache.filter(new, ["n"], NOW).fit
    assert not isinstance(cache.assume(new, "n", NOW), Refusal)


def reserving(one, units, reserved):
    """The same pod, asked to have less while the rest stays booked for it."""
    amounts = {"main": {ACK.memory: units}, RESERVED: {ACK.memory: reserved}}
    return replace(one, wanted_resize=encode_wanted(amounts))


def settled_after(one, generation, **more):
    """A leader whom the node has told that this change is in force, with the record of its step written."""
    cache = cache_of(one, at=node({one.uid: Applied(generation)}, cards=1, **more))
    step = cache.resize_step(one.uid)
    after = written(one, step) if step.change is not None else one
    cache.set_pod(after)
    return cache, after, step


def test_what_is_reserved_is_given_to_nobody_and_had_back_at_once():
    """
    A pod that shrinks on trial: its limits fall, its booking stays; it grows again without new room, or gives it free.
    """
    one = reserving(pod("a", 12), 4, 12)
    step = cache_of(one).resize_step("a")
    smaller = written(one, step)
    assert (4 * GIB, 12 * GIB) == (smaller.resize.parts[0].slices[0].bytes, smaller.resize.card_bytes)
    cache, smaller, step = settled_after(smaller, 1)
    assert (True, None) == (step.done, step.change)
    big = replace(pod("b", 12), placement=None)
    assert isinstance(cache.assume(big, "n", NOW), Refusal)

    restored = cache_of(wanting(smaller, 12), at=node({"a": Applied(1)}, cards=1)).resize_step("a")
    assert (0, 12 * GIB) == (restored.grows_bytes, restored.change.resize.parts[0].slices[0].bytes)
    assert not [part for part in restored.change.booked.slices if part.bytes != 12 * GIB]

    released = wanting(smaller, 4)
    step = cache_of(released, at=node({"a": Applied(1)}, cards=1)).resize_step("a")
    assert (2, 4 * GIB) == (step.change.resize.generation, step.change.resize.card_bytes)
    cache, after, step = settled_after(written(released, step), 2)
    assert 4 * GIB == after.placement.slices[0].bytes
    assert not isinstance(cache.assume(big, "n", NOW), Refusal)


@pytest.mark.parametrize(("units", "reserved", "fits"), [(4, 10, True), (4, 11, False), (4, 17, False)])
def test_a_reservation_takes_room_as_growth_does(units, reserved, fits):
    """Beyond what the pod holds it must be free on its card."""
    step = cache_of(reserving(pod("a", 4), units, reserved), pod("b", 6)).resize_step("a")
    assert fits == (step.change is not None and step.grows_bytes == 6 * GIB)


@pytest.mark.parametrize("reserved", [{ACK.memory: -1}, {ACK.memory: 3}, {ACK.compute: 10}, {ACK.memory: "8"}, 8, []])
def test_a_reservation_that_is_no_amount_is_refused(reserved):
    """Of two cards it is a multiple of two."""
    text = json.dumps({"main": {ACK.memory: 4}, RESERVED: reserved})
    status = cache_of(replace(pod("a", 8, cards=(0, 1)), wanted_resize=text)).resize_step("a").status
    assert ResizeReason.INFEASIBLE is status.reason
