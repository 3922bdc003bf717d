"""
The agent's mind against a kubelet in memory: who gets which devices, who may start, what is cleared away.
"""

from __future__ import annotations

import asyncio

import pytest
from agent_world import AgentWorld

from isolation.contract.model import Mode
from isolation.contract.quantity import GIB
from isolation.node.book import card_of, hash_of
from isolation.node.world import Ask, NotYetError


@pytest.fixture
def node():
    made = AgentWorld()
    run(made.agent.start())
    return made


def run(work):
    return asyncio.run(work)


def test_a_pod_gets_devices_of_the_card_on_which_it_was_placed(node):
    """
    The record says card 1: all four devices are its, and so are the files.
    """
    node.bind("a", main=(1, 4))

    boxes = run(node.admit("a"))
    promise = run(node.start("a", "main"))

    assert {"GPU-1"} == set(map(card_of, boxes["main"]))
    assert ("main", (("GPU-1", 4 * GIB),)) == (promise.container, tuple((s.uuid, s.bytes) for s in promise.slices))


def test_eight_over_four_cards_are_two_of_each():
    """
    The seed's StatefulSet: N units over M cards, N/M of each.
    """
    node = AgentWorld(cards=4)
    node.bind("a", main=((0, 1, 2, 3), 8))

    boxes = run(node.admit("a"))
    run(node.start("a", "main"))

    assert [2, 2, 2, 2] == [sum(card_of(one) == f"GPU-{card}" for one in boxes["main"]) for card in range(4)]


def test_pods_of_one_size_do_not_swap_cards_when_the_kubelet_admits_in_another_order(node):
    """
    Trap 1: the kubelet's list, not the size, says who is being admitted.
    """
    for name, card in (("a", 0), ("b", 1), ("c", 0)):
        node.bind(name, main=(card, 4))

    cards = {name: {card_of(one) for one in run(node.admit(name))["main"]} for name in ("c", "b", "a")}

    assert {"a": {"GPU-0"}, "b": {"GPU-1"}, "c": {"GPU-0"}} == cards


def test_who_is_not_yet_in_the_watch_is_asked_for(node):
    """
    The kubelet may hear of a pod before we do; one question to the API server tells.
    """
    node.bind("behind", main=(0, 4))
    node.bind("a", main=(1, 4), watched=False)

    boxes = run(node.admit("a"))

    assert {"GPU-1"} == {card_of(one) for one in boxes["main"]}
    assert "a" == next(iter(node.agent.book)).pod


@pytest.mark.parametrize("trouble", ["api", "kubelet", "both"])
def test_admission_is_answered_in_time_whatever_is_down(node, trouble):
    """
    An error would fail the pod for good, a wait would stop the node: 0.2 s is the most.
    """
    for name in "abcdefgh":
        node.bind(name, main=(0, 1))
    node.bind("unseen", main=(1, 4), watched=False)
    node.api_up, node.has_get = trouble == "kubelet", trouble == "api"

    for name in ("unseen", "c"):
        begun = node.time
        boxes = run(node.admit(name))
        assert node.time - begun <= 0.2
        assert 1 == len({card_of(one) for one in boxes["main"]})


def test_without_a_book_entry_the_kubelets_offer_of_held_devices_is_not_taken(node):
    """
    R1: after a List in an unlucky moment the kubelet offers what a running pod has; the book knows better.
    """
    for name in ("a", "b"):
        node.bind(name, main=(0, 4))
    first = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    node.in_use.clear()

    second = run(node.admit("b"))["main"]
    run(node.start("b", "main"))

    assert frozenset() == first & second
    assert {"GPU-0"} == {card_of(one) for one in second}


def test_devices_of_a_force_deleted_pod_wait_for_its_processes(node):
    """
    R6: the kubelet gives them to the next pod at once; that pod starts when the last process is gone.
    """
    old = node.bind("old", main=(0, 8))
    run(node.admit("old"))
    run(node.start("old", "main"))
    node.force_delete("old")
    node.bind("new", main=(0, 8))
    ids = run(node.admit("new"))["main"]

    with pytest.raises(NotYetError, match="old"):
        run(node.agent.prestart(sorted(ids)))
    node.processes.discard(old.uid)
    promise = run(node.start("new", "main"))

    assert "new" == promise.pod.name
    assert ["new"] == [entry.pod for entry in node.agent.book]


def test_two_pods_with_the_same_devices_never_both_run(node):
    """
    Where the kubelet gives one pod's devices to another whatever we prefer, the later one is deleted, and said why.
    """
    node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    twin = node.bind("b", main=(0, 4))
    node.admitted[twin.uid] = {}
    run(node.agent.allocate([sorted(ids)]))
    node.admitted[twin.uid] = {"main": ids}

    with pytest.raises(NotYetError):
        run(node.agent.prestart(sorted(ids)))
    ticks(node, 5)

    assert ["b"] == [name for name, _ in node.deleted]
    assert "ml/a" in node.deleted[0][1]
    assert "a" == run(node.start("a", "main")).pod.name


