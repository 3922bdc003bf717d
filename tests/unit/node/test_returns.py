# SPDX-License-Identifier: Apache-2.0
"""An agent or a kubelet that comes back: who has what, and what is free again."""

from __future__ import annotations

import pytest
from support.agent_story import run, started, ticks

from isolation.node.world import NotYetError


@pytest.fixture
def node():
    return started()


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
