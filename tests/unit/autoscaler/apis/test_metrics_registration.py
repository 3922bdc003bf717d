# SPDX-License-Identifier: Apache-2.0
"""Who has a metrics API, and what is done about it."""

from __future__ import annotations

import copy

import pytest

from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL
from autoscaler.apis.metrics.registration import ServedElsewhereError, ServiceRef, build_api_services, plan_changes

OURS = ServiceRef("gpushare-system", "gpushare-autoscaler-metrics")
WISH = build_api_services({CUSTOM, EXTERNAL}, OURS, b"authority")
BY_NAME = {each["metadata"]["name"]: each for each in WISH}


def test_each_version_is_entered_and_the_newest_of_custom_is_preferred():
    """
    TLS is always checked: by our authority, or by one that comes later.
    """
    assert [
        "v1beta1.custom.metrics.k8s.io",
        "v1beta2.custom.metrics.k8s.io",
        "v1beta1.external.metrics.k8s.io",
    ] == list(BY_NAME)
    assert [100, 200, 100] == [each["spec"]["versionPriority"] for each in WISH]
    assert "YXV0aG9yaXR5" == WISH[0]["spec"]["caBundle"]
    assert "caBundle" not in build_api_services({CUSTOM}, OURS, None)[0]["spec"]
    assert not any("insecureSkipTLSVerify" in each["spec"] for each in WISH)


def test_what_is_absent_is_made_and_what_is_ours_stays():
    """
    Others' groups are none of our business.
    """
    other = {"metadata": {"name": "v1.apps"}, "spec": {"group": "apps", "version": "v1"}}
    assert list(BY_NAME) == [change.name for change in plan_changes([other], WISH, OURS)]
    assert [] == plan_changes([*WISH, other], WISH, OURS)


def test_a_new_authority_is_written_under_the_version_that_was_read():
    """
    One that came in by other means is left where we have none.
    """
    there = copy.deepcopy(WISH)
    there[0]["metadata"]["resourceVersion"] = "7"
    there[0]["spec"]["caBundle"] = "b2xk"
    (change,) = plan_changes(there, WISH, OURS)
    assert not change.new
    assert {"metadata": {"resourceVersion": "7"}, "spec": {"caBundle": "YXV0aG9yaXR5"}} == change.body
    assert [] == plan_changes(there, build_api_services({CUSTOM, EXTERNAL}, OURS, None), OURS)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"namespace": "monitoring", "name": "prometheus-adapter"}, "served by monitoring/prometheus-adapter"),
        ({"namespace": "other", "name": OURS.name}, "served by other/gpushare-autoscaler-metrics"),
        (None, "the API server itself"),
    ],
    ids=["another", "our name elsewhere", "no service"],
)
@pytest.mark.parametrize("version", ["v1beta1", "v1alpha1"])
def test_a_group_of_which_somebody_else_has_any_version_is_not_touched(server, said, version):
    """
    Not even a version that nobody serves: clients would move over to it.
    """
    name = f"{version}.{CUSTOM}"
    theirs = {"metadata": {"name": name}, "spec": {"group": CUSTOM, "version": version, "service": server}}
    with pytest.raises(ServedElsewhereError, match=said) as refused:
        plan_changes([theirs], WISH, OURS)
    assert f"kubectl delete apiservice {name}" in str(refused.value)
    assert ["v1beta1.external.metrics.k8s.io"] == [
        c.name for c in plan_changes([theirs], build_api_services({EXTERNAL}, OURS, None), OURS)
    ]
