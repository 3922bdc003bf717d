# SPDX-License-Identifier: Apache-2.0
"""Selectors, taints and readiness as Kubernetes means them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import node

from isolation.contract.model import Mode, Requirement, Rules, Taint, Toleration
from isolation.placement.node_rules import Needs, RequestKind, find_barrier, meets_requirement

LABELLED = node("n1", labels={"zone": "a", "gen": "7"})


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        (Requirement("zone", "In", ("a", "b")), True),
        (Requirement("zone", "In", ("b",)), False),
        (Requirement("absent", "In", ("a",)), False),
        (Requirement("zone", "NotIn", ("b",)), True),
        (Requirement("zone", "NotIn", ("a",)), False),
        (Requirement("absent", "NotIn", ("a",)), True),
        (Requirement("zone", "Exists"), True),
        (Requirement("absent", "Exists"), False),
        (Requirement("absent", "DoesNotExist"), True),
        (Requirement("gen", "Gt", ("6",)), True),
        (Requirement("gen", "Gt", ("7",)), False),
        (Requirement("gen", "Lt", ("8",)), True),
        (Requirement("zone", "Gt", ("6",)), False),
        (Requirement("gen", "Gt", ("six",)), False),
        (Requirement("gen", "Gt", ("1", "2")), False),
        (Requirement("gen", "Gt", ("1_0",)), False),
        (Requirement("absent", "Lt", ("8",)), False),
        (Requirement("metadata.name", "In", ("n1",)), True),
        (Requirement("zone", "Like", ("a",)), False),
    ],
)
def test_requirements_hold_as_the_scheduler_evaluates_them(need, expected):
    """One row per operator and edge."""
    assert expected is meets_requirement(need, LABELLED)


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration("gpu", "yes"), True),
        (Toleration("gpu", "no"), False),
        (Toleration("gpu", exists=True), True),
        (Toleration(exists=True), True),
        (Toleration("gpu", "yes", "NoExecute"), False),
        (Toleration("gpu", "yes", "NoSchedule"), True),
        (Toleration("other", exists=True), False),
        (Toleration(), False),
    ],
)
def test_tolerations_match_taints_as_documented(toleration, expected):
    """Empty key with Exists tolerates all; empty effect any effect; a bare empty one nothing."""
    tainted = node(taints=(Taint("gpu", "yes"),))
    found = find_barrier(Needs(RequestKind.MEMORY, Rules(tolerations=frozenset({toleration}))), tainted)
    assert expected is (found is None)


def test_terms_are_alternatives_of_conjunctions():
    """OR over terms, AND within one."""
    here, there = Requirement("zone", "In", ("a",)), Requirement("zone", "In", ("b",))
    young = Requirement("gen", "Gt", ("8",))
    assert find_barrier(Needs(RequestKind.NOTHING, Rules(terms=((there,), (here,)))), LABELLED) is None
    assert find_barrier(Needs(RequestKind.NOTHING, Rules(terms=((here, young),))), LABELLED) is not None


def test_a_preference_is_not_a_barrier_and_a_cordon_can_be_tolerated():
    """PreferNoSchedule never excludes, the other effects do; the unschedulable taint is tolerated like any other."""
    soft = node(taints=(Taint("x", effect="PreferNoSchedule"),))
    for effect in ("NoSchedule", "NoExecute"):
        assert find_barrier(Needs(RequestKind.NOTHING, Rules()), node(taints=(Taint("x", effect=effect),))) is not None
    assert find_barrier(Needs(RequestKind.MEMORY, Rules()), soft) is None
    cordoned = replace(soft, cordoned=True)
    assert find_barrier(Needs(RequestKind.MEMORY, Rules()), cordoned) is not None
    tolerant = Rules(tolerations=frozenset({Toleration("node.kubernetes.io/unschedulable", exists=True)}))
    assert find_barrier(Needs(RequestKind.MEMORY, tolerant), cordoned) is None


def test_models_bind_pods_with_cards_only_and_every_card_of_a_node():
    """A mixed node serves a model list only if all its cards are on it."""
    rules = Rules(models=frozenset({"T4"}))
    mixed = node(cards=2, model="T4")
    mixed = replace(mixed, cards=(mixed.cards[0], replace(mixed.cards[1], model="A10")))
    assert find_barrier(Needs(RequestKind.MEMORY, rules), node(model="T4")) is None
    assert find_barrier(Needs(RequestKind.MEMORY, rules), mixed) is not None
    assert find_barrier(Needs(RequestKind.NOTHING, rules), node(cards=0, mode=Mode.NONE)) is None
