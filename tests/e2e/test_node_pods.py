# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` on a real control plane: what was promised at the binding is what the container gets.

The kubelet is the stand-in with a device manager; pods are bound by hand with records, as our scheduler does.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from e2e.kubelets import ENDS_AFTER, share_pod
from e2e.node_harness import MEMORY, PODS, right, stage

from isolation.contract import abi


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
    Two pods of one size in swapped order, one over two cards: record, promise, limits and env agree.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-right") as at:
            second = await at.bind(share_pod("second", 3), 1)
            first = await at.bind(share_pod("first", 3), 0)
            wide = await at.bind(share_pod("wide", 8, 2), 0, 1)
            pods = [await at.running(uid) for uid in (second, first, wide)]
            for pod, where, units in zip(pods, ((1,), (0,), (0, 1)), (3, 3, 8), strict=True):
                assert "/etc/ld.so.preload" in right(at, pod, "main", where, units).mounts
            await at.remove("second", "first", "wide")
            await at.until(lambda: at.agent.holds() == set())
            assert ["gpushare-gate.json"] == [path.name for path in at.kubelet.cdi.iterdir()]
            assert [] == list(at.kubelet.runtime.marks.iterdir())

    asyncio.run(story())


def counted(agent, uid):
    """Containers of a pod whose promise the exporter counts."""
    return {name for whose, name in agent.holds() if whose == uid and agent.promise(whose, name).exists()}


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
        share_pod("job", 5) | {"metadata": {"name": "job", "annotations": {ENDS_AFTER: "5"}}},
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
            await at.until(lambda: at.agent.holds() == set())

    asyncio.run(story())


def test_what_a_tenant_writes_over_our_paths_changes_nothing(plane, tmp_path):
    """
    Its env and mounts over ours lose: the adjustment comes last.
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


def test_a_container_without_a_record_does_not_start_and_is_told_why(plane, tmp_path):
    """
    Bound past our scheduler: nobody deletes it, others start beside it, and nothing of the cards is taken.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-bare") as at:
            made = await at.client.create(share_pod("bare", 2, nodeName="agent-bare"))
            bare = await at.until(lambda: at.node.pods.get(made["metadata"]["uid"]))
            await at.until(lambda: bare.boxes["main"].attempts > 1)
            state = bare.boxes["main"].state, bare.boxes["main"].reason
            right(at, await at.running(await at.bind(share_pod("beside", 3), 0)), "main", (0,), 3)
            still = await at.client.until(
                lambda pod: (
                    "default/bare/main: the pod has no valid allocation annotation"
                    in pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
                ),
                f"{PODS}/bare",
            )
            holds = {uid for uid, _ in at.agent.holds()}
            return state, "deletionTimestamp" in still["metadata"], bare.uid in holds

    state, deleted, holds = asyncio.run(story())
    assert (("waiting", "CreateContainerError"), False, False) == (state, deleted, holds)


def test_who_asks_for_no_share_sees_no_card_unless_its_namespace_is_exempt(plane, tmp_path):
    """
    An image that asks for all cards, as CUDA's base images do: closed, also beside a container with a share.
    """
    asks = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}

    async def story():
        async with stage(plane, tmp_path, "agent-void") as at:
            alone = await at.running(await at.bind(pod_with("alone", [box("main", **asks)])))
            pair = await at.running(await at.bind(pod_with("pair", [box("main", 2), box("side", **asks)]), 0))
            right(at, pair, "main", (0,), 2)
            system = pod_with("exporter", [box("main", **asks)])
            system["spec"]["nodeName"] = at.node.name
            made = await at.client.create(system, "kube-system")
            exempt = await at.running(made["metadata"]["uid"])
            await at.client.delete("/api/v1/namespaces/kube-system/pods/exporter", force=True)
            boxes = (alone.boxes["main"], pair.boxes["side"], exempt.boxes["main"])
            return [one.env["NVIDIA_VISIBLE_DEVICES"] for one in boxes]

    assert ["void", "void", "all"] == asyncio.run(story())


def test_a_record_that_changes_under_a_running_pod_changes_its_limits(plane, tmp_path):
    """
    At once in the limits file, and at the next start in an old sandbox, whose annotations are those of its beginning.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-changed") as at:
            pod = await at.running(await at.bind(share_pod("moves", 3), 0))
            thing = await at.client.get(f"{PODS}/moves")
            thing["spec"]["containers"][0]["resources"] = {"limits": {MEMORY: "2"}}
            await at.client.merge(f"{PODS}/moves", {"metadata": {"annotations": at.record(thing, 0)}})
            await at.until(lambda: [2 << 30] == [card["bytes"] for card in at.agent.hold(pod.uid, "main")["cards"]])
            file = Path(pod.boxes["main"].mounts["/run/gpushare/limits"]) / "limits"
            live = abi.unpack_limits(file.read_bytes()).cards[0].memory_bytes
            at.kubelet.crash(pod, "main")
            await at.until(lambda: pod.boxes["main"].starts == 2)
            return live, pod.boxes["main"].env["ALIYUN_COM_GPU_MEM_CONTAINER"]

    assert (2 << 30, "2") == asyncio.run(story())
