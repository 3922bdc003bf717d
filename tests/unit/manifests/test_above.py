# SPDX-License-Identifier: Apache-2.0
"""A kustomization of somebody's own above ours: what it may change, and what the page says it must not."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
import yaml
from e2e.manifest_build import MANIFESTS, build, templates

from isolation.contract.names import AUTOSCALER, EXPORTER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (MANIFESTS.parent / "docs/install.md").read_text()
COMPONENTS = ("components/metrics-api", "components/custom-metrics", "components/grpc")
OURS = ("controller", "node", "exporter")
RUNTIME = [{"op": "add", "path": "/spec/template/spec/runtimeClassName", "value": "nvidia"}]
SAFE = {
    "images": [
        {"name": f"gpushare-{one}", "newName": f"registry.example/x/{one}", "digest": "sha256:1"} for one in OURS
    ],
    "labels": [{"pairs": {"environment": "production"}, "includeSelectors": True}],
    "commonAnnotations": {"team": "platform"},
    "patches": [{"target": {"kind": "DaemonSet"}, "patch": yaml.safe_dump(RUNTIME)}],
}
"""What `docs/install.md` calls safe."""
SELECTORS = {
    "Service": lambda spec: spec["selector"],
    "NetworkPolicy": lambda spec: spec["podSelector"].get("matchLabels", {}),
    "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
}


def above(folder: Path, overlay: str, **more):
    """What is built of an overlay, the components that listen, and this above them."""
    made = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(MANIFESTS / "overlays" / overlay, folder.resolve())],
        "components": [os.path.relpath(MANIFESTS / name, folder.resolve()) for name in COMPONENTS],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made | more))
    return [one for one in yaml.load_all(build(str(folder)), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one]


def lost(things):
    """Whatever selects or names what is not there."""
    pods = [template["metadata"]["labels"] for template in templates(things).values()]
    names = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in things}
    accounts = {f"system:serviceaccount:{space}:{name}" for kind, space, name in names if kind == "ServiceAccount"}
    found = []
    for one in things:
        kind, name, spec = one["kind"], one["metadata"]["name"], one.get("spec", {})
        if kind in SELECTORS and not any(_fixed(SELECTORS[kind](spec)).items() <= labels.items() for labels in pods):
            found.append(f"{kind} {name} selects nothing")
        asked = [hook["clientConfig"]["service"] for hook in one.get("webhooks", ())]
        named = [("Service", service["namespace"], service["name"]) for service in asked]
        named += [
            (who["kind"], who["namespace"], who["name"])
            for who in one.get("subjects", ())
            if who["kind"] == "ServiceAccount"
        ]
        found += [f"{kind} {name} names {who}" for who in named if who not in names]
        said = yaml.safe_dump(spec, width=10_000) if kind == "ValidatingAdmissionPolicy" else ""
        if "system:serviceaccount:" in said and not any(account in said for account in accounts):
            found.append(f"{name} speaks of accounts that are not there")
    return found


def _fixed(labels):
    """Without the label that the leading pod puts on itself."""
    return {key: value for key, value in labels.items() if not key.startswith("gpushare.dev/")}


@pytest.mark.processes
@pytest.mark.parametrize("overlay", ["self-signed", "demo", "existing-scheduler"])
def test_what_the_page_calls_safe_keeps_everything_together(tmp_path, overlay):
    """
    Selectors, webhooks, accounts and policies find what they speak of, and every container has its new image.
    """
    things = above(tmp_path, overlay, **SAFE)
    specs = {name: template["spec"] for name, template in templates(things).items()}
    images = [one["image"] for spec in specs.values() for one in [*spec.get("initContainers", []), *spec["containers"]]]

    assert [] == [what for what in SAFE if f"`{what}:`" not in PAGE]
    assert [] == lost(things)
    assert {SCHEDULER, AUTOSCALER, NODE_AGENT, EXPORTER} == set(specs)
    assert {f"registry.example/x/{one}@sha256:1" for one in OURS} == {one for one in images if "kube-sched" not in one}


@pytest.mark.processes
@pytest.mark.parametrize("what", [{"namespace": "other"}, {"namePrefix": "x-"}, {"nameSuffix": "-x"}], ids=str)
def test_what_the_page_forbids_would_come_apart(tmp_path, what):
    """
    The page says so as long as it is so.
    """
    (word,) = what

    assert f"`{word}:`" in PAGE
    assert SYSTEM_NAMESPACE in PAGE
    assert [] != lost(above(tmp_path, "self-signed", **what))


@pytest.mark.processes
def test_the_webhook_port_is_for_the_api_server_alone_where_its_address_is_given(tmp_path):
    """
    The component by itself lets nobody in; with the patch of the page, the addresses that stand there.
    """
    block = next(
        one for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "components/admission-network" in one
    )
    component = {"components": [os.path.relpath(MANIFESTS / "components/admission-network", tmp_path.resolve())]}
    found = []
    for more in (component, component | {"patches": yaml.safe_load(block)["patches"]}):
        (policy,) = (
            one["spec"]["ingress"]
            for one in above(tmp_path, "self-signed", **more)
            if (one["kind"], one["metadata"]["name"]) == ("NetworkPolicy", SCHEDULER)
        )
        assert [[{"port": "webhook"}], [{"port": "metrics"}]] == [rule["ports"] for rule in policy]
        found.append([source["ipBlock"]["cidr"] for source in policy[0]["from"]])

    assert [["192.0.2.0/24"], ["10.0.0.10/32", "10.0.0.11/32"]] == found


def test_the_runtime_class_of_the_page_on_the_gpu_operator_reaches_both_daemonsets(tmp_path):
    """
    Its patch as it is written; no other pod is changed.
    """
    page = (MANIFESTS.parent / "docs/gpu-operator.md").read_text()
    [patches] = re.findall(r"```yaml\n(patches:.*?)```", page, re.DOTALL)
    made = templates(above(tmp_path, "self-signed", **yaml.safe_load(patches)))

    assert {NODE_AGENT, EXPORTER} == {name for name, one in made.items() if one["spec"].get("runtimeClassName")}
