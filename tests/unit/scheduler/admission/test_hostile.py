# SPDX-License-Identifier: Apache-2.0
"""
Whatever reaches the admission port gets an AdmissionReview in answer, and nothing unsound is let in.

Bodies out of nowhere, recorded reviews damaged in every place, and pods damaged until they are
sound again: what is admitted is acceptable, and our own patch changes no answer.
"""

from __future__ import annotations

import base64
import gc
import json
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.admission_cases import GOOD, REFUSED
from support.admission_pods import COUNT, MEM, amount, good, labelled, main_of, patched, pod, spec, workload
from support.budget import examples
from support.damage import damaged, places

from isolation.contract.codec import request_of
from isolation.contract.model import Mode, Request
from isolation.scheduler.admission.core.admission_review import MAX_BYTES
from isolation.scheduler.admission.core.node_sizes import NodeSize, NodeSizes
from isolation.scheduler.admission.core.webhook import ReviewContext, review

SAMPLES = Path(__file__).resolve().parents[4].parent / "shared" / "samples"
RECORDS = ("gpushare.dev/allocation", "gpushare.dev/consumed-reservation", "scheduler.framework.gpushare.allocation")
SHAPES = frozenset(NodeSize(mode, 15 << 30, 4) for mode in (Mode.CGPU, Mode.CORE_MEM))
WORLD = ReviewContext(lambda _namespace, _name: None, NodeSizes(SHAPES))
JUNK = (
    *(None, True, False, 0, -1, 1.5, 1e308, 10**400, -(10**30)),
    *("", "x", "8", "1e99", "\x00\x1b[31m", "9" * 5000, "true", "CREATE"),
    *([], {}, [None], [{}], {"a": None}, [[]], ["x"], {"": ""}),
)


def enveloped(thing, resource="pods", group="", **request) -> dict:
    """A review about an object."""
    body = {"uid": "u-1", "operation": "CREATE", "namespace": "default", "object": thing, "userInfo": {"username": "x"}}
    body["resource"] = {"group": group, "version": "v1", "resource": resource}
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body | request}


def recorded() -> list[dict]:
    """Recorded reviews."""
    return [json.loads(file.read_text())["body"] for file in sorted(SAMPLES.glob("admission-*.json"))]


