"""What admission says of pods, of what makes pods, and of changes to them."""

from __future__ import annotations

import base64
import copy
import json
import time
from pathlib import Path

import pytest
from admission_cases import (
    COUNT,
    FORGED,
    GOOD,
    MEM,
    REFUSED,
    SHARED,
    TEMPLATED,
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
    template_of,
    workload,
)
from builders import node

from isolation.contract.model import Mode
from isolation.scheduler.admission.fleet import Fleet, fleet_of
from isolation.scheduler.admission.review import World, review

SAMPLES = Path(__file__).resolve().parents[2].parent / "shared" / "samples"
SYSTEM = "system:serviceaccount:gpushare-system:"
RECORDS = ("gpushare.dev/allocation", "gpushare.dev/reservation", "scheduler.framework.gpushare.allocation")


def world(**given) -> World:
    """A cluster that knows no pods."""
    return World(**{"is_shared": lambda _namespace, _name: False} | given)


def asked(thing, operation="CREATE", old=None, *, resource="pods", sub="", user="someone", **request) -> bytes:
    """A review as the API server sends it."""
    plural, _, group = resource.partition(".")
    body = {
        "uid": "u-1",
        "kind": {"group": group, "version": "v1", "kind": (thing or {}).get("kind", "")},
        "resource": {"group": group, "version": "v1", "resource": plural},
        "operation": operation,
        "userInfo": {"username": user},
        "namespace": "default",
        "object": thing,
        "oldObject": old,
        "dryRun": False,
    }
    if sub:
        body["subResource"] = sub
    return json.dumps(
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body | request}
    ).encode()


