# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, and what would help: every answer holds when it is tried."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.dialect_pods import hami
from support.views_harness import node_json, pod_json

from dashboards.terminal.explain.explanation import Explanation
from dashboards.terminal.explain.pod import find_faults, parse_events, parse_pod
from dashboards.terminal.explain.read import explain_pending
from dashboards.terminal.explain.view import explain_document, explain_lines
from dashboards.terminal.table import TextOutput
from isolation.contract.dialects import Offered, translate
from isolation.contract.model import Placement, Slice, Why
from isolation.contract.names import ALLOCATION, ASKED, DIALECT, POOL, SCHEDULER, SHARED
from isolation.contract.quantity import GIB
from isolation.contract.reservation import Reservation
from isolation.kube.store import Store
from isolation.placement.place import engine_of

OWNED = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]


def cluster_of(nodes, pods):
    """As the store sees these objects."""
    store = Store()
    for one in nodes:
        store.node_is(msgspec.Raw(json.dumps(one).encode()))
    for one in pods:
        store.pod_is(msgspec.Raw(json.dumps(one).encode()))
    return store.view().cluster


def owned(*given, **more):
    """A pod that something makes again."""
    made = pod_json(*given, **more)
    made["metadata"]["ownerReferences"] = OWNED
    return made


def waits(nodes, pods, pod, kept=()):
    """The story of a pod that waits."""
    return explain_pending(cluster_of(nodes, pods), list(kept), parse_pod(pod, {}, GIB), GIB, 1000.0)


def kinds(found):
    """Which kinds of help there are."""
    return {one.kind for one in found.remedies}


def test_a_pod_that_would_fit_is_told_where():
    """
    Room now: which node and card, and no advice.
    """
    found = waits([node_json("n-0", 2, 15)], [], pod_json("p", "", 8))
    assert isinstance(found.verdict, Placement)
    assert ("n-0", ()) == (found.verdict.node, found.remedies)


def test_every_node_stands_there_with_its_own_reason():
    """
    Too small, too full, wrong mode, cordoned, not ready: the nearest first, cards where cards are the matter.
    """
    tired = node_json("tired", 2, 80)
    tired["status"]["conditions"] = []
    nodes = [
        node_json("small", 2, 10),
        node_json("full", 1, 80),
        node_json("other", 1, 80, mode="core_mem"),
        node_json("cordoned", 1, 80) | {"spec": {"unschedulable": True}},
        tired,
    ]
    found = waits(nodes, [pod_json("q", "full", 70)], pod_json("p", "", 20))
    said = {one.name: (one.why, len(one.cards)) for one in found.nodes}
    assert {
        "small": (Why.CARD_TOO_SMALL, 2),
        "full": (Why.CARDS, 1),
        "other": (Why.MODE, 0),
        "cordoned": (Why.NOT_READY, 0),
        "tired": (Why.NOT_READY, 0),
    } == said
    assert "full" == found.nodes[0].name
    assert "10 GiB short" == found.nodes[0].cards[0].why
    assert {"split", "smaller", "mode", "node", "pool"} <= kinds(found)


def test_pods_that_could_move_are_named_with_where_they_would_go():
    """
    The fewest, only those that something makes again, and each has a place.
    """
    nodes = [node_json("a", 2, 15), node_json("b", 1, 15)]
    pods = [owned("x", "a", 6), owned("y", "a", 9, (1,)), owned("z", "b", 9)]
    found = waits(nodes, pods, pod_json("p", "", 12))
    (move,) = [one.text for one in found.remedies if one.kind == "move"]
    assert "move team/x:" not in move  # nowhere without naming the place
    assert move.startswith("move team/x to ")
    fixed = [pod_json("x", "a", 6), pod_json("y", "a", 9, (1,)), pod_json("z", "b", 9)]
    assert "move" not in kinds(waits(nodes, fixed, pod_json("p", "", 12)))


