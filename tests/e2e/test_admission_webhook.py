# SPDX-License-Identifier: Apache-2.0
"""Our admission webhook, asked by a real API server: what it lets nobody do."""

from __future__ import annotations

import contextlib

import pytest
from e2e.admission_harness import PODS, tried
from e2e.apiclient import connected
from e2e.webhook_stories import answer, asking, binding, path_of, stored
from support.admission_cases import FORGED, REFUSED
from support.admission_pods import COUNT, SHARED, TEMPLATED, good, labelled, plain, pod, workload
from support.waiting import soon

BINDER = "system:serviceaccount:gpushare-system:gpushare-scheduler"


def test_each_bad_pod_is_refused_with_what_to_change(plane):
    """
    As pods, and as templates of every kind; by the webhook, in its own words.
    """

    async def story(client, _stand):
        pods = {case.name: await tried(client, case.made()) for case in REFUSED + FORGED}
        kinds = {kind: await tried(client, workload(kind, REFUSED[0].made()), path_of(kind)) for kind in TEMPLATED}
        deployments = {
            case.name: await tried(client, workload("Deployment", case.made()), path_of("Deployment"))
            for case in REFUSED
        }
        return pods, kinds, deployments

    pods, kinds, deployments = asking(plane, story)
    by_name = {case.name: case.message for case in REFUSED + FORGED}
    for said in (pods, deployments):
        wrong = {name: text for name, text in said.items() if unescaped(by_name[name]) not in unescaped(text)}
        assert {} == wrong
    assert all("denied the request" in text for text in pods.values())
    assert [] == [kind for kind, text in kinds.items() if "request 6 or 9" not in text]


def unescaped(text: str) -> str:
    """Without quotes, which JSON writes its own way."""
    return text.replace("\\", "").replace('"', "")


def test_records_and_labels_stay_as_they_were_made(plane):
    """
    By merge patch and through the status, for strangers; ours may.
    """

    async def story(client, _stand):
        async with (
            stored(client, good(labelled(COUNT, "2"))),
            granted(client, BINDER, "pods", "pods/status"),
            connected(plane, BINDER) as ours,
        ):
            path = f"{PODS}/p"
            changes = {
                "shared": {"labels": {SHARED: None}},
                "count": {"labels": {COUNT: "1"}},
                "record": {"annotations": {"gpushare.dev/allocation": "{}"}},
                "devices": {"annotations": {"devices.nri.io": "- path: /dev/nvidia0"}},
                "other": {"annotations": {"mine": "1"}},
            }
            said = {}
            for name, change in changes.items():
                for where in (path, f"{path}/status"):
                    said[name, where] = await answer(client.merge(where, {"metadata": change}, dryRun="All"))
            said["ours", path] = await answer(ours.merge(path, {"metadata": changes["record"]}, dryRun="All"))
            return said

    said = asking(plane, story)
    assert {"shared", "count", "record"} == {
        name for (name, _), text in said.items() if "of a pod is immutable" in text
    }
    assert {"devices"} == {name for (name, _), text in said.items() if "devices from the container runtime" in text}
    assert {"other", "ours"} == {name for (name, _), text in said.items() if not text}


@contextlib.asynccontextmanager
async def granted(client, user: str, *resources: str):
    """Every right to these, for a while."""
    version, name = "rbac.authorization.k8s.io/v1", user.replace(":", "-")
    rules = [{"apiGroups": [""], "resources": list(resources), "verbs": ["*"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    made = {"apiVersion": version, "metadata": {"name": name}}
    await client.create(made | {"kind": "ClusterRole", "rules": rules})
    await client.create(made | {"kind": "ClusterRoleBinding", "roleRef": role, "subjects": subjects})
    plural, _, sub = resources[0].partition("/")
    about = {"verb": "create", "resource": plural, "subresource": sub, "namespace": "default"}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    review["spec"] = {"user": user, "resourceAttributes": about}

    async def known():
        said = await client.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return said["status"]["allowed"]

    try:
        await soon(known)  # the authorizer reads roles from a cache
        yield
    finally:
        for plural in ("clusterrolebindings", "clusterroles"):
            await client.delete(f"/apis/{version}/{plural}/{name}")


def test_a_debugging_container_keeps_the_rules(plane):
    """
    A privileged one beside shares is refused, a plain one is not, nor any beside none.
    """

    async def story(client, _stand):
        loose = {"name": "debug", "image": "none", "securityContext": {"privileged": True}}
        calm = {"name": "debug", "image": "none"}
        said = []
        async with stored(client, pod()), stored(client, plain() | {"metadata": {"name": "q"}}):
            for name, container in (("p", loose), ("p", calm), ("q", loose)):
                path = f"{PODS}/{name}/ephemeralcontainers"
                change = {"spec": {"ephemeralContainers": [container]}}
                said.append(await answer(client.merge(path, change, dryRun="All")))
        return said

    refused, *fine = asking(plane, story)
    assert "remove privileged" in refused
    assert ["", ""] == fine


@pytest.mark.parametrize("way", ["pods/{}/binding", "bindings"])
def test_pods_with_shares_are_bound_by_our_scheduler_alone(plane, way):
    """
    Whichever way it is asked: a stranger binds only what has no shares, and never with records.
    """

    async def story(client, stand):
        names = ("ours", "other", "unknown")
        stand.shared |= {("default", "ours"): True, ("default", "unknown"): None}
        said = {}
        async with contextlib.AsyncExitStack() as stack:
            for name in names:
                made = pod() if name == "ours" else plain()
                made["metadata"]["name"] = name
                made["spec"]["schedulerName"] = "gpushare-scheduler" if name == "ours" else "nobody"
                await stack.enter_async_context(stored(client, made))
            binder = await stack.enter_async_context(connected(plane, BINDER))
            await stack.enter_async_context(granted(client, BINDER, "pods/binding", "bindings"))

            async def tell(who, name, **notes):
                path = f"/api/v1/namespaces/default/{way.format(name)}"
                return await answer(who.call("POST", path, binding(name, **notes)))

            record = {"gpushare.dev/allocation": "{}"}
            said["stranger"] = await tell(client, "ours")
            said["unknown"] = await tell(client, "unknown")
            said["forged"] = await tell(client, "other", **record)
            said["other"] = await tell(client, "other")
            said["ours"] = await tell(binder, "ours", **record)
            kept = await client.get(f"{PODS}/ours")
        return said, kept

    said, kept = asking(plane, story)
    assert "only gpushare-scheduler may bind it" in said["stranger"]
    assert "try again" in said["unknown"]
    assert "bind without it" in said["forged"]
    assert ("", "") == (said["other"], said["ours"])
    assert ("n1", "{}") == (kept["spec"]["nodeName"], kept["metadata"]["annotations"]["gpushare.dev/allocation"])
