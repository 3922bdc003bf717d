# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` on a real control plane: what was promised at the binding is what the container gets.

The kubelet is the stand-in with a device manager; pods are bound by hand with records, as our scheduler does.
"""

from __future__ import annotations

import asyncio

from e2e.kubelets import ENDS_AFTER, share_pod
from e2e.node_stage import MEMORY, PODS, right, stage


def box(name, units=0, **more):
    """A container that asks for units; 0 asks for none."""
    limits = {MEMORY: str(units)} if units else {}
    return {"name": name, "image": "none", "resources": {"limits": limits}, **more}


def pod_with(name, apps, inits=()):
    """A pod of these containers."""
    made = share_pod(name)
    made["spec"] |= {"containers": list(apps), "initContainers": list(inits)}
    return made


def test_a_pod_gets_the_cards_of_its_record(plane, tmp_path):
    """
    Two pods of one size in swapped order, one over two cards: record, book, CDI device, limits and env agree.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-right") as at:
            second = await at.bind(share_pod("second", 3), 1)
            first = await at.bind(share_pod("first", 3), 0)
            wide = await at.bind(share_pod("wide", 8, 2), 0, 1)
            pods = [await at.running(uid) for uid in (second, first, wide)]
            for pod, where, units in zip(pods, ((1,), (0,), (0, 1)), (3, 3, 8), strict=True):
                started = right(at, pod, "main", where, units)
                assert "/etc/ld.so.preload" in started.mounts
            await at.remove("second", "first", "wide")
            await at.until(lambda: at.agent.book() == {})
            alloc = at.agent.run_dir / "alloc"
            await at.until(lambda: not list(alloc.iterdir()) and not list(at.kubelet.cdi.iterdir()))

    asyncio.run(story())


def counted(agent, uid):
    """Containers of a pod whose promise the exporter counts."""
    holds = [agent.hold(path.parent.name)["pod"] for path in agent.run_dir.glob("alloc/*/promise.json")]
    return {name for _, _, whose, name in holds if whose == uid}


def test_every_shape_of_a_pod_gets_what_its_record_gives_to_each_container(plane, tmp_path):
    """
    Several containers, init containers smaller and larger, sidecars, a Job's pod that ends: all of it on one card.
    """
    shapes = [
        pod_with("two", [box("a", 2), box("plain"), box("b", 3)]),
        pod_with("init", [box("main", 2)], [box("first", 1), box("second", 4)]),
        pod_with("small-init", [box("main", 4)], [box("first", 2)]),
        pod_with("side", [box("main", 3)], [box("first", 2), box("helper", 2, restartPolicy="Always")]),
        pod_with("init-only", [box("main")], [box("first", 2)]),
        share_pod("job", 5) | {"metadata": {"name": "job", "annotations": {ENDS_AFTER: "0.3"}}},
    ]

    async def story():
        async with stage(plane, tmp_path, "agent-shapes", number=2) as at:
            for round_, manifest in enumerate(shapes):
                card = round_ % 2
                uid = await at.bind(manifest, card)
                pod = await at.running(uid)
                for container in manifest["spec"]["containers"]:
                    if container["resources"]["limits"].get(MEMORY):
                        right(at, pod, container["name"], (card,), int(container["resources"]["limits"][MEMORY]))
                asking = {one["name"] for one in manifest["spec"]["containers"] if one["resources"]["limits"]}
                live = {name for name, started in pod.boxes.items() if name in asking | {"helper"} and started.cdi}
                # Init containers have ended: their promises count no more once an app has one.
                await at.until(lambda uid=uid, live=live: not live or live == counted(at.agent, uid))
                if manifest["metadata"]["name"] == "job":
                    await at.until(lambda pod=pod: pod.phase == "Succeeded")
                await at.remove(manifest["metadata"]["name"])
            await at.until(lambda: at.agent.book() == {})

    asyncio.run(story())


def test_what_a_tenant_writes_over_our_paths_changes_nothing(plane, tmp_path):
    """
    Its env and mounts over ours lose: CDI comes last.
    """
    own = box(
        "main",
        2,
        env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "GPUSHARE_LIMITS", "value": "/mine"}],
        volumeMounts=[
            {"name": "v", "mountPath": "/etc/ld.so.preload"},
            {"name": "v", "mountPath": "/run/gpushare/limits"},
            {"name": "v", "mountPath": "/data"},
        ],
    )
    manifest = pod_with("tenant", [own])
    manifest["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/tenant"}}]

    async def story():
        async with stage(plane, tmp_path, "agent-tenant") as at:
            pod = await at.running(await at.bind(manifest, 1))
            return right(at, pod, "main", (1,), 2), str(at.agent.run_dir)

    started, ours = asyncio.run(story())
    assert "/tenant" == started.mounts["/data"]
    assert started.mounts["/etc/ld.so.preload"].startswith(ours)
    assert started.mounts["/run/gpushare/limits"].startswith(ours)
    assert started.env["GPUSHARE_LIMITS"].startswith("/run/gpushare/")


def test_a_share_only_node_delivers_cards_and_enforces_nothing(plane, tmp_path):
    """
    Env and devices by CDI, no library.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-share", mode="share") as at:
            return (await at.running(await at.bind(share_pod("free", 3), 1))).boxes["main"]

    started = asyncio.run(story())
    assert ("3", False) == (started.env["ALIYUN_COM_GPU_MEM_CONTAINER"], "/etc/ld.so.preload" in started.mounts)


def test_a_pod_that_nobody_promised_anything_is_deleted_and_told_why(plane, tmp_path):
    """
    Bound past our scheduler: it never starts, an Event says why, and the node stays free.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-bare") as at:
            await at.client.create(share_pod("bare", 2, nodeName="agent-bare"))
            await at.client.until(lambda pods: "bare" not in {p["metadata"]["name"] for p in pods["items"]}, PODS)
            events = await at.client.get("/api/v1/namespaces/default/events")
            told = [e["message"] for e in events["items"] if e["involvedObject"]["name"] == "bare"]
            await at.until(lambda: at.agent.book() == {})
            return told

    assert any("without a valid allocation annotation" in text for text in asyncio.run(story()))
