"""
`gpushare node` on a real control plane: what was promised at the binding is what the container gets.

The kubelet is the stand-in with a device manager; pods are bound by hand with records, as our scheduler does.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import pytest
from e2e.kubelets import ENDS_AFTER, share_pod
from e2e.managed_node import MODE
from e2e.node_stage import CORE, COUNT, MEMORY, PODS, right, stage

from isolation.contract import kubelet_api as api
from isolation.contract.metrics_node import CATALOGUE
from isolation.contract.names import AGENT, CARD_COUNT, CARD_UNITS, CARDS
from isolation.contract.quantity import GIB


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


def test_the_node_says_what_it_has(plane, tmp_path):
    """
    Cards, plain resources and labels; written again when they vanish; leaving is said before the kubelet hears it.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-says", mode="core_mem") as at:
            node = await at.ready()
            said = {name: node["status"]["allocatable"].get(name) for name in (MEMORY, COUNT, CORE)}
            labels = {name: node["metadata"]["labels"].get(name) for name in (CARD_UNITS, CARD_COUNT)}
            units = at.cards[0].offered_bytes // GIB
            await at.client.merge(
                f"{at.node.path}/status", {"status": {"capacity": {CORE: None}, "allocatable": {CORE: None}}}
            )
            await at.client.merge(at.node.path, {"metadata": {"annotations": {CARDS: None}}})
            healed = await at.client.until(
                lambda n: n["status"]["capacity"].get(CORE) == "200" and CARDS in n["metadata"]["annotations"],
                at.node.path,
            )
            status = await asyncio.to_thread(at.agent.stop)
            left = await at.client.until(
                lambda n: (
                    n["metadata"]["annotations"][AGENT] == "leaving" and n["status"]["allocatable"][MEMORY] == "0"
                ),
                at.node.path,
            )
            return (
                said,
                labels,
                units,
                healed["status"]["allocatable"][CORE],
                status,
                left["status"]["capacity"][MEMORY],
            )

    said, labels, units, healed, status, left = asyncio.run(story())
    assert {MEMORY: str(2 * units), COUNT: "2", CORE: "200"} == said
    assert {CARD_UNITS: str(units), CARD_COUNT: "2"} == labels
    assert ("200", 0, str(2 * units)) == (healed, status, left)
    assert units > 10


def counted(agent, uid):
    """Containers of a pod whose promise the exporter counts."""
    holds = [agent.hold(path.parent.name)["pod"] for path in agent.run_dir.glob("alloc/*/hold.json")]
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


def test_ids_that_the_kubelet_gives_again_wait_for_the_old_process(plane, tmp_path):
    """
    A force-deleted pod's process lives on: the next owner of its memory starts when it is gone, not before.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-forced", number=1) as at:
            units = at.cards[0].offered_bytes // GIB
            old = await at.running(await at.bind(share_pod("old", units), 0))
            at.kubelet.linger = 1.5
            await at.client.delete(f"{PODS}/old", force=True)
            await at.until(lambda: at.kubelet.status()[1] and old.uid not in at.kubelet.known)
            uid = await at.bind(share_pod("new", units), 0)
            new = await at.until(lambda: at.node.pods.get(uid))
            await at.until(lambda: new.boxes["main"].attempts)
            together = 0
            while new.phase != "Running":
                together += old.phase == "Gone" and new.boxes["main"].starts > 0
                assert not (new.boxes["main"].starts and old.phase != "Gone"), "both live"
                await asyncio.sleep(0.01)
            right(at, new, "main", (0,), units)

    asyncio.run(story())


def test_an_agent_killed_at_any_moment_comes_back_to_what_runs(plane, tmp_path):
    """
    Pods run on; those that start meanwhile start; the book is as it was, nothing is given twice.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-killed", pace=0.03) as at:
            pods = []
            for i, moment in enumerate((None, 0.0, 0.03, 0.06, 0.1, 0.2)):
                await at.until(lambda: at.kubelet.status()[1] > 0)
                uid = await at.bind(share_pod(f"kill-{i}", 2), i % 2)
                pod = await at.until(lambda uid=uid: at.node.pods.get(uid))
                if moment is not None:
                    await asyncio.sleep(moment)
                    at.agent.kill()
                    at.agent.start()
                await at.until(lambda pod=pod: pod.phase in ("Running", "Failed"))
                pods.append((i, pod))
            alive = [(i, pod) for i, pod in pods if pod.phase == "Running"]
            await at.until(lambda: {pod.uid for _, pod in alive} <= {uid for uid, _ in at.agent.book()})
            for i, pod in alive:
                right(at, pod, "main", (i % 2,), 2)
            given = [ident for _, pod in alive for ident in pod.boxes["main"].ids]
            assert len(set(given)) == len(given)
            at.kubelet.crash(alive[0][1], "main")
            await at.until(lambda: alive[0][1].boxes["main"].starts == 2)
            await at.remove(*(pod.name for _, pod in pods))
            await at.until(lambda: at.agent.book() == {})
            return [i for i, _ in alive]

    assert 0 in asyncio.run(story())


