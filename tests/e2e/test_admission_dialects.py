# SPDX-License-Identifier: Apache-2.0
"""Pods of other systems through a real API server: translated, or refused, and never stored as they came."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from e2e.admission_harness import PODS, Stand, policed, tried, webhooked
from e2e.apiclient import connected
from e2e.webhook_stories import answer, path_of, stored
from support.admission_pods import plain, spec, workload
from support.dialect_pods import CASES, asking, hami

from isolation.contract.codec import request_of
from isolation.contract.dialects import SYSTEMS, Offered
from isolation.contract.model import Request
from isolation.contract.names import ASKED, CORE_STEPS, DIALECT
from isolation.contract.quantity import GIB
from isolation.scheduler.admission.core.serving import parse_serving
from isolation.scheduler.admission.core.webhook import ReviewContext

HAMI = parse_serving("ack,hami", ["hami=hami-only"])


@contextlib.asynccontextmanager
async def serving(plane, systems=HAMI, offered=None):
    """The webhook and the policies for these dialects."""
    stand = Stand(plane)
    stand.systems = systems
    known = offered or Offered(systems.dialects, lambda _rules, **_: frozenset({15 * GIB}), left=systems.left)
    stand.world = ReviewContext(stand.world.is_shared, offered=known)
    async with connected(plane) as client, webhooked(client, stand), policed(client, systems):
        yield client, stand


def test_a_pod_of_hami_is_stored_in_our_words(plane):
    """
    Amounts, count and scheduler become ours, nothing of the foreign resources is left, and what was asked is written
    down.
    """

    async def story():
        async with (
            serving(plane) as (client, _),
            stored(client, hami(spec(schedulerName="hami-scheduler"), gpu="2")) as pod,
        ):
            return pod

    pod = asyncio.run(story())
    resources = pod["spec"]["containers"][0]["resources"]
    assert (
        {"aliyun.com/gpu-mem": "6", "aliyun.com/gpu-core.percentage": "60"}
        == resources["limits"]
        == resources["requests"]
    )
    assert ("2", "true") == tuple(
        pod["metadata"]["labels"][key] for key in ("aliyun.com/gpu-count", "gpushare.dev/shared")
    )
    assert "gpushare-scheduler" == pod["spec"]["schedulerName"]
    assert "hami" == pod["metadata"]["annotations"][DIALECT]
    assert '"nvidia.com/gpumem":"3000"' in pod["metadata"]["annotations"][ASKED]


def test_without_the_webhook_such_a_pod_is_refused(plane):
    """
    While it is away, and by policy where it was removed; a plain pod, a whole card and a namespace left to HAMi pass.
    """

    async def story():
        async with serving(plane) as (client, stand):
            await client.create({"kind": "Namespace", "metadata": {"name": "hami-only"}})
            await client.until(lambda _: True, "/api/v1/namespaces/hami-only/serviceaccounts/default")
            left = hami()
            left["metadata"]["namespace"] = "hami-only"
            await stand.stop()
            said = {
                "away": await tried(client, hami()),
                "plain": await tried(client, plain()),
                "whole": await tried(client, plain(lambda pod: pod["spec"]["containers"][0].update(resources=WHOLE))),
                "left": await tried(client, left, "/api/v1/namespaces/hami-only/pods"),
            }
            await client.delete("/api/v1/namespaces/hami-only")
            await stand.start()
        async with connected(plane) as client, policed(client, HAMI):
            said["removed"] = await tried(client, hami())
        return said

    said = asyncio.run(story())
    assert "failed calling webhook" in said["away"]
    assert "words of HAMi" in said["removed"]
    assert ("", "", "") == (said["plain"], said["whole"], said["left"])


WHOLE = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}


def test_a_template_of_hami_is_warned_about_and_stays(plane):
    """
    Whoever else reads it finds what its owner wrote; its pods are what is translated.
    """

    async def story():
        async with serving(plane) as (client, _):
            return await client.call("POST", path_of("Deployment"), workload("Deployment", hami()), dryRun="All")

    made = asyncio.run(story())
    limits = made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert {"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"} == limits.keys()


def test_what_cannot_be_translated_is_refused_with_what_to_write(plane):
    """
    In the words of the pod's own system.
    """

    async def story():
        async with serving(plane) as (client, _):
            return [
                await tried(client, hami(**{"gpumem": None, "gpumem-percentage": "0"})),
                await tried(
                    client, hami(lambda pod: pod["metadata"].update(annotations={"nvidia.com/vgpu-mode": "mig"}))
                ),
                await tried(client, hami(spec(hostPID=True))),
            ]

    zero, mode, host = asyncio.run(story())
    assert "request 1 to 100" in zero
    assert "nvidia.com/vgpu-mode" in mode
    assert "hostPID exposes" in host
    assert "translated from HAMi" in host


EVERY = parse_serving(",".join(CORE_STEPS))


def test_every_form_is_translated_and_none_is_stored_as_it_came(plane):
    """
    Of each dialect, with all of them on, by one API server: what it stores asks in our words alone.
    """
    cases = {name: pod for name, (pod, _) in CASES.items() if "init" not in name}

    async def story():
        async with serving(plane, EVERY) as (client, _):
            made = {}
            for name, pod in cases.items():
                made[name] = await client.call("POST", PODS, pod, dryRun="All")
            return made

    foreign = {name for one in SYSTEMS.values() for name in (*one.resources, *one.annotations)}
    for name, pod in asyncio.run(story()).items():
        amounts = [part for one in pod["spec"]["containers"] for part in one["resources"].values()]
        assert not foreign & {key for part in amounts for key in part}, name
        assert not foreign & pod["metadata"]["annotations"].keys(), name
        asked = request_of(pod["metadata"], pod["spec"])
        assert isinstance(asked, Request), name
        assert CASES[name][1] == (asked.cards, asked.card_bytes // GIB, asked.card_core, asked.whole), name


def test_without_the_webhook_no_form_of_any_dialect_gets_in(plane):
    """
    By the policies alone, which name every form.
    """

    async def story():
        async with connected(plane) as client, policed(client, EVERY):
            return {name: await tried(client, pod) for name, (pod, _) in CASES.items()}

    said = asyncio.run(story())
    assert {} == {name: text for name, text in said.items() if "was not called" not in text}


def test_foreign_words_that_come_later_bring_nothing(plane):
    """
    Amounts cannot be changed after creation, also by resizing; an annotation is nobody's request then, and the word
    by which a pod's compute is read stays as admission wrote it.
    """

    async def story():
        async with serving(plane, EVERY) as (client, _), stored(client, plain()) as pod:
            path = f"{PODS}/{pod['metadata']['name']}"
            amounts = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpumem": "1"}}}]}}
            said = [await answer(client.merge(f"{path}{sub}", amounts, dryRun="All")) for sub in ("", "/resize")]
            await client.merge(path, {"metadata": {"annotations": {"gpu-fraction": "0.5"}}})
            later = await client.get(path)
            async with stored(client, named(hami(), "q")):
                other = {"metadata": {"annotations": {DIALECT: "ack"}}}
                said.append(await answer(client.merge(f"{PODS}/q", other, dryRun="All")))
            return said, later

    (plainly, resized, renamed), later = asyncio.run(story())
    assert plainly
    assert resized
    assert "immutable" in renamed
    assert "gpushare.dev/shared" not in later["metadata"].get("labels", {})


def test_a_dialect_that_is_off_is_warned_about_without_us(plane):
    """
    By the API server itself, and by nothing else: the webhook is not asked.
    """

    async def story():
        async with serving(plane, HAMI) as (client, stand):
            pod = CASES["volcano"][0]
            async with client._session.post(f"{PODS}?dryRun=All", json=pod) as said:
                return said.status, said.headers.getall("Warning", []), list(stand.asked)

    status, warnings, asked = asyncio.run(story())
    assert 201 == status
    assert any("dialect volcano is off" in text for text in warnings)
    assert [] == asked


def test_any_number_of_annotations_on_a_pod_of_nobody_costs_no_walk(plane):
    """
    With KAI's annotations on: names are looked up, so such a pod is created although a walk would exceed a rule's
    budget.
    """
    pod = plain()
    letters = itertools.islice(itertools.product("abcdefghijklmnop", repeat=4), 60_000)
    pod["metadata"]["annotations"] = {"".join(word): "" for word in letters}

    async def story():
        async with serving(plane, EVERY) as (client, stand):
            return await tried(client, pod), list(stand.asked)

    said, asked = asyncio.run(story())
    assert ("", []) == (said, asked)


def test_plain_gpus_of_a_namespace_of_time_slices_are_slices(plane):
    """
    By the namespace's label, with the number of slices that its nodes have; elsewhere they are whole cards.
    """

    async def story():
        async with serving(plane, EVERY) as (client, stand):
            stand.slices = frozenset({"4"})
            labels = {"gpushare.dev/time-slices": "true"}
            await client.create({"kind": "Namespace", "metadata": {"name": "sliced", "labels": labels}})
            path = "/api/v1/namespaces/sliced"
            await client.until(lambda _: True, f"{path}/serviceaccounts/default")
            pod = asking(WHOLE["limits"])
            pod["metadata"]["namespace"] = "sliced"
            made = await client.call("POST", f"{path}/pods", pod, dryRun="All")
            other = await client.call("POST", PODS, asking(WHOLE["limits"]), dryRun="All")
            await client.delete(path)
            return made, other

    made, other = asyncio.run(story())
    assert {"aliyun.com/gpu-mem": "3"} == made["spec"]["containers"][0]["resources"]["limits"]
    assert {"gpushare.dev/time-slices": "4"} == made["spec"]["nodeSelector"]
    assert WHOLE["limits"] == other["spec"]["containers"][0]["resources"]["limits"]


def named(pod, name):
    """The pod under another name."""
    pod["metadata"]["name"] = name
    return pod
