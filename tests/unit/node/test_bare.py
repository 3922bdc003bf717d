# SPDX-License-Identifier: Apache-2.0
"""Pods that run, or ran, and have no devices by the kubelet's word: made anew, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.agent_story import run, started, ticks

RUNNING = "a" * 64


@pytest.fixture
def node():
    return started()


def runs(node, name, *, id_=RUNNING):
    """The API server says that its containers run, or have run."""
    node.change(name, started=True, wanted=tuple(replace(one, id=id_) for one in node.api[name].wanted))


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "unrecorded"])
@pytest.mark.parametrize("id_", [RUNNING, ""], ids=["runs", "crashes"])
def test_who_runs_without_devices_is_deleted_with_the_reason(node, record, id_):
    """A kubelet that had never heard of the plugin let it through: no card, no limit, and nothing heals it."""
    pod = node.bind("early", main=(0, 4), record=record)
    node.admitted[pod.uid] = {"main": frozenset()}
    runs(node, "early", id_=id_)
    ticks(node, 20)
    assert [("early", True)] == [(name, "main" in why) for name, why in node.deleted]


def test_who_is_not_admitted_yet_is_left_in_peace(node):
    """No container of it has run: the queue of the kubelet may be long."""
    pod = node.bind("queued", main=(0, 4))
    ticks(node, 12)
    node.admitted[pod.uid] = {"main": frozenset()}
    ticks(node, 7)
    assert [] == node.deleted


def test_a_silent_or_ignorant_kubelet_condemns_nobody(node):
    """No answer, or no such pod, is no word about devices."""
    pod = node.bind("early", main=(0, 4))
    runs(node, "early")
    ticks(node, 20)  # the kubelet does not know it
    node.admitted[pod.uid], node.has_get = {"main": frozenset()}, False
    ticks(node, 20)
    assert [] == node.deleted


def test_a_kubelet_that_reads_its_checkpoint_is_given_time(node):
    """For some seconds it lists nothing for pods that have everything."""
    pod = node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    runs(node, "a", id_="")
    node.admitted[pod.uid] = {"main": frozenset()}
    ticks(node, 8)
    node.admitted[pod.uid] = {"main": ids}
    ticks(node, 20)
    assert [] == node.deleted


def test_what_a_kubelet_without_checkpoint_cannot_start_again_is_made_anew(node):
    """It ran, it crashed, the kubelet has forgotten its devices and refuses it for ever; the one that runs stays."""
    for name in ("crashed", "runs"):
        pod = node.bind(name, main=(0, 4))
        run(node.admit(name))
        run(node.start(name, "main"))
        runs(node, name, id_="" if name == "crashed" else RUNNING)
        node.admitted[pod.uid] = {"main": frozenset()}
    ticks(node, 20)
    assert ["crashed"] == [name for name, _ in node.deleted]


def test_where_the_api_server_says_otherwise_nothing_is_deleted(node):
    """Another pod has the name by now: the watch is behind."""
    pod = node.bind("early", main=(0, 4))
    node.admitted[pod.uid] = {"main": frozenset()}
    runs(node, "early")
    node.api["early"] = replace(node.api["early"], uid="another")
    ticks(node, 20)
    assert [] == node.deleted


def test_a_container_that_has_ended_for_good_is_no_reason(node):
    """One of a Job's containers is done, the other one works on, and the kubelet has lost its checkpoint."""
    pod = node.bind("job", first=(0, 2), second=(0, 2))
    run(node.admit("job"))
    for name in ("first", "second"):
        run(node.start("job", name))
    first, second = node.api["job"].wanted
    node.change("job", wanted=(replace(first, over=True), replace(second, id=RUNNING)))
    node.admitted[pod.uid] = {"first": frozenset(), "second": frozenset()}
    ticks(node, 30)
    assert [] == node.deleted
