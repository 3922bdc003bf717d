# SPDX-License-Identifier: Apache-2.0
"""A pod that is made again under its name: whose the devices are with which the kubelet starts somebody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.agent_story import run, ticks
from support.agent_world import AgentWorld

from isolation.node.world import NotYetError

SHAPE = {"init": ("prepare",), "prepare": (0, 2), "main": (0, 4)}


@pytest.fixture
def node():
    world = AgentWorld(units=8)
    run(world.agent.start())
    return world


def test_the_devices_of_the_one_before_are_not_the_newcomers_who_gets_his_own_a_moment_later(node):
    """
    The kubelet still starts the pod that was deleted by force, and has not heard of the newcomer yet.
    """
    old = node.bind("a", **SHAPE)
    run(node.admit("a"))
    theirs = node.admitted[old.uid]["prepare"]
    node.force_delete("a")
    new = node.bind("a", watched=False, **SHAPE)

    async def story():
        async def then(seconds):
            node.time += seconds
            if not node.watched:
                node.watched["a"] = new
                await node.admit("a")

        node.sleep = then
        with pytest.raises(NotYetError, match="was replaced by another pod of the same name"):
            await node.agent.prestart(sorted(theirs))
        return await node.start("a", "prepare")

    promise = run(story())

    assert ("prepare", new.uid) == (promise.container, promise.pod.uid)
    mine = node.admitted[new.uid]
    assert not theirs & mine["prepare"]
    assert mine == {one.container: one.ids for one in node.agent.book.of(new.uid)}


@pytest.mark.parametrize("unbound", [False, True])
def test_devices_that_the_newcomer_got_under_the_name_of_the_one_before_are_his(node, unbound):
    """
    The kubelet knew of him first; he starts when it has had time to say otherwise.

    By the record that he is bound with, also where the server's first answer is of the moment before that.
    """
    node.bind("a", **SHAPE)
    late = dict(node.watched)
    node.api.clear()
    new = node.bind("a", **SHAPE)
    node.watched = late
    run(node.admit("a"))
    asked = []

    async def catch_up(seconds):
        node.time += seconds
        node.watched = dict(node.api)

    async def get(namespace, name, seconds=None):
        answer = await AgentWorld.get(node, namespace, name, seconds)
        if seconds is None:
            asked.append(name)
        return replace(answer, allocation=None) if seconds is None and len(asked) == 1 and unbound else answer

    node.sleep, node.get = catch_up, get

    promise = run(node.start("a", "prepare"))

    assert ("prepare", new.uid) == (promise.container, promise.pod.uid)
    assert 3.0 <= node.time < 6.0
    assert not node.agent._ledger.trouble
    ticks(node, 5)
    promise = run(node.start("a", "main"))
    assert ("main", new.uid) == (promise.container, promise.pod.uid)
    assert node.admitted[new.uid] == {one.container: one.ids for one in node.agent.book}


def test_nothing_starts_in_the_name_of_a_pod_that_is_being_deleted(node):
    """
    It is shown as if it were being admitted, and never will be; whose the devices are is told once it is gone.
    """
    ghost = node.bind("ghost", **SHAPE)
    node.bind("a", init=("fetch",), fetch=(0, 2), created=1.0)
    node.admitted[ghost.uid] = {}
    run(node.admit("a"))
    assert [ghost.uid] == [entry.uid for entry in node.agent.book]
    node.api["ghost"] = replace(ghost, deleting=True)

    with pytest.raises(NotYetError, match="being deleted"):
        run(node.start("a", "fetch"))
    node.force_delete("ghost")
    ticks(node, 10)
    promise = run(node.start("a", "fetch"))

    assert ("a", "fetch") == (promise.pod.name, promise.container)
