# SPDX-License-Identifier: Apache-2.0
"""`gpushare autoscaler` as it is run: it says what it would do, does it when it may, and stops when it is reported."""

from __future__ import annotations

import asyncio
import json
import signal
import time

from e2e.autoscaler_process import MAPS, QUICK, STATE, autoscaler, config, fleet, grown, one_pool, stored, switch
from e2e.proxy import wire
from e2e.sharing import PODS, card_node, our_pod

from isolation.contract.names import SYSTEM_NAMESPACE


def test_a_dry_run_says_what_it_would_do_and_the_switch_lets_it(plane, tmp_path):
    """
    With --dry-run a pod that waits brings no node, and log and metrics say why; the switch overrules the option.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines):
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(one_pool()))
                await client.create(our_pod("waits", 8))
                one.start("--dry-run")
                await one.says("would scale_up gpu-a: for default/waits")
                await one.shows("gpushare_autoscaler_dry_run", 1)
                before = await machines.replicas("gpu-a")
                status, out, err = await one.plan("--json")
                await switch(client, dryRun="false")
                await grown(machines, "gpu-a", 1)
                await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/waits")
                await one.shows('gpushare_autoscaler_actions_total{action="scale_up",outcome="done"}', 1)
                return before, status, json.loads(out), err

    before, status, plan, err = asyncio.run(story())
    assert (0, 0, "") == (before, status, err)
    assert [("scale_up", "gpu-a")] == [(step["action"], step["target"]) for step in plan["actions"]]
    assert ["default/waits"] == [pod["pod"] for pod in plan["pods"]]


def test_of_two_replicas_one_acts_and_after_its_death_the_other(plane, tmp_path):
    """
    Killed without a word: the other takes over what was remembered, buys what is missing and nothing twice.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines):
            with autoscaler(plane, tmp_path, "one") as one, autoscaler(plane, tmp_path, "two") as two:
                for each in (one, two):
                    each.config.write_text(config(one_pool()))
                one.start()
                await one.shows("gpushare_autoscaler_leader", 1)
                two.start()
                await two.says("this replica is on standby")
                await client.create(our_pod("first", 8))
                await grown(machines, "gpu-a", 1)
                await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/first")
                await two.shows('gpushare_pool_nodes{pool="gpu-a",state="ready"}', 1)
                one.end(signal.SIGKILL)
                await client.create(our_pod("second", 16, 2))
                await two.shows("gpushare_autoscaler_leader", 1)
                await grown(machines, "gpu-a", 2)
                await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/second")
                await two.shows('gpushare_autoscaler_actions_total{action="scale_up",outcome="done"}', 1)
                state = stored(await client.until(lambda kept: stored(kept)["epoch"] >= 1, STATE))
                return await machines.replicas("gpu-a"), state, two.end(signal.SIGTERM), two.log()

    replicas, state, status, log = asyncio.run(story())
    assert 2 == replicas
    assert ["gpu-a"] == list(state["kept"]["profiles"]["pools"])
    assert 0 == status, log[-3000:]
    assert "saved state=read" in log
    assert "Traceback" not in log


