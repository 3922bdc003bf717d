# SPDX-License-Identifier: Apache-2.0
"""`gpushare up` on a user's own pods: manifests and traces, and what is said of broken ones."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from support.up_command import invoke

from autoscaler.demo import up

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: main
    image: x
    resources: {limits: {aliyun.com/gpu-mem: AMOUNT}}
"""


@pytest.fixture(autouse=True)
def _stepped(monkeypatch):
    """The caller's time passes while the command waits and at no other moment."""
    wall = [0.0]

    def wait(_stop, seconds):
        wall[0] += seconds
        return False

    monkeypatch.setattr(up, "time", SimpleNamespace(monotonic=lambda: wall[0]))
    monkeypatch.setattr(up.StopSignal, "wait", wait)


def manifest(path, name="bert", amount=3, text=POD):
    """A file with one pod that asks for a share."""
    path.write_text(text.replace("NAME", name).replace("AMOUNT", str(amount)), encoding="utf-8")
    return str(path)


def test_manifests_run_as_pods(tmp_path):
    """The pods of several files are placed and measured like any other, and nothing else runs."""
    files = [manifest(tmp_path / f"{name}.yaml", name) for name in ("bert", "gpt")]

    result = invoke("--manifest", files[0], "--manifest", files[1], "--for", "1", "--no-metrics", "--json")

    frame = json.loads(result.stdout)["frame"]
    held = {use["pod"]: use["allocated_bytes"] for node in frame["nodes"] for use in node["containers"]}
    assert {"bert": 3 << 30, "gpt": 3 << 30} == held


WHOLE = POD.replace("aliyun.com/gpu-mem", "nvidia.com/gpu")


def test_whole_cards_need_no_toleration_of_the_demonstrations_taint(tmp_path):
    """A plain pod that asks for a whole card gets one: that its nodes are tainted is the demonstration's doing."""
    path = manifest(tmp_path / "whole.yaml", amount=1, text=WHOLE)

    result = invoke("--manifest", path, "--for", "1", "--speed", "200", "--no-metrics", "--json")

    uses = [use for node in json.loads(result.stdout)["frame"]["nodes"] for use in node["containers"]]
    assert [("bert", True)] == [(use["pod"], use["exclusive"]) for use in uses]


def test_many_pods_that_wait_for_the_same_reason_are_one_line(tmp_path):
    """Thousands of replicas must not push everything else off the screen."""
    text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: NAME}\nspec:\n  replicas: 900\n"
    text += "  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec:\n"
    text += "      containers:\n      - {name: main, image: x, resources: {limits: {aliyun.com/gpu-mem: AMOUNT}}}\n"
    path = manifest(tmp_path / "many.yaml", amount=7, text=text)

    result = invoke("--manifest", path, "--for", "1", "--speed", "30", "--no-metrics")

    waits = [line for line in result.stdout.splitlines() if " wait default/" in line]
    assert 1 == len(waits)
    assert "and 873 more: no pool can scale up now: shared (at its maximum of 6 nodes); 7 GiB on 1 card" in waits[0]


def test_manifest_that_asks_for_nonsense(tmp_path):
    """A pod that no fleet could ever serve is named before anything runs."""
    result = invoke("--manifest", manifest(tmp_path / "bad.yaml", amount=0), "--for", "0", "--no-metrics")

    assert 2 == result.exit_code
    assert "bert" in result.stderr


def test_malformed_manifest_names_file_and_line(tmp_path):
    """Broken YAML is told with its place."""
    path = manifest(tmp_path / "broken.yaml", text="apiVersion: v1\nkind: [\n")

    result = invoke("--manifest", path, "--for", "0", "--no-metrics")

    assert 2 == result.exit_code
    assert re.search(r"broken\.yaml:[23]", result.stderr)


def test_manifest_without_pods(tmp_path):
    """A file that makes no pod is not run as an empty fleet."""
    path = manifest(tmp_path / "config.yaml", text="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n")

    result = invoke("--manifest", path, "--for", "0", "--no-metrics")

    assert 2 == result.exit_code
    assert "these manifests contain no pods" in result.stderr


NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,T4\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"


def trace(folder, *rows):
    """A trace of one node and these pods, as options."""
    (folder / "n.csv").write_text(NODES, encoding="utf-8")
    (folder / "p.csv").write_text(PODS + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return ["--nodes-csv", str(folder / "n.csv"), "--pods-csv", str(folder / "p.csv")]


def test_trace_is_replayed_in_time(tmp_path):
    """Pods come and go as the trace says, and their use is measured."""
    files = trace(
        tmp_path,
        "early,1000,1024,1,500,,LS,Running,100,400,101",
        "late,1000,1024,1,250,,LS,Running,1000,90000,1001",
    )

    result = invoke(*files, "--for", "3", "--speed", "3000", "--no-metrics", "--json")

    found = json.loads(result.stdout)
    held = {use["pod"]: use["allocated_bytes"] for node in found["frame"]["nodes"] for use in node["containers"]}
    assert {"late": 250 << 20} == held
    assert 1 == found["summary"]["pods_finished"]


def test_idle_months_at_the_beginning_of_a_trace_are_skipped(tmp_path):
    """A lone pod long before the others does not make the replay wait; it still runs when they come."""
    rows = ["lone,1000,1024,1,500,,LS,Running,0,99000000,1"]
    rows += [f"p{i},1000,1024,1,1,,LS,Running,{9_000_000 + i},99000000,0" for i in range(120)]

    result = invoke(*trace(tmp_path, *rows), "--for", "1", "--speed", "600", "--no-metrics", "--json")

    assert "the replay starts 104.2 days into the trace" in result.stderr
    found = json.loads(result.stdout)
    names = {use["pod"] for node in found["frame"]["nodes"] for use in node["containers"]}
    assert {"lone", "p0", "p1"} <= names


def test_trace_begins_with_no_node_and_grows_by_demand(tmp_path):
    """The node list says how many there may be of each kind; nodes come when pods need them."""
    rows = [f"p{i},1000,1024,1,900,,LS,Running,{i},90000,0" for i in range(6)]
    options = trace(tmp_path, *rows)
    (tmp_path / "n.csv").write_text(
        NODES + "".join(f"n{i},64000,262144,2,T4\n" for i in range(2, 42)), encoding="utf-8"
    )

    result = invoke(*options, "--for", "1", "--speed", "900", "--no-metrics", "--json")

    found = json.loads(result.stdout)
    assert [("t4x2", 3, 0, 41)] == [
        (p["name"], p["nodes"], p["min_nodes"], p["max_nodes"]) for p in found["frame"]["pools"]
    ]
    assert (3, 0, 6) == tuple(found["summary"][name] for name in ("nodes_added", "nodes_drained", "pods_running"))
    assert " 0 nodes, 0 cards" in result.stderr.splitlines()[1]


def test_trace_without_times_is_refused(tmp_path):
    """A pod list of five columns cannot be replayed in time, and says what can be done."""
    files = trace(tmp_path)
    (tmp_path / "p.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,500\n", encoding="utf-8")

    result = invoke(*files, "--for", "0", "--no-metrics")

    assert 2 == result.exit_code
    assert "p.csv: no pod has both creation_time and deletion_time" in result.stderr
    assert "gpushare sim" in result.stderr


def test_broken_trace_names_file_and_line(tmp_path):
    """A cell that is no number is told with its place."""
    result = invoke(*trace(tmp_path, "p,much,1024,1,500,,LS,Running,1,2,1"), "--for", "0", "--no-metrics")

    assert 2 == result.exit_code
    assert re.search(r"p\.csv:2", result.stderr)