def full_pod() -> dict:
    """A sound pod with something everywhere."""
    made = good(labelled(COUNT, "2", amount("aliyun.com/gpu-core.percentage", "30")))
    made["metadata"]["annotations"] = {"note": "x"}
    made["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "uid": "r-1", "controller": True}]
    main = main_of(made)
    main |= {"env": [{"name": "A", "value": "b"}], "envFrom": [{"prefix": "A_", "configMapRef": {"name": "c"}}]}
    main |= {"securityContext": {"privileged": False, "capabilities": {"add": ["SYS_PTRACE"]}}}
    main |= {"volumeMounts": [{"name": "v", "mountPath": "/data"}], "volumeDevices": []}
    made["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {"cpu": "1"}}}]
    made["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/srv"}}]
    need = {"key": "zone", "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [need]}, {}]}
    made["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return made


def respond(review_of) -> dict:
    """The response to a review or to raw bytes: always one, always well-formed."""
    body = review_of if isinstance(review_of, bytes) else json.dumps(review_of).encode()
    answer = json.loads(review(body, WORLD))
    assert ("admission.k8s.io/v1", "AdmissionReview") == (answer["apiVersion"], answer["kind"])
    response = answer["response"]
    assert isinstance(response["uid"], str)
    assert isinstance(response["allowed"], bool)
    assert response["allowed"] or (response["status"]["message"] and response["status"]["message"].isprintable())
    assert all(text.isprintable() and len(text) <= 250 for text in response.get("warnings", []))
    return response


def check_sound(made: dict, response: dict) -> None:
    """What an admitted pod must be, before and after the patch; a stranger's view of the rules."""
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    after = patched(made, patch)
    spec = after.get("spec") or {}
    listed = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    containers = [one for one in listed if isinstance(one, dict)]
    amounts = [(c.get("resources") or {}).get(part) or {} for c in containers for part in ("limits", "requests")]
    if not any(name.startswith("aliyun.com/") and value is not None for one in amounts for name, value in one.items()):
        assert [] == patch
        return
    assert isinstance(request_of(after["metadata"], after["spec"]), Request)
    assert ("gpushare-scheduler", "true") == (
        after["spec"]["schedulerName"],
        after["metadata"]["labels"]["gpushare.dev/shared"],
    )
    assert not set(RECORDS) & {key for key, value in (after["metadata"].get("annotations") or {}).items() if value}
    assert not after["spec"].get("nodeName")
    assert after["spec"].get("hostPID") in (None, False)
    assert all((c.get("securityContext") or {}).get("privileged") in (None, False) for c in containers)
    again = respond(enveloped(after))
    assert (True, False) == (again["allowed"], "patch" in again)


@pytest.mark.skipif(not recorded(), reason="the recorded payloads (../shared/samples) are not here")
def test_a_damaged_recorded_review_is_answered():
    """
    Every place by every junk; under the uid wherever it is still there.
    """
    for sound in recorded():
        for path in places(sound):
            for junk in JUNK if "managedFields" not in path else JUNK[:2]:
                response = respond(damaged(sound, path, junk))
                if len(path) > 1 and path[:2] != ("request", "uid"):
                    assert sound["request"]["uid"] == response["uid"]


def test_a_damaged_pod_is_refused_or_still_sound():
    """
    Every place of a pod that has everything, by every junk: never a wrong allow.
    """
    made = full_pod()
    assert respond(enveloped(made))["allowed"]
    for path in places(made):
        for junk in JUNK:
            broken = damaged(made, path, junk)
            response = respond(enveloped(broken))
            if response["allowed"] and isinstance(broken, dict):
                check_sound(broken, response)


@pytest.mark.parametrize("kind", ["Deployment", "CronJob", "PodTemplate"])
def test_a_damaged_workload_is_answered(kind):
    """
    At CREATE and at UPDATE, with the damage before or after.
    """
    resource, group = {"Deployment": ("deployments", "apps"), "CronJob": ("cronjobs", "batch")}.get(
        kind, ("podtemplates", "")
    )
    sound = workload(kind, full_pod(), labels={COUNT: "2"})
    assert respond(enveloped(sound, resource, group))["allowed"]
    for path in places(sound):
        for junk in JUNK[::3]:
            broken = damaged(sound, path, junk)
            respond(enveloped(broken, resource, group))
            respond(enveloped(broken, resource, group, operation="UPDATE", oldObject=sound))
            respond(enveloped(sound, resource, group, operation="UPDATE", oldObject=broken))


def test_a_damaged_update_or_binding_is_answered():
    """
    By each way in which a pod that exists is touched.
    """
    made = full_pod()
    for path in places(made):
        for junk in JUNK[::3]:
            broken = damaged(made, path, junk)
            for sub in ("", "status", "ephemeralcontainers"):
                respond(enveloped(broken, operation="UPDATE", oldObject=made, subResource=sub))
                respond(enveloped(made, operation="UPDATE", oldObject=broken, subResource=sub))
            respond(enveloped(broken, subResource="binding"))


LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=6)
)
KEYS = st.sampled_from(sorted({str(step) for path in places(enveloped(full_pod())) for step in path}))
ANYTHING = st.recursive(
    LEAF, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)), max_leaves=25
)


@settings(max_examples=examples(400), deadline=None)
@given(st.one_of(st.binary(max_size=200), ANYTHING.map(lambda value: json.dumps(value).encode())))
def test_bytes_out_of_nowhere_are_answered_and_denied(body):
    """
    Nothing that is no review is ever allowed.
    """
    assert not respond(body)["allowed"]


CHANGES = [change for _, change in GOOD] + [case.change for case in REFUSED]


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(CHANGES), max_size=4), st.data())
def test_any_mixture_of_changes_is_refused_or_sound(changes, data):
    """
    Harmless and harmful changes together, then a wound in two places.
    """
    made = pod()
    for change in changes:
        change(made)
    for _ in range(data.draw(st.integers(0, 2))):
        path = data.draw(st.sampled_from(list(places(made))))
        if path:
            made = damaged(made, path, data.draw(ANYTHING))
    response = respond(enveloped(made))
    if response["allowed"]:
        check_sound(made, response)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from([case for case in REFUSED if case.name != "scheduler"]), min_size=1, max_size=3))
