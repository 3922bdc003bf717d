# SPDX-License-Identifier: Apache-2.0
"""How a real kubelet and container runtime treat what the node agent builds on; see docs/kubelet.md."""

from __future__ import annotations

import json

import pytest
from realkubelet.harness import DEVICE_PLUGIN, play, real_node
from realkubelet.plugin import RESOURCE, Plugin
from realkubelet.pods import GIB, PODS, container, pod_of

KIND = "test.dev/thing"


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node; our agent serves there too, and has nothing to do."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


@pytest.fixture(scope="module")
def things(stage):
    """A plugin of the tests' own, one for all: a kubelet takes seconds to believe that another one is there."""
    made = Plugin(stage.node.machine)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def plugin(stage, things):
    """It answers nothing in particular yet, and no spec is there."""
    things.forget()
    yield things
    for path in stage.node.machine.path("/run/cdi").glob("thing*"):
        path.unlink()


def asking(name, *words, **spec):
    """A pod that asks for one thing."""
    box = container("main", 0, *words)
    box["resources"] = {"limits": {RESOURCE: "1"}}
    return pod_of(name, box, **spec)


def write_spec(stage, edits, name="one", version="0.5.0", file="thing.json"):
    """A CDI spec with one device."""
    spec = {"cdiVersion": version, "kind": KIND, "devices": [{"name": name, "containerEdits": edits}]}
    folder = stage.node.machine.path("/run/cdi")
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(spec))


async def bound(stage, client, name, *words):
    """A pod that asks for a thing, bound; the node offers it first."""
    node = f"/api/v1/nodes/{stage.node.name}"
    await client.until(lambda n: n["status"]["allocatable"].get(RESOURCE, "0") != "0", node)
    await stage.bind(client, await client.create(asking(name, *words)))


async def trouble(client, name):
    """What keeps the container from starting."""

    def waiting(pod):
        states = [one["state"].get("waiting", {}) for one in pod["status"].get("containerStatuses", ())]
        return next((one["message"] for one in states if "message" in one), "")

    return waiting(await client.until(waiting, f"{PODS}/{name}"))


def test_a_spec_that_is_written_in_prestart_is_found_at_the_first_try(stage, plugin):
    """
    PreStartContainer is before the runtime's look into the folder: no error, no second try.
    """
    plugin.cdi = f"{KIND}=late"
    plugin.prestart = lambda: write_spec(stage, {"env": ["THING=late"]}, "late")

    async def story(client):
        await bound(stage, client, "late")
        pod = await stage.running_pod(client, "late")
        box = stage.node.containers(pod["metadata"]["uid"])["main"]
        events = await client.get("/api/v1/namespaces/default/events", fieldSelector="involvedObject.name=late")
        return stage.node.execute(box, "/bin/env"), [e["message"] for e in events["items"]]

    env, messages = play(stage, story)
    assert "THING=late" in env.splitlines()
    assert ["Allocate", "PreStartContainer"] == plugin.asked[:2]
    assert [] == [message for message in messages if "CDI" in message]


def test_a_mount_whose_source_is_missing_fails_closed_by_cdi_and_open_by_allocate(stage, plugin):
    """
    The runtime makes a folder of what Allocate names and is not there, and the container starts without it; of
    what a CDI spec names it makes nothing, and the container does not start until it is there.
    """
    missing = stage.node.machine.path("/var/lib/missing")
    plugin.mounts = {"/etc/ld.so.preload": "/var/lib/missing/preload"}

    async def story(client):
        await bound(stage, client, "open")
        pod = await stage.running_pod(client, "open")
        box = stage.node.containers(pod["metadata"]["uid"])["main"]
        made = stage.node.execute(box, "/bin/stat", "-c", "%F", "/etc/ld.so.preload")
        plugin.mounts, plugin.cdi = {}, f"{KIND}=one"
        edits = {"hostPath": "/var/lib/missing/cdi", "containerPath": "/etc/ld.so.preload", "options": ["ro", "bind"]}
        write_spec(stage, {"mounts": [edits]})
        await bound(stage, client, "closed")
        said = await trouble(client, "closed")
        (missing / "cdi").write_text("")
        await stage.running_pod(client, "closed")
        return made, said

    made, said = play(stage, story)
    assert "directory\n" == made
    assert "no such file or directory" in said


