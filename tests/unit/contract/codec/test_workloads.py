# SPDX-License-Identifier: Apache-2.0
"""
The pods that a Kubernetes object would make.
"""

from __future__ import annotations

import pytest

from isolation.contract.codec import CodecError, Planned, Skipped, objects_in, pods_of
from isolation.contract.model import NAME_FIELD, Refusal, Request, Requirement
from isolation.contract.quantity import GIB

COUNT = "aliyun.com/gpu-count"


def template(amount=8, labels=None, **spec):
    """A pod template that asks for memory of cards (none: 0)."""
    limits = {"aliyun.com/gpu-mem": amount} if amount else {}
    container = {"name": "main", "resources": {"limits": limits}}
    return {"metadata": {"labels": labels or {}}, "spec": {"containers": [container], **spec}}


def workload(kind, spec, api="apps/v1", **metadata):
    """One object."""
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "web", **metadata}, "spec": spec}


def pods_in(document):
    """What every object of a document makes, with the object's path."""
    return [(path, pods_of(at.value)) for path, at in objects_in(document)]


def names(outcome):
    """The names of the pods."""
    assert isinstance(outcome, tuple), outcome
    return [pod.name for pod in outcome]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (workload("Deployment", {"replicas": 2, "template": template()}), ["web-0", "web-1"]),
        (workload("Deployment", {"template": template()}), ["web-0"]),
        (workload("Deployment", {"replicas": None, "template": template()}), ["web-0"]),
        (workload("Deployment", {"replicas": 0, "template": template()}), []),
        (workload("ReplicaSet", {"replicas": 2, "template": template()}), ["web-0", "web-1"]),
        (workload("StatefulSet", {"replicas": 2, "template": template()}), ["web-0", "web-1"]),
        (
            workload("StatefulSet", {"replicas": 2, "ordinals": {"start": 5}, "template": template()}),
            ["web-5", "web-6"],
        ),
        (workload("ReplicationController", {"replicas": 1, "template": template()}, "v1"), ["web-0"]),
        (workload("Job", {"template": template()}, "batch/v1"), ["web-0"]),
        (workload("Job", {"parallelism": 3, "template": template()}, "batch/v1"), ["web-0", "web-1", "web-2"]),
        (workload("Job", {"parallelism": 3, "completions": 2, "template": template()}, "batch/v1"), ["web-0", "web-1"]),
        (workload("Job", {"parallelism": 0, "template": template()}, "batch/v1"), []),
        (workload("CronJob", {"jobTemplate": {"spec": {"template": template()}}}, "batch/v1"), ["web-0"]),
        (workload("Pod", template()["spec"], "v1"), ["web"]),
        ({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "web"}, "template": template()}, ["web"]),
    ],
)
def test_each_workload_makes_the_pods_that_run_at_one_time(made, expected):
    """In order, under the names a reader expects."""
    assert expected == names(pods_of(made))


def test_replicas_are_alike_and_share_their_owner():
    """So that spreading can keep them apart."""
    one, two = pods_of(workload("Deployment", {"replicas": 2, "template": template()}, namespace="ns"))
    assert one.request == two.request
    assert "Deployment/ns/web" == one.request.owner
    assert "ns/web-0" == one.key


def test_a_pod_without_a_controller_has_no_owner():
    """Nothing to keep apart."""
    (pod,) = pods_of(workload("Pod", template()["spec"], "v1"))
    assert ("", "web", ("main",)) == (pod.request.owner, pod.key, pod.containers)


@pytest.mark.parametrize(
    ("own", "templates", "cards"),
    [({}, {}, 1), ({}, {COUNT: "2"}, 2), ({COUNT: "4"}, {}, 4), ({COUNT: "4"}, {COUNT: "2"}, 2)],
)
def test_the_count_label_may_stand_on_workload_or_template(own, templates, cards):
    """The template's wins."""
    (pod,) = pods_of(workload("StatefulSet", {"template": template(8, templates)}, labels=own))
    assert (cards, 8 * GIB // cards) == (pod.request.cards, pod.request.card_bytes)


def test_a_preset_node_becomes_a_requirement():
    """Only that node is tried."""
    (pod,) = pods_of(workload("Pod", template(nodeName="n7")["spec"], "v1"))
    assert ("n7", ((Requirement(NAME_FIELD, "In", ("n7",)),),)) == (pod.node, pod.request.rules.terms)


def test_a_generated_name_is_shown_without_its_dash():
    """The API server would complete it."""
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "web-"}, "spec": template()["spec"]}
    assert ["web"] == names(pods_of(made))


