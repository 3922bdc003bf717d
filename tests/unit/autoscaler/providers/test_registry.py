# SPDX-License-Identifier: Apache-2.0
"""Providers from a configuration, and all of them as one."""

from __future__ import annotations

import asyncio
import json

import pytest

from autoscaler.providers import aws
from autoscaler.providers.base import (
    DeniedError,
    InstanceState,
    MissingError,
    PoolState,
    ProviderInstance,
    ProviderUnreachableError,
)
from autoscaler.providers.core.node_description import aws_template, capi_template
from autoscaler.providers.core.stock import is_out_of_stock, shorten_error
from autoscaler.providers.naming import NodeNames
from autoscaler.providers.registry import PoolSource, ProviderConfigError, Providers, open_providers
from isolation.contract.codec.cursor import At
from isolation.contract.model import Mode
from isolation.contract.quantity import GIB
from isolation.kube.access import Access


class Shelf:
    """A provider of the same interface that keeps its pools on a shelf."""

    name = "shelf"

    def __init__(self, *states, error=None):
        self.states = {state.name: state for state in states}
        self.error = error
        self.removed = []
        self.inside = self.most = 0

    async def pools(self):
        """What stands there."""
        if self.error:
            raise self.error
        return tuple(self.states.values())

    async def grow(self, pool, by, seen=None):  # noqa: ARG002 (the interface's)
        """Takes a moment, and counts who is inside."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1
        return self.states[pool].target + by

    async def remove(self, pool, names):
        """By ID."""
        self.removed.append(set(names))
        return tuple(one.id for one in self.states[pool].nodes if one.id in names)

    async def cancel(self, pool, by):
        """So many fewer."""
        return self.states[pool].target - by

    async def template(self, pool):  # noqa: ARG002 (the interface's)
        """Nobody knows."""
        return

    async def close(self):
        """Noted."""
        self.closed = True


class Names:
    """Nodes by provider ID; an error where nobody can tell."""

    def __init__(self, known):
        self.known = known

    async def of(self, ids):
        """Of these."""
        if isinstance(self.known, Exception):
            raise self.known
        return {ident: self.known[ident] for ident in ids if ident in self.known}


def sources(*entries):
    """Sources of (pool, provider, settings)."""
    return [PoolSource(pool, provider, At(settings)) for pool, provider, settings in entries]


def test_everything_that_is_wrong_with_a_configuration_is_said_at_once():
    """
    One line for each, each with what to write instead.
    """
    with pytest.raises(ProviderConfigError) as caught:
        open_providers(
            sources(
                ("a", "azure", {}),
                ("b", "scale", {}),
                ("c", "scale", {"name": "md", "nodes": ""}),
                ("d", "scale", {"name": "md", "replicas": 3}),
                ("e", "aws", {"region": "r"}),
                ("f", "aws", {"region": "r", "group": "g", "secretKey": "x"}),
                ("g", "ack", {"region": "r", "cluster": 7}),
                ("h", "scale", {"name": "same"}),
                ("i", "scale", {"name": "same"}),
                ("i", "ack", {"region": "r", "cluster": "c", "nodePool": "n"}),
            ),
            None,
        )

    lines = str(caught.value).splitlines()
    assert 10 == len(lines)
    assert 'unknown provider "azure"; providers: ack, aws, scale' in lines[0]
    for line, word in zip(
        lines,
        (
            "azure",
            "name is missing",
            "empty selector",
            "unknown",
            "group",
            "unknown",
            "quote it",
            "duplicate name",
            "need access to a cluster",
            "same source",
        ),
        strict=True,
    ):
        assert word in line


def test_without_the_sdk_the_remedy_is_said(monkeypatch):
    """
    Which extra to install, when a pool asks for it and not before.
    """
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)

    with pytest.raises(MissingError, match=r"docs/providers\.md says how to install provider aws"):
        aws.make_client("eu-central-1")


def test_scale_pools_need_no_sdk():
    """
    One provider for each pool: trouble with one object hides no other.
    """
    providers = open_providers(sources(("a", "scale", {"name": "x"}), ("b", "scale", {"name": "y"})), Access())

    assert {"a", "b"} == set(providers._by_pool)
    assert providers._by_pool["a"] is not providers._by_pool["b"]


def test_what_is_unknown_is_neither_empty_nor_gone():
    """
    An unreachable provider's pools are named with the reason; a pool that it forgot, too.
    """
    down = Shelf(error=ProviderUnreachableError("no answer"))
    up = Shelf(PoolState("b", 1))
    reading = asyncio.run(Providers({"a": down, "b": up, "c": up}).read())

    assert ["b"] == list(reading.states)
    assert ProviderUnreachableError is type(reading.failed["a"])
    assert DeniedError is type(reading.failed["c"])


def test_a_broken_provider_is_not_taken_for_an_absent_one():
    """
    A fault of ours is no state of the cloud: it is not swallowed.
    """
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Providers({"a": Shelf(error=ZeroDivisionError())}).read())


def test_nodes_are_named_by_their_provider_id():
    """
    The cloud knows machines, the cluster knows nodes: asked and answered in the cluster's words.
    """
    cloud = Shelf(
        PoolState(
            "a", 2, (ProviderInstance("aws:///z/i-1"), ProviderInstance("aws:///z/i-2", state=InstanceState.COMING))
        )
    )
    providers = Providers({"a": cloud}, Names({"aws:///z/i-1": "node-1"}))

    async def story():
        return await providers.read(), await providers.remove("a", ["node-1"])

    reading, gone = asyncio.run(story())

    assert ["node-1", ""] == [one.node for one in reading.states["a"].nodes]
    assert ("node-1",) == gone
    assert "aws:///z/i-1" in cloud.removed[0]


def test_a_machine_whose_node_is_unknown_is_not_taken_for_one_without():
    """
    It would be given up as one that never came: the pool is unknown at all.
    """
    cloud = Shelf(PoolState("a", 1, (ProviderInstance("i-1"),)))
    reading = asyncio.run(Providers({"a": cloud}, Names(ProviderUnreachableError("no list"))).read())

    assert {} == reading.states
    assert ["a"] == list(reading.failed)


def test_nodes_are_listed_again_when_a_machine_is_not_known_and_not_each_time():
    """
    Over all pages; what is known is not asked again, what is unknown not more than every few seconds.
    """
    asked = []
    at = [0.0]

    class Server:
        async def page(self, path, query):
            """Two pages of one node each."""
            asked.append(path)
            number = 1 if "continue" in query else 0
            token = {"resourceVersion": "1"} | ({} if number else {"continue": "more"})
            node = {"metadata": {"name": f"n{number}"}, "spec": {"providerID": f"aws:///z/i-{number}"}, "status": {}}
            return json.dumps({"metadata": token, "items": [node]}).encode()

    names = NodeNames(Server(), lambda: at[0])

    async def story():
        first = await names.of({"aws:///z/i-0", "aws:///z/i-1", "aws:///z/i-9"})
        await names.of({"aws:///z/i-9"})
        early = len(asked)
        at[0] = 60.0
        await names.of({"aws:///z/i-0"})
        known = len(asked)
        await names.of({"aws:///z/i-9"})
        return first, early, known, len(asked)

    assert ({"aws:///z/i-0": "n0", "aws:///z/i-1": "n1"}, 2, 2, 4) == asyncio.run(story())


def test_one_pool_is_changed_by_one_call_at_a_time():
    """
    Two pools may be changed together.
    """
    shelf = Shelf(PoolState("a", 0), PoolState("b", 0))
    providers = Providers({"a": shelf, "b": shelf})

    async def story():
        await asyncio.gather(*(providers.grow("a", 1) for _ in range(4)))
        alone, shelf.most = shelf.most, 0
        await asyncio.gather(providers.grow("a", 1), providers.grow("b", 1))
        return alone, shelf.most

    assert (1, 2) == asyncio.run(story())


def test_a_pool_that_nobody_configured_is_refused():
    """
    With the names of those there are.
    """
    with pytest.raises(DeniedError, match="configured pools: a"):
        asyncio.run(Providers({"a": Shelf()}).grow("b", 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested", True),
        ("Could not launch Spot Instances. InsufficientInstanceCapacity", True),
        ("You have requested more vCPU capacity than your current vCPU limit of 64 allows", True),
        ("OperationDenied.NoStock: the requested resource is sold out", True),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", True),
        ("The image id 'ami-1' does not exist", False),
        ("node is not ready", False),
        ("", False),
    ],
)
def test_a_stock_out_is_known_by_its_words(text, expected):
    """
    What is not recognised is no stock-out.
    """
    assert expected == is_out_of_stock(text)


def test_what_a_cloud_says_is_kept_short_and_on_one_line():
    """
    It ends in Events and logs.
    """
    assert "a b c" == shorten_error("a\n b\x1b\t\x00c")
    assert 300 == len(shorten_error("x" * 100_000))


def test_a_groups_tags_describe_a_shared_node_from_zero():
    """
    Extended resources stand there, ours included: the same reading as a node's own.
    """
    key = "k8s.io/cluster-autoscaler/node-template"
    kind = aws_template(
        {
            f"{key}/resources/cpu": "48",
            f"{key}/resources/memory": "192Gi",
            f"{key}/resources/aliyun.com/gpu-mem": "60",
            f"{key}/resources/aliyun.com/gpu-count": "4",
            f"{key}/label/ack.node.gpu.schedule": "cgpu",
            f"{key}/taint/dedicated": "gpu:NoSchedule",
            "Name": "anything",
        }
    )

    assert (Mode.CGPU, 48_000, 192 * GIB) == (kind.mode, kind.cpu_milli, kind.memory_bytes)
    assert [15 * GIB] * 4 == [card.allocatable_bytes for card in kind.cards]
    assert "dedicated" == kind.taints[0].key


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"resources/cpu": "4"},
        {"resources/cpu": "many", "resources/memory": "1Gi"},
        {"resources/cpu": "-4", "resources/memory": "1Gi"},
        {"resources/cpu": "4", "resources/memory": "1Gi"} | {f"label/{n}": "" for n in range(300)},
    ],
    ids=["nothing", "no-memory", "no-amount", "negative", "labels"],
)
def test_a_description_that_says_too_little_is_no_template(tags):
    """
    Cannot tell is None: never a node of no size.
    """
    key = "k8s.io/cluster-autoscaler/node-template"

    assert aws_template({f"{key}/{name}": text for name, text in tags.items()}) is None
    assert capi_template(At({"metadata": {"annotations": {}}})) is None
