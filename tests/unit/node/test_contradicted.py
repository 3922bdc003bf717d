# SPDX-License-Identifier: Apache-2.0
"""What the kubelet handed on within a pod contradicts a guess that another pod has it."""

from __future__ import annotations

from support.agent_story import run
from support.agent_world import AgentWorld

from isolation.contract.quantity import GIB
from isolation.node.book import Entry
from isolation.node.resolve import Resolver


def test_an_init_container_that_was_taken_for_another_pods_is_known_by_its_neighbours_devices():
    """
    A pod lacks its only init container's entry when another one is admitted; a sidecar then gets a part of its devices.

    The sidecar asks for fewer than the init container, so it is not the init container's turn any more.
    """
    node = AgentWorld(units=16)
    run(node.agent.start())
    lonely = node.bind("lonely", init=("fetch",), fetch=(1, 4))
    pod = node.bind("a", init=("warm",), warm=(1, 4), helper=(1, 2), main=(1, 4))
    theirs, warm = node.ids(1, 12, 13, 14, 15), node.ids(1, 0, 1, 2, 3)
    node.agent._ledger.claim(Entry(theirs, made=node.agent.book.next()))
    guess = Entry(warm, lonely.uid, "ml", "lonely", "fetch", init=True, guessed=True, made=node.agent.book.next())
    node.agent._ledger.claim(guess)
    node.admitted |= {lonely.uid: {"fetch": theirs}, pod.uid: {"warm": warm}}
    handed = {"helper": node.ids(1, 1, 2), "main": node.ids(1, 0, 3, 4, 5)}
    for name, ids in handed.items():
        run(node.agent.allocate([sorted(ids)]))
        node.admitted[pod.uid][name] = ids

    assert handed == {one.container: one.ids for one in node.agent.book.of(pod.uid) if not one.init}
    assert ("a", "warm") == whose(run(node.start("a", "warm")))
    assert {"warm": warm, **handed} == {one.container: one.ids for one in node.agent.book.of(pod.uid)}
    assert ("lonely", "fetch") == whose(run(node.start("lonely", "fetch")))


def whose(promise):
    """The pod and container of what was delivered."""
    return promise.pod.name, promise.container


def test_what_an_earlier_pod_left_is_not_an_init_containers_that_surely_has_others():
    """
    Devices of nobody share one with what it was given a moment ago, and the kubelet does not list its app yet.
    """
    node = AgentWorld(cards=1, units=16)
    run(node.agent.start())
    left, mine = node.ids(0, 7, 8, 9, 10), node.ids(0, 7, 13, 14, 15)
    node.agent._ledger.claim(Entry(left, made=node.agent.book.next()))
    pod = node.bind("a", init=("prepare",), prepare=(0, 4), main=(0, 4))
    for name in ("prepare", "main"):
        made = node.agent.book.next()
        node.agent._ledger.claim(Entry(mine, pod.uid, "ml", "a", name, init=name == "prepare", made=made))
    node.admitted[pod.uid] = {"prepare": mine}

    run(Resolver(node.agent._ledger, GIB).look([pod]))

    assert {"prepare": mine, "main": mine} == {one.container: one.ids for one in node.agent.book.of(pod.uid)}
