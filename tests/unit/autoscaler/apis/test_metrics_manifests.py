# SPDX-License-Identifier: Apache-2.0
"""The components that serve figures to autoscalers, and the examples for those who serve them otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from autoscaler.apis.metrics.app import GROUPS, SERVICE, MetricsApiSettings
from autoscaler.apis.metrics.core.catalogue import POD_METRICS
from autoscaler.apis.metrics.registration import build_api_services
from isolation.contract.metrics import CATALOGUE
from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE

COMPONENTS = Path(__file__).resolve().parents[4] / "manifests" / "components"
OURS = ("metrics-api", "custom-metrics", "external-metrics", "prometheus-adapter", "keda-prometheus")


def things(path):
    """The objects of one file."""
    return list(yaml.safe_load_all((COMPONENTS / path).read_text()))


@pytest.mark.parametrize("component", OURS)
def test_a_component_names_every_file_that_it_has(component):
    """
    None is forgotten, none is missing.
    """
    (kustomization,) = things(f"{component}/kustomization.yaml")
    named = {*kustomization.get("resources", ()), *(p["path"] for p in kustomization.get("patches", ()) if "path" in p)}
    assert named == {file.name for file in (COMPONENTS / component).glob("*.yaml")} - {"kustomization.yaml"}
    assert "Component" == kustomization["kind"]


def test_the_service_is_the_one_that_is_entered_and_leads_to_our_port():
    """
    Name, namespace and port as the process has them by default.
    """
    (service,) = things("metrics-api/service.yaml")
    patch = {one["path"]: one["value"] for one in things("metrics-api/deployment.yaml")[0]}
    assert (SERVICE.namespace, SERVICE.name) == (service["metadata"]["namespace"], service["metadata"]["name"])
    # a replica that is not ready answers discovery, without which no namespace of the cluster can be deleted
    assert service["spec"]["publishNotReadyAddresses"] is True
    (port,) = service["spec"]["ports"]
    assert (SERVICE.port, "metrics-api") == (port["port"], port["targetPort"])
    default = MetricsApiSettings.__dataclass_fields__["port"].default
    container = "/spec/template/spec/containers/0/ports/-"
    assert {"name": port["targetPort"], "containerPort": default} == patch[container]


def test_the_account_may_renew_exactly_what_it_enters():
    """
    By name; nothing else of APIServices may be changed, and nothing deleted.
    """
    role = next(one for one in things("metrics-api/rbac.yaml") if one["kind"] == "ClusterRole")
    rules = [rule for rule in role["rules"] if "apiservices" in rule["resources"]]
    assert ["create", "list", "patch"] == sorted(verb for rule in rules for verb in rule["verbs"])
    (patching,) = [rule for rule in rules if "patch" in rule["verbs"]]
    entered = build_api_services(GROUPS.values(), SERVICE, None)
    assert [each["metadata"]["name"] for each in entered] == patching["resourceNames"]


def test_the_policy_is_about_our_account_and_our_groups():
    """
    As the code spells them.
    """
    policy, binding = things("metrics-api/policy.yaml")
    (condition,) = policy["spec"]["matchConditions"]
    assert f'"system:serviceaccount:{SYSTEM_NAMESPACE}:{AUTOSCALER}"' in condition["expression"]
    said = " ".join(rule["expression"] for rule in policy["spec"]["validations"])
    assert all(f'"{name}"' in said for name in (*GROUPS.values(), SERVICE.name, SERVICE.namespace))
    assert ("Fail", ["Deny"]) == (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"])


def test_each_api_is_served_only_where_it_is_asked_for():
    """
    One component, one word on the command line.
    """
    for component, word in (("custom-metrics", "custom"), ("external-metrics", "external")):
        (kustomization,) = things(f"{component}/kustomization.yaml")
        (patch,) = kustomization["patches"]
        assert [f"--metrics-api={word}"] == [one["value"] for one in yaml.safe_load(patch["patch"])]
        assert word in GROUPS


@pytest.mark.parametrize("path", ["prometheus-adapter/rules.yaml", "keda-prometheus/scaledobject.yaml"])
def test_examples_ask_for_series_that_exist_by_labels_that_they_have(path):
    """
    A query for a name that nobody exports would never find anything.
    """
    text = (COMPONENTS / path).read_text()
    used = re.findall(r"\b(gpushare_[a-z_]+)\b(?:\{([^}]*)\})?", text)
    assert used
    for name, matchers in used:
        assert name in CATALOGUE, name
        assert set(re.findall(r"(\w+)(?:=~|!=|=)", matchers)) <= set(CATALOGUE[name].labels)


def test_the_adapters_rules_serve_our_figures():
    """
    Under the same names, so that autoscalers need not change.
    """
    (config,) = things("prometheus-adapter/rules.yaml")
    rules = yaml.safe_load(config["data"]["config.yaml"])["rules"]
    assert set(POD_METRICS) == {rule["name"]["as"] for rule in rules}


def test_an_outage_of_the_monitoring_scales_nothing_down():
    """
    KEDA takes an empty answer for 0 unless it is told otherwise.
    """
    (scaled,) = things("keda-prometheus/scaledobject.yaml")
    assert {"false"} == {one["metadata"]["ignoreNullValues"] for one in scaled["spec"]["triggers"]}
