# SPDX-License-Identifier: Apache-2.0
"""From a configuration to providers: who orders of cluster-autoscaler, and what a changed configuration takes away."""

from __future__ import annotations

import asyncio
from operator import attrgetter

import pytest

from autoscaler.apis.rpc.provider_groups import OrderingProvider, ProviderGroups
from autoscaler.kube.backends import KnownPools, open_backends, open_usage
from autoscaler.kube.config.reader import read_config
from autoscaler.kube.usage import Nothing
from autoscaler.kube.usage_http import Exporters, Prometheus
from autoscaler.providers.registry import ProviderConfigError
from isolation.contract.model import Mode
from isolation.kube.access import Access

ORDERED = """\
pools:
  - name: gpu-a
    provider: externalgrpc
    settings: {provider: scale, settings: {name: gpu-a}}
    max_nodes: 4
    mode: cgpu
    node_template: {cpu: 1000}
  - name: gpu-b
    provider: scale
    settings: {name: gpu-b}
"""


CONFIGURED = attrgetter("ours")


def wired(text, relay):
    """What a configuration opens."""
    return open_backends(read_config(text.encode()), Access(), relay)


def test_a_pool_of_cluster_autoscaler_is_ordered_and_offered_and_the_others_are_not():
    """
    Its provider orders; the offer names who is asked for machines in the end, and what a fresh node is like.
    """
    relay = ProviderGroups(())
    found = wired(ORDERED, relay)
    (offer,) = found.offers(None, CONFIGURED)

    assert ["gpu-a"] == list(found.ordered)
    assert ("gpu-a", 4, Mode.CGPU, "scale") == (offer.name, offer.max_nodes, offer.template.mode, offer.provider.name)
    assert [OrderingProvider.name, "scale"] == [found.providers._of(name).name for name in ("gpu-a", "gpu-b")]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ("{}", "write one of ack, aws, scale"),
        ("{provider: externalgrpc}", "write one of ack, aws, scale"),
        ("{provider: scale, settings: {}}", "name: a name is missing"),
        (
            "{provider: scale, settings: {name: a}, extra: 1}",
            "unknown key; settings of provider externalgrpc: provider, settings",
        ),
        ("{provider: nobody, settings: {}}", 'unknown provider "nobody"'),
    ],
    ids=["empty", "itself", "inner", "extra", "unknown"],
)
def test_what_cannot_be_ordered_is_said(settings, part):
    """
    With the pool's name.
    """
    with pytest.raises(ProviderConfigError, match="pool a: ") as raised:
        wired(f"pools: [{{name: a, provider: externalgrpc, settings: {settings}}}]\n", ProviderGroups(()))
    assert part in str(raised.value)


def test_two_pools_on_one_source_are_seen_through_the_order():
    """
    Each would buy what the other gives back.
    """
    with pytest.raises(ProviderConfigError, match="same source as pool"):
        wired(ORDERED.replace("{name: gpu-b}", "{name: gpu-a}"), ProviderGroups(()))


def test_a_pool_that_is_not_offered_any_more_leaves_nothing_behind():
    """
    Its orders neither; those of a pool that stays do.
    """
    relay = ProviderGroups(wired(ORDERED, ProviderGroups(())).offers(None, CONFIGURED))
    relay.command("gpu-a", 3)
    relay.offer(wired(ORDERED, relay).offers(None, CONFIGURED))
    kept = relay.commanded("gpu-a")
    relay.offer(())

    assert (3, 0, ()) == (kept, relay.commanded("gpu-a"), relay.groups())


def test_figures_come_from_where_the_configuration_says():
    """
    Each node's exporter, Prometheus, or nobody.
    """
    asks = {"exporter": Exporters, "none": Nothing, "prometheus": Prometheus}
    for source, kind in asks.items():
        text = f"metrics: {{source: {source}, url: 'http://p:9090'}}\n"
        assert isinstance(open_usage(read_config(text.encode()).metrics), kind)


def test_the_expander_knows_no_pool_before_the_first_reading():
    """
    It then judges by what cluster-autoscaler sends.
    """
    assert {} == KnownPools().pools()


def test_what_was_opened_is_closed():
    """
    Also figures that were never asked for.
    """
    asyncio.run(wired(ORDERED, ProviderGroups(())).close())
