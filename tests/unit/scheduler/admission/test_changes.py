# SPDX-License-Identifier: Apache-2.0
"""What admission says of changes: records, containers for debugging, bindings."""

from __future__ import annotations

import pytest
from support.admission_pods import COUNT, SHARED, annotated, good, plain, pod, spec
from support.admission_reviews import asked, respond, world

SYSTEM = "system:serviceaccount:gpushare-system:"
RECORDS = ("gpushare.dev/allocation", "gpushare.dev/consumed-reservation", "scheduler.framework.gpushare.allocation")
COMPUTE = ("gpushare.dev/online", "gpushare.dev/weight", "gpushare.dev/core-limit")


@pytest.mark.parametrize("sub", ["", "status", "resize", "ephemeralcontainers"])
@pytest.mark.parametrize(
    ("where", "key"), [*(("annotations", key) for key in RECORDS + COMPUTE), ("labels", SHARED), ("labels", COUNT)]
)
def test_records_and_labels_that_count_are_kept_by_all_but_us(where, key, sub):
    """
    Added, changed or removed, by whichever way a pod is updated.
    """
    bare, one, two = pod(), pod(), pod()
    one["metadata"][where], two["metadata"][where] = {key: "1"}, {key: "2"}
    changes = [(bare, one), (one, two), (one, bare)]

    strangers = [respond(asked(new, "UPDATE", old, sub=sub), world())["allowed"] for old, new in changes]
    ours = [
        respond(asked(new, "UPDATE", old, sub=sub, user=SYSTEM + name), world())["allowed"]
        for old, new in changes
        for name in ("gpushare-scheduler", "gpushare-node", "gpushare-autoscaler")
    ]
    same = respond(asked(one, "UPDATE", one, sub=sub), world())["allowed"]

    assert ([False] * 3, [True] * 9, True) == (strangers, ours, same)


DEVICES = ("devices.nri.io", "cdi-devices.noderesource.dev/pod", "cdi.k8s.io/x", "io.kubernetes.cri-o.Devices")


@pytest.mark.parametrize("sub", ["", "status", "resize", "ephemeralcontainers"])
@pytest.mark.parametrize("key", DEVICES)
def test_nobody_asks_the_container_runtime_for_devices_once_a_pod_is_admitted(key, sub):
    """
    Its annotations are read when a container starts: added or changed is refused, kept or removed is not.
    """
    bare, one, two, other = pod(), good(annotated(key, "1")), good(annotated(key, "2")), plain(annotated(key, "1"))

    answers = [
        respond(asked(new, "UPDATE", old, sub=sub), world())
        for old, new in ((bare, one), (one, two), (one, one), (one, bare), (plain(), other))
    ]

    assert [False, False, True, True, True] == [answer["allowed"] for answer in answers]
    assert "requests devices from the container runtime" in answers[0]["message"]


@pytest.mark.parametrize(
    ("container", "allowed"),
    [
        ({"name": "debug"}, True),
        ({"name": "debug", "securityContext": {"privileged": True}}, False),
        ({"name": "debug", "env": [{"name": "LD_PRELOAD", "value": ""}]}, False),
        ({"name": "debug", "volumeMounts": [{"name": "v", "mountPath": "/run/gpushare"}]}, False),
    ],
    ids=["plain", "privileged", "env", "mount"],
)
def test_a_debugging_container_keeps_the_rules_in_pods_with_shares(container, allowed):
    """
    In other pods it is none of our business.
    """
    shared, other = good(spec(ephemeralContainers=[container])), plain(spec(ephemeralContainers=[container]))

    answers = [
        respond(asked(new, "UPDATE", old, sub="ephemeralcontainers"), world())["allowed"]
        for old, new in ((pod(), shared), (plain(), other))
    ]

    assert [allowed, True] == answers


def bound(**metadata) -> dict:
    """A Binding."""
    return {"kind": "Binding", "metadata": {"name": "p"} | metadata, "target": {"kind": "Node", "name": "n1"}}


@pytest.mark.parametrize(("resource", "sub"), [("pods", "binding"), ("bindings", "")])
def test_pods_with_shares_are_bound_by_our_scheduler_alone(resource, sub):
    """
    A stranger may bind what asks for none; where nobody knows yet he is asked to come again.
    """
    known = {"shares": True, "plain": False}
    seen = world(is_shared=lambda namespace, name: known.get(name) if namespace == "default" else None)
    answers = {
        (name, user): respond(asked(bound(name=name), resource=resource, sub=sub, user=user), seen)
        for name in ("shares", "plain", "new")
        for user in ("someone", SYSTEM + "gpushare-scheduler", SYSTEM + "gpushare-node")
    }

    refused = {key for key, answer in answers.items() if not answer["allowed"]}
    assert {(name, user) for name in ("shares", "new") for user in ("someone", SYSTEM + "gpushare-node")} == refused
    assert "try again" in answers["new", "someone"]["message"]


@pytest.mark.parametrize("where", [*(("annotations", key) for key in RECORDS), ("labels", SHARED)])
def test_records_in_a_binding_are_our_schedulers_alone(where):
    """
    The API server would merge them into the pod.
    """
    kind, key = where
    forged = bound(**{kind: {key: "true"}})

    assert not respond(asked(forged, sub="binding"), world())["allowed"]
    assert respond(asked(forged, sub="binding", user=SYSTEM + "gpushare-scheduler"), world())["allowed"]
