# SPDX-License-Identifier: Apache-2.0
"""What the manifests tell our processes: options that exist, files that can be read, tables that are current."""

from __future__ import annotations

import json
import re
import shlex
from copy import copy

import click
import pytest
import yaml
from e2e.manifest_build import BUILDS, IDS, MANIFESTS, named, objects, templates

from autoscaler.kube.config.reader import read_config
from gpushare import COMMANDS, load
from isolation.contract.names import (
    AUTOSCALER,
    AUTOSCALER_STATE,
    DRAIN,
    EXPORTER,
    KUBE_SCHEDULER,
    NODE_AGENT,
    RUN_DIR,
    SCHEDULER,
    SYSTEM_NAMESPACE,
)
from isolation.contract.rbac import PERMISSIONS
from isolation.doctor.manifests import FILES, text
from isolation.doctor.manifests import objects as generated_objects
from isolation.scheduler.admission.objects import build_objects as admission_objects
from isolation.scheduler.core.kube_scheduler_config import existing_scheduler_config

each = pytest.mark.parametrize(("overlay", "components"), BUILDS, ids=IDS)
USER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{AUTOSCALER}"


def understood(words):
    """The click command reads these words: a wrong option, a value of the wrong kind, a missing one is reported."""
    where, extra, _ = COMMANDS[words[0]]
    command = load(where, extra)
    rest = list(words[1:])
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    # files of the container are not here: what must exist for click is taken for a word, in a copy of the command
    ours = copy(command)
    ours.params = [copy(parameter) for parameter in command.params]
    for parameter in ours.params:
        if isinstance(parameter.type, click.Path):
            parameter.type = click.Path()
    ours.make_context(words[0], rest)
    return command


def said(things):
    """Every command line of ours, by container."""
    for name, template in templates(things).items():
        for one in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
            if one["image"].startswith("gpushare-"):
                yield name, one


@pytest.mark.processes
@each
def test_every_command_line_is_understood_by_its_command(overlay, components):
    """
    Whatever the containers are started with, image by image.
    """
    images = {
        SCHEDULER: "controller",
        AUTOSCALER: "controller",
        NODE_AGENT: "node",
        "gpushare-mps": "node",
        EXPORTER: "exporter",
    }
    for name, one in said(objects(overlay, components)):
        assert f"gpushare-{images[name]}" == one["image"].rpartition(":")[0]
        if "args" in one:
            understood(one["args"])
        else:
            script = " ".join(one["command"])
            for found in re.findall(r"gpushare ([a-z]+ [a-z]+ [^;}]+)", script):
                understood(shlex.split(found.replace('"$1"', "file")))


@each
def test_every_process_logs_for_machines(overlay, components):
    """
    One form of logs for a cluster's collector, whichever overlay replaced the arguments.
    """
    things = objects(overlay, components)
    processes = [(name, one["args"]) for name, one in said(things) if "args" in one]

    assert {name for name, _ in processes} == set(templates(things))
    assert [] == [name for name, words in processes if "--log-format=json" not in words]


def test_a_wrong_option_would_be_found():
    """
    The check above can fail.
    """
    with pytest.raises(click.NoSuchOption):
        understood(["exporter", "--lisen=0.0.0.0:9445"])
    with pytest.raises(click.BadParameter):
        understood(["node", "--metrics-port=many"])


@each
def test_files_named_on_a_command_line_are_mounted(overlay, components):
    """
    Each path stands below a mount of its container, and a file of a ConfigMap is a key of it.
    """
    things = objects(overlay, components)
    lost = []
    for name, one in said(things):
        volumes = {v["name"]: v for v in templates(things)[name]["spec"]["volumes"]}
        mounts = {m["mountPath"]: volumes[m["name"]] for m in one["volumeMounts"]}
        for path in re.findall(r"=(/\S+)", " ".join(one.get("args", []))):
            folder = next((mount for mount in mounts if path.startswith(f"{mount}/")), None)
            volume = mounts.get(folder, {})
            if "configMap" in volume:
                data = named(things, "ConfigMap", volume["configMap"]["name"])["data"]
                folder = folder if path.removeprefix(f"{folder}/") in data else None
            if folder is None:
                lost.append((name, path))

    assert [] == lost


@each
def test_the_autoscalers_configuration_can_be_read(overlay, components):
    """
    Also the example that stands beside it as a comment; on ACK nobody is moved.
    """
    made = named(objects(overlay, components), "ConfigMap", f"{AUTOSCALER}-config")
    config = read_config(made["data"]["config.yaml"].encode())
    switch = named(objects(overlay, components), "ConfigMap", AUTOSCALER)["data"]

    assert () == config.pools
    assert (config.limits.max_moves_per_cycle == 0) == (overlay == "ack")
    assert {"enabled": "true", "dryRun": "true"} == switch


@pytest.mark.parametrize("file", ["base/autoscaler/configuration.yaml", "overlays/ack/configuration.yaml"])
def test_the_example_in_the_comment_can_be_read_too(file):
    """
    Uncommented, as somebody would begin.
    """
    lines = re.findall(r"^#   (.*)$", (MANIFESTS / file).read_text(), re.MULTILINE)
    [pool] = read_config("\n".join(["version: 1", *lines]).encode()).pools

    assert ("gpu-a10", 10) == (pool.name, pool.max_nodes)