def test_a_reservation_for_another_takes_room_and_one_for_the_pod_does_not():
    """
    Until it expires or is used up.
    """
    nodes, pod = [node_json("n-0", 1, 15)], pod_json("p", "", 10)
    kept = Reservation("r", "somebody", Placement("n-0", (Slice("GPU-n-0-0", 0, 10 * GIB),)), 2000.0)
    assert not isinstance(waits(nodes, [], pod, [kept]).verdict, Placement)
    mine = waits(nodes, [], pod, [replace(kept, holder="uid-p")])
    assert (True, "r: n-0") == (isinstance(mine.verdict, Placement), mine.reserved)
    assert isinstance(waits(nodes, [], pod, [replace(kept, expires=999.0)]).verdict, Placement)
    to_come = replace(kept, placement=Placement("", (Slice("", 0, 10 * GIB),)), pool="a")
    assert isinstance(waits(nodes, [], pod, [to_come]).verdict, Placement)
    assert "r: next node of pool a" == waits(nodes, [], pod, [replace(to_come, holder="uid-p")]).reserved
    user = pod_json("u", "n-0", 1)
    user["metadata"]["annotations"]["gpushare.dev/consumed-reservation"] = "r"
    assert isinstance(waits(nodes, [user], pod, [kept]).verdict, Placement)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 15)), max_size=14),
    st.integers(1, 48),
    st.sampled_from([1, 2, 4]),
)
def test_help_helps(parts, units, cards):
    """
    Whatever the cluster: asked as the advice says, the pod fits; and no advice stands where the pod fits already.
    """
    units += -units % cards
    nodes = [node_json(f"n-{i}", 4, 15, **{POOL: "p"}) for i in range(3)]
    pods, left = [], {}
    for at, (where, card, gib) in enumerate(parts):
        if left.get((where, card), 15) >= gib:
            left[where, card] = left.get((where, card), 15) - gib
            pods.append(owned(f"x{at}", f"n-{where}", gib, (card,)))
    pod = pod_json("p", "", units, tuple(range(cards)))
    found = waits(nodes, pods, pod)
    engine, request = engine_of(cluster_of(nodes, pods)), parse_pod(pod, {}, GIB).request
    assert isinstance(found.verdict, Placement) == isinstance(engine.place(request), Placement)
    if isinstance(found.verdict, Placement):
        assert () == found.remedies
    for one in found.remedies:
        if one.kind == "smaller":
            least = int(one.text.split("gpu-mem: ")[1].split(")")[0])
            fits = replace(request, card_bytes=least // cards * GIB)
            more = replace(request, card_bytes=(least // cards + 1) * GIB)
            assert isinstance(engine.place(fits), Placement)
            assert not isinstance(engine.place(more), Placement)
        if one.kind == "split":
            count = int(one.text.split("gpu-count: ")[1].split(")")[0])
            again = replace(request, cards=count, card_bytes=units * GIB // count)
            assert isinstance(engine.place(again), Placement)
    for node in found.nodes:
        fitting = sum(card.fits for card in node.cards)
        assert (node.why is None) == (fitting >= cards)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"spec": {"schedulerName": "default-scheduler"}}, "schedulerName is default-scheduler"),
        ({"metadata": {"labels": {}}}, "lacks the label"),
        ({"spec": {"schedulingGates": [{"name": "quota"}]}}, "scheduling gates (quota)"),
        ({"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}}, "being deleted"),
        ({"metadata": {"labels": {SHARED: "true", "aliyun.com/gpu-count": "3"}}}, "does not divide evenly"),
    ],
    ids=["scheduler", "label", "gates", "deleted", "split"],
)
def test_what_no_room_would_cure_is_said_first(change, word):
    """
    Each with what to do about it.
    """
    pod = pod_json("p", "", 8)
    for part, values in change.items():
        pod[part] |= values
    faults = find_faults(parse_pod(pod, {}, GIB))
    assert [word] == [word for fault in faults if word in fault]


def test_a_bound_pod_without_a_readable_record_is_a_fault():
    """
    None at all, or one that makes no sense.
    """
    bare, broken = pod_json("p", "n-0", 8), pod_json("p", "n-0", 8)
    del bare["metadata"]["annotations"]
    broken["metadata"]["annotations"][ALLOCATION] = "{}"
    assert "has no allocation record" in " ".join(find_faults(parse_pod(bare, {}, GIB)))
    assert "cannot be read" in " ".join(find_faults(parse_pod(broken, {}, GIB)))
    assert () == find_faults(parse_pod(pod_json("p", "n-0", 8), {}, GIB))


def test_a_container_that_the_node_agent_or_the_guard_refused_says_why():
    """
    In the kubelet's word of now, or in that of the start before, once it merely waits to try again.
    """
    pod = pod_json("p", "n-0", 8)
    refused = {"waiting": {"reason": "CreateContainerError", "message": "ml/p/main: 8GiB of card G are not free"}}
    backoff = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}
    before = {"terminated": {"reason": "StartError", "message": "gpushare: container start refused: a volume"}}
    pod["status"]["containerStatuses"] = [
        {"name": "main", "state": refused},
        {"name": "side", "state": backoff, "lastState": before},
        {"name": "fine", "state": {"running": {}}, "lastState": before},
    ]
    assert (
        "container main does not start: ml/p/main: 8GiB of card G are not free",
        "container side does not start: gpushare: container start refused: a volume",
    ) == find_faults(parse_pod(pod, {}, GIB))


def event(uid, at, text, count=1):
    """An Event of the old kind."""
    said = {"metadata": {}, "involvedObject": {"uid": uid}, "reason": "FailedScheduling", "message": text}
    said |= {"count": count, "lastTimestamp": at, "source": {"component": SCHEDULER}, "type": "Warning"}
    return msgspec.Raw(json.dumps(said).encode())


def test_events_of_an_earlier_pod_of_its_name_are_not_its_own():
    """
    The latest first, those of an earlier pod of that name and broken ones left out.
    """
    raws = [
        event("uid-p", "2026-01-31T12:00:00Z", "old"),
        event("uid-before", "2026-01-31T12:00:09Z", "not mine"),
        event("uid-p", "2026-01-31T12:00:05Z", "new", 7),
        event("uid-p", "yesterday", "no time"),
        msgspec.Raw(b"{}"),
    ]
    assert [("new", 7), ("old", 1)] == [(one.text, one.times) for one in parse_events(raws, "uid-p")]


def test_events_of_one_second_are_told_the_latest_first():
    """The server lists them by name, which ends in the nanoseconds; the scheduler alone states parts of a second."""
    times = {"scheduled": "12:00:00.6Z", "pulled": "12:00:00Z", "started": "12:00:00Z"}
    raws = [event("uid-p", f"2026-01-31T{at}", text) for text, at in times.items()]

    assert ["started", "pulled", "scheduled"] == [one.text for one in parse_events(raws, "uid-p")]


def test_the_story_in_words_and_as_data():
    """
    The same reasons in both, every sentence within 80 cells.
    """
    pod = pod_json("p", "", 20)
    subject = parse_pod(pod, {}, GIB)
    explanation = Explanation(subject, find_faults(subject), waits([node_json("n-0", 2, 10)], [], pod))
    lines = explain_lines(explanation, 0.0, TextOutput(80), wide=False)
    assert "team/p: pending" == lines[0]
    assert [] == [line for line in lines if len(line) > 80]
    assert "What would help" in lines
    document = explain_document(explanation)
    assert "card_too_small" == document["pending"]["why"]
    assert [one.text for one in explanation.waits.remedies] == [one["text"] for one in document["pending"]["remedies"]]
    assert json.loads(json.dumps(document)) == document


def test_a_pod_of_another_system_is_explained_in_its_own_words():
    """
    What it asked for as its owner wrote it, and advice that can be typed; what was not translated gets nothing, and
    says so.
    """
    known = Offered(frozenset({"ack", "hami"}))
    found = translate(hami(gpumem="20000", gpucores=None), known)
    made = pod_json("p") | {"metadata": {**pod_json("p")["metadata"], "annotations": {}}}
    made["metadata"]["annotations"] = found.metadata.value["annotations"]
    made["spec"]["containers"] = found.spec.value["containers"]
    subject = parse_pod(made, {}, GIB)
    waiting = explain_pending(cluster_of([node_json("n", 1, 15)], []), [], subject, GIB, 1000.0)
    lines = "\n".join(explain_lines(Explanation(subject, (), waiting), 1000.0, TextOutput(200), wide=False))
    assert "written for HAMi: container main: nvidia.com/gpu 1, nvidia.com/gpumem 20000" in " ".join(lines.split())
    assert "nvidia.com/gpumem: 15360" in lines
    assert "aliyun.com/gpu-mem" not in lines
    raw = hami()
    raw["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert "words of HAMi" in find_faults(parse_pod(raw, {}, GIB))[0]


@pytest.mark.parametrize("asked", ["", "{", "[]", '{"containers": 1}', '{"containers": {"a": {"b": 1}}}', "\x1b[2J"])
def test_a_forged_note_of_what_was_asked_harms_nobody(asked):
    """
    Anybody may write it.
    """
    made = pod_json("p")
    made["metadata"]["annotations"] = {ASKED: asked, DIALECT: "hami"}
    assert "" == parse_pod(made, {}, GIB).asked
