# SPDX-License-Identifier: Apache-2.0
"""
What the embedded cluster's autoscaler tells of itself while the stack stands, and how it is served.
"""

from __future__ import annotations

import http.client
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import promtool
from support.waiting import PATIENCE_SECONDS

from autoscaler.demo.scenario import load_demo
from autoscaler.demo.stack.addresses import choose_ports
from autoscaler.demo.stack.autoscaler_metrics import LoopMetrics, LoopMetricsServer
from isolation.contract import metrics
from isolation.contract.metrics import autoscaler as catalogue


def samples(page):
    """{name: {label values: value}}."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def watched(seconds, seed=3):
    """A demonstration that has run so long, and what is told of it."""
    loop_metrics = LoopMetrics()
    world = load_demo(seed, loop_metrics).cluster
    world.advance(seconds)
    loop_metrics.sample(world, 0.0)
    return world, loop_metrics


def test_what_is_reported_is_what_has_happened():
    """Turns, purchases and cards by the ledger's own counts; pools as they stand; it leads, for nobody else does."""
    world, loop_metrics = watched(1800.0)

    values = samples(loop_metrics.render())

    counts = dict(world.cluster.accounting.counts)
    steps = values[catalogue.ACTIONS.name]
    assert counts["nodes_added"] == steps["scale_up", "done"] > 0
    assert counts["nodes_drained"] == steps["drain", "done"]
    assert 1800 / world.limits.scan_interval_seconds == pytest.approx(
        sum(values[catalogue.CYCLES.name].values()), abs=3
    )
    sizes = world.cluster.snapshot().sizes()
    assert {(pool,): size for pool, size in sizes.items()} == values[catalogue.POOL_TARGET_NODES.name]
    assert {(): 1.0} == values[catalogue.LEADER.name]
    assert sum(values[catalogue.SCALED_UP_CARDS.name].values()) >= steps["scale_up", "done"]


def test_the_names_are_those_of_the_catalogue_and_promtool_likes_them():
    """A dashboard made for Kubernetes finds its series here."""
    _, loop_metrics = watched(900.0)
    page = loop_metrics.render()
    known = set(catalogue.CATALOGUE) | set(metrics.CATALOGUE)

    for family in text_string_to_metric_families(page.decode()):
        names = {family.name, f"{family.name}_total"}
        assert known & names or family.name.endswith("_created") or family.name.startswith("process_"), family.name
    promtool.check(page)


def test_a_demonstration_buys_and_gives_back_without_a_flap():
    """Its hour is as short as its limits say: two waves of load come and go, and no fresh node is emptied."""
    world, loop_metrics = watched(1600.0, seed=42)

    counts = dict(world.cluster.accounting.counts)
    assert counts["nodes_added"] > 10
    assert counts["nodes_drained"] > 5
    assert 0 == sum(samples(loop_metrics.render()).get(catalogue.FLAPS.name, {}).values())


def test_gauges_are_taken_once_a_second():
    """A screen that is drawn often does not make the world count more often."""
    world, loop_metrics = watched(900.0)
    before = loop_metrics.render()

    world.advance(600.0)
    loop_metrics.sample(world, 0.5)
    early = samples(loop_metrics.render())[metrics.PENDING_MAX_AGE.name]
    loop_metrics.sample(world, 1.5)
    late = samples(loop_metrics.render())[metrics.PENDING_MAX_AGE.name]

    assert samples(before)[metrics.PENDING_MAX_AGE.name] == early
    assert late != early


def test_watching_changes_no_event():
    """The same seed has the same events, watched or not."""
    world, _ = watched(1200.0, seed=11)
    other = load_demo(11).cluster
    other.advance(1200.0)

    assert world.cluster.accounting.counts == other.cluster.accounting.counts
    assert world.frame().events == other.frame().events


def test_the_page_is_served_while_it_stands():
    """Metrics and health; anything else says where to look; the port is free again afterwards."""
    port = choose_ports(0).autoscaler
    pages = iter(range(10))

    with LoopMetricsServer(port, lambda: b"%d\n" % next(pages)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        answers = []
        for path in ("/metrics", "/metrics", "/healthz", "/", "/metrics/../x"):
            connection.request("GET", path)
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
            connection.close()

    assert [(200, b"0\n"), (200, b"1\n"), (200, b"ok\n"), (404, b"see /metrics\n"), (404, b"see /metrics\n")] == answers
    assert all(first != second for first, second in pairwise(answers[:3]))
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS).connect()


def test_a_client_that_says_nothing_does_not_keep_the_end_waiting():
    """Connections end with the server, whoever holds the other end."""
    port = choose_ports(0).autoscaler

    with LoopMetricsServer(port, lambda: b""):
        silent = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        silent.connect()
    silent.close()