def test_killed_and_back_it_remembers_who_could_not_deliver(plane, tmp_path):
    """
    A pool out of stock rests, also after a restart; saved state that is corrupt is replaced, logged, and
    nothing is done for a while.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines):
            machines.stock["gpu-a"] = 0
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(one_pool(), limits=QUICK | {"initial_pool_backoff_seconds": 300.0}))
                await client.create(our_pod("waits", 8))
                one.start()
                await client.until(lambda state: "gpu-a" in stored(state)["memory"]["closed"], STATE)
                one.end(signal.SIGKILL)
                one.start()
                await one.shows("gpushare_autoscaler_leader", 1)
                await one.says("saved state=read")
                await one.shows('gpushare_autoscaler_pending_pods{status="pool_limited"}', 1)
                rest = await one.sample('gpushare_pool_backoff_seconds{pool="gpu-a"}')
                one.end(signal.SIGTERM)
                await client.merge(STATE, {"data": {"state.json": "hello"}})
                machines.stock.clear()
                one.start()
                await one.shows('gpushare_autoscaler_inhibited{reason="state"}', 1)
                await one.says("is corrupt: starting from empty state")
                await one.reaches('gpushare_autoscaler_cycles_total{outcome="inhibited"}', 3)
                return rest, await machines.replicas("gpu-a"), stored(await client.get(STATE))["version"], one.log()

    rest, replicas, version, log = asyncio.run(story())
    assert 100 < rest <= 300
    assert (0, 1) == (replicas, version)
    assert "Traceback" not in log


def test_somebody_elses_write_is_seen_and_adopted(plane, tmp_path):
    """
    A hand in the state: nothing is done for two turns, the reason is visible, both sides' moves count.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, _):
            with autoscaler(plane, tmp_path, "one") as one:
                limits = QUICK | {"scan_interval_seconds": 3.0}
                one.config.write_text(config(one_pool(), limits=limits))
                one.start()
                state = stored(await client.until(lambda found: "data" in found, STATE))
                moved = round(time.time(), 3) - 60
                state["memory"]["moves"] = [moved]
                await client.merge(STATE, {"data": {"state.json": json.dumps(state)}})
                await client.create(our_pod("waits", 8))
                await one.says("another client wrote saved state ConfigMap gpushare-system/gpushare-autoscaler-state")
                await one.shows('gpushare_autoscaler_state_writes_total{outcome="conflict"}', 1)
                await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/waits")
                after = await client.until(lambda found: stored(found)["memory"]["last_add"], STATE)
                return moved, stored(after)["memory"]["moves"], one.log()

    moved, moves, log = asyncio.run(story())
    assert [moved] == moves
    assert "Traceback" not in log


def test_a_third_of_the_nodes_unwell_stops_everything_and_says_so(plane, tmp_path):
    """
    Nothing is bought for a pod that waits while the nodes' kubelets are silent; when they speak again it is.
    """

    async def story():
        unhealthy = [card_node(f"unhealthy-{i}") for i in range(3)]
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines):
            for node in unhealthy:
                node["spec"] = {"unschedulable": True}
                node["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "x", "message": "x"}]
                await client.create(node)
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(one_pool()))
                await client.create(our_pod("waits", 8))
                one.start()
                await one.shows('gpushare_autoscaler_inhibited{reason="unready_nodes"}', 1)
                await one.says(
                    "3 of 3 nodes are not ready (unhealthy-0, unhealthy-1, unhealthy-2); no actions are taken"
                )
                await one.shows("gpushare_autoscaler_leader", 1)
                before = await machines.replicas("gpu-a"), await one.sample('gpushare_pending_pods{reason="cards"}')
                status, _, document = await one.plan()
                for node in unhealthy:
                    await client.delete(f"/api/v1/nodes/{node['metadata']['name']}")
                await grown(machines, "gpu-a", 1)
                return before, status, document

    before, status, document = asyncio.run(story())
    assert (0, None) == before
    assert 3 == status
    assert "3 of 3 nodes are not ready" in document