@pytest.mark.parametrize("version", ["0.3.0", "0.5.0", "0.6.0", "0.8.0", "1.0.0"])
def test_versions_of_cdi_specs_that_are_understood(stage, plugin, version):
    """
    From the oldest to the newest that containerd 2.1 knows; ours says 0.5.0.
    """
    name = f"v{version.replace('.', '-')}"
    plugin.cdi = f"{KIND}={name}"
    write_spec(stage, {"env": [f"THING={version}"]}, name, version)

    async def story(client):
        await bound(stage, client, name)
        pod = await stage.running_pod(client, name)
        return stage.node.execute(stage.node.containers(pod["metadata"]["uid"])["main"], "/bin/env")

    assert f"THING={version}" in play(stage, story).splitlines()


@pytest.mark.parametrize("version", ["1.1.0", "99.0.0"])
def test_a_version_that_is_too_new_and_a_spoilt_file_of_others_harm_only_themselves(stage, plugin, version):
    """
    A spec that cannot be read is passed by: its device is unknown, those of other files are served. Containerd 2.1
    knows 1.0.0 and nothing newer.
    """
    write_spec(stage, {"env": ["THING=new"]}, "new", version, "thing-new.json")
    stage.node.machine.path("/run/cdi/thing-spoilt.json").write_text("{")
    plugin.prestart = lambda: write_spec(stage, {"env": ["THING=fine"]}, "fine", file="thing-fine.json")

    async def story(client):
        plugin.cdi = f"{KIND}=new"
        await bound(stage, client, "new")
        said = await trouble(client, "new")
        plugin.cdi = f"{KIND}=fine"
        await bound(stage, client, "fine")
        pod = await stage.running_pod(client, "fine")
        return said, stage.node.execute(stage.node.containers(pod["metadata"]["uid"])["main"], "/bin/env")

    said, env = play(stage, story)
    assert "unresolvable CDI devices" in said
    assert "THING=fine" in env.splitlines()


def test_a_device_that_two_files_name_is_refused(stage, plugin):
    """
    Both files count as one error: nobody can put other edits behind a name of ours without being noticed.
    """
    plugin.cdi = f"{KIND}=twice"
    write_spec(stage, {"env": ["THING=first"]}, "twice", file="thing-1.json")
    write_spec(stage, {"env": ["THING=second"]}, "twice", file="thing-2.json")

    async def story(client):
        await bound(stage, client, "twice")
        return await trouble(client, "twice")

    assert "unresolvable CDI devices" in play(stage, story)


def test_a_pod_bound_before_any_plugin_has_registered_runs_with_nothing_until_its_next_start(stage):
    """
    A kubelet that never heard of a resource admits whoever asks for it and runs it without devices and without
    edits. Of two such pods the agent ends the container of the one whose image asks NVIDIA's runtime for all cards;
    it deletes none. The next start of either gets units from the kubelet and from us what its record says, since
    nothing asks us before a start: a kubelet that did would have "no devices found allocated in local cache", for ever.
    """
    wants = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    quick = {"terminationGracePeriodSeconds": 0}

    async def story(client):
        stage.stop_agent()
        stage.node.kill(DEVICE_PLUGIN)
        stage.node.kill("kubelet")
        stage.node.machine.path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").unlink()
        stage.node.start_kubelet()
        try:
            await stage.place(client, pod_of("early", container("main", 2), **quick), 0)
            await stage.place(client, pod_of("greedy", container("main", 2, env=wants), **quick), 0)
            pod = await stage.running_pod(client, "early")
            await stage.running_pod(client, "greedy")
            box = stage.node.containers(pod["metadata"]["uid"])["main"]
            found = stage.devices(pod), stage.node.execute(box, "/bin/ls", "/etc")
        finally:
            stage.start_agent()
        await stage.ready(client)
        kept = await client.get(f"{PODS}/early")
        for name in ("early", "greedy"):
            await stage.agent_says(f"default/{name}/main")
        stage.node.ctr("tasks", "kill", "-s", "SIGKILL", box)
        pods = [await stage.running_pod(client, name, restarts=1) for name in ("early", "greedy")]
        given = [(len(stage.devices(pod)["main"]), stage.limits(pod)) for pod in pods]
        return *found, kept["status"]["containerStatuses"][0]["restartCount"], given

    devices, etc, restarts, given = play(stage, story)
    assert {"main": []} == devices
    assert "ld.so.preload" not in etc
    assert (0, [(2, {"main": {stage.cards[0]: 2 * GIB}})] * 2) == (restarts, given)
