# SPDX-License-Identifier: Apache-2.0
"""Pods of one size come and go on a real node while agent, kubelet, runtime and the node itself are killed in turn."""

from __future__ import annotations

import functools

import pytest
from realkubelet.churn import Churn, starts
from realkubelet.harness import play, real_node


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards of 14 units."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


def test_whoever_is_killed_every_container_has_what_its_record_says(stage, budget):
    """
    0 on a wrong card, 0 without limits, 0 wedged, no pod deleted but by us. Pods that a kubelet admits while no plugin
    is there are rejected by it for good (after a reboot).
    """
    tally = play(stage, lambda client: Churn(stage, client, seed=21).run(42 * budget, every=6))
    assert ([], [], [], []) == (tally.wrong_card, tally.without_limits, tally.wedged, tally.deleted), tally
    assert {"UnexpectedAdmissionError"} >= set(tally.rejected), tally
    assert tally.ran >= 24 * budget, tally


@pytest.mark.parametrize("fault", ["agent-killed", "rolling-update"])
def test_no_pod_that_never_restarts_fails_when_the_agent_is_killed_or_both_processes_are_replaced(stage, budget, fault):
    """
    Bound at any moment at which the node says that it is ready, ten at a time; each sees its card and its limits.
    """
    story = functools.partial(starts, stage, count=24 * budget, faults={fault: 5.0}, show=lambda *_: None)
    found = play(stage, lambda client: story(client=client))
    assert ({}, []) == (dict(found.failed), found.wrong), found
    assert found.faults[fault] >= 1
