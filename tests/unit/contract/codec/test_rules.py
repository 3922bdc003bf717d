# SPDX-License-Identifier: Apache-2.0
"""
Which nodes a pod says it may use, and what it says that nobody weighs.
"""

from __future__ import annotations

import pytest

from isolation.contract.codec import CodecError, request_of
from isolation.contract.codec.rules import NOWHERE, pinned
from isolation.contract.model import NAME_FIELD, Node, Refusal, Requirement, Rules, Toleration
from isolation.placement.node_rules import Needs, RequestKind, find_barrier

MODEL, GFD = "aliyun.accelerator/nvidia_name", "nvidia.com/gpu.product"


def request(**spec):
    """The request of a pod that asks for nothing but rules."""
    return request_of({}, {"containers": [{"name": "c"}], **spec})


def affinity(*terms):
    """Required node affinity of these terms."""
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def term(*needs, fields=()):
    """One term; a need is (key, operator, *values)."""
    listed = [{"key": k, "operator": o, "values": list(v)} for k, o, *v in needs]
    return {
        "matchExpressions": listed,
        "matchFields": [{"key": k, "operator": o, "values": list(v)} for k, o, *v in fields],
    }


def test_selector_and_affinity_must_both_hold():
    """The selector joins every alternative."""
    rules = request(nodeSelector={"a": "1"}, **affinity(term(("b", "Exists")), term(("c", "NotIn", "x", "y")))).rules
    selected = Requirement("a", "In", ("1",))
    expected = ((selected, Requirement("b", "Exists")), (selected, Requirement("c", "NotIn", ("x", "y"))))
    assert expected == rules.terms


def test_a_term_can_name_a_node_by_field():
    """The field selector knows the node's name only."""
    rules = request(**affinity(term(fields=[(NAME_FIELD, "In", "n1")]))).rules
    assert ((Requirement(NAME_FIELD, "In", ("n1",)),),) == rules.terms


def test_a_pod_without_rules_may_go_anywhere():
    """No terms, no models."""
    assert Rules() == request().rules


@pytest.mark.parametrize("terms", [[{}], [{}, {"matchExpressions": []}]])
def test_an_empty_term_matches_no_node(terms):
    """Kubernetes: a null or empty term matches nothing, which is not the same as no term."""
    rules = request(**affinity(*terms)).rules
    assert ((NOWHERE,),) == rules.terms
    assert find_barrier(Needs(RequestKind.NOTHING, rules), Node("n1")) is not None


def test_an_empty_term_beside_another_is_simply_never_the_one():
    """Alternatives stay alternatives."""
    assert ((Requirement("a", "Exists"),),) == request(**affinity({}, term(("a", "Exists")))).rules.terms


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (affinity(), "nodeSelectorTerms"),
        (affinity(term(("a", "Near", "x"))), "is not an operator"),
        (affinity(term(("a", "In"))), "needs values"),
        (affinity(term(("a", "Exists", "x"))), "takes no values"),
        (affinity(term(("a", "Gt", "x"))), "whole number"),
        (affinity(term(("a", "Gt", "1", "2"))), "exactly one"),
        (affinity(term(("", "Exists"))), "has no key"),
        (affinity(term(fields=[("metadata.uid", "In", "x")])), "matchFields"),
        ({"tolerations": [{"key": "a", "operator": "Maybe"}]}, "use Equal or Exists"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}, "takes no value"),
        ({"tolerations": [{"operator": "Equal"}]}, "operator: Exists"),
        ({"tolerations": [{"key": "a", "effect": "NoFun"}]}, "is not an effect"),
    ],
)
def test_rules_that_the_api_server_would_reject_are_refused(spec, says):
    """With what to change."""
    outcome = request(**spec)
    assert isinstance(outcome, Refusal)
    assert says in outcome.reason


def test_tolerations_keep_their_meaning():
    """The operator defaults to Equal; seconds do not matter to placement."""
    listed = [
        {"key": "a", "value": "x"},
        {"operator": "Exists"},
        {"key": "b", "operator": "Exists", "effect": "NoExecute"},
    ]
    expected = {Toleration("a", "x"), Toleration(exists=True), Toleration("b", effect="NoExecute", exists=True)}
    assert expected == request(tolerations=listed).rules.tolerations


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodeSelector": {MODEL: "T4"}}, {"T4"}),
        (affinity(term((MODEL, "In", "T4", "V100"))), {"T4", "V100"}),
        (affinity(term((MODEL, "In", "T4")), term((MODEL, "In", "V100"), ("a", "Exists"))), {"T4", "V100"}),
        (affinity(term((MODEL, "In", "T4", "V100"), (MODEL, "In", "V100", "A10"))), {"V100"}),
        (affinity(term((MODEL, "In", "T4")), term(("a", "Exists"))), set()),
        (affinity(term((MODEL, "NotIn", "T4"))), set()),
        ({"nodeSelector": {GFD: "T4"}}, set()),
    ],
)
def test_models_are_named_only_where_every_alternative_names_some(spec, expected):
    """Anything less would exclude nodes that the pod allows; the requirement itself stays."""
    rules = request(**spec).rules
    assert frozenset(expected) == rules.models
    assert rules.terms


def test_pinning_to_a_node_adds_to_every_alternative():
    """A preset nodeName is one more requirement."""
    pin = Requirement(NAME_FIELD, "In", ("n1",))
    a, b = Requirement("a", "Exists"), Requirement("b", "Exists")
    assert ((pin, a), (pin, b)) == pinned(Rules(((a,), (b,))), "n1").terms
    assert ((pin,),) == pinned(Rules(), "n1").terms


def test_what_placement_does_not_weigh_is_listed_in_words():
    """Each kind of constraint has its phrase."""
    some = [{}]
    unweighed = request(
        affinity={
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": some},
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": some},
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": some},
        },
        topologySpreadConstraints=some,
        schedulingGates=some,
        resourceClaims=some,
        runtimeClassName="kata",
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}, {"name": "tmp", "emptyDir": {}}],
        containers=[{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}],
    ).unmodelled
    expected = (
        "preferred node affinity",
        "pod affinity",
        "pod anti-affinity",
        "topology spread constraints",
        "scheduling gates",
        "resource claims (DRA)",
        "host ports",
        'runtime class "kata"',
        'volume "data" (persistentVolumeClaim)',
    )
    assert expected == unweighed


def test_an_ordinary_pod_has_nothing_unweighed():
    """Projected volumes, ports and empty lists bind nobody to a node."""
    spec = {
        "volumes": [{"name": "token", "projected": {}}],
        "containers": [{"name": "c", "ports": [{"containerPort": 80}]}],
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
    }
    assert () == request(**spec).unmodelled


def test_a_selector_with_a_number_is_an_error_with_its_path():
    """Label values are text."""
    with pytest.raises(CodecError, match=r"spec\.nodeSelector\.zone: expected a string, not 1"):
        request(nodeSelector={"zone": 1})
