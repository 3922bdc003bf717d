# SPDX-License-Identifier: Apache-2.0
"""The overlays as kubectl builds them: their schema, and that what points at something finds it."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from e2e.manifest_build import BUILDS, IDS, MANIFESTS, OVERLAYS, build, objects, templates

from autoscaler.kube.config.reader import read_config
from isolation.contract.names import AUTOSCALER, EXPORTER, KUBE_SCHEDULER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE

VERSION = "1.36"
MPS_KEEPER = "gpushare-mps"
FOREIGN = ("monitoring.coreos.com/", "cert-manager.io/", "keda.sh/", "cluster.x-k8s.io/", "security.openshift.io/")
"""Kinds of others, whose schemas a cluster brings along."""
MORE = {EXPORTER: {"add": ["SETUID", "SETGID"]}}
"""Capabilities beside none: the exporter's process with the port gives up root."""
PORTS = {
    SCHEDULER: {8441, 8443, 9446, 10259},
    NODE_AGENT: {9447},
    EXPORTER: {9445},
    AUTOSCALER: {8086, 8087, 8444, 9448},
    MPS_KEEPER: set(),
}
"""DESIGN section 8, and the stock kube-scheduler's own."""
each = pytest.mark.parametrize(("overlay", "components"), BUILDS, ids=IDS)


def containers(spec):
    """Every one, those that run before the others too."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def workloads(things):
    """The pods' specs, by workload."""
    return {name: template["spec"] for name, template in templates(things).items()}


@pytest.fixture(scope="module", autouse=True)
def _schemas_read_once():
    """The definitions that every kind points to are a file of megabytes."""
    with pytest.MonkeyPatch.context() as patched:
        for name, module in (
            ("schema_contents", kubernetes_validate.utils),
            ("all_versions", kubernetes_validate.utils),
        ):
            patched.setattr(module, name, functools.cache(getattr(module, name)))
        yield