def test_an_api_server_that_falls_silent_ends_all_acting(plane, tmp_path):
    """
    Half-open connections: the right to act ends by the clock, the log and the metrics say so; when the server speaks
    again it goes on, and what came meanwhile is bought once.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines), wire(plane.port) as line:
            kubeconfig = plane.kubeconfig_for("admin", port=line.port)
            with autoscaler(plane, tmp_path, "one", kubeconfig) as one:
                one.config.write_text(config(one_pool()))
                one.start()
                await one.shows("gpushare_autoscaler_leader", 1)
                await one.says("condition_reporter: taking actions")
                line.passing.clear()
                await one.shows("gpushare_autoscaler_leader", 0)
                await one.says("not taking actions")
                await client.create(our_pod("waits", 8))
                await one.shows("gpushare_autoscaler_enabled", 0)
                during = await machines.replicas("gpu-a")
                line.passing.set()
                line.cut()
                await grown(machines, "gpu-a", 1)
                await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/waits")
                return during, await machines.replicas("gpu-a"), one.log()

    during, after, log = asyncio.run(story())
    assert (0, 1) == (during, after)
    assert "Traceback" not in log


def test_the_switch_stops_it_and_a_misspelt_one_too(plane, tmp_path):
    """
    Off means off, also by a word that is not understood, and an Event on our own pod says so; without the ConfigMap it
    goes on.
    """
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "acting", "namespace": SYSTEM_NAMESPACE}}
    own["spec"] = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines):
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(one_pool()))
                await switch(client, enabled="false")
                await client.create(our_pod("waits", 8))
                await client.until(bool, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/default")
                await client.create(own)
                one.start(POD_NAME="acting")
                await one.shows('gpushare_autoscaler_inhibited{reason="switch"}', 1)
                events = f"/apis/events.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/events"
                said = await client.until(lambda e: e["items"], events, fieldSelector="reason=Inhibited")
                await one.says("switched off by ConfigMap gpushare-system/gpushare-autoscaler")
                await switch(client, enable="false")
                await one.says('unknown key "enable"')
                await one.reaches('gpushare_autoscaler_cycles_total{outcome="inhibited"}', 5)
                held = await machines.replicas("gpu-a")
                await switch(client)
                await grown(machines, "gpu-a", 1)
                await one.shows('gpushare_autoscaler_inhibited{reason="switch"}', 0)
                await client.delete(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/acting", force=True)
                return held, said["items"][0]

    held, event = asyncio.run(story())
    assert (0, "acting", "Warning") == (held, event["regarding"]["name"], event["type"])
    assert event["note"].startswith("switched off by ConfigMap gpushare-system/gpushare-autoscaler")


def test_the_configuration_is_read_again_and_a_bad_one_is_refused(plane, tmp_path):
    """
    Without a restart: a bad file is said and changes nothing, a good one brings a pool; at the start a bad one is an
    error of status 2.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a", "gpu-b") as (client, machines):
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(one_pool(), one_pool("gpu-b", settings={"name": "gpu-a"})))
                refused = await one.plan()
                one.config.write_text(config(one_pool(max_nodes=0)))
                await client.create(our_pod("waits", 8))
                one.start()
                await one.shows('gpushare_autoscaler_pending_pods{status="pool_limited"}', 1)
                one.config.write_text("pools: [{name: gpu-a, provider: nobody}]\n")
                await one.shows("gpushare_autoscaler_config_last_reload_successful", 0)
                await one.says('pool gpu-a: unknown provider "nobody"; providers: ack, aws, scale, externalgrpc')
                one.config.write_text("pools: [{name: gpu-a}]\n")
                await one.says("pools[0].provider: missing")
                bounds = await one.sample('gpushare_pool_max_nodes{pool="gpu-a"}')
                one.config.write_text(config(one_pool("gpu-b")))
                await one.shows("gpushare_autoscaler_config_last_reload_successful", 1)
                await grown(machines, "gpu-b", 1)
                return refused, bounds, await machines.replicas("gpu-a")

    (status, _, said), bounds, gpu_a = asyncio.run(story())
    assert 2 == status
    assert "pool gpu-b: same source as pool gpu-a" in said
    assert (0, 0) == (bounds, gpu_a)


def test_a_plan_needs_rights_to_read_only_and_writes_nothing(plane, tmp_path):
    """
    As a user that may get, list and watch; what it may not read is said beside the plan.
    """
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list", "watch"]},
        {"apiGroups": ["gpushare.dev"], "resources": ["reservations"], "verbs": ["list", "watch"]},
        {"apiGroups": ["cluster.x-k8s.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"}}
    to = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
    who = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}]
    binding = role | {"kind": "ClusterRoleBinding", "roleRef": to, "subjects": who}

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines):
            await client.create(role | {"rules": rules})
            await client.create(binding)
            await client.create(our_pod("waits", 8))
            with autoscaler(plane, tmp_path, "one", plane.kubeconfig_for("reader")) as one:
                one.config.write_text(config(one_pool()))
                table = await one.plan()
                status, _, _ = await one.plan("--exit-code", "--json")
            for path in ("clusterroles", "clusterrolebindings"):
                await client.delete(f"/apis/rbac.authorization.k8s.io/v1/{path}/reader")
            maps = await client.get(MAPS)
            return table, status, await machines.replicas("gpu-a"), [one["metadata"]["name"] for one in maps["items"]]

    (status, out, err), with_work, replicas, maps = asyncio.run(story())
    assert (0, "", 1, 0) == (status, err, with_work, replicas)
    state = "(ConfigMap gpushare-system/gpushare-autoscaler-state)"
    assert f"condition: cannot read the saved state of the running autoscaler {state}" in out
    assert "cannot use the switch ConfigMap gpushare-system/gpushare-autoscaler: the API server refused the read" in out
    assert "scale_up" in out
    assert "default/waits" in out
    assert not [name for name in maps if name.startswith("gpushare-autoscaler")]
