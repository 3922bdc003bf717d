# SPDX-License-Identifier: Apache-2.0
"""The running autoscaler in trouble: nothing is done on bad knowledge, the reason is reported, and then it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from e2e.autoscaler_harness import RESERVED, Watcher, only
from e2e.autoscaler_process import QUICK, STATE, autoscaler, config, eventually, fleet, grown, one_pool, stored
from e2e.exporter_harness import exporting, prometheus
from e2e.faults import bad_day
from e2e.sharing import PODS, cards_of, our_pod, untainted, workload
from e2e.test_autoscaler_loop_drain import BUDGETS, budget

from isolation.contract.names import MOVED, SYSTEM_NAMESPACE

LIMITS = QUICK | {
    "max_moves_per_hour": 6,
    "max_moves_per_hour_ratio": 1.0,
    "move_cooldown_seconds": 3600.0,
    "drain_timeout_seconds": 600.0,
}
MOVES = "gpushare_autoscaler_moves_last_hour"


async def running(client, app, count):
    """Until so many of a Deployment run and nobody else of it is left."""
    claim = lambda p: [one["status"].get("phase") for one in p["items"]] == ["Running"] * count  # noqa: E731
    return (await client.until(claim, PODS, labelSelector=f"app={app}"))["items"]


async def at(client, node, app, count, units):
    """A Deployment whose pods all went to one node, and may go anywhere from now on."""
    await only(client, node)
    await client.create(workload("Deployment", app, count, our_pod("x", units)))
    await running(client, app, count)
    await only(client, "")


@contextlib.asynccontextmanager
async def light_node(plane, folder):
    """Two nodes of a pool of which one could go: three pods of one owner, under a budget of one at a time."""
    async with fleet(plane, folder, "gpu-a", start=2) as (client, machines), bad_day(plane) as day:
        await untainted(client)
        full, light = await machines.settled("gpu-a")
        await at(client, full, "staying", 4, 5)
        await at(client, light, "moving", 3, 2)
        await client.create(budget("moving", "moving", 1))
        allowed = lambda b: b.get("status", {}).get("disruptionsAllowed") == 1  # noqa: E731
        await client.until(allowed, f"{BUDGETS}/moving")
        yield client, machines, day, full


def evicted(day):
    """Evictions that the API server carried out."""
    return [path for _, path, status in day.writes("/eviction") if status < 300]


async def drained(client, machines, full):
    """Until the light node is given back; where everybody is then."""
    await grown(machines, "gpu-a", 1)
    pods = await running(client, "moving", 3)
    assert [full] == await machines.settled("gpu-a")
    return {pod["spec"]["nodeName"] for pod in pods}


def test_a_leader_killed_at_an_eviction_is_followed_by_one_that_knows_of_it(plane, tmp_path):
    """
    Killed without a word as the API server carries its eviction out: the eviction stands in what is remembered, the
    other replica goes on with the drain, nobody is evicted beyond the budget, and the hour's moves are those made.
    """

    async def story():
        async with light_node(plane, tmp_path) as (client, machines, day, full):
            with (
                autoscaler(plane, tmp_path, "first", day.kubeconfig) as first,
                autoscaler(plane, tmp_path, "second", day.kubeconfig) as second,
            ):
                killed = []

                def fault(method, path):
                    if method == "POST" and path.endswith("/eviction") and not killed:
                        first.send(signal.SIGKILL)
                        killed.append(path)

                day.fault = fault
                for each in (first, second):
                    each.config.write_text(config(one_pool(), limits=LIMITS))
                first.start()
                await first.shows("gpushare_autoscaler_leader", 1)
                second.start()
                async with Watcher(client, "app=moving").watching() as seen:
                    assert await eventually(lambda: _is(killed)), first.log()[-3000:]
                    paid = stored(await client.get(STATE))["memory"]["moves"]
                    where = await drained(client, machines, full)
                await second.shows(MOVES, 3)
                homes = (await client.get(RESERVED))["items"]
                kept = [home for home in homes if MOVED in home["metadata"]["annotations"]]
                return paid, where, full, seen, len(evicted(day)), kept, second.log()

    paid, where, full, seen, evictions, kept, log = asyncio.run(story())
    assert 1 == len(paid)
    assert {full} == where
    assert (3, 3) == (evictions, len(seen.ended))
    assert seen.fewest >= 2
    assert len(kept) <= 1  # the last one is tidied away by the next turn
    assert "saved state=read" in log
    assert "Traceback" not in log


async def _is(things):
    return bool(things)


def test_evictions_whose_answers_are_lost_are_counted_and_not_repeated(plane, tmp_path):
    """
    The API server carries every eviction out and its answers never arrive: each counts as a move of the hour, the
    reason is reported, and the node goes in the end.
    """

    async def story():
        async with light_node(plane, tmp_path) as (client, machines, day, full):
            day.fault = lambda method, path: "lost" if method == "POST" and path.endswith("/eviction") else None
            with autoscaler(plane, tmp_path, "one", day.kubeconfig) as one:
                one.config.write_text(config(one_pool(), limits=LIMITS))
                one.start()
                async with Watcher(client, "app=moving").watching() as seen:
                    where = await drained(client, machines, full)
                await one.shows(MOVES, 3)
                failed = await one.sample('gpushare_autoscaler_actions_total{action="evict",outcome="failed"}')
                return where, full, seen, len(evicted(day)), failed, one.log()

    where, full, seen, evictions, failed, log = asyncio.run(story())
    assert {full} == where
    assert (3, 3, 3) == (evictions, len(seen.ended), failed)
    assert seen.fewest >= 2
    assert "failed: evict" in log
    assert "Traceback" not in log


def test_a_hot_card_is_left_alone_while_prometheus_makes_no_sense(plane, tmp_path):
    """
    Rubbish, silence, figures that have stood still since before we began: told by log, metric and Event, and nobody is
    moved off the hot card. Once Prometheus tells fresh figures one pod goes, and the doubt with it.
    """
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "acting", "namespace": SYSTEM_NAMESPACE}}
    own["spec"] = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
    relieved = 'gpushare_autoscaler_actions_total{action="mitigate_hot_card",outcome="done"}'
    limits = LIMITS | {"hot_card_seconds": 0.5, "scale_down_unneeded_seconds": 3600.0}

    async def story():
        async with fleet(plane, tmp_path, "gpu-a", start=2) as (client, machines):
            await untainted(client)
            nodes = await machines.settled("gpu-a")
            for app in ("left", "right"):
                await at(client, nodes[0], app, 2, 2)
            before = {cards_of(p)[0] for app in ("left", "right") for p in await running(client, app, 2)}
            await client.until(bool, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/default")
            await client.create(own)
            async with exporting(client, *nodes) as exporters, prometheus(exporters) as prometheus_url:
                exporters.core = lambda _name: 0.3
                exporters.heat = lambda _uuid, pods: 0.95 if pods > 3 else 0.25 * pods
                with autoscaler(plane, tmp_path, "one") as one:
                    figures = {
                        "source": "prometheus",
                        "url": f"http://127.0.0.1:{prometheus_url.port}",
                        "scrape_interval_seconds": 1,
                    }
                    pool = one_pool(min_nodes=2, max_nodes=2)
                    one.config.write_text(config(pool, limits=limits, metrics=figures))
                    prometheus_url.says = "<html>"
                    await exporters.measured()
                    exporters.hangs = True
                    one.start(POD_NAME="acting")
                    await one.says("Prometheus returned something other than an instant vector")
                    await one.shows('gpushare_autoscaler_inhibited{reason="metrics"}', 2)
                    events = f"/apis/events.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/events"
                    # whoever was tried in this control plane before has left Events of its own
                    told_why = lambda e: [one for one in e["items"] if "Prometheus" in one.get("note", "")]  # noqa: E731
                    await client.until(told_why, events, fieldSelector="reason=Inhibited")
                    prometheus_url.says = None
                    prometheus_url.slow = 30.0
                    await one.reaches('gpushare_autoscaler_cycle_duration_seconds_sum{stage="observe"}', 5)
                    prometheus_url.slow = 0.0
                    await one.shows('gpushare_autoscaler_metrics_nodes{state="stale"}', 2)
                    held = await one.sample(relieved)
                    exporters.hangs = False
                    await one.reaches(relieved, 1)
                    await one.shows('gpushare_autoscaler_inhibited{reason="metrics"}', 0)
                    pods = [p for app in ("left", "right") for p in await running(client, app, 2)]
                await client.delete(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/acting", force=True)
                return held, before, {cards_of(p)[0] for p in pods}, one.log()

    held, before, after, log = asyncio.run(story())
    assert held is None
    assert 1 == len(before)
    assert before < after
    assert "Traceback" not in log
