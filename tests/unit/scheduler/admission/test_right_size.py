# SPDX-License-Identifier: Apache-2.0
"""Right-sizing at pod creation: who gets less, by what, within which bounds; and who is left alone."""

from __future__ import annotations

import json

import pytest
from support.admission_pods import COUNT, MEM, annotated, labelled, main_of, patched, pod
from support.admission_reviews import asked, respond, world

from isolation.contract.codec.recommendations import (
    ProgramRecommendation,
    Recommended,
    decode_recommendations,
    encode_recommendations,
    workload_of,
)
from isolation.contract.quantity import GIB
from isolation.scheduler.admission.core.messages import ClusterUpdate, ClusterView

MODE = "gpushare.dev/right-size"
MIN, MAX = "gpushare.dev/right-size-min", "gpushare.dev/right-size-max"
SIZED = "gpushare.dev/right-sized"


def web(units, mode="initial", **annotations):
    """A Deployment's pod."""
    made = pod(units)
    made["metadata"] |= {
        "labels": {"pod-template-hash": "abc"},
        "annotations": {MODE: mode} | annotations,
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-abc", "uid": "r", "controller": True}
        ],
    }
    return made


def known(gib=5, **more):
    """What the autoscaler says of it."""
    given = {"namespace": "default", "owner": "Deployment/web", "container": "main", "model": "T4", "revision": "abc"}
    return Recommended.of([ProgramRecommendation(**(given | {"next_bytes": gib * GIB, "reason": "why"} | more))])


def units_after(made, recommended):
    """Of its container, and the annotation that says so."""
    answer = respond(asked(made), world(recommended=recommended))
    assert answer["allowed"], answer["message"]
    after = patched(made, answer["patch"])
    resources = main_of(after)["resources"]
    assert resources["limits"][MEM] == resources["requests"][MEM]
    return resources["limits"][MEM], json.loads(after["metadata"].get("annotations", {}).get(SIZED, "{}"))


@pytest.mark.parametrize("mode", ["initial", "live"])
def test_a_pod_that_wants_it_gets_what_is_recommended(mode):
    """
    With what it asked for and why on the pod, and as a warning to whoever creates it.
    """
    units, note = units_after(web("8", mode), known(5))

    assert units == "5"
    assert note == {"main": {"asked": 8, "got": 5, "why": "why"}}
    warnings = respond(asked(web("8", mode)), world(recommended=known(5)))["warnings"]
    assert any("5 aliyun.com/gpu-mem of 8" in text for text in warnings)


@pytest.mark.parametrize(
    ("made", "recommended"),
    [
        (web("8", "recommend"), known(5)),
        (web("8", "off"), known(5)),
        (pod("8"), known(5)),
        (web("8"), Recommended()),
        (web("4"), known(5)),
        (web("8"), known(5, namespace="other")),
        (web("8"), known(5, revision="def")),
        (web("8"), known(5, container="side")),
        (web("8"), known(0)),
    ],
    ids=[
        "recommend",
        "off",
        "not asked",
        "nothing known",
        "asks less",
        "namespace",
        "revision",
        "container",
        "abstained",
    ],
)
def test_every_other_pod_stays_as_it_is(made, recommended):
    """
    Never more than it asks for, and nothing by another workload's measurements.
    """
    before = main_of(made)["resources"]["limits"][MEM]

    assert units_after(made, recommended) == (before, {})


@pytest.mark.parametrize(
    ("bounds", "units"), [({MIN: "6"}, "6"), ({MAX: "4"}, "4"), ({MIN: "9"}, "8"), ({MIN: "2", MAX: "7"}, "5")]
)
def test_its_owner_bounds_it(bounds, units):
    """
    Least and most are units of one card.
    """
    assert units_after(web("8", **bounds), known(5))[0] == units


@pytest.mark.parametrize(("key", "value"), [(MODE, "yes"), (MIN, "0"), (MIN, "1.5"), (MAX, "x"), (MAX, "-3")])
def test_annotations_that_mean_nothing_are_refused(key, value):
    """
    In the pod and in its template, with what to write.
    """
    made = pod("8")
    annotated(key, value)(made)

    answer = respond(asked(made), world())

    assert not answer["allowed"]
    assert key in answer["message"]


def test_a_pod_on_two_cards_gets_it_on_each():
    """
    The recommendation is of one card.
    """
    made = web("16")
    labelled(COUNT, "2")(made)

    assert units_after(made, known(5))[0] == "10"


def test_the_answer_is_the_same_when_admission_is_asked_again():
    """
    Another webhook may have changed the pod: what was asked for at first stays written.
    """
    made = web("8")
    after = patched(made, respond(asked(made), world(recommended=known(5)))["patch"])

    assert units_after(after, known(5)) == ("5", {"main": {"asked": 8, "got": 5, "why": "why"}})


def test_what_is_published_reaches_admission_unless_it_is_old_or_a_dry_run():
    """
    Through the text, whose broken entries are left out.
    """
    one = ProgramRecommendation("default", "Deployment/web", "main", "T4", "abc", next_bytes=5 * GIB)
    view = ClusterView()

    def recommended(text, now):
        view.apply(ClusterUpdate(whole=True, synced=True, right_sizing=text))
        return bool(view.recommended(now).by_program)

    assert recommended(encode_recommendations([one], 100.0, applied=True), 200.0)
    assert not recommended(encode_recommendations([one], 100.0, applied=True), 100_000.0)
    assert not recommended(encode_recommendations([one], 100.0, applied=False), 200.0)
    assert not recommended("", 200.0)


def test_an_entry_out_of_range_is_not_used():
    """
    The ConfigMap is not trusted.
    """
    document = json.loads(encode_recommendations([ProgramRecommendation("n", "Deployment/w", "c", "m")], 1.0))
    good = document["programs"][0]
    document["programs"] = [good, good | {"next": -5}, good | {"next": "x"}, good | {"replicas": 10**12}, "no"]

    assert len(decode_recommendations(json.dumps(document)).programs) == 1


@pytest.mark.parametrize(
    ("owner", "labels", "workload"),
    [
        ("ReplicaSet/ns/web-abc", {"pod-template-hash": "abc"}, ("Deployment/web", "abc")),
        ("ReplicaSet/ns/web-abc", {}, ("ReplicaSet/web-abc", "")),
        ("StatefulSet/ns/db", {"controller-revision-hash": "db-1"}, ("StatefulSet/db", "db-1")),
        ("Job/ns/nightly-29412345", {}, ("CronJob/nightly", "")),
        ("Job/ns/once", {}, ("Job/once", "")),
        ("", {}, ("Pod/p", "")),
    ],
)
def test_the_workload_behind_a_pod(owner, labels, workload):
    """
    As people know it.
    """
    assert workload_of(owner, labels, "p") == workload