@pytest.mark.parametrize("how", ["restart", "reboot"])
def test_a_kubelet_that_starts_anew_changes_nothing_for_pods(plane, tmp_path, how):
    """
    Restarted: running pods are untouched. Rebooted: they start again with the same devices, delivered anew.
    """

    async def story():
        async with stage(plane, tmp_path, f"agent-{how}") as at:
            pods = [await at.running(await at.bind(share_pod(f"stay-{i}", 3), i % 2)) for i in range(3)]
            before = [pod.boxes["main"].ids for pod in pods]
            await asyncio.to_thread(getattr(at.kubelet, how), 0.1, 1.0)
            starts = 2 if how == "reboot" else 1
            await at.until(lambda: all(pod.boxes["main"].starts == starts for pod in pods))
            await at.until(lambda: at.kubelet.status()[1] > 0)
            for i, pod in enumerate(pods):
                right(at, pod, "main", (i % 2,), 3)
            late = await at.running(await at.bind(share_pod("late", 3), 1))
            right(at, late, "main", (1,), 3)
            return before == [pod.boxes["main"].ids for pod in pods], [pod.phase for pod in pods]

    assert (True, ["Running"] * 3) == asyncio.run(story())


def test_without_the_api_server_pods_that_are_bound_still_start(plane, tmp_path):
    """
    The server is frozen after the binding was seen: the container starts, and restarts, without it.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-down") as at:
            first = await at.running(await at.bind(share_pod("before", 2), 0))
            kept = at.agent.run_dir / "pods.json"
            await at.until(lambda: first.uid in kept.read_text())
            plane.freeze("kube-apiserver")
            try:
                at.agent.kill()
                at.agent.start()
                await at.until(lambda: at.kubelet.status()[1] == 0)
                await at.until(lambda: at.kubelet.status()[1] > 0)
                at.kubelet.crash(first, "main")
                await at.until(lambda: first.boxes["main"].starts == 2)
            finally:
                plane.thaw("kube-apiserver")
            right(at, first, "main", (0,), 2)

    asyncio.run(story())


def test_a_pod_that_nobody_promised_anything_is_deleted_and_told_why(plane, tmp_path):
    """
    Bound past our scheduler: it never starts, an Event says why, and the node stays free.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-bare") as at:
            await at.client.create(share_pod("bare", 2, nodeName="agent-bare"))
            await at.client.until(lambda pods: "bare" not in {p["metadata"]["name"] for p in pods["items"]}, PODS, 40)
            events = await at.client.get("/api/v1/namespaces/default/events")
            told = [e["message"] for e in events["items"] if e["involvedObject"]["name"] == "bare"]
            await at.until(lambda: at.agent.book() == {})
            return told

    assert any("without our record" in text for text in asyncio.run(story()))


def test_a_second_agent_on_the_node_refuses(plane, tmp_path):
    """
    It says who works there.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-twice") as at:
            again = at.agent.again(tmp_path / "second.log")
            return await asyncio.to_thread(again.wait, 20), (tmp_path / "second.log").read_text(), at.agent.process.pid

    status, said, pid = asyncio.run(story())
    assert (1, True) == (status, f"another node agent (process {pid})" in said)


def test_ids_given_twice_by_the_kubelet_start_only_one_pod(plane, tmp_path):
    """
    A stranger's List during an Allocate: the kubelet offers held IDs, the agent's book gives others, nobody shares.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-twice-given", number=1) as at:
            units = at.cards[0].offered_bytes // GIB
            pods = []
            for i in range(4):
                old = await at.running(await at.bind(share_pod(f"old-{i}", 2), 0))
                uid = await at.bind(share_pod(f"new-{i}", 2), 0)
                await at.until(lambda uid=uid: uid in at.kubelet.known)
                await at.client.delete(f"{PODS}/{old.name}", force=True)
                for _ in range(20):
                    at.kubelet.books.collect(at.kubelet._active())  # what a List does to the kubelet's books
                    await asyncio.sleep(0.002)
                pods.append(await at.running(uid))
                assert units >= 2 * len(pods) + 2
            given = [ident for pod in pods for ident in pod.boxes["main"].ids]
            for pod in pods:
                right(at, pod, "main", (0,), 2)
            return len(given), len(set(given))

    given, different = asyncio.run(story())
    assert given == different


