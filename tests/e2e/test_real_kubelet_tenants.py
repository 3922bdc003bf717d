# SPDX-License-Identifier: Apache-2.0
"""What a tenant writes into a pod under a real container runtime: nothing of it changes what is enforced."""

from __future__ import annotations

import pytest
from realkubelet.configuration import LINKED, OWN_LIST, STATIC
from realkubelet.harness import play, real_node
from realkubelet.pods import GIB, PODS, container, facts, pod_of

TAKE = ("512", "900")
OVERRIDES = [
    {"name": name, "value": value}
    for name, value in {
        "LD_PRELOAD": "",
        "GPUSHARE_LIMITS": "/nowhere",
        "GPUSHARE_REGION": "/nowhere",
        "GPUSHARE_FEED": "/nowhere",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "999",
    }.items()
]
OVERRIDES += OVERRIDES[:2]


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


async def events_of(client, name, text):
    """What the pod's events say, once one of them has this text."""
    said = await client.until(
        lambda events: any(e["involvedObject"]["name"] == name and text in e["message"] for e in events["items"]),
        "/api/v1/namespaces/default/events",
    )
    return [e["message"] for e in said["items"] if e["involvedObject"]["name"] == name]


def test_what_a_tenant_puts_over_our_files_and_variables_changes_nothing(stage):
    """
    Volumes over our files and values for our variables (admission refuses both, before this) lose: in every
    such pod the library is loaded, the promise is seen and the excess refused, and the variables are ours.
    """
    empty, config = {"name": "v", "emptyDir": {}}, {"name": "v", "configMap": {"name": "blank"}}
    over = {
        "preload": ({"mountPath": "/etc/ld.so.preload", "subPath": "p"}, config),
        "library": ({"mountPath": "/run/gpushare/lib/libgpushare.so"}, empty),
        "limits": ({"mountPath": "/run/gpushare/limits"}, empty),
        "link": ({"mountPath": "/a/b/c/link/ld.so.preload", "subPath": "p"}, config),
    }

    async def story(client):
        await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "blank"}, "data": {"p": ""}})
        told = {}
        for name, (mount, volume) in over.items():
            box = container("main", 1, *TAKE, volumeMounts=[{"name": "v", **mount}])
            await stage.place(client, pod_of(name, box, volumes=[volume]), 0)
        await stage.place(client, pod_of("env", container("main", 1, *TAKE, env=OVERRIDES)), 0)
        for name in (*over, "env"):
            pod = await stage.running_pod(client, name)
            told[name] = facts(stage.said(pod))
            if name == "env":
                seen = stage.node.execute(stage.node.containers(pod["metadata"]["uid"])["main"], "/bin/env")
        await client.delete("/api/v1/namespaces/default/configmaps/blank")
        return told, dict(line.split("=", 1) for line in seen.splitlines() if "=" in line)

    told, seen = play(stage, story)
    expected = ([str(GIB)], ["0", "2"])
    assert dict.fromkeys([*over, "env"], expected) == {n: (one["total"], one["take"]) for n, one in told.items()}
    assert ("void", stage.cards[0]) == (seen["NVIDIA_VISIBLE_DEVICES"], seen["GPUSHARE_VISIBLE_DEVICES"])
    assert "1" == seen["ALIYUN_COM_GPU_MEM_CONTAINER"]
    assert "/run/gpushare/limits/limits" == seen["GPUSHARE_LIMITS"]


def test_a_volume_above_our_files_keeps_the_container_from_starting(stage):
    """
    A folder of a volume above a file of ours could be emptied by a neighbour that shares the volume, and the kernel
    takes away a mount whose name is removed. No container starts so, also where the way leads through a link of the
    image, which admission cannot see; the pod's events say why.
    """
    places = {"etc": "/etc", "run": "/run", "ours": "/run/gpushare", "lib": "/run/gpushare/lib", "link": "/a/b/c/link"}

    async def story(client):
        for name, path in places.items():
            box = container("main", 1, *TAKE, volumeMounts=[{"name": "v", "mountPath": path}])
            await stage.place(client, pod_of(f"over-{name}", box, volumes=[{"name": "v", "emptyDir": {}}]), 0)
        told = {name: await events_of(client, f"over-{name}", "container start refused") for name in places}
        pods = [await client.get(f"{PODS}/over-{name}") for name in places]
        return told, [one["state"].get("running") for pod in pods for one in pod["status"]["containerStatuses"]]

    told, running = play(stage, story)
    assert [None] * len(places) == running
    for name, messages in told.items():
        assert any("mount the volume elsewhere" in message for message in messages), (name, messages)


