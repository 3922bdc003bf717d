# SPDX-License-Identifier: Apache-2.0
"""The objects of admission: what is committed is what the tables say, and the tables mean what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.admission_pods import TEMPLATED

from isolation.contract.names import ACK, IN_CONTAINER, PRELOAD, RUN_DIR
from isolation.scheduler.admission.core import pod_security
from isolation.scheduler.admission.core.matching import select_shared_pods
from isolation.scheduler.admission.core.webhook import TEMPLATES
from isolation.scheduler.admission.objects import FILES, build_objects, main, render

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "manifests" / "base" / "admission"
HOOKS = build_objects("webhooks.yaml")[0]["webhooks"]
POLICIES = [one for one in build_objects("policies.yaml") if one["kind"] == "ValidatingAdmissionPolicy"]
SHIPPED = [
    one
    for path in sorted((ROOT / "manifests").rglob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
    if isinstance(one, dict) and one.get("kind") == "ValidatingAdmissionPolicy"
]
LABELLED = select_shared_pods()


@pytest.mark.parametrize("file", FILES)
def test_the_committed_manifests_are_up_to_date(file):
    """
    Otherwise `python -m isolation.scheduler.admission.objects FILE` prints what belongs there.
    """
    assert render(file) == (FOLDER / file).read_text()
    assert build_objects(file) == list(yaml.safe_load_all((FOLDER / file).read_text()))


def test_the_module_prints_one_file_or_says_which_there_are():
    """
    As a command.
    """
    run = subprocess.run(
        [sys.executable, "-m", "isolation.scheduler.admission.objects", "kustomization.yaml"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert "policies.yaml" in run.stdout
    assert "== 'volcano'" in render("policies.yaml", "volcano")
    assert "== 'volcano'" not in render("policies.yaml")
    for wrong in (["everything"], ["webhooks.yaml", "--dialects", "hami"], ["webhooks.yaml", "--leave-to", "hami=x"]):
        with pytest.raises(SystemExit):
            main(wrong)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["name"])
def test_only_requests_about_shares_wait_for_us(hook):
    """
    Every webhook is narrowed by conditions and namespaces; only bindings, which others make too, go on without us.
    """
    selector = hook["namespaceSelector"]["matchExpressions"]

    assert hook["matchConditions"]
    assert {"kubernetes.io/metadata.name", "gpushare.dev/exempt"} == {need["key"] for need in selector}
    assert ("Ignore" if hook["name"].startswith("bindings") else "Fail") == hook["failurePolicy"]
    assert 0 < hook["timeoutSeconds"] <= 5
    if hook["failurePolicy"] == "Fail":
        asks = any(ACK.memory in one["expression"] for one in hook["matchConditions"])
        assert asks or hook["objectSelector"] == LABELLED


def matching(resource, operation):
    """Names of the webhooks and policies that get to see such a request about a pod without shares."""
    ours = [(one["name"], one) for one in HOOKS]
    ours += [(one["metadata"]["name"], one["spec"]["matchConstraints"]) for one in POLICIES]
    return {
        name
        for name, one in ours
        if one.get("objectSelector") != LABELLED
        for rule in one.get("rules", ()) or one.get("resourceRules", ())
        if resource in rule["resources"] and {operation, "*"} & set(rule["operations"])
    }


def test_few_look_at_what_is_none_of_our_business():
    """
    Updates of other pods are seen by one policy, which asks for the user.
    """
    for sub in ("", "/status", "/resize", "/ephemeralcontainers"):
        assert {"gpushare-scheduler-pods"} == matching(f"pods{sub}", "UPDATE")
    seen = {"pods.gpushare.dev", "gpushare-admitted", "gpushare-dialects-off-pods"}
    assert seen == matching("pods", "CREATE")
    assert set() == matching("pods", "DELETE")
    assert {"gpushare-agent-nodes"} == matching("nodes/status", "UPDATE")


@pytest.mark.parametrize("made", [*HOOKS, *SHIPPED], ids=lambda one: one.get("name") or one["metadata"]["name"])
def test_conditions_begin_with_what_is_cheap(made):
    """
    One condition, since the API server evaluates all that there are; whatever sees objects of everybody begins with a
    step that walks over nothing, and compares whole objects last.
    """
    spec = made.get("spec", made)
    conditions = [one["expression"] for one in spec.get("matchConditions", ())]
    everybodys = spec.get("matchConstraints", spec).get("objectSelector") != LABELLED

    assert len(conditions) == 1 or not everybodys
    for expression in conditions if everybodys else ():
        first, *rest = re.split(r" && | \|\| ", expression)
        assert not re.search(r"\.(exists|all|filter|map)\(|oldObject|dyn", first), first
        walks = [at for at, step in enumerate(rest) if "].hasValue()" not in step and ".exists(" in step]
        compared = [at for at, step in enumerate(rest) if "oldObject" in step]
        assert not compared or walks[0] < compared[0]


def test_every_kind_of_workload_is_in_webhooks_and_policies():
    """
    The table of `review` is the one that both are made from.
    """
    kinds = {plural for _, plural in TEMPLATED.values()}
    hooked = {name for hook in HOOKS for rule in hook["rules"] for name in rule["resources"]}
    policed = {
        name
        for one in POLICIES
        for rule in one["spec"]["matchConstraints"]["resourceRules"]
        for name in rule["resources"]
    }
    assert kinds == {resource.partition(".")[0] for resource in TEMPLATES}
    assert kinds <= hooked
    assert kinds <= policed
    assert {"pods", "pods/status", "pods/resize", "pods/ephemeralcontainers", "pods/binding", "bindings"} <= hooked


def test_every_policy_is_bound_and_fails_closed():
    """
    A policy without a binding does nothing. Only those about dialects that are off do no more than warn.
    """
    bound = [one for one in build_objects("policies.yaml") if one["kind"].endswith("Binding")]

    assert [one["metadata"]["name"] for one in POLICIES] == [one["spec"]["policyName"] for one in bound]
    off = {one["metadata"]["name"] for one in POLICIES if "dialects-off" in one["metadata"]["name"]}
    assert off == {one["metadata"]["name"] for one in bound if ["Warn"] == one["spec"]["validationActions"]}
    assert off == {one["metadata"]["name"] for one in POLICIES if "Ignore" == one["spec"]["failurePolicy"]}
    assert all(one["spec"]["validationActions"] in (["Deny"], ["Warn"]) for one in bound)


@pytest.mark.parametrize("tree", pod_security.HOST_TREES)
def test_a_forbidden_folder_is_forbidden_from_its_root_to_its_leaves(tree):
    """
    Itself, what lies in it, and every folder that contains it; not what is merely called alike.
    """
    steps = tree.split("/")
    above = ["/".join(steps[:n]) or "/" for n in range(1, len(steps))]

    assert all(
        pod_security.is_forbidden_host_path(path) for path in (tree, f"{tree}/", f"{tree}/a/b", f"{tree}/\n", *above)
    )
    assert not pod_security.is_forbidden_host_path(f"{tree}x")
    assert not pod_security.is_forbidden_host_path(f"/srv{tree}")


@pytest.mark.parametrize(
    ("path", "alias"), [("/var/run/cdi", "/run/cdi"), ("/run/containerd", "/var/run/containerd"), ("/run", "/var/run")]
)
def test_both_names_of_one_folder_count(path, alias):
    """
    /var/run is a link to /run.
    """
    assert pod_security.is_forbidden_host_path(path)
    assert pod_security.is_forbidden_host_path(alias)


def test_our_own_files_are_among_the_forbidden():
    """
    On the host and in the container.
    """
    assert pod_security.is_forbidden_host_path(RUN_DIR)
    assert all(pod_security.covers_own_files(path) for path in (PRELOAD, IN_CONTAINER, "/etc", "/run", "/var/run", ""))
    assert not any(pod_security.covers_own_files(path) for path in ("/etc/app", "/run/app", "/data", "/run/gpushared"))


def test_patterns_are_in_the_language_of_both_judges():
    """
    CEL's RE2 has no look-around, no back-references and no possessive quantifiers.
    """
    tables = pod_security
    for pattern in (tables.UNPLAIN, tables.HOST_PATHS, tables.HOST_PATHS_HARMLESS, tables.OWN_PATHS):
        assert re.compile(pattern)
        assert not re.search(r"\(\?[^s)]|\\[1-9]|[*+?]\+|'", pattern)