@pytest.mark.parametrize("name", sorted(FILES))
def test_committed_roles_are_what_the_table_says(name):
    """
    `python -m isolation.doctor.manifests NAME` makes the file again.
    """
    assert (MANIFESTS / "base" / FILES[name]).read_text() == text(name)


def test_the_autoscaler_may_write_what_it_owns_and_nothing_wider():
    """
    No stars, no secrets, no roles; ConfigMaps and Leases in our namespace, by name wherever RBAC knows names.
    """
    wide = []
    for permission in PERMISSIONS[AUTOSCALER]:
        assert permission.why, permission
        assert "*" not in {permission.resource, permission.group, *permission.verbs}
        assert permission.plain not in {"secrets", "clusterroles", "roles", "serviceaccounts", "deployments"}
        assert not {"escalate", "impersonate", "bind", "deletecollection"} & set(permission.verbs)
        if permission.plain in {"configmaps", "leases"}:
            assert permission.local
            assert permission.names or permission.verbs == ("create",), permission
        wide += [
            (permission.resource, verb)
            for verb in permission.verbs
            if verb not in {"get", "list", "watch"} and not permission.local
        ]

    assert {
        ("nodes", "patch"),
        ("pods/eviction", "create"),
        ("reservations", "create"),
        ("reservations", "delete"),
        ("pods/status", "patch"),
        ("events", "create"),
    } == set(wide)
    assert 1 == len({json.dumps(s) for one in generated_objects("autoscaler") for s in one.get("subjects", ())})


def test_the_policies_about_the_autoscaler_name_what_the_code_names():
    """
    Its account, its taint, its state: each as in the contract.
    """
    policies = list(yaml.safe_load_all((MANIFESTS / "base/autoscaler/policy.yaml").read_text()))
    policies += list(yaml.safe_load_all((MANIFESTS / "components/cluster-api/rbac.yaml").read_text()))
    policies = [one for one in policies if one["kind"] == "ValidatingAdmissionPolicy"]
    whole = yaml.safe_dump(policies, width=10_000)

    assert {f'request.userInfo.username == "{USER}"'} == {
        condition["expression"] for one in policies for condition in one["spec"]["matchConditions"]
    }
    assert {"Fail"} == {one["spec"]["failurePolicy"] for one in policies}
    assert f'"{DRAIN}"' in whole
    assert f'"{AUTOSCALER_STATE}"' in whole


def test_the_policies_for_an_existing_scheduler_are_those_that_the_tables_make():
    """
    The overlay patches two lines of one policy and leaves out those about the kube-scheduler beside ours; the rest is
    what the code prints for that scheduler.
    """
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    wanted = {
        (one["kind"], one["metadata"]["name"]): one
        for one in admission_objects("policies.yaml", "default-scheduler")
        if not one["metadata"]["name"].startswith(KUBE_SCHEDULER)
    }
    built = {
        (one["kind"], one["metadata"]["name"]): one for one in objects("existing-scheduler") if one["kind"] in kinds
    }

    assert wanted == {key: built[key] for key in wanted}


def test_the_stanza_for_an_existing_scheduler_is_current():
    """
    As `gpushare scheduler config --existing-scheduler` prints it.
    """
    file = MANIFESTS / "overlays/existing-scheduler/kube-scheduler.yaml"

    assert existing_scheduler_config() == yaml.safe_load(file.read_text())


def test_roles_for_people_are_those_that_the_page_shows():
    """
    docs/views.md says what `kubectl gpushare` needs; the component grants that and nothing else.
    """
    page = (MANIFESTS.parent / "docs/views.md").read_text()
    [shown] = re.findall(r"```yaml\n(.*?kind: ClusterRole.*?)```", page, re.DOTALL)
    made = list(yaml.safe_load_all((MANIFESTS / "components/views/rbac.yaml").read_text()))

    assert [(one["kind"], one["rules"]) for one in yaml.safe_load_all(shown)] == [
        (one["kind"], one["rules"]) for one in made
    ]


def test_the_demo_uses_one_file_of_cards_for_agent_and_exporter():
    """
    At the same place of the host: the agent puts that path into containers, the exporter looks at it.
    """
    places = set()
    for name, template in templates(objects("demo")).items():
        if name in (NODE_AGENT, EXPORTER):
            volumes = {v["name"]: v["hostPath"]["path"] for v in template["spec"]["volumes"] if "hostPath" in v}
            [one] = template["spec"]["containers"]
            [inside] = [word.partition("=")[2] for word in one["args"] if word.startswith("--simgpu=")]
            mounts = {m["mountPath"]: volumes[m["name"]] for m in one["volumeMounts"] if m["name"] in volumes}
            at = max((mount for mount in mounts if inside.startswith(f"{mount}/")), key=len)
            places.add(mounts[at] + inside.removeprefix(at))

    assert {f"{RUN_DIR}/demo/hardware"} == places
