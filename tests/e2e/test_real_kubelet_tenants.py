# SPDX-License-Identifier: Apache-2.0
"""What a tenant writes into a pod under a real container runtime: nothing of it changes what is enforced."""

from __future__ import annotations

import pytest
from realkubelet.pods import GIB, container, facts, pod_of
from realkubelet.stage import play, real_stage

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


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards."""
    with real_stage(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


def test_what_a_tenant_puts_over_our_paths_and_variables_changes_nothing(stage):
    """
    Volumes over our paths and values for our variables (admission refuses both, before this) lose: in every
    such pod the library is loaded, the promise is seen and the excess refused, and the variables are ours.
    """
    empty, config = {"name": "v", "emptyDir": {}}, {"name": "v", "configMap": {"name": "blank"}}
    over = {
        "preload": ({"mountPath": "/etc/ld.so.preload", "subPath": "p"}, config),
        "lib": ({"mountPath": "/run/gpushare/lib"}, empty),
        "library": ({"mountPath": "/run/gpushare/lib/libgpushare.so"}, empty),
        "limits": ({"mountPath": "/run/gpushare/limits"}, empty),
        "ours": ({"mountPath": "/run/gpushare"}, empty),
        "run": ({"mountPath": "/run"}, empty),
        "etc": ({"mountPath": "/etc"}, empty),
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
    assert (stage.cards[0], "1") == (seen["NVIDIA_VISIBLE_DEVICES"], seen["ALIYUN_COM_GPU_MEM_CONTAINER"])
    assert "/run/gpushare/limits/limits" == seen["GPUSHARE_LIMITS"]


def test_a_volume_above_our_files_shared_with_a_neighbour_would_be_an_escape(stage):
    """
    Why admission refuses volumes over /etc and /run: a neighbour that has the same volume elsewhere removes the
    file on which ours is mounted, the kernel takes the mount away, and new programs run without the library.
    """
    volume = {"name": "v", "emptyDir": {}}
    main = container("main", 1, *TAKE, volumeMounts=[{"name": "v", "mountPath": "/etc"}])
    side = container("side", 0, "/bin/sleep", "600", volumeMounts=[{"name": "v", "mountPath": "/mnt"}])

    async def story(client):
        await stage.place(client, pod_of("pair", main, side, volumes=[volume]), 0)
        pod = await stage.running_pod(client, "pair")
        ids = stage.node.containers(pod["metadata"]["uid"])
        before = stage.node.execute(ids["main"], "/bin/cat", "/etc/ld.so.preload")
        stage.node.execute(ids["side"], "/bin/rm", "-f", "/mnt/ld.so.preload")
        after = stage.node.execute(ids["main"], "/bin/ls", "/etc")
        return before, after

    before, after = play(stage, story)
    assert "/run/gpushare/lib/libgpushare.so\n" == before
    assert "ld.so.preload" not in after


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