@functools.cache
def is_known(text):
    """Whether there is a schema of this object's kind; it meets it. Overlays have most objects in common."""
    try:
        kubernetes_validate.validate(json.loads(text), VERSION, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return False
    return True


@each
def test_every_object_meets_the_strict_schema(overlay, components):
    """
    No field that Kubernetes does not know; kinds of others are known to their own servers only.
    """
    unknown = {one["apiVersion"] for one in objects(overlay, components) if not is_known(json.dumps(one))}

    assert {version for version in unknown if not version.startswith(FOREIGN)} == set()


@each
def test_everything_is_ours_by_label_and_stands_in_our_namespace(overlay, components):
    """
    So that `-l app.kubernetes.io/part-of=gpushare` finds it; examples for copying excepted.
    """
    things = [one for one in objects(overlay, components) if one["kind"] != "ScaledObject"]
    bare = [
        f"{one['kind']} {one['metadata']['name']}"
        for one in things
        if one["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") != "gpushare"
        and not one["apiVersion"].startswith("admissionregistration")
    ]
    spaces = {one["metadata"].get("namespace", SYSTEM_NAMESPACE) for one in things}

    assert [] == bare
    assert {SYSTEM_NAMESPACE} <= spaces <= {SYSTEM_NAMESPACE, "kube-system"}
    assert len({(one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")) for one in things}) == len(
        things
    )


@each
def test_services_budgets_and_policies_select_pods_that_exist(overlay, components):
    """
    By all of their labels, and by port names that these pods have; every pod has a policy of its own.
    """
    things = objects(overlay, components)
    pods = templates(things)
    lost = []
    for one in things:
        spec = one.get("spec", {})
        selector = {
            "Service": lambda s: s.get("selector"),
            "PodDisruptionBudget": lambda s: s["selector"]["matchLabels"],
            "NetworkPolicy": lambda s: s["podSelector"].get("matchLabels"),
        }.get(one["kind"], lambda _: None)(spec)
        if not selector:
            continue
        chosen = [pod for pod in pods.values() if _labels(pod, selector)]
        ports = {p.get("name") for pod in chosen for c in pod["spec"]["containers"] for p in c.get("ports", [])}
        asked = {p["targetPort"] for p in spec.get("ports", [])} if one["kind"] == "Service" else set()
        asked |= {p["port"] for rule in spec.get("ingress", []) for p in rule.get("ports", [])}
        if len(chosen) != 1 or not asked <= ports:
            lost.append((one["kind"], one["metadata"]["name"], sorted(asked - ports)))
    closed = [one["spec"] for one in things if one["kind"] == "NetworkPolicy"]

    assert [] == lost
    assert any(spec["podSelector"] == {} and "ingress" not in spec for spec in closed)
    assert set(pods) <= {spec["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name") for spec in closed}


def _labels(pod, selector):
    """The role is a label that the leader gives itself."""
    labels = pod["metadata"]["labels"] | {"gpushare.dev/role": "leader"}
    return selector.items() <= labels.items()


@each
def test_the_ports_are_those_of_the_contract(overlay, components):
    """
    One number for one purpose, everywhere.
    """
    found = {}
    for name, spec in workloads(objects(overlay, components)).items():
        found[name] = {p["containerPort"] for c in spec["containers"] for p in c.get("ports", [])}

    assert set() == {port for name, ports in found.items() for port in ports - PORTS[name]}


@each
def test_what_is_mounted_exists_and_is_used(overlay, components):
    """
    Every mount has its volume, every volume a mount; a ConfigMap is in the build, a Secret is there too or is one of
    those that the script makes.
    """
    things = objects(overlay, components)
    maps = {one["metadata"]["name"] for one in things if one["kind"] == "ConfigMap"}
    secrets = {one["metadata"]["name"] for one in things if one["kind"] == "Secret"}
    script = (MANIFESTS / "certificate.sh").read_text()
    wrong = []
    for name, spec in workloads(things).items():
        volumes = {v["name"]: v for v in spec.get("volumes", [])}
        mounts = {m["name"] for c in containers(spec) for m in c.get("volumeMounts", [])}
        wrong += [(name, one) for one in mounts ^ set(volumes)]
        for volume in volumes.values():
            wrong += [(name, v["name"]) for v in [volume.get("configMap")] if v and v["name"] not in maps]
            secret = volume.get("secret", {}).get("secretName", "")
            made = secret in secrets or secret.removeprefix(SCHEDULER) in script
            wrong += [(name, secret)] if secret and not made else []

    assert [] == wrong


@each
def test_probes_ask_ports_that_exist_for_paths_that_are_served(overlay, components):
    """
    The paths are in the source of who answers.
    """
    root = MANIFESTS.parent
    served = {
        name: "".join(path.read_text() for path in (root / folder).rglob("*.py"))
        for name, folder in (
            (SCHEDULER, "isolation/scheduler"),
            (NODE_AGENT, "isolation/node"),
            (EXPORTER, "exporter"),
            (AUTOSCALER, "autoscaler/kube"),
        )
    }
    wrong = []
    for name, spec in workloads(objects(overlay, components)).items():
        ports = {p[key] for c in spec["containers"] for p in c.get("ports", []) for key in ("name", "containerPort")}
        for one in spec["containers"]:
            # a restart of the keeper ends every client on its node: no probe may ask for one
            assert ("livenessProbe" in one) == (name != MPS_KEEPER), one["name"]
            for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
                get = one.get(kind, {}).get("httpGet")
                if get and (
                    get["port"] not in ports or (get["path"] != "/livez" and not _served(get["path"], served[name]))
                ):
                    wrong.append((name, one["name"], get))

    assert [] == wrong


def _served(path, sources):
    """The route stands in some source, with its slash or without."""
    return re.search(rf'"/?{re.escape(path.removeprefix("/"))}"', sources) is not None


@each
def test_containers_are_bounded_and_hardened(overlay, components):
    """
    What restricted asks for, and more: no writable root, no token where none is used, memory bounded; what a node's
    components are allowed besides stands with its reason in their manifests.
    """
    wrong = []
    for name, spec in workloads(objects(overlay, components)).items():
        assert spec["priorityClassName"].startswith("system-"), name
        for one in containers(spec):
            security = one["securityContext"]
            checks = {
                "read-only root": security.get("readOnlyRootFilesystem") is True,
                "memory": "memory" in one["resources"]["limits"] and "memory" in one["resources"]["requests"],
                "cpu": "cpu" in one["resources"]["requests"],
                "pull": one.get("imagePullPolicy") == "IfNotPresent",
            }
            if name != MPS_KEEPER and not (name == NODE_AGENT and one["name"] == "agent"):
                checks |= {
                    "privileged": not security.get("privileged"),
                    "escalation": security.get("allowPrivilegeEscalation") is False,
                    "capabilities": security["capabilities"] == {"drop": ["ALL"], **MORE.get(name, {})},
                }
            wrong += [(name, one["name"], what) for what, good in checks.items() if not good]
        if name in (SCHEDULER, AUTOSCALER):
            wrong += [(name, "host")] if {"hostPID", "hostNetwork", "hostIPC"} & set(spec) else []
            wrong += [(name, v["name"]) for v in spec["volumes"] if "hostPath" in v]

    assert [] == wrong


def test_every_folder_of_the_host_says_what_for():
    """
    In the manifest, beside it.
    """
    silent = []
    for file in MANIFESTS.rglob("*.yaml"):
        lines = file.read_text().splitlines()
        for before, line in itertools.pairwise(lines):
            if "hostPath:" in line and "#" not in before and "demo" not in line:
                silent.append(f"{file.name}: {line.strip()}")

    assert [] == silent


@each
def test_images_are_pinned(overlay, components):
    """
    Ours by the version of this tree, others' by digest.
    """
    version = re.search(r'^version = "(.+)"', (MANIFESTS.parent / "pyproject.toml").read_text(), re.MULTILINE)[1]
    images = {one["image"] for spec in workloads(objects(overlay, components)).values() for one in containers(spec)}
    ours = {image for image in images if image.startswith("gpushare-")}

    assert {image.rpartition(":")[2] for image in ours} == {version}
    assert [] == [image for image in images - ours if not re.fullmatch(r".+:v[0-9.]+@sha256:[0-9a-f]{64}", image)]


def test_ack_gets_neither_scheduler_nor_agent_nor_admission_of_ours():
    """
    There the vendor owns the names; and the autoscaler may move nobody.
    """
    things = objects("ack")
    rules = [rule for one in things if one["kind"] == "ClusterRole" for rule in one["rules"]]

    assert {EXPORTER, AUTOSCALER} == set(templates(things))
    assert not {one["kind"] for one in things} & {"MutatingWebhookConfiguration", "CustomResourceDefinition"}
    assert "pods/eviction" not in {resource for rule in rules for resource in rule["resources"]}
    assert {"list", "watch"} == {v for rule in rules if "reservations" in rule["resources"] for v in rule["verbs"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_of_accounts_are_those_of_the_contract(overlay):
    """
    Admission exempts these names, so nobody else's may stand in the manifests.
    """
    found = {one["metadata"]["name"] for one in objects(overlay) if one["kind"] == "ServiceAccount"}

    assert found <= {SCHEDULER, KUBE_SCHEDULER, NODE_AGENT, AUTOSCALER, EXPORTER}
    assert found - {KUBE_SCHEDULER} == set(templates(objects(overlay)))


def test_dashboards_and_rules_are_the_committed_ones_and_small_enough_to_apply():
    """
    All of them, byte for byte; kubectl keeps a copy of what it applied in an annotation, of 256 KiB at most.
    """
    things = objects("self-signed", ("monitoring",))
    boards = {}
    for one in things:
        if one["metadata"].get("labels", {}).get("grafana_dashboard") == "1":
            boards |= one["data"]
            assert len(json.dumps(json.dumps(one))) < 250_000, one["metadata"]["name"]
    root = MANIFESTS.parent / "dashboards"
    [rules] = [one for one in things if one["kind"] == "PrometheusRule"]

    assert {path.name: path.read_text() for path in (root / "json").glob("*.json")} == boards
    assert yaml.safe_load((root / "rules/out/prometheusrule.yaml").read_text()) == rules
    assert len(json.dumps(json.dumps(rules))) < 250_000


def test_scrapes_find_every_service_and_name_the_jobs_of_the_rules():
    """
    `job` is the component's name; series that speak of other pods keep their labels.
    """
    things = objects("self-signed", ("monitoring",))
    services = [one for one in things if one["kind"] == "Service"]
    jobs = {}
    for one in things:
        if one["kind"] == "ServiceMonitor":
            spec = one["spec"]
            [endpoint] = spec["endpoints"]
            chosen = [s for s in services if spec["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]
            ports = [p for s in chosen for p in s["spec"]["ports"] if p["name"] == endpoint["port"]]
            assert 1 == len(ports), one["metadata"]["name"]
            assert endpoint["honorLabels"]
            jobs |= {s["metadata"]["labels"][spec["jobLabel"]]: ports[0]["port"] for s in chosen}

    assert {SCHEDULER: 9446, NODE_AGENT: 9447, EXPORTER: 9445, AUTOSCALER: 9448} == jobs


def test_the_example_of_the_docs_can_be_built(tmp_path):
    """
    The kustomization in docs/install.md, with this tree where it says `gpushare`: its pools and images are in it.
    """
    page = (MANIFESTS.parent / "docs/install.md").read_text()
    [example] = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", page, re.DOTALL)
    (tmp_path / "kustomization.yaml").write_text(
        example.replace("gpushare/manifests", os.path.relpath(MANIFESTS, tmp_path)).replace('"sha256:..."', "sha256:aa")
    )
    things = [one for one in yaml.load_all(build(str(tmp_path)), yaml.CSafeLoader) if one]
    images = {one["image"] for spec in workloads(things).values() for one in spec["containers"]}
    configured = next(one for one in things if one["metadata"]["name"] == "gpushare-autoscaler-config")

    assert {f"registry.example/gpushare-{name}@sha256:aa" for name in ("controller", "exporter", "node")} < images
    assert ["gpu-a10"] == [pool.name for pool in read_config(configured["data"]["config.yaml"].encode()).pools]
    assert {"enabled": "true", "dryRun": "false"} == next(
        one["data"] for one in things if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", AUTOSCALER)
    )


@pytest.mark.parametrize("page", ["install.md", "images.md", "hpa.md", "cluster-autoscaler.md", "keda.md"])
def test_paths_that_pages_name_exist(page):
    """
    Of this tree, as they are written.
    """
    text = (MANIFESTS.parent / "docs" / page).read_text()
    named = set(re.findall(r"(?<![\w/])((?:manifests|overlays|components|base|images)/[\w/.-]*\w)", text))
    roots = (MANIFESTS.parent, MANIFESTS)

    assert set() == {one for one in named if not any((root / one).exists() for root in roots)}


def test_every_kustomization_lists_all_files_of_its_folder():
    """
    A file that nobody lists is installed nowhere. What is for people to copy or to apply by hand is named here.
    """
    apart = {"overlays/existing-scheduler/kube-scheduler.yaml"}
    lost = []
    for file in MANIFESTS.rglob("kustomization.yaml"):
        made = yaml.safe_load(file.read_text())
        listed = {name for name in made.get("resources", []) if name.endswith(".yaml")}
        listed |= {patch["path"] for patch in made.get("patches", []) if "path" in patch}
        there = {path.name for path in file.parent.glob("*.yaml")} - {"kustomization.yaml"}
        lost += [str((file.parent / name).relative_to(MANIFESTS)) for name in there - listed]

    assert apart == set(lost)
    assert Path(MANIFESTS / "certificate.sh").is_file()
