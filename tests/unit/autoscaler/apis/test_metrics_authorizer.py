# SPDX-License-Identifier: Apache-2.0
"""Rights are asked for once in ten seconds, and nothing is allowed without an answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from autoscaler.apis.metrics.authorizer import MAX_KEPT, Authorizer, build_review, parse_review
from autoscaler.apis.metrics.core.request import ResourceAttributes
from autoscaler.apis.metrics.front_proxy import User
from isolation.kube.core.errors import MalformedError, UnreachableError

EVE = User("eve", "u1", ("a", "b"), (("scope", ("x", "y")),))
READ = ResourceAttributes("get", "custom.metrics.k8s.io", "v1beta2", "default", "pods", "gpu_mem_used_bytes", "*")
YES, NO = ({"status": {"allowed": allowed, "reason": "because"}} for allowed in (True, False))


class Server:
    """An API server that answers what it is told to."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def send(self, method, path, body, seconds):
        """One question."""
        self.asked.append((method, path, body, seconds))
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()


class Clock:
    """Stands still until it is moved."""

    now = 0.0

    def __call__(self):
        """Seconds."""
        return self.now


def test_the_question_has_all_that_decides():
    """
    User with UID, groups and extra; the resource as kube-apiserver reads the path.
    """
    assert {
        "user": "eve",
        "uid": "u1",
        "groups": ["a", "b"],
        "extra": {"scope": ["x", "y"]},
        "resourceAttributes": {
            "verb": "get",
            "group": "custom.metrics.k8s.io",
            "version": "v1beta2",
            "namespace": "default",
            "resource": "pods",
            "subresource": "gpu_mem_used_bytes",
            "name": "*",
        },
    } == build_review(EVE, READ)["spec"]


@pytest.mark.parametrize(
    ("answers", "expected"), [((YES, NO), [None, None, "because"]), ((NO, YES), ["because"] * 2 + [None])]
)
def test_an_answer_holds_for_ten_seconds(answers, expected):
    """
    Also a no.
    """

    async def story():
        clock, server = Clock(), Server(*answers)
        rights, said = Authorizer(server, clock), []
        for clock.now in (0.0, 9.9, 10.0):
            said.append(await rights.refusal(EVE, READ))
        return said, len(server.asked)

    assert (expected, 2) == asyncio.run(story())


def test_many_at_once_wait_for_one_answer_and_one_that_hangs_up_takes_it_from_nobody():
    """
    A hundred autoscalers that come at the same moment are one question.
    """

    async def story():
        server = Server(YES)
        rights = Authorizer(server, Clock())
        tasks = [asyncio.create_task(rights.refusal(EVE, READ)) for _ in range(100)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks[1:]), len(server.asked)

    assert ([None] * 99, 1) == asyncio.run(story())


def test_without_an_answer_there_is_no_right_and_nothing_is_remembered():
    """
    The next one asks again.
    """

    async def story():
        rights = Authorizer(Server(UnreachableError("down"), YES), Clock())
        with pytest.raises(UnreachableError):
            await rights.refusal(EVE, READ)
        return await rights.refusal(EVE, READ)

    assert asyncio.run(story()) is None


def test_what_is_remembered_is_bounded_and_tells_users_apart():
    """
    By everything that decides, groups too.
    """

    async def story():
        server = Server(YES)
        rights = Authorizer(server, Clock())
        for i in range(MAX_KEPT + 10):
            await rights.refusal(User("eve", groups=(f"g{i}",)), READ)
        return len(server.asked), len(rights._kept)

    assert (MAX_KEPT + 10, MAX_KEPT) == asyncio.run(story())


@pytest.mark.parametrize(
    "status", [{"allowed": "true"}, {"allowed": 1}, {"allowed": True, "denied": True}, {}, {"reason": 7}], ids=range(5)
)
def test_only_a_plain_yes_allows(status):
    """
    Anything else is a no.
    """
    assert parse_review(json.dumps({"status": status}).encode())


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"status":null}', b'{"status":[]}', b"[" * 100_000], ids=range(6)
)
def test_an_answer_that_is_none_is_broken_plumbing(text):
    """
    Neither yes nor no.
    """
    with pytest.raises(MalformedError):
        parse_review(text)
