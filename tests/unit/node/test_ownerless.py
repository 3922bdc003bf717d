# SPDX-License-Identifier: Apache-2.0
"""Nobody can tell whose the devices are with which the kubelet tries to start: whose wait that ends, and whose not."""

from __future__ import annotations

import asyncio

import pytest
from support.agent_world import AgentWorld

from isolation.node.book import Entry
from isolation.node.keeper import DOUBT_SECONDS, LONGEST_SECONDS
from isolation.node.ledger import Trouble
from isolation.node.ownerless import LATELY_SECONDS, STARTING_SECONDS
from isolation.node.world import NotYetError

AGAIN = 12
"""Seconds between two tries of the kubelet."""


@pytest.fixture
def node():
    made = AgentWorld()
    asyncio.run(made.agent.start())
    return made


def run(work):
    return asyncio.run(work)


def wait(node, ids, seconds, *, asks=True):
    """Time passes, the agent looks, and the kubelet tries to start with these devices; when somebody was deleted."""
    for second in range(int(seconds)):
        if asks and second % AGAIN == 0:
            refused(node, ids)
        node.time += 1
        run(node.agent.tick())
        if node.deleted:
            break
    return node.time


def refused(node, ids):
    """PreStart says that it does not know."""
    with pytest.raises(NotYetError):
        run(node.agent.prestart(sorted(ids)))


def astray(node, name="a"):
    """
    A pod on a wrong card; another one's devices, which its record fits, are taken for its own, and it may start.

    Answers what it really has, which is nobody's now.
    """
    pod = node.bind(name, init=("prepare",), prepare=(1, 2))
    mine, theirs = node.ids(0, 0, 1), node.ids(1, 6, 7)
    for ids, guessed in ((mine, True), (theirs, False)):
        made = node.agent.book.next()
        owner = (pod.uid, "ml", name, "prepare", True) if guessed else ()
        node.agent._ledger.claim(Entry(ids, *owner, guessed=guessed, made=made))
    node.admitted[pod.uid] = {"prepare": mine}
    run(node.agent.prestart(sorted(theirs)))  # of a pod that was gone before anybody saw it
    assert [theirs] == [one.ids for one in node.agent.book.of(pod.uid)]
    return pod, mine


def test_a_pod_whose_devices_are_nobodys_by_the_book_is_made_anew_within_a_minute(node):
    """The book is sure of other devices, which it was let start with and does not run with."""
    pod, mine = astray(node)
    began = node.time
    ended = wait(node, mine, 100)

    assert [("a", True)] == [(name, "devices that match no known pod" in why) for name, why in node.deleted]
    assert LONGEST_SECONDS <= ended - began < 60
    wait(node, mine, 30, asks=False)
    assert () == node.agent.book.of(pod.uid)


def test_a_restart_of_the_agent_makes_nobody_wait_longer(node):
    """Its patience counts on, and the kubelet asks again by itself."""
    _, mine = astray(node)
    began = node.time
    wait(node, mine, 36)
    node.restart_agent()
    run(node.agent.start())
    ended = wait(node, mine, 60)

    assert ["a"] == [name for name, _ in node.deleted]
    assert ended - began < 60


@pytest.mark.parametrize("silence", ["nobody asks", "the kubelet", "the API server"])
def test_without_the_word_of_all_nobody_is_deleted(node, silence):
    """Who asks no more, or is silent, speaks for nothing."""
    _, mine = astray(node)
    refused(node, mine)
    if silence == "the kubelet":
        node.kubelet_up = False
    if silence == "the API server":
        node.api_up = False
    node.time += LATELY_SECONDS + 1 if silence == "nobody asks" else 0
    wait(node, mine, 100, asks=silence != "nobody asks")

    assert [] == node.deleted