def test_a_refusal_reaches_every_replica():
    """Each pod would be refused."""
    outcome = pods_of(workload("Deployment", {"replicas": 2, "template": template(8, {COUNT: "3"})}))
    assert [True, True] == [isinstance(pod.request, Refusal) for pod in outcome]


def test_a_daemon_set_is_refused_if_it_asks_for_cards_and_skipped_otherwise():
    """One pod per node is no placement."""
    (pod,) = pods_of(workload("DaemonSet", {"template": template()}))
    assert "use a Deployment" in pod.request.reason
    assert isinstance(pods_of(workload("DaemonSet", {"template": template(0)})), Skipped)


@pytest.mark.parametrize(
    "made",
    [
        workload("Service", {}, "v1"),
        workload("Job", {}, "batch.volcano.sh/v1alpha1"),
        workload("Deployment", {}, "example.com/v1"),
        workload("Job", {"suspend": True, "template": template()}, "batch/v1"),
        workload("CronJob", {"suspend": True, "jobTemplate": {}}, "batch/v1"),
    ],
)
def test_what_makes_no_pod_is_skipped_by_name(made):
    """The same kind of another group is another thing."""
    outcome = pods_of(made)
    assert isinstance(outcome, Skipped)
    assert f"{made['kind']} web" == outcome.what


@pytest.mark.parametrize(
    ("api", "kind", "meant"),
    [
        ("v1", "pod", "apiVersion: v1 and kind: Pod"),
        ("v1", "Deployment", "apiVersion: apps/v1 and kind: Deployment"),
        ("extensions/v1beta1", "Deployment", "apiVersion: apps/v1 and kind: Deployment"),
        ("apps/v1", "Statefulset", "apiVersion: apps/v1 and kind: StatefulSet"),
        ("apps/v1", "Job", "apiVersion: batch/v1 and kind: Job"),
    ],
)
def test_a_misspelt_workload_is_an_error_with_the_right_spelling(api, kind, meant):
    """The API server would turn it away; passed over in silence it would look placed."""
    with pytest.raises(CodecError, match=f"write {meant}"):
        pods_of(workload(kind, {"template": template()}, api))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_not_placed_again(phase):
    """As in the output of `kubectl get pods -o yaml`."""
    outcome = pods_of({**workload("Pod", template()["spec"], "v1"), "status": {"phase": phase}})
    assert Skipped("Pod web", "is skipped: it has ended and uses no resources") == outcome


def test_lists_count_as_their_items():
    """Nested, typed and raw lists as the API server writes them."""
    pod = workload("Pod", template()["spec"], "v1")
    bare = {"metadata": {"name": "raw"}, "spec": template()["spec"]}
    inner = {"apiVersion": "v1", "kind": "PodList", "items": [bare]}
    found = pods_in({"apiVersion": "v1", "kind": "List", "items": [pod, inner]})
    assert [("items", 0), ("items", 1, "items", 0)] == [path for path, _ in found]
    assert ["web", "raw"] == [pod.name for _, outcome in found for pod in outcome]


@pytest.mark.parametrize(
    ("made", "path"),
    [
        ({}, ""),
        ({"kind": "Pod"}, ""),
        ([], ""),
        (workload("Deployment", {}), "spec.template.spec"),
        (workload("Deployment", {"replicas": "2", "template": template()}), "spec.replicas"),
        (workload("Deployment", {"replicas": -1, "template": template()}), "spec.replicas"),
        (workload("Deployment", {"replicas": 10**9, "template": template()}), "spec.replicas"),
        (workload("Deployment", {"template": {"spec": {"containers": 3}}}), "spec.template.spec.containers"),
        (workload("Pod", template()["spec"], "v1", name="Up"), "metadata.name"),
        (workload("Pod", template()["spec"], "v1", name="\x1b[31mred"), "metadata.name"),
        ({"apiVersion": "v1", "kind": "List", "items": [1]}, "items[0]"),
    ],
)
def test_a_wrong_shape_is_an_error_that_says_where(made, path):
    """With the path within the document."""
    with pytest.raises(CodecError) as caught:
        pods_in(made)
    assert str(caught.value).startswith(f"{path}: " if path else "")
    assert "\x1b" not in str(caught.value)


def test_lists_within_lists_end():
    """A reader with a stack of its own cannot be exhausted."""
    nested = workload("Pod", template()["spec"], "v1")
    for _ in range(20):
        nested = {"apiVersion": "v1", "kind": "List", "items": [nested]}
    with pytest.raises(CodecError, match="deep"):
        pods_in(nested)


def test_every_planned_pod_has_a_request_or_a_reason():
    """The two outcomes, and no third."""
    (pod,) = pods_of(workload("Pod", template()["spec"], "v1"))
    assert isinstance(pod, Planned)
    assert isinstance(pod.request, Request)
