# SPDX-License-Identifier: Apache-2.0
"""The rules of admission as policies of a real API server, without any webhook of ours."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from e2e.admission_harness import PATHS, PODS, policed, tried
from e2e.apiclient import RefusedError, connected
from e2e.webhook_stories import stored
from support.admission_cases import FORGED, GOOD, REFUSED
from support.admission_pods import (
    COUNT,
    SHARED,
    TEMPLATED,
    admitted,
    amount,
    good,
    labelled,
    plain,
    pod,
    spec,
    workload,
)

SCHEDULER = "system:serviceaccount:gpushare-system:gpushare-scheduler"
KUBE_SCHEDULER = "system:serviceaccount:gpushare-system:gpushare-kube-scheduler"
AUTOSCALER = "system:serviceaccount:gpushare-system:gpushare-autoscaler"
AGENT = "system:serviceaccount:gpushare-system:gpushare-node"
CLAIM = "authentication.kubernetes.io/node-name"
SAYABLE = [case for case in REFUSED + FORGED if case.policy]


def path_of(kind: str) -> str:
    """Where objects of this kind are made."""
    version, plural = TEMPLATED[kind]
    return f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/default/{plural}"


def policing(plane, story):
    """What a story under the policies returns."""

    async def run():
        async with connected(plane) as client, policed(client):
            return await story(client)

    return asyncio.run(run())


async def sent(client, method, path, body, *, user="", node=None, kind="application/json"):
    """What is said to another user with every right: empty where it would be done."""
    headers = {"Content-Type": kind}
    if user:
        headers |= {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
    if node is not None:
        # As the API server fills it from the token of a pod on that node; the key travels percent-encoded.
        headers[f"Impersonate-Extra-{CLAIM.replace('/', '%2F')}"] = node
    async with client._session.request(method, f"{path}?dryRun=All", json=body, headers=headers) as answer:
        return "" if answer.status < 300 else await answer.text()


def test_the_api_server_finds_no_fault_in_the_policies(plane):
    """
    It has checked every expression against the types of the objects, and warns of none.
    """

    async def story(client):
        for _ in range(3000):
            found = (await client.get(PATHS["ValidatingAdmissionPolicy"]))["items"]
            if all("typeChecking" in one.get("status", {}) for one in found):
                break
            await asyncio.sleep(0.1)
        return {one["metadata"]["name"]: one.get("status", {}).get("typeChecking") for one in found}

    checked = policing(plane, story)
    assert len(checked) >= 10
    assert {} == {name: found for name, found in checked.items() if found != {}}


def test_each_bad_pod_is_refused_without_the_webhook_too(plane):
    """
    As pods and as templates, wherever CEL can say it; what the API server itself finds first, it says.
    """

    async def story(client):
        pods = {case.name: await tried(client, admitted(case.made())) for case in SAYABLE}
        templates = {
            case.name: await tried(client, workload("Deployment", case.made()), path_of("Deployment"))
            for case in SAYABLE
            if case in REFUSED and case.name != "scheduler"
        }
        kinds = {kind: await tried(client, workload(kind, REFUSED[0].made()), path_of(kind)) for kind in TEMPLATED}
        return pods, templates, kinds

    pods, templates, kinds = policing(plane, story)
    policies = {case.name: case.policy for case in SAYABLE}
    assert {} == {name: text for name, text in pods.items() if policies[name] not in text}
    assert {} == {name: text for name, text in templates.items() if policies[name] not in text}
    assert [] == [kind for kind, text in kinds.items() if "must be a multiple of the number of cards" not in text]


def test_without_a_seccomp_profile_pods_run_only_where_an_administrator_says_so(plane):
    """
    Unconfined, at the pod or at a container, and a pod that names none and did not pass the webhook.
    """
    loose = {"seccompProfile": {"type": "Unconfined"}}

    async def story(client):
        namespace = {"apiVersion": "v1", "kind": "Namespace"}
        namespace["metadata"] = {"name": "loose", "labels": {"gpushare.dev/unisolated": "true"}}
        await client.create(namespace)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with contextlib.suppress(RefusedError):
            await client.call("POST", "/api/v1/namespaces/loose/serviceaccounts", account)
        whole, one = admitted(pod(securityContext=loose)), admitted(pod())
        one["spec"]["containers"][0]["securityContext"] = loose
        none = admitted(pod())
        del none["spec"]["securityContext"]
        template = workload("Deployment", pod(securityContext=loose))
        here = [await tried(client, made) for made in (whole, one, none)]
        here.append(await tried(client, template, path_of("Deployment")))
        for made in (whole, one):
            made["metadata"]["namespace"] = "loose"
        there = [await tried(client, made, PODS.replace("default", "loose")) for made in (whole, one)]
        await client.delete("/api/v1/namespaces/loose")
        return here, there

    [whole, one, none, template], there = policing(plane, story)
    assert all("Unconfined lets a program mount" in said for said in (whole, one, template))
    assert "has no seccompProfile" in none
    assert ["", ""] == there


def test_a_pod_that_came_past_the_webhook_is_refused(plane):
    """
    Without the webhook's label and scheduler there is no share, so removing the webhook opens no door.
    """

    async def story(client):
        return await tried(client, pod()), await tried(
            client, pod() | {"metadata": {"name": "p", "labels": {SHARED: "true"}}}
        )

    unlabelled, elsewhere = policing(plane, story)
    assert "check that the webhook configuration is installed" in unlabelled
    assert "scheduled by gpushare-scheduler" in elsewhere


def test_good_pods_pass(plane):
    """
    And so do their templates, and whatever has no shares, forbidden elsewhere or not.
    """

    async def story(client):
        said = {name: await tried(client, admitted(good(change))) for name, change in GOOD}
        said |= {kind: await tried(client, workload(kind, pod()), path_of(kind)) for kind in TEMPLATED}
        loose = plain(spec(hostPID=True, volumes=[{"name": "v", "hostPath": {"path": "/dev"}}]))
        said["loose"] = await tried(client, loose)
        said["whole"] = await tried(client, plain(amount("nvidia.com/gpu", "1")))
        return said

    assert {} == {name: text for name, text in policing(plane, story).items() if text}


def test_records_stay_as_they_were_made(plane):
    """
    By every way in which a pod is updated; our accounts may, as far as they need to, and other labels are free.
    """

    async def story(client):
        said = {}
        async with stored(client, admitted(good(labelled(COUNT, "2")))):
            changes = {
                "shared": {"labels": {SHARED: None}},
                "count": {"labels": {COUNT: "1"}},
                "record": {"annotations": {"gpushare.dev/allocation": "{}"}},
                "vendor": {"annotations": {"scheduler.framework.gpushare.allocation": "{}"}},
                "reservation": {"annotations": {"gpushare.dev/consumed-reservation": "x"}},
                "devices": {"annotations": {"cdi-devices.noderesource.dev/pod": "- nvidia.com/gpu=all"}},
                "free": {"annotations": {"mine": "1"}},
            }
            for name, change in changes.items():
                for sub in ("", "/status"):
                    for user in ("someone", AUTOSCALER):
                        body, kind = {"metadata": change}, "application/merge-patch+json"
                        text = await sent(client, "PATCH", f"{PODS}/p{sub}", body, user=user, kind=kind)
                        said[name, sub, user] = text
        return said

    said = policing(plane, story)
    expected = {
        (name, sub, "someone")
        for name in ("shared", "count", "record", "vendor", "reservation")
        for sub in ("", "/status")
    }
    devices = {("devices", sub, "someone") for sub in ("", "/status")}
    assert expected == {key for key, text in said.items() if "of a pod are immutable" in text}
    assert devices == {key for key, text in said.items() if "devices from the container runtime" in text}
    assert expected | devices == {key for key, text in said.items() if text}


def test_our_scheduler_changes_nothing_of_a_pod_but_what_wakes_it(plane):
    """
    Its right to patch pods is not one to change images, labels, owners or what a kubelet says, in no namespace; what
    it does write it may. The kube-scheduler beside it has an account of its own, and states conditions.
    """
    merge, strategic = "application/merge-patch+json", "application/strategic-merge-patch+json"
    system = "/api/v1/namespaces/gpushare-system/pods"
    ours = plain(lambda p: p["metadata"].update(name="own", namespace="gpushare-system"))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "x"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}
    allowed = {
        "wakes": (f"{PODS}/p", {"metadata": {"annotations": {"gpushare.dev/requeued": "now"}}}),
        "wakes by status": (f"{PODS}/p/status", {"metadata": {"annotations": {"gpushare.dev/requeued": "now"}}}),
        "role": (f"{system}/own", {"metadata": {"labels": {"gpushare.dev/role": "leader"}}}),
        "no role": (f"{system}/own", {"metadata": {"labels": {"gpushare.dev/role": None}}}),
    }
    states = (f"{PODS}/p/status", {"status": {"conditions": [condition], "nominatedNodeName": "n1"}})
    image = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
    refused = {
        "image": (f"{PODS}/p", image),
        "image of a plain pod": (f"{PODS}/q", image),
        "image of our own": (f"{system}/own", image),
        "deadline": (f"{PODS}/p", {"spec": {"activeDeadlineSeconds": 9}}),
        "record of a plain pod": (f"{PODS}/q", {"metadata": {"annotations": {"gpushare.dev/allocation": "{}"}}}),
        "annotation": (f"{PODS}/p/status", {"metadata": {"annotations": {"free": "1"}}}),
        "annotation away": (f"{PODS}/p", {"metadata": {"annotations": {"mine": None}}}),
        "wakes a plain pod": (f"{PODS}/q", {"metadata": {"annotations": {"gpushare.dev/requeued": "now"}}}),
        "label": (f"{PODS}/p", {"metadata": {"labels": {"app": "x"}}}),
        "label away": (f"{PODS}/p", {"metadata": {"labels": {SHARED: None}}}),
        "role of another": (f"{PODS}/p", {"metadata": {"labels": {"gpushare.dev/role": "leader"}}}),
        "owner": (f"{PODS}/p", {"metadata": {"ownerReferences": [owner]}}),
        "finalizer": (f"{PODS}/p", {"metadata": {"finalizers": ["a.b/c"]}}),
        "phase": (f"{PODS}/p/status", {"status": {"phase": "Succeeded"}}),
        "condition": states,
    }

    async def story(client):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushare-system"}}
        with contextlib.suppress(RefusedError):
            await client.create(namespace)
        await client.until(bool, "/api/v1/namespaces/gpushare-system/serviceaccounts/default")
        mine = lambda p: p["metadata"].update(annotations={"mine": "1"})  # noqa: E731 (one change of a pod)
        async with stored(client, admitted(good(mine))), stored(client, plain() | {"metadata": {"name": "q"}}):
            await client.call("POST", system, ours)
            said, kube = {}, {}
            try:
                for name, (path, body) in (allowed | refused).items():
                    kind = strategic if "spec" in body or "status" in body else merge
                    said[name] = await sent(client, "PATCH", path, body, user=SCHEDULER, kind=kind)
                    kube[name] = await sent(client, "PATCH", path, body, user=KUBE_SCHEDULER, kind=kind)
                others = await sent(client, "PATCH", f"{PODS}/q", image, user="someone", kind=strategic)
            finally:
                await client.delete(f"{system}/own", force=True)
            return said, kube, others

    said, kube, others = policing(plane, story)
    assert "" == others
    assert {"condition", "no role"} == {name for name, text in kube.items() if not text}  # it has none
    assert {} == {name: said[name] for name in allowed if said[name]}
    assert {} == {name: said[name] for name in refused if "may only change label" not in said[name]}


def test_a_debugging_container_keeps_the_rules(plane):
    """
    Also without the webhook.
    """

    async def story(client):
        loose = {"spec": {"ephemeralContainers": [{"name": "d", "image": "x", "env": [{"name": "LD_PRELOAD"}]}]}}
        calm = {"spec": {"ephemeralContainers": [{"name": "d", "image": "x"}]}}
        kind = "application/merge-patch+json"
        async with stored(client, admitted(pod())), stored(client, plain() | {"metadata": {"name": "q"}}):
            return [
                await sent(client, "PATCH", f"{PODS}/{name}/ephemeralcontainers", body, kind=kind)
                for name, body in (("p", loose), ("p", calm), ("q", loose))
            ]

    refused, *fine = policing(plane, story)
    assert "would select cards" in refused
    assert ["", ""] == fine


@pytest.mark.parametrize("way", ["pods/p/binding", "bindings"])
def test_a_binding_with_records_is_our_schedulers_alone(plane, way):
    """
    This much holds without the webhook; whether a pod asks for shares no policy can look up.
    """

    async def story(client):
        path = f"/api/v1/namespaces/default/{way}"
        async with stored(client, admitted(pod())):
            return [
                await sent(client, "POST", path, binding(where, key), user=user)
                for where, key in (("annotations", "gpushare.dev/allocation"), ("labels", COUNT), ("labels", "free"))
                for user in ("someone", SCHEDULER)
            ]

    record, ours, label, ours_too, *free = policing(plane, story)
    assert all("which only gpushare-scheduler writes" in text for text in (record, label))
    assert ["", "", "", ""] == [ours, ours_too, *free]


def binding(where: str, key: str) -> dict:
    """A Binding that carries something."""
    meta = {"name": "p", where: {key: "1"}}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "n1"}}


def test_a_node_agent_keeps_to_its_own_node(plane):
    """
    Labels and status of the node that its token names; without the claim of none.
    """

    async def story(client):
        said = {}
        kind = "application/merge-patch+json"
        async with contextlib.AsyncExitStack() as stack:
            for name in ("pin-1", "pin-2"):
                await client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
                stack.push_async_callback(client.delete, f"/api/v1/nodes/{name}")
            for name in ("pin-1", "pin-2"):
                for claim in ("pin-1", None):
                    who = {"user": AGENT, "node": claim}
                    path, label = f"/api/v1/nodes/{name}", {"metadata": {"labels": {"gpushare.dev/card-units": "15"}}}
                    status = {"status": {"capacity": {"aliyun.com/gpu-count": "1"}}}
                    said |= {
                        (name, claim, "label"): await sent(client, "PATCH", path, label, kind=kind, **who),
                        (name, claim, "status"): await sent(
                            client, "PATCH", f"{path}/status", status, kind=kind, **who
                        ),
                    }
                said[name, "", "others"] = await sent(client, "PATCH", path, label, kind=kind, user="someone")
        return said

    said = policing(plane, story)
    allowed = {("pin-1", "pin-1", what) for what in ("label", "status")}
    allowed |= {(name, "", "others") for name in ("pin-1", "pin-2")}
    assert allowed == {key for key, text in said.items() if not text}
    assert all("may only write its own node" in text for key, text in said.items() if key not in allowed)


def test_a_real_token_names_the_node(plane):
    """
    The claim that the policies rely on comes with the token of a pod that runs there.
    """
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}

    async def story():
        async with connected(plane) as client:
            await client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "pin-3"}})
            on = plain(spec(nodeName="pin-3"))
            async with stored(client, on) as kept:
                bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": kept["metadata"]["uid"]}
                path = "/api/v1/namespaces/default/serviceaccounts/default/token"
                made = await client.call("POST", path, asked | {"spec": {"boundObjectRef": bound}})
                review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
                review["spec"] = {"token": made["status"]["token"]}
                run = await client.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
            await client.delete("/api/v1/nodes/pin-3")
            return run["status"]["user"]["extra"].get(CLAIM)

    assert ["pin-3"] == asyncio.run(story())