def told(body: bytes, world: World) -> dict:
    """The response, with its patch decoded."""
    answer = json.loads(review(body, world))
    assert ("admission.k8s.io/v1", "AdmissionReview") == (answer["apiVersion"], answer["kind"])
    response = answer["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return response | {"patch": patch, "message": response.get("status", {}).get("message", "")}


@pytest.mark.parametrize("case", REFUSED + FORGED, ids=lambda case: case.name)
def test_a_pod_that_breaks_a_rule_is_refused_with_what_to_change(case):
    """
    Every rule, each by itself, under the uid of the question.
    """
    answer = told(asked(case.made()), world())

    assert (False, "u-1", []) == (answer["allowed"], answer["uid"], answer["patch"])
    assert case.told in answer["message"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_template_is_refused_for_the_same_reasons(case):
    """
    Whoever applies a Deployment learns it there and not from pods that never come.
    """
    answer = told(asked(workload("Deployment", case.made()), resource="deployments.apps"), world())

    assert not answer["allowed"]
    assert case.told in answer["message"]


@pytest.mark.parametrize(("name", "change"), GOOD, ids=lambda part: part if isinstance(part, str) else "")
def test_what_is_admitted_stays_admitted_and_unchanged(name, change):
    """
    The pod with our additions asks for nothing more; nothing but additions is made.
    """
    made = good(change)
    answer = told(asked(made), world())
    assert (True, "") == (answer["allowed"], answer["message"]), name
    after = patched(made, answer["patch"])

    again = told(asked(after), world())

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
    terms = _terms(patched(good(change), told(asked(good(change)), world())["patch"]))

    needs = {need["key"]: need["values"] for term in terms for need in term["matchExpressions"]}
    assert {"gpushare.dev/card-units": [units]} | ({"gpushare.dev/card-count": [cards]} if cards else {}) == needs


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

    after = _terms(patched(made, told(asked(made), world())["patch"]))

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

    after = patched(made, told(asked(made), world())["patch"])["spec"]["affinity"]

    assert set(before[kept] or {}) <= set(after[kept])
    assert "nodeAffinity" in after


def test_all_reasons_are_told_at_once():
    """
    Nobody mends one only to learn of the next; a thousand do not fill the screen.
    """
    made = good(labelled(COUNT, "3"))
    made["spec"]["hostPID"] = True
    main_of(made)["env"] = [{"name": f"LD_{i}", "value": "x"} for i in range(1000)]

    message = told(asked(made), world())["message"]

    assert all(part in message for part in ("does not split", "hostPID", "LD_1", "more"))
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


@pytest.mark.parametrize("kind", TEMPLATED)
def test_every_kind_of_workload_is_looked_into(kind):
    """
    A sound template passes as it is; a bad one does not; without a change it always passes.
    """
    resource = f"{TEMPLATED[kind][1]}.{TEMPLATED[kind][0].rpartition('/')[0]}".rstrip(".")
    sound, bad = workload(kind, pod()), workload(kind, good(spec(hostPID=True)))

    answers = [
        told(asked(sound, resource=resource), world()),
        told(asked(bad, resource=resource), world()),
        told(asked(bad, "UPDATE", sound, resource=resource), world()),
        told(asked(bad, "UPDATE", bad, resource=resource), world()),
        told(asked(None, "DELETE", bad, resource=resource), world()),
    ]

    assert [True, False, False, True, True] == [answer["allowed"] for answer in answers]
    assert [] == answers[0]["patch"]


@pytest.mark.parametrize("kind", TEMPLATED)
def test_a_count_on_the_workload_alone_reaches_its_pods(kind):
    """
    The label is copied to the template, with a remark; the template's own wins.
    """
    resource = f"{TEMPLATED[kind][1]}.{TEMPLATED[kind][0].rpartition('/')[0]}".rstrip(".")
    made = workload(kind, pod("8"), labels={COUNT: "4"})
    answer = told(asked(made, resource=resource), world())
    own = workload(kind, good(labelled(COUNT, "2")), labels={COUNT: "4"})
    uneven = workload(kind, pod("8"), labels={COUNT: "3"})
    del template_of(uneven)["metadata"]["labels"]
    bare = workload(kind, pod("8"), labels={COUNT: "4"})
    del template_of(bare)["metadata"]
    bare_answer = told(asked(bare, resource=resource), world())

    assert "4" == template_of(patched(made, answer["patch"]))["metadata"]["labels"][COUNT]
    assert "4" == template_of(patched(bare, bare_answer["patch"]))["metadata"]["labels"][COUNT]
    assert "copied to the pod template" in answer["warnings"][0]
    assert [] == told(asked(own, resource=resource), world())["patch"]
    assert "does not split" in told(asked(uneven, resource=resource), world())["message"]


def test_a_daemon_set_of_shares_for_all_nodes_is_a_remark():
    """
    Its pods for nodes without cards would wait for ever; with a selector it is what it says.
    """
    everywhere = told(asked(workload("DaemonSet", pod()), resource="daemonsets.apps"), world())
    chosen = workload("DaemonSet", good(spec(nodeSelector={"cards": "yes"})))

    assert "add a nodeSelector" in everywhere["warnings"][0]
    assert "warnings" not in told(asked(chosen, resource="daemonsets.apps"), world())


FLEET = [node(cards=4, size=15), node(cards=1, size=79), node(cards=2, size=23, mode=Mode.CORE_MEM)]


@pytest.mark.parametrize(
    ("change", "told_so"),
    [
        (amount(MEM, "80"), "the largest here offers 79"),
        (labelled(COUNT, "5", amount(MEM, "5")), "the largest here has 4"),
        (labelled(COUNT, "2", amount(MEM, "40")), "on a node of 2 cards offers 15"),
        (lambda p: (amount(MEM, "30")(p), amount("aliyun.com/gpu-core.percentage", "5")(p)), "offers 23"),
    ],
    ids=["too-large", "too-many", "too-large-for-several", "compute"],
)
def test_what_no_node_could_ever_hold_is_refused_unless_the_fleet_may_grow(change, told_so):
    """
    A pool that is empty now may bring larger cards: there it is a remark, since a refused pod makes no pool grow.
    """
    closed = told(asked(good(change)), world(fleet=fleet_of(FLEET)))
    open_ = told(asked(good(change)), world(fleet=fleet_of(FLEET, may_grow=True)))
    unknown = told(asked(good(change)), world(fleet=Fleet()))

    assert (False, True, True) == (closed["allowed"], open_["allowed"], unknown["allowed"])
    assert told_so in closed["message"]
    assert told_so in open_["warnings"][0]
    assert "warnings" not in unknown


def test_shares_where_all_nodes_serve_whole_cards_are_refused():
    """
    And the label that would change it is named.
    """
    exclusive = world(fleet=fleet_of([node(mode=Mode.EXCLUSIVE), node(cards=0, mode=Mode.NONE)]))

    assert "label a node ack.node.gpu.schedule=cgpu or share" in told(asked(pod()), exclusive)["message"]


def test_a_node_that_has_not_named_its_cards_yet_may_have_any():
    """
    While agents start nothing is refused for size; what other nodes have does not matter then.
    """
    starting = world(fleet=fleet_of([node(cards=0, mode=Mode.CGPU), node(cards=1, size=15)]))

    assert told(asked(good(amount(MEM, "80"))), starting)["allowed"]


def test_a_runtime_that_may_not_be_isolated_is_a_remark():
    """
    Only the node can tell what a runtime class is.
    """
    answer = told(asked(good(spec(runtimeClassName="kata"))), world())

    assert answer["allowed"]
    assert "runc and crun only" in answer["warnings"][0]


def test_the_number_of_cards_written_as_an_amount_is_a_remark():
    """
    It is a label: as an amount it would silently give one card.
    """
    answer = told(asked(good(amount(COUNT, "2"))), world())

    assert answer["allowed"]
    assert "is a label of the pod" in answer["warnings"][0]
    assert "warnings" not in told(asked(good(labelled(COUNT, "2"))), world())


def test_an_existing_scheduler_keeps_its_pods():
    """
    Where it asks our extender, its name is the one that is set and accepted.
    """
    stays = told(asked(pod()), world(scheduler="default-scheduler"))["patch"]
    other = told(asked(pod()), world(scheduler="volcano"))["patch"]

    assert "/spec/schedulerName" not in {change["path"] for change in stays}
    assert {"op": "add", "path": "/spec/schedulerName", "value": "volcano"} in other
    assert told(asked(good(spec(schedulerName="volcano"))), world(scheduler="volcano"))["allowed"]


@pytest.mark.parametrize("sub", ["", "status", "resize", "ephemeralcontainers"])
@pytest.mark.parametrize(
    ("where", "key"), [*(("annotations", key) for key in RECORDS), ("labels", SHARED), ("labels", COUNT)]
)
def test_records_and_labels_that_count_are_kept_by_all_but_us(where, key, sub):
    """
    Added, changed or removed, by whichever way a pod is updated.
    """
    bare, one, two = pod(), pod(), pod()
    one["metadata"][where], two["metadata"][where] = {key: "1"}, {key: "2"}
    changes = [(bare, one), (one, two), (one, bare)]

    strangers = [told(asked(new, "UPDATE", old, sub=sub), world())["allowed"] for old, new in changes]
    ours = [
        told(asked(new, "UPDATE", old, sub=sub, user=SYSTEM + name), world())["allowed"]
        for old, new in changes
        for name in ("gpushare-scheduler", "gpushare-node", "gpushare-autoscaler")
    ]
    same = told(asked(one, "UPDATE", one, sub=sub), world())["allowed"]

    assert ([False] * 3, [True] * 9, True) == (strangers, ours, same)


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
        told(asked(new, "UPDATE", old, sub="ephemeralcontainers"), world())["allowed"]
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
        (name, user): told(asked(bound(name=name), resource=resource, sub=sub, user=user), seen)
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

    assert not told(asked(forged, sub="binding"), world())["allowed"]
    assert told(asked(forged, sub="binding", user=SYSTEM + "gpushare-scheduler"), world())["allowed"]


def samples() -> list[Path]:
    """Recorded reviews."""
    return sorted(SAMPLES.glob("admission-*.json"))


@pytest.mark.skipif(not samples(), reason="the recorded payloads (../shared/samples) are not here")
def test_recorded_reviews_are_answered():
    """
    As a real API server wrote them: pods with shares are admitted, the rest passes.
    """
    for file in samples():
        body = json.loads(file.read_text())["body"]
        answer = told(json.dumps(body).encode(), world())
        assert (body["request"]["uid"], True) == (answer["uid"], answer["allowed"]), file.name
        assert ("CREATE" == body["request"]["operation"] and "subResource" not in body["request"]) == bool(
            answer["patch"]
        )


@pytest.mark.clock
def test_a_pod_without_shares_costs_well_under_a_millisecond():
    """
    The middle of 200, on whatever machine: a tenth of a millisecond is usual.
    """
    body = asked(plain(*[annotated_noise(i) for i in range(20)]))
    took = []
    for _ in range(200):
        began = time.perf_counter()
        review(body, world())
        took.append(time.perf_counter() - began)

    assert sorted(took)[100] < 0.001


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