def ticks(node, seconds):
    """Time passes and the agent looks."""
    for _ in range(int(seconds)):
        node.time += 1
        run(node.agent.tick())


def test_init_and_app_share_devices_and_one_promise_counts(node):
    """
    An app container takes its init container's devices unasked: the init's promise goes when the app starts.
    """
    node.bind("a", init=("fetch",), fetch=(0, 6), main=(0, 4))
    boxes = run(node.admit("a"))
    run(node.start("a", "fetch"))
    assert {hash_of(boxes["fetch"])} == node.counted

    node.change("a", wanted=tuple(done(one) for one in node.api["a"].wanted))
    promise = run(node.start("a", "main"))

    assert boxes["main"] < boxes["fetch"]
    assert ("main", {hash_of(boxes["main"])}) == (promise.container, node.counted)


def done(wanted):
    """An init container that has ended well."""
    return type(wanted)(wanted.name, wanted.units, wanted.init, done=wanted.init)


def test_where_init_and_app_have_the_very_same_devices_the_files_follow(node):
    """
    One set of IDs, one folder: it speaks of whoever runs now.
    """
    node.bind("a", init=("fetch",), fetch=(0, 4), main=(0, 4))
    run(node.admit("a"))

    assert "fetch" == run(node.start("a", "fetch")).container
    node.change("a", wanted=tuple(done(one) for one in node.api["a"].wanted))
    ticks(node, 1)
    assert ["main"] == [promise.container for promise in node.files.values()]
    assert "main" == run(node.start("a", "main")).container


def test_a_larger_inits_surplus_stays_held_for_the_pods_life(node):
    """
    The kubelet keeps it, listed nowhere; so do we.
    """
    node.bind("a", init=("fetch",), fetch=(0, 6), main=(0, 2))
    boxes = run(node.admit("a"))
    run(node.start("a", "fetch"))
    run(node.start("a", "main"))
    ticks(node, 5)
    assert boxes["fetch"] == node.agent.book.held()

    node.vanish("a")
    ticks(node, 10)
    assert (set(), {}) == (node.agent.book.held(), node.files)


