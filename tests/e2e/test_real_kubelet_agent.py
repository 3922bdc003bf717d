# SPDX-License-Identifier: Apache-2.0
"""The node agent under a real kubelet and a real container runtime: what containers really get."""

from __future__ import annotations

import asyncio
import random

import pytest
from realkubelet.harness import play, real_node
from realkubelet.pods import GIB, PODS, container, facts, pod_of

SHORT = ("/bin/sh", "-c", "/bin/client 100 & sleep 5")
NEVER = {"restartPolicy": "Never"}


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards of 14 units."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


def plain(card):
    """A card's UUID as the client says it."""
    return card.removeprefix("GPU-").replace("-", "")


def test_a_promise_reaches_the_container_and_binds_it(stage):
    """
    A pod of 2 GiB on the second card sees 2 GiB, gets 1.5 GiB and is refused another one; record, kubelet and
    limits file say the same.
    """

    async def story(client):
        await stage.place(client, pod_of("bound", container("main", 2, "1536", "1024")), 1)
        pod = await stage.running_pod(client, "bound")
        return facts(stage.said(pod)), stage.devices(pod), stage.limits(pod)

    told, devices, limits = play(stage, story)
    assert ([plain(stage.cards[1])], [str(2 * GIB)], ["0", "2"]) == (told["card"], told["total"], told["take"])
    assert 2 == len(devices["main"])
    assert {"main": {stage.cards[1]: 2 * GIB}} == limits


def test_memory_is_spread_over_the_cards_of_the_record(stage):
    """
    A pod of 8 GiB over two cards has 4 GiB of each, by the kubelet and by the limits file.
    """

    async def story(client):
        await stage.place(client, pod_of("wide", container("main", 8, "1024")), 0, 1)
        pod = await stage.running_pod(client, "wide")
        return facts(stage.said(pod)), stage.devices(pod), stage.limits(pod)

    told, devices, limits = play(stage, story)
    assert [str(4 * GIB)] == told["total"]
    assert 8 == len(devices["main"])
    assert {"main": dict.fromkeys(stage.cards, 4 * GIB)} == limits


def test_every_container_of_a_pod_has_its_own_promise(stage):
    """
    An init container, a sidecar and two containers with different amounts, and one that asks for nothing: each
    sees what it asked for, and the last one no card.
    """

    async def story(client):
        inits = [
            container("first", 3, "/bin/sh", "-c", "/bin/client 100 & sleep 5"),
            container("side", 2, restartPolicy="Always"),
        ]
        pod = pod_of("many", container("a", 1), container("b", 5), container("none"), initContainers=inits)
        await stage.place(client, pod, 1)
        pod = await stage.running_pod(client, "many")
        said = {name: facts(stage.said(pod, name)) for name in ("first", "side", "a", "b", "none")}
        return said, stage.devices(pod), stage.limits(pod)

    said, devices, limits = play(stage, story)
    totals = {name: told.get("total", ["none"]) for name, told in said.items()}
    expected = {"first": [str(3 * GIB)], "side": [str(2 * GIB)], "a": [str(GIB)], "b": [str(5 * GIB)], "none": ["none"]}
    assert expected == totals
    assert {"side": 2, "a": 1, "b": 5, "none": 0} == {name: len(ids) for name, ids in devices.items()}
    amounts = {name: next(iter(cards.values())) for name, cards in limits.items() if name in devices}
    assert {"side": 2 * GIB, "a": GIB, "b": 5 * GIB} == amounts


def test_init_containers_have_their_own_promise_however_the_kubelet_shares_their_devices(stage):
    """
    Smaller and larger than what comes after, alone, and with the very same amount one after the other: each sees
    what it asked for, and in the end the files name the container that runs.
    """
    pods = {
        "alone": pod_of("alone", container("main"), initContainers=[container("i", 5, *SHORT)]),
        "larger": pod_of("larger", container("main", 2), initContainers=[container("i", 6, *SHORT)]),
        "growing": pod_of(
            "growing", container("main", 4), initContainers=[container("i", 1, *SHORT), container("j", 3, *SHORT)]
        ),
        "same": pod_of("same", container("main", 1), initContainers=[container("i", 1, *SHORT)]),
    }

    async def story(client):
        for number, pod in enumerate(pods.values()):
            await stage.place(client, pod, number % 2)
        told = {}
        for name, pod in pods.items():
            made = await stage.running_pod(client, name)
            boxes = [one["name"] for one in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])]
            told[name] = [facts(stage.said(made, box)).get("total", ["none"])[0] for box in boxes]
        return told, await stage.named(made, "main")

    told, named = play(stage, story)
    gib = {"alone": (5, None), "larger": (6, 2), "growing": (1, 3, 4), "same": (1, 1)}
    expected = {name: [str(one * GIB) if one else "none" for one in each] for name, each in gib.items()}
    assert (expected, ["main"]) == (told, named)