def test_two_wrongs_make_no_right(cases):
    """
    A change that is refused by itself is refused beside any other.
    """
    made = pod()
    for case in cases:
        case.change(made)
    assert not respond(enveloped(made))["allowed"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 1_000_000,
        b'{"a":' * 300_000,
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","object":'
        + b"[" * 900
        + b"]" * 900
        + b"}}",
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u"}}',
        b'"\xff\xfe"',
        b'{"request":{"uid":"\\ud800"}}',
        b" " * (MAX_BYTES + 1),
        b"9" * 3_000_000,
    ],
    ids=[
        "empty",
        "null",
        "deep-list",
        "deep-map",
        "deep-enough",
        "no-request",
        "v1beta1",
        "latin",
        "half",
        "huge",
        "9",
    ],
)
def test_bodies_that_are_no_review_are_denied(body):
    """
    However long or deep.
    """
    assert not respond(body)["allowed"]


def test_a_deep_object_is_answered_at_every_depth():
    """
    Up to and beyond what the decoder takes; comparing old and new goes as deep.
    """
    for depth in range(50, 1200, 50):
        deep = json.loads("[" * depth + "]" * depth) if depth < 900 else None
        text = json.dumps(enveloped(workload("Deployment", pod()), "deployments", "apps", operation="UPDATE"))
        nest = "[" * depth + "]" * depth if deep is None else json.dumps(deep)
        body = text.replace('"replicas": 0', f'"replicas": {nest}').replace('"image": "none"', f'"image": {nest}')
        old = json.loads(text)["request"]["object"]
        both = body.replace('"userInfo"', f'"oldObject": {json.dumps(old)}, "userInfo"')
        for one in (body, both, body.replace('"operation": "UPDATE"', '"operation": "CREATE"')):
            respond(one.encode())


def test_the_last_of_two_equal_keys_is_the_one_that_is_judged():
    """
    As the API server reads JSON: what it would keep is what is looked at.
    """
    body = json.dumps(enveloped(pod())).replace('"schedulerName"', '"hostPID": false, "hostPID": true, "schedulerName"')

    assert not respond(body.encode())["allowed"]


MANY = {
    "containers": spec(containers=[{"name": f"c{i}", "resources": {"limits": {MEM: "1"}}} for i in range(40_000)]),
    "plain containers": spec(
        containers=[{"name": f"c{i}"} for i in range(100_000)] + [{"name": "x", "resources": {"limits": {MEM: "1"}}}]
    ),
    "terms": spec(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}] * 50_000
                }
            }
        }
    ),
    "volumes": spec(volumes=[{"name": f"v{i}", "hostPath": {"path": f"/srv/{i}"}} for i in range(50_000)]),
    "tolerations": spec(tolerations=[{"key": f"k{i}", "operator": "Exists"} for i in range(60_000)]),
    "variables": lambda p: main_of(p).update(env=[{"name": f"LD_{i}", "value": "x"} for i in range(80_000)]),
    "long path": spec(volumes=[{"name": "v", "hostPath": {"path": "/a" * 1_400_000}}]),
    "resources": lambda p: main_of(p)["resources"]["limits"].update({f"x.dev/{i}": "1" for i in range(100_000)}),
    "selector": spec(nodeSelector={f"k{i}": "v" for i in range(100_000)}),
}


def cpu_seconds(act):
    """
    CPU time of this thread: what others do on this machine does not count.

    Nor does what the other tests of this process have left in memory, which a collection would walk through.
    """
    gc.disable()
    try:
        began = time.thread_time()
        act()
        return time.thread_time() - began
    finally:
        gc.enable()


@pytest.mark.parametrize("what", MANY)
def test_three_megabytes_of_anything_do_not_hold_up_the_others(what):
    """
    One request of the largest size that the API server takes costs about what Python takes to read it as JSON, a
    fraction of a second: nothing in it is gone through once for each of its many things.
    """
    made = pod()
    MANY[what](made)
    body = json.dumps(enveloped(made)).encode()

    reading = min(cpu_seconds(lambda: json.loads(body)) for _ in range(3))
    tries = (cpu_seconds(lambda: respond(body)) for _ in range(3))
    assert any(took < 5 * reading for took in tries), (reading, len(body))


@pytest.mark.parametrize("inner", ["[]", '{"":1}', "0", '""'])
def test_what_would_be_large_in_memory_is_refused_before_it_is_read(inner):
    """
    Two bytes of JSON may take a hundred in memory; counting them takes none.
    """
    text = "[" + ",".join([inner] * (3_000_000 // (len(inner) + 1))) + "]"
    made = pod()
    made["spec"]["x"] = None
    body = json.dumps(enveloped(made)).replace('"x": null', f'"x": {text}').encode()
    tracemalloc.start()
    try:
        response = respond(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "too many values" in response["status"]["message"]
    assert peak < 1 << 20
