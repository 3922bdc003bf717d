# SPDX-License-Identifier: Apache-2.0
"""Who owns a dialect: the system itself where its webhook is in the cluster, unless its namespaces are named."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest

from isolation.contract.dialects import SYSTEMS
from isolation.contract.dialects.ownership import Signs
from isolation.kube.core.errors import ClusterError
from isolation.kube.store import Store
from isolation.scheduler import ownership
from isolation.scheduler.admission.core.serving import ONLY_ACK, parse_serving, show_serving
from isolation.scheduler.core.ownership import find_owned

HAMI = (SYSTEMS["hami"], SYSTEMS["kai"])


@pytest.mark.parametrize(
    ("left", "webhooks", "owned"),
    [
        ((), ("vgpu.hami.io", "x.example.com"), {"hami": "webhook vgpu.hami.io"}),
        ((), ("x.example.com",), {}),
        ((("hami", "team"),), ("vgpu.hami.io",), {}),
        ((("hami", ""),), ("vgpu.hami.io",), {}),
        ((("kai", "team"),), ("vgpu.hami.io",), {"hami": "webhook vgpu.hami.io"}),
    ],
)
def test_a_system_that_lives_here_keeps_its_pods_unless_namespaces_are_named(left, webhooks, owned):
    """
    Also none, by which the operator says that they know.
    """
    assert owned == find_owned(HAMI, left, Signs(webhooks))


class Source:
    """Webhook configurations, or an error, one after another."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def page(self, _path, _query):
        """The next one; the last is repeated."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        items = [{"webhooks": [{"name": name} for name in answer]}, {}]
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()


def informers(offered):
    """Of nodes that offer these resources."""
    synced = asyncio.Event()
    synced.set()
    live = SimpleNamespace(nodes=SimpleNamespace(synced=synced))
    return SimpleNamespace(live=live, store=SimpleNamespace(offered=offered))


def test_a_system_without_webhook_shows_by_what_nodes_offer():
    """
    By the nodes that the store has seen, and by the images of workloads for whoever may list them.
    """
    store = Store(noted=frozenset({"tencent.com/vcuda-core"}))
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {"tencent.com/vcuda-core": "400", "cpu": "4"}}}
    store.node_is(msgspec.Raw(json.dumps(node).encode()))
    systems = (SYSTEMS["gpu-manager"], SYSTEMS["qgpu"])
    assert {"gpu-manager": "node n1 offers tencent.com/vcuda-core"} == find_owned(systems, (), Signs((), store.offered))
    assert {} == find_owned(systems, [("gpu-manager", "")], Signs((), store.offered))
    node["status"]["capacity"]["tencent.com/vcuda-core"] = "0"
    store.node_is(msgspec.Raw(json.dumps(node).encode()))
    assert {} == store.offered
    images = {"DaemonSet kube-system/q": ("ccr.ccs.tencentyun.com/tkeimages/qgpu-manager:v1.0@sha256:00",)}
    assert {"qgpu": "DaemonSet kube-system/q"} == find_owned(systems, (), Signs(images=images))


def test_until_the_first_answer_no_dialect_is_ours(monkeypatch):
    """
    An error changes nothing; a system that comes or goes is noticed.
    """
    monkeypatch.setattr(ownership, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(ownership, "RETRY_SECONDS", 0.0)
    notified, done = [], asyncio.Event()

    def tell(owned):
        notified.append(dict(owned))
        if len(notified) == 4:
            done.set()

    source = Source(ClusterError("away"), [], ["vgpu.hami.io"], ClusterError("away"), [])
    watch = ownership.OwnershipWatch(source, informers({}), parse_serving("ack,hami"), tell)

    async def until_told():
        task = asyncio.create_task(watch.run())
        await done.wait()
        task.cancel()

    asyncio.run(until_told())
    assert [{"hami": ownership.UNKNOWN}, {}, {"hami": "webhook vgpu.hami.io"}, {}] == notified


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