def test_several_containers_each_get_their_own(node):
    """
    Trap 11: each container is asked for alone.
    """
    node.bind("a", one=(1, 3), two=(1, 5))
    boxes = run(node.admit("a"))
    parts = {name: run(node.start("a", name)).slices[0].bytes // GIB for name in boxes}

    assert {"one": 3, "two": 5} == parts
    assert frozenset() == boxes["one"] & boxes["two"]
    assert {"GPU-1"} == {card_of(one) for ids in boxes.values() for one in ids}


@pytest.mark.parametrize("lost", ["nothing", "book", "text"])
def test_a_restarted_agent_knows_who_has_what(node, lost):
    """
    From its book, or from what stands on the node and the kubelet's list where the book is lost.
    """
    node.bind("a", main=(0, 4))
    first = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    node.text = {"nothing": node.text, "book": None, "text": '{"format": 1, "entr'}[lost]
    node.restart_agent()
    run(node.agent.start())
    ticks(node, 1)
    node.in_use.clear()

    node.bind("b", main=(0, 4))
    second = run(node.admit("b"))["main"]
    run(node.start("b", "main"))

    assert frozenset() == first & second
    assert first | second == node.agent.book.held()
    assert ("text" == lost) == bool(node.agent.rebuilt)


def test_a_pod_without_our_record_does_not_start_and_is_deleted(node):
    """
    Trap 13: somebody set nodeName by hand. Nothing else on the node suffers.
    """
    node.bind("a", main=(0, 4), record=False)
    ids = run(node.admit("a"))["main"]
    with pytest.raises(NotYetError, match="without our record"):
        run(node.agent.prestart(sorted(ids)))
    ticks(node, 30)

    assert ["a"] == [name for name, _ in node.deleted]
    assert set() == node.agent.book.held()


def test_a_pod_on_the_wrong_card_is_deleted_by_fresh_word_only(node):
    """
    While the API server cannot confirm it, nobody is deleted.
    """
    node.bind("a", main=(0, 4))
    pod = node.api["a"]
    node.admitted[pod.uid] = {}
    wrong = node.ids(1, 0, 1, 2, 3)
    run(node.agent.allocate([sorted(wrong)]))
    node.admitted[pod.uid] = {"main": wrong}
    with pytest.raises(NotYetError, match="GPU-1, the pod was placed on GPU-0"):
        run(node.agent.prestart(sorted(wrong)))

    node.api_up = False
    ticks(node, 10)
    assert [] == node.deleted
    node.api_up = True
    ticks(node, 1)
    assert ["a"] == [name for name, _ in node.deleted]


def test_trouble_of_the_node_deletes_nobody(node):
    """
    Without the library nothing starts, and it starts by itself when the library is back.
    """
    node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    node.library = False
    for _ in range(8):
        with pytest.raises(NotYetError, match="library is missing"):
            run(node.agent.prestart(sorted(ids)))
        ticks(node, 12)
    assert "the library is missing" == node.agent.fault

    node.library = True
    run(node.start("a", "main"))
    assert ([], "") == (node.deleted, node.agent.fault)


def test_nothing_starts_that_the_book_could_not_write_down(node):
    """
    A full disk: Allocate answers, PreStart does not.
    """
    node.disk_full = True
    node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    with pytest.raises(NotYetError, match="no space"):
        run(node.agent.prestart(sorted(ids)))

    node.disk_full = False
    run(node.start("a", "main"))
    assert "a" in node.text


@pytest.mark.parametrize(("mode", "whole"), [(Mode.EXCLUSIVE, False), (Mode.NONE, False), (Mode.CGPU, True)])
def test_a_node_that_serves_no_shares_offers_none_and_takes_none_away(node, mode, whole):
    """
    Shares or whole cards, never both; what somebody has stays his.
    """
    node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    node.node_mode, node.offers_whole = mode, whole

    assert ids == {one.id for one in node.agent.devices()}


def test_a_sick_cards_free_devices_are_unhealthy_and_recover(node):
    """
    Unhealthy is for devices that nobody has: it would fail the pod that has them.
    """
    node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    sick = node.all_cards[0]
    node.all_cards[0] = type(sick)(sick.uuid, 0, sick.total_bytes, healthy=False)
    assert ids == {one.id for one in node.agent.devices() if one.healthy and card_of(one.id) == "GPU-0"}

    node.all_cards[0] = sick
    assert all(one.healthy for one in node.agent.devices())


def test_share_mode_and_system_software_are_not_limited(node):
    """
    Their devices and environment come, the library does not.
    """
    node.bind("a", main=(0, 4))
    run(node.admit("a"))
    assert "fixed" == run(node.start("a", "main")).policy
    node.node_mode = Mode.SHARE
    assert "none" == run(node.start("a", "main")).policy
    node.node_mode = Mode.CGPU
    node.change("a", exempt=True)
    assert "none" == run(node.start("a", "main")).policy


def test_devices_of_the_gone_are_free_only_when_all_agree(node):
    """
    API server, processes, kubelet: each of them has been seen wrong alone.
    """
    old = node.bind("a", main=(0, 4))
    run(node.admit("a"))
    run(node.start("a", "main"))
    kept = node.admitted[old.uid]
    node.force_delete("a")
    ticks(node, 20)
    assert 4 == len(node.agent.book.held())

    node.processes.clear()
    node.api_up = False
    ticks(node, 5)
    assert 4 == len(node.agent.book.held())
    node.api_up = True
    node.admitted[old.uid], node.api["a"] = kept, node.bind("a", uid="another", main=(0, 2))
    ticks(node, 5)
    assert 4 == len(node.agent.book.held())

    del node.admitted[old.uid]
    ticks(node, 5)
    assert set() == node.agent.book.held()


def test_a_kubelet_that_lost_its_checkpoint_gives_a_pod_what_it_had(node):
    """
    It admits running pods anew: the book says what they have, and nobody else gets it.
    """
    node.bind("a", main=(0, 4))
    first = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    node.admitted.clear()
    node.in_use.clear()

    assert first == run(node.admit("a"))["main"]


def test_without_pod_resources_the_guess_is_not_started_before_it_is_confirmed(node):
    """
    Two of one size: which is admitted cannot be told now. It is told when the container starts.
    """
    node.bind("a", main=(0, 4), created=1.0)
    node.bind("b", main=(0, 4), created=2.0)
    node.has_get = False
    ids = run(node.admit("b"))["main"]
    assert ["a"] == [entry.pod for entry in node.agent.book if entry.guessed]
    with pytest.raises(NotYetError):
        run(node.agent.prestart(sorted(ids)))

    node.has_get = True
    promise = run(node.start("b", "main"))
    assert "b" == promise.pod.name
    other = run(node.admit("a"))["main"]
    assert "a" == run(node.start("a", "main")).pod.name
    assert frozenset() == other & ids


def test_whatever_the_kubelet_asks_the_answer_has_the_asked_number(node):
    """
    Repeated, unknown, foreign, too few: never an error, never more or fewer than can be had.
    """
    weird = ("GPU-0-_-1", "GPU-0-_-1", "nonsense", "GPU-9-_-x", "-_-", "GPU-1-_-2")

    answers = run(node.agent.preferred([Ask(weird, ("GPU-1-_-2",), 3), Ask((), (), 2), Ask(weird, (), 0)]))

    assert [3, 0, 0] == [len(set(one)) for one in answers]
    assert "GPU-1-_-2" in answers[0]
