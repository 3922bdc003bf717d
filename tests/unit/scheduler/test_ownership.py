# SPDX-License-Identifier: Apache-2.0
"""Who owns a dialect: the system itself where its webhook is in the cluster, unless its namespaces are named."""

from __future__ import annotations

import asyncio
import json

import pytest

from isolation.contract.dialects import SYSTEMS
from isolation.kube.core.errors import ClusterError
from isolation.scheduler import ownership
from isolation.scheduler.admission.core.serving import ONLY_ACK, parse_serving, show_serving
from isolation.scheduler.core.ownership import find_owned

HAMI = (SYSTEMS["hami"], SYSTEMS["kai"])


@pytest.mark.parametrize(
    ("left", "webhooks", "owned"),
    [
        ((), ("vgpu.hami.io", "x.example.com"), {"hami": "vgpu.hami.io"}),
        ((), ("x.example.com",), {}),
        ((("hami", "team"),), ("vgpu.hami.io",), {}),
        ((("hami", ""),), ("vgpu.hami.io",), {}),
        ((("kai", "team"),), ("vgpu.hami.io",), {"hami": "vgpu.hami.io"}),
    ],
)
def test_a_system_that_lives_here_keeps_its_pods_unless_namespaces_are_named(left, webhooks, owned):
    """
    Also none, by which the operator says that they know.
    """
    assert owned == find_owned(HAMI, left, webhooks)


class Source:
    """Webhook configurations, or an error, one after another."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def page(self, _path, _query):
        """The next one; the last is repeated."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps({"items": [{"webhooks": [{"name": name} for name in answer]}, {}]}).encode()


def test_until_the_first_answer_no_dialect_is_ours(monkeypatch):
    """
    An error changes nothing; a system that comes or goes is noticed.
    """
    monkeypatch.setattr(ownership, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(ownership, "RETRY_SECONDS", 0.0)
    told, done = [], asyncio.Event()

    def tell(owned):
        told.append(dict(owned))
        if len(told) == 4:
            done.set()

    source = Source(ClusterError("away"), [], ["vgpu.hami.io"], ClusterError("away"), [])
    watch = ownership.OwnershipWatch(source, parse_serving("ack,hami"), tell)

    async def until_told():
        task = asyncio.create_task(watch.run())
        await done.wait()
        task.cancel()

    asyncio.run(until_told())
    assert [{"hami": ownership.UNKNOWN}, {}, {"hami": "vgpu.hami.io"}, {}] == told


@pytest.mark.parametrize(
    ("dialects", "left", "words"),
    [
        ("ack,cuda", [], "unknown"),
        ("hami", [], "add ack"),
        ("ack", ["hami=x"], "switched on"),
        ("ack,hami", ["hami"], "DIALECT=NAMESPACE"),
        ("ack,hami", ["hami=A_b"], "name of a namespace"),
    ],
)
def test_what_the_options_may_not_say(dialects, left, words):
    """
    With what to write.
    """
    with pytest.raises(ValueError, match=words):
        parse_serving(dialects, left)


def test_options_are_shown_as_they_are_read():
    """
    In the header of the generated objects.
    """
    systems = parse_serving("ack, hami,kai", ["hami=a,b", "kai="])
    assert "--dialects ack,hami,kai --leave-to hami=a,b --leave-to kai=" == show_serving(systems)
    assert ONLY_ACK == parse_serving("ack")