def test_who_fetches_its_image_is_left_in_peace(node):
    """Its devices are known for sure and it had no leave to start: those that nobody knows are not its."""
    node.bind("slow", init=("prepare",), prepare=(1, 2), main=(1, 2))
    ids = run(node.admit("slow"))
    assert not any(entry.guessed for entry in node.agent.book)
    _, mine = astray(node)
    wait(node, mine, 100)

    assert ["a"] == [name for name, _ in node.deleted]
    for _ in range(3):
        node.time += DOUBT_SECONDS
        wait(node, mine, 3)
    assert ["a"] == [name for name, _ in node.deleted]
    assert "prepare" == run(node.start("slow", "prepare")).container
    assert ids["prepare"] == node.agent.book.get(node.api["slow"].uid, "prepare").ids


@pytest.mark.parametrize("other", ["another size", "not admitted", "runs", "had leave a moment ago"])
def test_who_cannot_be_the_one_is_not_deleted(node, other):
    """Nobody goes for devices that cannot be its."""
    pod, mine = astray(node)
    unknown = node.ids(0, 2, 3, 4) if other == "another size" else mine
    if other == "not admitted":
        del node.admitted[pod.uid]
    if other == "runs":
        node.change("a", started=True)
    wait(node, unknown, LONGEST_SECONDS - 1)
    assert [] == node.deleted
    if other == "had leave a moment ago":
        for _ in range(20):
            node.agent._ledger.started[pod.uid] = node.time - STARTING_SECONDS + 2
            wait(node, unknown, 1)
    else:
        wait(node, unknown, 60)
    assert [] == [name for name, why in node.deleted if "devices that match no known pod" in why]


def test_whose_devices_have_become_known_nobody_else_is_deleted_for(node):
    """They were nobody's at the last question; by now they are those of a pod that the watch told of."""
    _, mine = astray(node)
    wait(node, mine, LONGEST_SECONDS - 4)
    other = node.bind("b", main=(0, 2))
    node.admitted[other.uid] = {"main": mine}
    wait(node, mine, LATELY_SECONDS, asks=False)

    assert [] == node.deleted
    assert "b" == run(node.start("b", "main")).pod.name


@pytest.mark.parametrize("known", ["guessed", "nothing"])
def test_of_two_that_may_be_the_one_one_goes_and_the_other_is_known(node, known):
    """Trouble of the node itself, which was over long ago, does not hide that nobody can tell them apart."""
    theirs, mine = {"a": node.ids(1, 0, 1), "b": node.ids(1, 2, 3)}, node.ids(0, 0, 1)
    node.agent._ledger.claim(Entry(mine, made=node.agent.book.next()))
    for name, ids in theirs.items():
        pod = node.bind(name, init=("prepare",), prepare=(1, 2))
        node.admitted[pod.uid] = {"prepare": mine}
        node.agent._ledger.trouble[pod.uid] = Trouble("the library was missing", node.time, hopeless=False)
        if known == "guessed":
            entry = Entry(ids, pod.uid, "ml", name, "prepare", init=True, guessed=True, made=node.agent.book.next())
            node.agent._ledger.claim(entry)
    began = node.time
    ended = wait(node, mine, 100)

    assert [True] == ["devices that match no known pod" in why for _, why in node.deleted]
    assert ended - began < 60
    refused(node, mine)  # of the other one, which stands on a wrong card
    assert ["prepare"] == [one.container for one in node.agent.book.exactly(mine)]


def test_a_trouble_that_does_not_hold_hides_no_other_reason(node):
    """The wrong card was another pod's; what is wrong now is told and ends the wait all the same."""
    pod = node.bind("a", main=(0, 2), second=(0, 2))
    run(node.admit("a"))
    node.agent._ledger.trouble[pod.uid] = Trouble("it was on a wrong card", node.time, hopeless=True)
    node.admitted[pod.uid]["second"] = node.ids(0, 6, 7)
    began = node.time
    while not node.deleted and node.time < began + 100:
        node.time += 1
        run(node.agent.tick())

    assert [("a", False)] == [(name, "wrong card" in why) for name, why in node.deleted]
    assert node.time - began < 60