def test_pods_get_their_own_cards_in_whatever_order_the_kubelet_takes_them(stage):
    """
    Sixteen pods of one size are bound at once, each to a card of its own choice: all get that card, and no unit
    stands twice.
    """
    dice = random.Random(5)  # noqa: S311 (which card)
    chosen = {f"p{i}": card for i, card in enumerate(dice.sample([0, 1] * 8, 16))}

    async def story(client):
        made = await asyncio.gather(*(client.create(pod_of(name, container("main", 1))) for name in chosen))
        order = dice.sample(made, len(made))
        await asyncio.gather(
            *(stage.bind_to(client, pod, chosen[pod["metadata"]["name"]]) for pod in order),
        )
        pods = [await stage.running_pod(client, name) for name in chosen]
        devices = {pod["metadata"]["name"]: stage.devices(pod)["main"] for pod in pods}
        seen = {pod["metadata"]["name"]: facts(stage.said(pod))["card"] for pod in pods}
        return devices, seen

    devices, seen = play(stage, story)
    assert {name: [plain(stage.cards[card])] for name, card in chosen.items()} == seen
    every = [one for ids in devices.values() for one in ids]
    assert len(every) == len(set(every))


def test_a_container_without_privileges_is_bound_as_well(stage):
    """
    Another user, a read-only root, no capabilities: the library is loaded and the promise holds.
    """
    strict = {
        "runAsUser": 1234,
        "runAsGroup": 1234,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }

    async def story(client):
        await stage.place(client, pod_of("strict", container("main", 1, "512", "900", securityContext=strict)), 0)
        return facts(stage.said(await stage.running_pod(client, "strict")))

    told = play(stage, story)
    assert ([str(GIB)], ["0", "2"]) == (told["total"], told["take"])


def test_a_container_that_comes_back_keeps_its_devices_and_its_promise(stage):
    """
    A container that is killed starts again with the same devices; the kubelet asks for none again.
    """

    async def story(client):
        await stage.place(client, pod_of("again", container("main", 2, "1536")), 1)
        pod = await stage.running_pod(client, "again")
        before = stage.devices(pod)
        first = facts(stage.said(pod))
        stage.node.ctr("tasks", "kill", "-s", "SIGKILL", stage.node.containers(pod["metadata"]["uid"])["main"])
        pod = await stage.running_pod(client, "again", restarts=1)
        return before, stage.devices(pod), (first, facts(stage.said(pod, restarts=1)))

    before, after, lives = play(stage, story)
    assert before == after
    for life in lives:
        assert ([str(2 * GIB)], ["0"]) == (life["total"], life["take"])


def test_a_pod_bound_without_a_record_does_not_start_and_is_told_why(stage):
    """
    Whoever binds past our scheduler gets no container started, and reads in the pod's events why; the pod stays.
    """

    async def story(client):
        made = await client.create(pod_of("bare", container("main", 1)))
        await stage.bind(client, made)
        uid = made["metadata"]["uid"]
        said = await client.until(
            lambda events: any(
                e["involvedObject"].get("uid") == uid and "no valid allocation annotation" in e["message"]
                for e in events["items"]
            ),
            "/api/v1/namespaces/default/events",
        )
        events = [e for e in said["items"] if e["involvedObject"].get("uid") == uid]
        return events, (await client.get(f"{PODS}/bare"))["metadata"]["uid"] == uid

    events, stays = play(stage, story)
    assert stays
    assert not any(event["reason"] == "Started" for event in events)


def test_jobs_that_finish_leave_nothing(stage):
    """
    A pod that has ended keeps no units: the next one gets them while the first still stands in the API server.
    """

    async def story(client):
        await stage.place(client, pod_of("done", container("main", 14, "/bin/true"), **NEVER), 0)
        await client.until(lambda p: p["status"].get("phase") == "Succeeded", f"{PODS}/done")
        await stage.place(client, pod_of("next", container("main", 14)), 0)
        return facts(stage.said(await stage.running_pod(client, "next")))

    assert [str(14 * GIB)] == play(stage, story)["total"]
