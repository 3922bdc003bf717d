# SPDX-License-Identifier: Apache-2.0
"""
The agent asks the kubelet by Get, never by List, and takes no silence for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest
from support.kubelet_stand_in import KubeletStandIn
from support.waiting import PATIENCE_SECONDS, soon

from isolation.contract.names import ACK
from isolation.node import resources
from isolation.node.resources import OFF, PodResourcesClient
from isolation.node.world import UnreachableError


@pytest.fixture
def kubelet():
    """With one pod: two containers, one of them with devices of two resources."""
    with KubeletStandIn() as started:
        boxes = {"main": {ACK.memory: ["a-_-0", "a-_-1"], "other/thing": ["x"]}, "plain": {}}
        started.add("ml", "train", boxes)
        yield started


def asked(kubelet, work):
    """What comes of it, with a client of its own."""

    async def story():
        client = PodResourcesClient(kubelet.socket, ACK.memory)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(story())


def test_our_devices_by_container(kubelet):
    """
    Another resource's are none of ours; a container without any is empty.
    """
    found = asked(kubelet, lambda client: client.get("ml", "train", PATIENCE_SECONDS))
    assert {"main": {"a-_-0", "a-_-1"}, "plain": frozenset()} == found
    assert {"Get": 1} == dict(kubelet.calls)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND], ids=str)
def test_a_pod_that_the_kubelet_does_not_know_is_none(kubelet, code):
    """
    Said in words by today's kubelets, by code by others.
    """
    kubelet.not_found = code
    assert asked(kubelet, lambda client: client.get("ml", "nobody", PATIENCE_SECONDS)) is None


def test_too_many_questions_are_asked_again_in_time(kubelet):
    """
    The kubelet grants a hundred a second to all callers together.
    """
    kubelet.refuse = 3
    assert asked(kubelet, lambda client: client.get("ml", "train", PATIENCE_SECONDS)) is not None
    assert 4 == kubelet.calls["Get"]


@pytest.mark.parametrize("trouble", ["slow", "refusing", "gone"])
def test_what_is_not_answered_in_time_is_unknown(kubelet, trouble):
    """
    Though no answer ever comes, and never as "no such pod".
    """
    if trouble == "slow":
        kubelet.delay = 3600.0
    elif trouble == "refusing":
        kubelet.refuse = -1
    else:
        kubelet.gone()

    async def work(client):
        with pytest.raises(UnreachableError):
            await client.get("ml", "train", 0.2)

    asked(kubelet, work)


def test_a_kubelet_that_comes_back_is_found_again(kubelet):
    """
    On the same client.
    """

    async def work(client):
        await client.get("ml", "train", PATIENCE_SECONDS)
        kubelet.gone()
        with pytest.raises(UnreachableError):
            await client.get("ml", "train", 0.1)
        kubelet.back()

        async def answered():
            with contextlib.suppress(UnreachableError):
                return await client.get("ml", "train", 0.5)

        return await soon(answered)

    assert asked(kubelet, work) is not None


def test_unhurried_questions_leave_room_for_admission(kubelet, monkeypatch):
    """
    Of sixty at once a few are asked and the rest told to come later, while one that holds up the kubelet is answered.
    """
    assert resources._UNHURRIED_A_SECOND <= 50  # half of what the kubelet grants
    monkeypatch.setattr(resources, "_UNHURRIED_A_SECOND", 0.001)
    monkeypatch.setattr(resources, "URGENT_SECONDS", PATIENCE_SECONDS)

    async def work(client):
        slow = [client.get("ml", "train", PATIENCE_SECONDS + 1.0) for _ in range(60)]
        outcomes = await asyncio.gather(*slow, return_exceptions=True)
        answer = await client.get("ml", "train", PATIENCE_SECONDS)
        return answer, sum(isinstance(one, UnreachableError) for one in outcomes)

    answer, late = asked(kubelet, work)
    assert (True, 57) == (answer is not None, late)


@pytest.mark.parametrize("off", [True, False], ids=["off", "on"])
def test_a_kubelet_without_get_is_told_with_the_remedy(kubelet, off):
    """
    At the start, by asking for a pod that there is not.
    """
    kubelet.get_disabled = off
    assert (OFF if off else "") == asked(kubelet, lambda client: client.probe())
