# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor` as it is typed, and the objects that are made from its tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from isolation.contract.names import KUBE_SCHEDULER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE
from isolation.contract.rbac import PERMISSIONS
from isolation.doctor import view
from isolation.doctor.checks.finding import counted, ok, problem, unknown
from isolation.doctor.cli import doctor
from isolation.doctor.manifests import FILES, objects, text
from isolation.scheduler.core.kube_scheduler_config import sidecar_config

ROOT = Path(__file__).resolve().parents[3]
REPORT = [ok("a.well", "fine"), problem("a.bad", "[red]broken", "mend it"), unknown("a.dark", "unseen", "look")]


def test_the_canary_pod_is_printed_as_a_manifest():
    """
    And nothing else, so that it can be piped into kubectl.
    """
    done = CliRunner().invoke(doctor, ["--canary-pod", "--image", "x:1"])

    assert (0, "Pod") == (done.exit_code, json.loads(done.output)["kind"])


def test_a_place_that_does_not_exist_is_bad_input():
    """
    Status 2, and the places are named.
    """
    done = CliRunner().invoke(doctor, ["moon"])

    assert 2 == done.exit_code
    assert "machine" in done.output


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--kubeconfig", "nowhere' does not exist"), ("--simgpu", "create it with gpushare simgpu create")],
)
def test_a_file_that_is_not_there_is_bad_input(option, expected, tmp_path):
    """
    Said of the file, and not of a cluster or a driver that was never asked.
    """
    done = CliRunner().invoke(doctor, [option, str(tmp_path / "nowhere")])

    assert 2 == done.exit_code
    assert expected in " ".join(done.output.split())


@pytest.mark.parametrize(("number", "output"), [(0, "0 pods"), (1, "1 pod"), (2, "2 pods")])
def test_a_number_is_said_as_a_person_says_it(number, output):
    """
    One is not many.
    """
    assert output == counted(number, "pod")


def test_data_says_what_the_status_says(tmp_path):
    """
    A machine with nothing on it: no driver is a problem, and the JSON carries the status.
    """
    done = CliRunner().invoke(doctor, ["machine", "--json", "--root", str(tmp_path)])
    output = json.loads(done.stdout)

    assert output["status"] == done.exit_code
    assert 1 == output["format"]
    assert {"check", "state", "evidence", "fix"} == set(output["findings"][0])


def test_a_pipe_gets_plain_lines_and_a_terminal_a_table_with_the_same_words():
    """
    What a stranger wrote is no markup of ours.
    """
    console = Console(record=True, width=70, force_terminal=True, highlight=False)
    view.show(REPORT, console)
    shown, piped = console.export_text(), view.plain(REPORT)

    for words in ("a.bad", "[red]broken", "-> mend it", "1 ok, 1 problem, 1 unknown"):
        assert words in shown
        assert words in piped
    assert "\x1b" not in piped


def test_the_kube_scheduler_beside_us_gets_what_we_print():
    """
    `gpushare scheduler config`.
    """
    committed = yaml.safe_load((ROOT / "manifests/base/scheduler/configuration.yaml").read_text())

    assert sidecar_config() == yaml.safe_load(committed["data"]["config.yaml"])


@pytest.mark.parametrize("name", sorted(FILES))
def test_committed_objects_are_those_of_the_tables(name):
    """
    `python -m isolation.doctor.manifests NAME` makes the file again.
    """
    assert text(name) == (ROOT / "manifests" / "base" / FILES[name]).read_text()


def test_no_right_is_wider_than_its_reason():
    """
    No stars, no secrets, no writing of roles, nothing without a reason.
    """
    for account in (SCHEDULER, NODE_AGENT):
        for permission in PERMISSIONS[account]:
            assert permission.why, permission
            assert "*" not in {permission.resource, permission.group, *permission.verbs}
            assert permission.plain not in {"secrets", "clusterroles", "roles", "serviceaccounts"}
            assert permission.plain != "configmaps" or permission.names
            assert not {"escalate", "impersonate", "bind", "deletecollection"} & set(permission.verbs)


@pytest.mark.parametrize("name", ["scheduler", "node"])
def test_roles_say_the_table_and_bind_one_account(name):
    """
    Every subject is our own account in our own namespace, and has its part of the table and no other's.
    """
    made = objects(name)
    accounts = {"scheduler": {SCHEDULER, KUBE_SCHEDULER}, "node": {NODE_AGENT}}[name]
    bound = [(one["roleRef"]["name"], s["name"], s["namespace"]) for one in made for s in one.get("subjects", ())]
    verbs = dict.fromkeys(accounts, 0)
    for one in made:
        for rule in one.get("rules", ()):
            verbs[one["metadata"]["name"]] += len(rule["verbs"])

    assert {SYSTEM_NAMESPACE} == {space for _, _, space in bound}
    assert {(account, account) for account in accounts} == {(role, who) for role, who, _ in bound if role in accounts}
    assert {KUBE_SCHEDULER} >= {who for role, who, _ in bound if role not in accounts}
    assert verbs == {account: sum(len(permission.verbs) for permission in PERMISSIONS[account]) for account in accounts}


def test_every_check_is_documented():
    """
    By its name, in docs/doctor.md.
    """
    sources = (ROOT / "isolation" / "doctor").rglob("*.py")
    checks = {
        name for path in sources for name in re.findall(r'"((?:machine|cluster|canary)\.[a-z_]+)"', path.read_text())
    }
    documented = set(re.findall(r"`([a-z_.]+)`", (ROOT / "docs" / "doctor.md").read_text()))

    assert len(checks) > 30
    assert set() == {check for check in checks if check not in documented and check.partition(".")[2] not in documented}


def test_every_file_of_the_manifests_is_listed_by_a_kustomization():
    """
    A file that nobody lists is applied by nobody.
    """
    base = ROOT / "manifests" / "base"
    for folder in (base, *(path for path in base.iterdir() if path.is_dir())):
        if not (folder / "kustomization.yaml").is_file():
            continue  # another room's, not finished yet
        listed = set(yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"])
        there = {path.name for path in folder.iterdir() if path.name != "kustomization.yaml"}
        there = {
            name for name in there if not (folder / name).is_dir() or (folder / name / "kustomization.yaml").is_file()
        }
        assert there == listed, folder.name