def test_images_whose_programs_would_not_load_the_library_are_refused(stage):
    """
    No loader of glibc's in the image (musl, static programs only), or a link in place of the list that it reads.
    """
    reasons = {STATIC: "no glibc loader", LINKED: "/etc/ld.so.preload is a link in the image"}
    names = dict(zip(reasons, ("static", "linked"), strict=True))

    async def story(client):
        for image, name in names.items():
            await stage.place(client, pod_of(name, container("main", 1, "/bin/sleep", "600", image=image)), 0)
        return {image: await events_of(client, name, reasons[image]) for image, name in names.items()}

    told = play(stage, story)
    for image, messages in told.items():
        assert not any(message == "Container started" for message in messages), (image, messages)


def test_an_image_with_a_list_of_its_own_to_preload_gets_ours(stage):
    """
    The image's /etc/ld.so.preload names something else: in the container it is ours.
    """

    async def story(client):
        await stage.place(client, pod_of("own", container("main", 1, *TAKE, image=OWN_LIST)), 0)
        pod = await stage.running_pod(client, "own")
        box = stage.node.containers(pod["metadata"]["uid"])["main"]
        return facts(stage.said(pod)), stage.node.execute(box, "/bin/cat", "/etc/ld.so.preload")

    told, seen = play(stage, story)
    assert (["0", "2"], "/run/gpushare/lib/libgpushare.so\n") == (told["take"], seen)


def test_a_container_without_a_share_sees_no_card(stage):
    """
    An image that asks for all cards, as CUDA base images do, beside pods with shares: the variable says void, on the
    first container of the pod and in the second of one whose first has a share.
    """
    wants = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    beside = container("beside", 0, "/bin/sleep", "600", env=wants)

    async def story(client):
        await stage.place(client, pod_of("with", container("main", 1, *TAKE), beside), 0)
        await stage.bind(client, await client.create(pod_of("without", beside)))
        found = []
        for name in ("with", "without"):
            pod = await stage.running_pod(client, name)
            box = stage.node.containers(pod["metadata"]["uid"])["beside"]
            found.append(stage.node.execute(box, "/bin/env").splitlines())
        return found

    for env in play(stage, story):
        assert "NVIDIA_VISIBLE_DEVICES=void" in env
        assert not any(line.startswith("GPUSHARE_") for line in env)


def test_on_a_node_that_only_shares_nothing_is_enforced_and_everything_is_told(stage):
    """
    Mode `share`: the cards and the variables are delivered, no library, and the whole card can be used.
    """
    path = f"/api/v1/nodes/{stage.node.name}"

    async def mode(client, value):
        seen = len(stage.node.log("agent"))
        await client.merge(path, {"metadata": {"labels": {"ack.node.gpu.schedule": value}}})
        await stage.agent_says(f"node mode is {value}", seen)

    async def story(client):
        await mode(client, "share")
        await stage.place(client, pod_of("free", container("main", 1, "512", "900")), 1)
        pod = await stage.running_pod(client, "free")
        box = stage.node.containers(pod["metadata"]["uid"])["main"]
        told = facts(stage.said(pod)), stage.node.execute(box, "/bin/env"), stage.node.execute(box, "/bin/ls", "/etc")
        await mode(client, "cgpu")
        return told

    told, env, etc = play(stage, story)
    assert ["0", "0"] == told["take"]
    assert f"NVIDIA_VISIBLE_DEVICES={stage.cards[1]}" in env.splitlines()
    assert "ld.so.preload" not in etc
