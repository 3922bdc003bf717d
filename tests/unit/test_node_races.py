"""
Moments in which nobody can tell whose devices are whose, or who is gone: what the agent makes of them later.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest
from agent_world import AgentWorld

from isolation.node.book import Entry, card_of, hash_of
from isolation.node.identity import Found
from isolation.node.world import Ask, NotYetError


@pytest.fixture
def node():
    made = AgentWorld()
    asyncio.run(made.agent.start())
    return made


def run(work):
    return asyncio.run(work)


def ticks(node, seconds):
    """Time passes and the agent looks."""
    for _ in range(int(seconds)):
        node.time += 1
        run(node.agent.tick())


def unseen(node, name, **containers):
    """A pod that is admitted before anybody but the kubelet has heard of it."""
    pod = node.bind(name, watched=False, **containers)
    del node.api[name]
    node.api_up = False
    node.api[name] = pod
    boxes = run(node.admit(name))
    node.api_up = True
    return pod, boxes


@pytest.mark.parametrize("settled", ["by a turn", "by the start"])
def test_containers_of_an_unseen_pod_get_their_owner_later(node, settled):
    """
    Init, sidecar and app, admitted in the dark: each starts with its own name and its own devices.
    """
    pod, boxes = unseen(node, "a", init=("fetch",), fetch=(0, 4), side=(0, 1), main=(0, 3))
    assert [""] * 3 == [entry.uid for entry in node.agent.book]
    node.watched["a"] = pod
    if settled == "by a turn":
        ticks(node, 1)

    promises = {}
    for name in ("fetch", "side", "main"):
        promises[name] = run(node.start("a", name))
        node.change("a", wanted=tuple(ended(one) if one.name == name else one for one in node.api["a"].wanted))

    assert {name: name for name in boxes} == {name: promise.container for name, promise in promises.items()}
    assert boxes == {entry.container: entry.ids for entry in node.agent.book}


def ended(wanted):
    """An init container that has ended well."""
    return type(wanted)(wanted.name, wanted.units, wanted.init, done=wanted.init)


def test_two_unseen_pods_of_one_shape_keep_apart(node):
    """
    Their init containers are told apart by the devices that they share with their own apps.
    """
    pods = {name: unseen(node, name, init=("fetch",), fetch=(0, 2), main=(0, 2)) for name in ("a", "b")}
    for name, (pod, _) in pods.items():
        node.watched[name] = pod
    for name in ("b", "a"):
        promise = run(node.start(name, "fetch"))
        assert (name, "fetch") == (promise.pod.name, promise.container)


def test_an_unseen_pod_with_somebodys_devices_does_not_start_under_that_name(node):
    """
    The kubelet gave a running pod's devices to one that we have not heard of: it waits until it is known.
    """
    node.bind("a", main=(0, 8))
    ids = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    twin = node.bind("b", watched=False, main=(0, 8))
    node.api_up = False
    run(node.agent.allocate([sorted(ids)]))
    node.admitted[twin.uid] = {"main": ids}

    with pytest.raises(NotYetError):
        run(node.agent.prestart(sorted(ids)))
    assert "a" == node.files[hash_of(ids)].pod.name

    node.api_up, node.watched["b"] = True, twin
    with pytest.raises(NotYetError):
        run(node.agent.prestart(sorted(ids)))
    ticks(node, 5)
    assert ["b"] == [name for name, _ in node.deleted]


def test_unknown_devices_are_kept_while_they_may_be_somebodys(node):
    """
    An outage of the API server is no reason; when it is over and nobody comes, they are free.
    """
    pod, _ = unseen(node, "a", main=(0, 4))
    ticks(node, 10)
    assert 4 == len(node.agent.book.held())
    node.watching = False
    ticks(node, 60)
    assert 4 == len(node.agent.book.held())

    del node.api["a"], node.admitted[pod.uid]
    node.watching = True
    ticks(node, 30)
    assert set() == node.agent.book.held()


def test_the_next_owners_files_outlive_the_former_ones_clearing_away(node):
    """
    Two find at once that the former owner is gone; only one clears up, and never behind the next one's back.
    """
    old = node.bind("old", main=(0, 8))
    ids = run(node.admit("old"))["main"]
    run(node.start("old", "main"))
    node.time += 10
    node.force_delete("old")
    node.processes.discard(old.uid)
    node.bind("new", main=(0, 8))
    assert ids == run(node.admit("new"))["main"]

    async def both():
        await asyncio.gather(node.agent.tick(), node.agent.prestart(sorted(ids)), node.agent.tick())

    run(both())

    assert "new" == node.files[hash_of(ids)].pod.name
    assert ["new"] == [entry.pod for entry in node.agent.book]


def test_who_comes_and_goes_takes_no_files_of_who_still_runs_on_the_same_devices(node):
    """
    A force-deleted pod's process lives on; the next one got the very same devices, and is deleted before it starts.
    """
    node.bind("old", main=(0, 8))
    ids = run(node.admit("old"))["main"]
    run(node.start("old", "main"))
    node.force_delete("old")
    node.bind("new", main=(0, 8))
    assert ids == run(node.admit("new"))["main"]
    node.force_delete("new")
    ticks(node, 30)

    assert ["old"] == [entry.pod for entry in node.agent.book]
    assert "old" == node.files[hash_of(ids)].pod.name


def test_a_kubelet_without_memory_admits_init_and_app_again(node):
    """
    Each gets what it had, in turn, also while the API server is away and the agent is new.
    """
    node.bind("other", main=(1, 4))
    run(node.admit("other"))
    node.bind("a", init=("fetch",), fetch=(0, 4), main=(0, 2))
    boxes = run(node.admit("a"))
    node.admitted.clear()
    node.in_use.clear()
    node.api_up, node.watching = False, False
    node.restart_agent()
    run(node.agent.start())
    watched, node.watched = node.watched, {}

    again = run(node.admit("a"))

    assert boxes["fetch"] == again["fetch"]
    assert {"GPU-0"} == {card_of(one) for one in again["main"]}
    node.api_up, node.watching, node.watched = True, True, watched
    assert "fetch" == run(node.start("a", "fetch")).container
    node.change("a", wanted=tuple(ended(one) for one in node.api["a"].wanted))
    assert "main" == run(node.start("a", "main")).container
    ticks(node, 2)
    assert again["fetch"] == {one for entry in node.agent.book.of(node.api["a"].uid) for one in entry.ids}


def test_one_container_on_a_wrong_card_spoils_the_pod(node):
    """
    What the kubelet lists for a pod that runs is on the record's cards, all of it.
    """
    pod = node.bind("a", one=(0, 2), two=(0, 2))
    right, wrong = node.ids(0, 0, 1), node.ids(1, 0, 1)
    node.admitted[pod.uid] = {}
    for name, ids in (("one", right), ("two", wrong)):
        run(node.agent.allocate([sorted(ids)]))
        node.admitted[pod.uid][name] = ids

    with pytest.raises(NotYetError, match="GPU-1"):
        run(node.agent.prestart(sorted(right)))
    ticks(node, 5)
    assert ["a"] == [name for name, _ in node.deleted]


@pytest.mark.parametrize("order", list(itertools.permutations(("a", "b", "c"))), ids="".join)
def test_a_crash_between_any_two_steps_loses_nothing(node, order):
    """
    The agent is killed after each admission and each start: what it answered stands.
    """
    for name in order:
        node.bind(name, main=({"a": 0, "b": 1, "c": 0}[name], 4))
    boxes = {}
    for name in order:
        boxes[name] = run(node.admit(name))["main"]
        node.restart_agent()
        run(node.agent.start())
        run(node.start(name, "main"))
        node.restart_agent()
        run(node.agent.start())

    assert {"a": "GPU-0", "b": "GPU-1", "c": "GPU-0"} == {name: card_of(min(ids)) for name, ids in boxes.items()}
    assert 12 == len(frozenset.union(*boxes.values()))
    for name in order:
        node.vanish(name)
    ticks(node, 10)
    assert (set(), {}) == (node.agent.book.held(), node.files)


def test_a_guess_about_an_init_container_is_taken_back_when_the_kubelet_says_otherwise(node):
    """
    A pod with nothing but an init container looks as if it were always being admitted: another one was.
    """
    lonely, boxes = unseen(node, "lonely", init=("fetch",), fetch=(1, 2))
    node.watched["lonely"] = lonely
    unheard, others = unseen(node, "unheard", main=(1, 2))

    assert "lonely" == next(one.pod for one in node.agent.book if one.ids == others["main"])
    promise = run(node.start("unheard", "main"))

    assert ("unheard", "main") == (promise.pod.name, promise.container)
    entry = next(one for one in node.agent.book if one.ids == others["main"])
    assert (unheard.uid, "main") == (entry.uid, entry.container)
    assert all(promise.pod.name != "lonely" for promise in node.files.values())
    assert boxes["fetch"] <= node.agent.book.held()


def test_pods_with_nothing_but_init_containers_are_known_when_everybody_answers(node):
    """
    The kubelet lists none of their devices; but each was the only one that could be meant when it was admitted.
    """
    boxes = {}
    for name in ("a", "b", "c"):
        node.bind(name, init=("fetch",), fetch=(0, 2))
        boxes[name] = run(node.admit(name))["fetch"]
    assert [("a", False), ("b", False), ("c", False)] == [(one.pod, one.guessed) for one in node.agent.book]
    for name in ("c", "a", "b"):
        assert name == run(node.start(name, "fetch")).pod.name


def test_who_is_not_seen_yet_is_not_taken_for_the_one_that_lacks_something(node):
    """
    A pod of init containers whose entry was lost stands there lacking it; the one that is admitted is another.
    """
    lost = node.bind("lost", init=("fetch",), fetch=(0, 2))
    node.admitted[lost.uid] = {"fetch": node.ids(1, 0, 1)}
    node.in_use |= node.ids(1, 0, 1)
    new = node.bind("new", init=("fetch",), fetch=(0, 2), main=(0, 1), watched=False)
    boxes = run(node.admit("new"))
    assert {new.uid} == {entry.uid for entry in node.agent.book}
    assert "new" == run(node.start("new", "fetch")).pod.name
    assert {"fetch", "main"} == boxes.keys()


@pytest.mark.parametrize("units", [2, 3], ids=["of the very same size", "of another size"])
def test_devices_of_unknown_init_containers_are_delivered_to_nobody_by_guess(node, units):
    """
    Two pods of init containers in the dark, on cards of anybody's choice: neither gets the other's promise, and
    neither waits for ever.
    """
    node.has_get = False
    for name, size in (("a", 2), ("b", units)):
        pod, _ = unseen(node, name, init=("fetch",), fetch=(0, size))
        node.watched[name] = pod
    node.has_get = True
    for _ in range(6):
        for name in ("a", "b"):
            if name in node.api and node.api[name].uid not in node.processes:
                with contextlib.suppress(NotYetError):
                    assert name == run(node.start(name, "fetch")).pod.name
        ticks(node, 10)
    assert all(pod.uid in node.processes for pod in node.api.values())


def test_a_guess_that_was_the_init_containers_is_not_thrown_away_with_the_apps(node):
    """
    Both have the very same devices and were admitted while the kubelet was silent: the book has both in the end.
    """
    node.bind("a", init=("fetch",), fetch=(0, 4), main=(0, 4))
    node.has_get = False
    run(node.admit("a"))
    node.has_get = True
    ticks(node, 2)
    assert {"fetch", "main"} == {entry.container for entry in node.agent.book if entry.uid}
    assert "fetch" == run(node.start("a", "fetch")).container


def test_devices_of_another_plugin_in_the_kubelets_list_stay_out_of_the_book(node):
    """
    Pods of the plugin that was here before keep what they have: nothing of it is ours to write down or to take.
    """
    old = node.bind("old", main=(0, 2), record=False)
    node.admitted[old.uid] = {"main": frozenset({"vendor-0", "vendor-1"})}
    node.change("old", started=True)
    node.bind("new", main=(1, 2))
    run(node.admit("new"))
    ticks(node, 30)
    assert (["new"], []) == ([entry.pod for entry in node.agent.book], node.deleted)


def test_of_two_that_cannot_be_told_apart_one_is_made_anew_and_the_other_starts(node):
    """
    Pods of init containers, admitted in the dark, each guessed to be one of the two: no start by luck, and no end
    of waiting for both.
    """
    for name in ("a", "b"):
        node.bind(name, init=("fetch",), fetch=(0, 2))
    node.has_get = False
    for name in ("b", "a"):
        run(node.admit(name))
    node.has_get = True
    assert all(entry.guessed for entry in node.agent.book)
    for name in ("a", "b"):
        with pytest.raises(NotYetError, match="not known yet"):
            run(node.start(name, "fetch"))
    ticks(node, 50)
    assert 1 == len(node.deleted)
    left = next(iter(node.api))
    ticks(node, 2)
    assert left == run(node.start(left, "fetch")).pod.name


def test_a_pod_that_was_deleted_before_its_admission_is_not_taken_for_the_next_one(node):
    """
    The kubelet shows it with containers without devices, and never admits it: who comes next is somebody else.
    """
    gone = node.bind("gone", main=(0, 2))
    node.change("gone", deleting=True)
    node.admitted[gone.uid] = {"main": frozenset()}
    node.bind("next", main=(0, 2))
    run(node.admit("next"))
    assert ["next"] == [entry.pod for entry in node.agent.book]
    assert "next" == run(node.start("next", "main")).pod.name


def test_a_container_of_which_the_kubelet_lists_nothing_is_not_the_one_that_starts(node):
    """
    The watch was behind, and the deleted pod was taken for the next one: its promise goes to nobody else.
    """
    gone = node.bind("gone", main=(0, 2))
    node.admitted[gone.uid] = {"main": frozenset()}
    node.bind("next", main=(0, 2))
    run(node.admit("next"))
    assert ["gone"] == [entry.pod for entry in node.agent.book]
    with pytest.raises(NotYetError, match="gone"):
        run(node.start("next", "main"))
    node.vanish("gone")
    assert "next" == run(node.start("next", "main")).pod.name


@pytest.mark.parametrize("moment", ["before the question", "between question and answer"])
def test_who_had_its_turn_is_not_taken_for_the_one_that_is_admitted_now(node, moment):
    """
    An init container and a sidecar were admitted in the dark, with the very same devices; the app is next.

    The kubelet shows the sidecar's devices, so the init container before it is not the one; and what the agent
    learned by itself between the two calls counts too.
    """
    pod = node.bind("a", watched=False, init=("warm",), warm=(1, 2), helper=(1, 2), main=(1, 2))
    ids, others = node.ids(1, 0, 1), node.ids(1, 2, 3)
    node.api_up, boxes = False, node.admitted.setdefault(pod.uid, {})
    for name in ("warm", "helper"):
        run(node.agent.allocate([sorted(ids)]))
        boxes[name] = ids
    node.api_up, node.watched["a"] = True, pod
    if moment == "before the question":
        run(node.agent.preferred([Ask(tuple(node.offered()), (), 2)]))
    else:
        node.agent._expected = (others, Found(pod, pod.wanted[0]), node.time + 60)
        run(node.agent.tick())
    run(node.agent.allocate([sorted(others)]))
    boxes["main"] = others
    ticks(node, 1)

    assert {"warm": ids, "helper": ids, "main": others} == {one.container: one.ids for one in node.agent.book}


def test_a_guess_that_the_kubelet_does_not_show_was_not_the_containers_turn(node):
    """
    Another pod's devices were taken for the first container's, in the dark; then the kubelet admits it itself.
    """
    node.bind("other", watched=False, main=(0, 2))
    node.kubelet_up = False
    pod = node.bind("a", main=(1, 2), second=(1, 2))
    del node.api["other"]
    theirs, ids = node.ids(0, 0, 1), {"main": node.ids(1, 0, 1), "second": node.ids(1, 2, 3)}
    node.agent._ledger.claim(Entry(theirs, pod.uid, "ml", "a", "main", guessed=True, made=node.agent.book.next()))
    node.kubelet_up, boxes = True, node.admitted.setdefault(pod.uid, {})
    for name, those in ids.items():
        run(node.agent.allocate([sorted(those)]))
        boxes[name] = those

    assert ids == {one.container: one.ids for one in node.agent.book if one.uid == pod.uid}
    assert [theirs] == [one.ids for one in node.agent.book if not one.uid]


def test_a_containers_devices_that_the_kubelet_shows_for_its_neighbour_are_given_back(node):
    """
    We were sure, and wrong: both names stood on one set of devices, and the other set on nobody's.
    """
    pod = node.bind("a", main=(0, 2), second=(0, 2))
    first, other = node.ids(0, 0, 1), node.ids(0, 2, 3)
    node.agent._ledger.claim(Entry(first, pod.uid, "ml", "a", "second", made=node.agent.book.next()))
    node.admitted[pod.uid] = {"main": first, "second": other}
    for name in ("main", "second"):
        run(node.start("a", name))

    now = {one.container: one.ids for one in node.agent.book if "~" not in one.container}
    assert {"main": first, "second": other} == now


@pytest.mark.parametrize("started", [True, False])
def test_a_container_whose_devices_stand_otherwise_in_the_book_does_not_wait_for_ever(node, started):
    """
    The kubelet gives it what the book does not say, and never asks again: the pod is made anew within a minute.
    """
    pod = node.bind("a", main=(0, 2), second=(0, 2))
    run(node.admit("a"))
    if started:
        run(node.start("a", "main"))
    node.admitted[pod.uid]["second"] = node.ids(0, 6, 7)
    began = node.time
    while not node.deleted and node.time < began + 100:
        ticks(node, 1)

    assert ["a"] == [name for name, _ in node.deleted]
    assert node.time - began < 60


def test_devices_of_an_unknown_pod_are_not_given_to_one_that_has_its_own(node):
    """
    A pod with nothing but an init container runs; another of its size is admitted unseen, on the first one's card.

    The record of the first would fit. It has its devices, though; the other one has none, and got wrong ones.
    """
    first = node.bind("first", init=("prepare",), prepare=(1, 2))
    mine = run(node.admit("first"))["prepare"]
    run(node.start("first", "prepare"))
    second = node.bind("second", init=("prepare",), prepare=(0, 2))
    ids = node.ids(1, 6, 7)
    node.agent._ledger.claim(Entry(ids, made=node.agent.book.next()))
    node.admitted[second.uid] = {"prepare": ids}

    with pytest.raises(NotYetError, match="GPU-1, the pod was placed on GPU-0"):
        run(node.agent.prestart(sorted(ids)))
    assert mine == node.agent.book.get(first.uid, "prepare").ids
    assert first.uid == node.files[hash_of(mine)].pod.uid
    ticks(node, 4)
    assert ["second"] == [name for name, _ in node.deleted]


def test_a_pod_that_the_kubelet_has_not_admitted_is_not_the_one_that_starts(node):
    """
    Its record would fit, and it lacks devices; but the kubelet does not show it.
    """
    node.bind("queued", init=("prepare",), prepare=(1, 2))
    second = node.bind("second", init=("prepare",), prepare=(0, 2))
    ids = node.ids(1, 6, 7)
    node.agent._ledger.claim(Entry(ids, made=node.agent.book.next()))
    node.admitted[second.uid] = {"prepare": ids}

    with pytest.raises(NotYetError, match="GPU-1, the pod was placed on GPU-0"):
        run(node.agent.prestart(sorted(ids)))
    assert {second.uid} == {entry.uid for entry in node.agent.book}


def test_a_wait_for_devices_that_went_to_another_pod_meanwhile_ends(node):
    """
    The pod for which PreStart was asked is gone; its devices are another one's, whose turn has not come.
    """
    node.bind("old", main=(0, 8))
    run(node.admit("old"))
    run(node.start("old", "main"))
    node.force_delete("old")
    first = node.bind("first", main=(0, 8))
    ids = run(node.admit("first"))["main"]
    sleep, seen = node.sleep, []

    async def meanwhile(seconds):
        await sleep(seconds)
        if not seen:
            node.vanish("first")
            node.processes.clear()
            for entry in node.agent.book.of(first.uid):
                node.agent._ledger.release(entry)
            node.bind("next", main=(0, 8))
            seen.append(await node.admit("next"))

    node.sleep = meanwhile
    with pytest.raises(NotYetError, match="another pod"):
        run(node.agent.prestart(sorted(ids)))
    assert [{"main": ids}] == seen


def test_a_wrong_guess_about_an_init_container_gives_way_to_what_its_app_has(node):
    """
    The guess was another pod's; the app has as many devices as its init container, so they are the same ones.
    """
    pod = node.bind("a", init=("prepare",), prepare=(1, 4), main=(1, 4))
    theirs, ids = node.ids(1, 0, 1, 2, 3), node.ids(1, 4, 5, 6, 7)
    for those, box, guessed in ((theirs, "prepare", True), (ids, "main", False)):
        made = node.agent.book.next()
        node.agent._ledger.claim(Entry(those, pod.uid, "ml", "a", box, box == "prepare", guessed, made))
    node.admitted[pod.uid] = {"prepare": ids, "main": ids}

    promise = run(node.start("a", "prepare"))
    assert "prepare" == promise.container
    assert {"prepare": ids, "main": ids} == {one.container: one.ids for one in node.agent.book if one.uid}
    assert [theirs] == [one.ids for one in node.agent.book if not one.uid]


def test_what_an_earlier_pod_left_is_not_an_init_containers_whose_app_has_as_many(node):
    """
    Devices of nobody share one with the app's; its init container asks for as many as the app, so it had the app's.
    """
    pod = node.bind("a", init=("prepare",), prepare=(1, 2), main=(1, 2))
    left, ids = node.ids(1, 3, 5), node.ids(1, 5, 7)
    for those in (left, ids, ids):
        node.agent._ledger.claim(Entry(those, made=node.agent.book.next()))
    node.admitted[pod.uid] = {"prepare": ids, "main": ids}

    with pytest.raises(NotYetError, match="a pod that is not known still has devices"):
        run(node.start("a", "prepare"))
    assert {"prepare": ids, "main": ids} == {one.container: one.ids for one in node.agent.book if one.uid}
