# SPDX-License-Identifier: Apache-2.0
"""
Options that people know from kubectl: -l, --as, --no-headers, -w, --node.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.views_harness import (
    ROOT,
    api,
    environment,
    exporter,
    fleet_of_cards,
    inside,
    kubeconfig,
    node_json,
    page_of,
    pod_json,
    serving,
)

OBJECTS = {
    "/api/v1/nodes": [node_json("gpu-a", cards=1, team="blue"), node_json("gpu-b", cards=1, team="red")],
    "/api/v1/pods": [pod_json("one", "gpu-a"), pod_json("two", "gpu-b"), pod_json("waits")],
}


def answers(path, query):
    """An API server that knows labels: of nodes `team`, of pods their name."""
    selector = query.get("labelSelector", "")
    found = OBJECTS.get(path)
    if found is not None and selector and path == "/api/v1/nodes":
        key, _, value = selector.partition("=")
        found = [one for one in found if one["metadata"]["labels"].get(key) == value]
    elif found is not None and selector:
        found = [one for one in found if f"app={one['metadata']['name']}" == selector]
    return api(OBJECTS | ({path: found} if found is not None else {}))(path, query)


def rows(*words):
    """The rows that a command prints, as words."""
    done = inside(*words)
    assert 0 == done.returncode, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_a_selector_of_nodes(tmp_path):
    """Of cards and nodes: the API server chooses the nodes."""
    with serving(answers) as (url, asked):
        config = kubeconfig(url, tmp_path)
        for command in (["top"], ["top", "--by", "node"]):
            found = rows(*command, "--no-headers", "-l", "team=red", "--kubeconfig", config)
            assert ["gpu-b"] == [row[0] for row in found]
        shown = inside("inspect", "-l", "team=blue", "--kubeconfig", config).stdout
        assert "gpu-a" in shown
        assert "gpu-b" not in shown
    assert any("labelSelector=team%3Dred" in path or "labelSelector=team=red" in path for path, _ in asked)


def test_a_selector_of_pods_shows_some_and_counts_all(tmp_path):
    """Of pods and namespaces; what a card has promised to the others stays promised."""
    with serving(answers) as (url, _):
        config = kubeconfig(url, tmp_path)
        assert [["team/two", "gpu-b"]] == [
            row[:2] for row in rows("top", "--by", "pod", "--no-headers", "-l", "app=two", "--kubeconfig", config)
        ]
        document = json.loads(
            inside("top", "--by", "pod", "-o", "json", "-l", "app=one", "--kubeconfig", config).stdout
        )
        assert ["one"] == [one["pod"] for one in document["items"]]
        head = inside("top", "--by", "pod", "-l", "app=one", "--kubeconfig", config).stdout.splitlines()[0]
        assert "allocated 16.0" in head


def test_somebody_else_is_asked_for(tmp_path):
    """--as and --as-group, in every request."""
    with serving(api(OBJECTS)) as (url, asked):
        words = ["--as", "jane", "--as-group", "dev", "--as-group", "ops", "--kubeconfig", kubeconfig(url, tmp_path)]
        assert 0 == inside("top", *words).returncode
    assert asked
    for _, headers in asked:
        assert "jane" == headers["Impersonate-User"]
        assert headers["Impersonate-Group"] in {"dev", "ops"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["top", "-l", "a=b"], "-l requires a cluster"),
        (["inspect", "-l", "a=b"], "-l requires a cluster"),
        (["top", "--as", "jane"], "--as requires a cluster"),
        (["top", "--as-group", "dev"], "--as-group requires --as"),
        (["top", "--as", "ja\nne"], "without control characters"),
        (["breaches", "-w", "--exit-code"], "--watch cannot be used with --exit-code"),
        (["top", "-w", "--once"], "--once cannot be used with --watch"),
        (["inspect", "n1", "--node", "n2"], "different nodes"),
    ],
)
def test_what_does_not_go_together(words, message):
    """Status 2, and why."""
    done = inside(*words, "--local")
    assert 2 == done.returncode
    assert message in " ".join(done.stderr.split())


def test_rows_alone():
    """--no-headers: one line for each card, nothing else on standard output."""
    fleet, usage = fleet_of_cards(8)
    with serving(exporter(page_of(usage), {"version": 1, "breaches": []})) as (url, _):
        found = rows("top", "--no-headers", "--local", url)
        assert [str(card.index) for card in fleet.nodes[0].cards] == [row[1] for row in found]
        assert [] == [row for row in rows("breaches", "--no-headers", "--local", url) if row[0] == "AGE"]
        assert "gpu-node-00" in inside("inspect", "--node", "gpu-node-00", "--local", url).stdout


@pytest.mark.processes
def test_watching_in_a_pipe_ends_with_its_reader():
    """-w: again and again, until nobody reads."""
    _, usage = fleet_of_cards(8)
    with serving(exporter(page_of(usage))) as (url, asked):
        command = f"{sys.executable} -m gpushare top -w 0.5 --no-headers --local {url}"
        script = f"{command} | head -9 | wc -l; echo ${{PIPESTATUS[0]}}"
        more = {"capture_output": True, "text": True, "cwd": ROOT, "env": environment(), "timeout": 60}
        done = subprocess.run(["bash", "-c", script], check=True, **more)
    assert ["9", "141"] == done.stdout.split()
    assert "" == done.stderr
    assert 2 <= len(asked)
