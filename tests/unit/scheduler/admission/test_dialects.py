# SPDX-License-Identifier: Apache-2.0
"""Reviews of pods of other systems: the patch makes what translation says, and templates stay as they are."""

from __future__ import annotations

import json

import msgspec
import pytest
from support.admission_pods import beside, main_of, patched, plain, spec, workload
from support.admission_reviews import asked, respond, world
from support.dialect_pods import CASES, hami

from isolation.contract.codec import request_of
from isolation.contract.dialects import SYSTEMS, Offered
from isolation.contract.model import Card, Mode, Node, Rules
from isolation.contract.names import CORE_STEPS
from isolation.contract.quantity import GIB
from isolation.placement.card_sizes import measure_cards
from isolation.scheduler.admission.core.messages import CardKinds, ClusterUpdate, ClusterView, decode, encode

ALL = frozenset(CORE_STEPS)


def one_size(_rules, **_compute):
    """Cards of 15 GiB."""
    return frozenset({15 * GIB})


EVERY = world(offered=Offered(ALL, one_size))


@pytest.mark.parametrize("name", CASES)
def test_the_patch_makes_the_canonical_pod_and_a_second_pass_nothing(name):
    """
    As the API server applies it.
    """
    pod, expected = CASES[name]
    answer = respond(asked(pod), EVERY)
    assert answer["allowed"], answer["message"]
    made = patched(pod, answer["patch"])
    got = request_of(made["metadata"], made["spec"])
    assert expected == (got.cards, got.card_bytes // GIB, got.card_core, got.whole)
    again = respond(asked(made), EVERY)
    assert again["allowed"]
    assert [] == again["patch"]


def test_a_template_is_warned_about_and_never_changed():
    """
    Also where its pods would be refused: who else reads it is not known.
    """
    good = respond(asked(workload("Deployment", hami()), resource="deployments.apps"), EVERY)
    assert (True, []) == (good["allowed"], good["patch"])
    assert "translated when they are created" in good["warnings"][0]
    bad = respond(asked(workload("Deployment", hami(gpu="0")), resource="deployments.apps"), EVERY)
    assert (True, []) == (bad["allowed"], bad["patch"])
    assert "will be refused" in bad["warnings"][0]
    privileged = hami(lambda pod: main_of(pod).update(securityContext={"privileged": True}))
    worse = respond(asked(workload("Deployment", privileged), resource="deployments.apps"), EVERY)
    assert "remove privileged" in worse["warnings"][0]


def test_a_translated_pod_keeps_every_rule_of_a_pod_with_shares():
    """
    With what was translated, since the message may speak of canonical names.
    """
    for change, words in ((spec(hostPID=True), "hostPID"), (spec(nodeName="n"), "nodeName"), (spec(), "")):
        answer = respond(asked(hami(change)), EVERY)
        assert answer["allowed"] is (not words)
        assert words in answer["message"]
        assert not words or "translated from HAMi" in answer["message"]


def test_large_pods_are_refused_before_they_are_translated():
    """
    By number of containers, like all pods with shares; without foreign words they are nobody's business.
    """
    many = hami(*(beside("containers") for _ in range(300)))
    assert "300 containers" in respond(asked(many), EVERY)["message"].replace("301", "300")
    assert respond(asked(plain(*(beside("containers") for _ in range(300)))), EVERY)["allowed"]


@pytest.mark.parametrize("where", ["containers", "metadata", "resources", "limits", "annotations"])
@pytest.mark.parametrize("value", [1, "x", [], [1], {"a": 1}])
def test_nothing_of_a_wrong_shape_is_admitted_with_foreign_words(where, value):
    """
    There is always an answer.
    """
    pod = hami()
    if where == "metadata":
        pod["metadata"] = value
    elif where == "annotations":
        pod["metadata"]["annotations"] = value
    elif where == "containers":
        pod["spec"]["containers"].append(value)
    elif where == "resources":
        pod["spec"]["initContainers"] = [{"name": "i", "resources": value}]
    else:
        main_of(pod)["resources"]["requests"] = value
    answer = respond(asked(pod), EVERY)
    if answer["allowed"]:
        text = json.dumps(patched(pod, answer["patch"])["spec"])
        assert not any(f'"{name}"' in text for name in SYSTEMS["hami"].resources)


def test_sizes_of_cards_reach_the_process_with_those_that_pools_can_add():
    """
    As messages; not known before the informers are synced.
    """
    node = Node("n", (Card("a", 0, 16 * GIB, model="T4"),), Mode.CGPU, labels={"zone": "z"})
    kinds = measure_cards([node])
    update = ClusterUpdate(True, False, cards=CardKinds(kinds.kinds, kinds.dropped), owned={"hami": "x"})
    view = ClusterView()
    view.apply(decode(encode(update), ClusterUpdate))
    assert view.card_sizes(Rules(), compute=False) is None
    view.apply(ClusterUpdate(True, True))
    assert {16 * GIB} == view.card_sizes(Rules(), compute=False)
    assert {"z"} == view.labels_of("zone")
    assert {"hami": "x"} == view.owned
    assert msgspec.json.encode(update)