def test_a_node_that_changes_its_mode_takes_nothing_from_those_who_run(plane, tmp_path):
    """
    Shares are offered no more, running pods go on with what they have; with the label back all is as before.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-mode") as at:
            pod = await at.running(await at.bind(share_pod("stays", 3), 0))
            await at.client.merge(at.node.path, {"metadata": {"labels": {MODE: "default"}}})
            await at.client.until(lambda n: n["status"]["allocatable"][MEMORY] == "3", at.node.path)
            changed = await at.client.until(lambda n: CARD_UNITS not in n["metadata"]["labels"], at.node.path)
            at.kubelet.crash(pod, "main")
            await at.until(lambda: pod.boxes["main"].starts == 2)
            right(at, pod, "main", (0,), 3)
            await at.client.merge(at.node.path, {"metadata": {"labels": {MODE: "cgpu"}}})
            await at.client.until(lambda n: int(n["status"]["allocatable"][MEMORY]) > 3, at.node.path)
            late = await at.running(await at.bind(share_pod("late", 3), 0))
            right(at, late, "main", (0,), 3)
            return changed["status"]["allocatable"][COUNT]

    assert "0" == asyncio.run(story())


def test_a_node_that_is_made_anew_is_told_everything_again(plane, tmp_path):
    """
    A deleted Node object comes back empty: cards, resources and labels are written again.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-anew", mode="core_mem") as at:
            node = await at.client.get(at.node.path)
            await at.client.delete(at.node.path)
            fresh = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": at.node.name}}
            fresh["metadata"]["labels"] = {MODE: "core_mem"}
            await at.client.create(fresh)
            healed = await at.client.until(lambda n: n["status"].get("capacity", {}).get(CORE) == "200", at.node.path)
            healed = await at.client.until(lambda n: CARDS in n["metadata"].get("annotations", {}), at.node.path)
            return [one["metadata"]["annotations"][CARDS] for one in (node, healed)], healed["metadata"]["labels"]

    (before, after), labels = asyncio.run(story())
    assert (before, "2") == (after, labels[CARD_COUNT])


def test_an_agent_that_rests_costs_next_to_nothing(plane, tmp_path):
    """
    Ten looks a second at the kubelet's socket and a turn each second: below a twentieth of a processor.
    """

    def used(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def story():
        async with stage(plane, tmp_path, "agent-rests") as at:
            await at.running(await at.bind(share_pod("quiet", 2), 0))
            await asyncio.sleep(2)
            before = used(at.agent.process.pid)
            await asyncio.sleep(5)
            page = await asyncio.to_thread(at.agent.page)
            health = [await asyncio.to_thread(at.agent.page, path) for path in ("healthz", "readyz")]
            return used(at.agent.process.pid) - before, page, health

    seconds, page, health = asyncio.run(story())
    assert seconds < 5 * 0.05 + 0.1
    assert ["ok\n", "ok\n"] == health
    assert {"gpushare_node_agent_ready 1.0", "gpushare_node_agent_holders 1.0"} <= set(page.splitlines())
    assert all(spec.name in page for spec in CATALOGUE.values())


ODD = (
    {"available_deviceIDs": [], "must_include_deviceIDs": [], "allocation_size": 0},
    {"available_deviceIDs": ["x"], "must_include_deviceIDs": ["y"], "allocation_size": -5},
    {"available_deviceIDs": ["a-_-0"] * 3000, "must_include_deviceIDs": ["-_-", ""], "allocation_size": 2000},
    {"available_deviceIDs": ["../../etc", "a\nb", "\x00", "é" * 500], "allocation_size": 2**31 - 1},
)


def test_whatever_is_asked_there_is_an_answer(plane, tmp_path):
    """
    Senseless questions on the plugin's socket: no error that fails a pod, nobody starts, and the next pod is right.
    """

    def questions(socket):
        write = lambda message: message.SerializeToString()  # noqa: E731
        said = []
        with grpc.insecure_channel(f"unix:{socket}") as channel:

            def ask(method, request, answer):
                return channel.unary_unary(f"/{api.PLUGIN}/{method}", write, answer.FromString)(request, timeout=5)

            for odd in ODD:
                request = api.PreferredAllocationRequest(container_requests=[odd])
                answer = ask("GetPreferredAllocation", request, api.PreferredAllocationResponse)
                said.append(len(answer.container_responses))
            for ids in ([], ["x"], ["../../etc", "\x00"], ["a" * 5000] * 100):
                request = api.AllocateRequest(container_requests=[{"devices_ids": ids}])
                said.append(len(ask("Allocate", request, api.AllocateResponse).container_responses[0].cdi_devices))
                request = api.PreStartContainerRequest(devices_ids=ids)
                with pytest.raises(grpc.RpcError):
                    ask("PreStartContainer", request, api.PreStartContainerResponse)
            empty = ask("Allocate", api.AllocateRequest(), api.AllocateResponse)
            said.append(len(empty.container_responses))
        return said

    async def story():
        async with stage(plane, tmp_path, "agent-odd") as at:
            said = await asyncio.to_thread(questions, at.kubelet.plugins / "gpushare.sock")
            pod = await at.running(await at.bind(share_pod("after", 3), 1))
            right(at, pod, "main", (1,), 3)
            at.agent.kill()
            at.agent.start()
            await at.until(lambda: at.kubelet.status()[1] == 0)
            await at.until(lambda: at.kubelet.status()[1] > 0)
            late = await at.running(await at.bind(share_pod("late", 3), 0))
            right(at, late, "main", (0,), 3)
            assert "cannot be believed" not in at.agent.words()
            return said, [path.name for path in tmp_path.rglob("etc")]

    said, outside = asyncio.run(story())
    assert ([1] * 8 + [0], []) == (said, outside)
