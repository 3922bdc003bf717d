# SPDX-License-Identifier: Apache-2.0
"""Who may start on the node: with a record, on its card, with a library and a book; who may not, and why."""

from __future__ import annotations

import pytest
from support.agent_story import run, started, ticks

from isolation.node.world import NotYetError


@pytest.fixture
def node():
    return started()


def test_a_pod_without_our_record_does_not_start_and_is_deleted(node):
    """
    Somebody set nodeName by hand. Nothing else on the node suffers.
    """
    node.bind("a", main=(0, 4), record=False)
    ids = run(node.admit("a"))["main"]
    with pytest.raises(NotYetError, match="without a valid allocation annotation"):
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
    with pytest.raises(NotYetError, match="GPU-1, but the pod was placed on GPU-0"):
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
