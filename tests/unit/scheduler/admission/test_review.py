# SPDX-License-Identifier: Apache-2.0
"""What admission says of pods: all reasons at once, our additions and nothing else, remarks."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path

import pytest
from support.admission_cases import FORGED, GOOD, REFUSED
from support.admission_pods import (
    COUNT,
    MEM,
    SHARED,
    amount,
    beside,
    env,
    good,
    host,
    labelled,
    main_of,
    patched,
    plain,
    pod,
    spec,
    workload,
)
from support.admission_reviews import asked, respond, world

from isolation.scheduler.admission.core.webhook import review

RECORDED = sorted((Path(__file__).resolve().parents[5] / "shared" / "samples").glob("admission-*.json"))


@pytest.mark.parametrize("case", REFUSED + FORGED, ids=lambda case: case.name)
def test_a_pod_that_breaks_a_rule_is_refused_with_what_to_change(case):
    """
    Every rule, each by itself, under the uid of the question.
    """
    answer = respond(asked(case.made()), world())

    assert (False, "u-1", []) == (answer["allowed"], answer["uid"], answer["patch"])
    assert case.message in answer["message"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_template_is_refused_for_the_same_reasons(case):
    """
    Whoever applies a Deployment learns it there and not from pods that never come.
    """
    answer = respond(asked(workload("Deployment", case.made()), resource="deployments.apps"), world())

    assert not answer["allowed"]
    assert case.message in answer["message"]


@pytest.mark.parametrize(("name", "change"), GOOD, ids=lambda part: part if isinstance(part, str) else "")
def test_what_is_admitted_stays_admitted_and_unchanged(name, change):
    """
    The pod with our additions asks for nothing more; nothing but additions is made.
    """
    made = good(change)
    answer = respond(asked(made), world())
    assert (True, "") == (answer["allowed"], answer["message"]), name
    after = patched(made, answer["patch"])

    again = respond(asked(after), world())

    assert (True, []) == (again["allowed"], again["patch"])
    assert ("gpushare-scheduler", "true") == (after["spec"]["schedulerName"], after["metadata"]["labels"][SHARED])


@pytest.mark.parametrize(
    ("change", "units", "cards"),
    [
        (lambda _: None, "1", None),
        (labelled(COUNT, "4", amount(MEM, "8")), "1", "3"),
        (beside("initContainers", resources={"limits": {MEM: "7"}}), "6", None),
        (beside("containers", resources={"limits": {MEM: "7"}}), "8", None),
    ],
    ids=["one", "four-cards", "larger-init", "two-containers"],
)
def test_the_affinity_says_how_large_a_card_must_be(change, units, cards):
    """
    Units on one card, of the pod's effective request, and the number of cards where there are several.
    """
    terms = _terms(patched(good(change), respond(asked(good(change)), world())["patch"]))

    needs = {need["key"]: need["values"] for term in terms for need in term["matchExpressions"]}
    assert {"gpushare.dev/card-units": [units]} | ({"gpushare.dev/card-count": [cards]} if cards else {}) == needs


DEFAULT, LOCAL = {"type": "RuntimeDefault"}, {"type": "Localhost", "localhostProfile": "a.json"}


@pytest.mark.parametrize(
    ("whole", "own", "expected"),
    [
        ({}, None, DEFAULT),
        ({}, {"runAsUser": 7}, DEFAULT),
        ({"runAsUser": 7}, {}, DEFAULT),
        ({}, {"seccompProfile": LOCAL}, LOCAL),
        ({"seccompProfile": LOCAL}, None, None),
        ({"seccompProfile": {"type": "Unconfined"}}, None, None),
    ],
)
def test_containers_that_name_no_seccomp_profile_get_the_runtimes_own(whole, own, expected):
    """
    What the pod or the container names stays; init containers too. Whether it may be Unconfined is the policies' word.
    """
    made = good(lambda _: None)
    made["spec"]["securityContext"] = whole
    made["spec"]["initContainers"] = [{"name": "first", "image": "i"}]
    for container in (*made["spec"]["initContainers"], *made["spec"]["containers"]):
        if own is not None:
            container["securityContext"] = dict(own)

    after = patched(made, respond(asked(made), world())["patch"])["spec"]

    found = [one.get("securityContext", {}) for one in (*after["initContainers"], *after["containers"])]
    assert [expected] * len(found) == [one.get("seccompProfile") for one in found]
    assert {(own or {}).get("runAsUser")} == {one.get("runAsUser") for one in found}
    assert whole == after["securityContext"]


def _terms(made):
    required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return required["nodeSelectorTerms"]


def test_every_alternative_gets_the_affinity_and_one_that_matches_nothing_still_does():
    """
    An empty term matches no node; with a requirement in it, it would begin to match.
    """
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    before = [{"matchExpressions": [zone]}, {"matchFields": [field]}, {}, {"matchExpressions": []}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": before}}
    made = pod(affinity={"nodeAffinity": required})

    after = _terms(patched(made, respond(asked(made), world())["patch"]))

    need = {"key": "gpushare.dev/card-units", "operator": "Gt", "values": ["1"]}
    assert [
        {"matchExpressions": [zone, need]},
        {"matchFields": [field], "matchExpressions": [need]},
        {},
        {"matchExpressions": []},
    ] == after


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ({"podAffinity": {}}, "podAffinity"),
        ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, "nodeAffinity"),
        ({"nodeAffinity": None}, "nodeAffinity"),
    ],
    ids=["pod-affinity", "preferred", "null"],
)
def test_other_affinity_is_kept(before, kept):
    """
    Only what is missing is added.
    """
    made = pod(affinity=before)

    after = patched(made, respond(asked(made), world())["patch"])["spec"]["affinity"]

    assert set(before[kept] or {}) <= set(after[kept])
    assert "nodeAffinity" in after


def test_all_reasons_are_reported_at_once():
    """
    Nobody mends one only to learn of the next; a thousand do not fill the screen.
    """
    made = good(labelled(COUNT, "3"))
    made["spec"]["hostPID"] = True
    main_of(made)["env"] = [{"name": f"LD_{i}", "value": "x"} for i in range(1000)]

    message = respond(asked(made), world())["message"]

    assert all(part in message for part in ("does not divide", "hostPID", "LD_1", "more"))
    assert len(message) <= 2000


@pytest.mark.parametrize(
    "made",
    [
        plain(),
        plain(host("/dev")),
        plain(spec(hostPID=True, nodeName="n1", schedulerName="volcano")),
        plain(env("NVIDIA_VISIBLE_DEVICES")),
        plain(amount("nvidia.com/gpu", "2")),
    ],
    ids=["plain", "host", "loose", "env", "whole-cards"],
)
def test_a_pod_without_shares_is_none_of_our_business(made):
    """
    Neither refused nor changed nor remarked upon.
    """
    assert {"uid": "u-1", "allowed": True} == json.loads(review(asked(made), world()))["response"]


def test_a_runtime_that_may_not_be_isolated_is_a_remark():
    """
    Only the node can tell what a runtime class is.
    """
    answer = respond(asked(good(spec(runtimeClassName="kata"))), world())

    assert answer["allowed"]
    assert "only with runc and crun" in answer["warnings"][0]


def test_the_number_of_cards_written_as_an_amount_is_a_remark():
    """
    It is a label: as an amount it would silently give one card.
    """
    answer = respond(asked(good(amount(COUNT, "2"))), world())

    assert answer["allowed"]
    assert "set it as a label of the pod" in answer["warnings"][0]
    assert "warnings" not in respond(asked(good(labelled(COUNT, "2"))), world())


def test_an_existing_scheduler_keeps_its_pods():
    """
    Where it asks our extender, its name is the one that is set and accepted.
    """
    stays = respond(asked(pod()), world(scheduler="default-scheduler"))["patch"]
    other = respond(asked(pod()), world(scheduler="volcano"))["patch"]

    assert "/spec/schedulerName" not in {change["path"] for change in stays}
    assert {"op": "add", "path": "/spec/schedulerName", "value": "volcano"} in other
    assert respond(asked(good(spec(schedulerName="volcano"))), world(scheduler="volcano"))["allowed"]


@pytest.mark.skipif(not RECORDED, reason="the recorded payloads (../shared/samples) are not here")
def test_recorded_reviews_are_answered():
    """
    As a real API server wrote them: pods with shares are admitted, the rest passes.
    """
    for file in RECORDED:
        body = json.loads(file.read_text())["body"]
        answer = respond(json.dumps(body).encode(), world())
        assert (body["request"]["uid"], True) == (answer["uid"], answer["allowed"]), file.name
        made = "CREATE" == body["request"]["operation"] and "subResource" not in body["request"]
        assert made == bool(answer["patch"]), file.name


def test_a_pod_without_shares_costs_little_more_than_reading_it():
    """
    A few hundredths of a millisecond are usual, three times what its JSON takes; the middle of 200, in CPU time.
    """
    body, here = asked(plain(*[annotated_noise(i) for i in range(20)])), world()

    assert middle_cpu_seconds(lambda: review(body, here)) < 12 * middle_cpu_seconds(lambda: json.loads(body))


def middle_cpu_seconds(act):
    """Of 200 times; what others do on this machine does not count."""
    took = []
    for _ in range(200):
        began = time.thread_time()
        act()
        took.append(time.thread_time() - began)
    return sorted(took)[100]


def annotated_noise(i):
    """One more annotation."""
    return lambda made: made["metadata"].setdefault("annotations", {}).update({f"note-{i}": "x" * 100})


def test_the_question_is_left_as_it_was():
    """
    Judging changes nothing: the same body gets the same answer.
    """
    made = good(labelled(COUNT, "2"))
    before = copy.deepcopy(made)
    first = review(asked(made), world())

    assert (first, before) == (review(asked(made), world()), made)
