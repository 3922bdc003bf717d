"""
`gpushare node` says all that is wrong with what it is told, and its documentation tells what it serves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from isolation.contract.metrics_node import CATALOGUE, LABELS
from isolation.contract.quantity import GIB
from isolation.node.cli import node
from isolation.node.inventory import Terms
from isolation.node.settings import Settings
from isolation.node.wiring import WiringError, backend_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "node.md"


def test_every_mistake_is_told_at_once(tmp_path):
    """
    Each with what to write instead, status 2, and nothing is started.
    """
    given = [f"--kubelet-dir={tmp_path}/none", "--simgpu=/none/cards", "--run-dir=/with space", "--node-name=Not_One"]
    done = CliRunner().invoke(node, given, env={"NODE_NAME": ""})
    assert 2 == done.exit_code
    for word in ("--node-name 'Not_One'", "--kubelet-dir", "gpushare simgpu create", "without spaces and colons"):
        assert word in done.output


def test_the_nodes_name_comes_from_the_environment(tmp_path):
    """
    As a DaemonSet gives it; without any the remedy is told.
    """
    without = CliRunner().invoke(node, [f"--kubelet-dir={tmp_path}"], env={"NODE_NAME": ""})
    assert "fieldRef spec.nodeName" in without.output
    named = CliRunner().invoke(node, [f"--kubelet-dir={tmp_path}/none"], env={"NODE_NAME": "n1"})
    assert "which node is this" not in named.output
    assert "--kubelet-dir" in named.output


@pytest.mark.parametrize(("name", "said"), [("kernel", "choose library"), ("mps", "choose library"), ("x", "unknown")])
def test_a_backend_that_cannot_work_is_told_at_the_start(tmp_path, name, said):
    """
    Not when the first container starts.
    """
    with pytest.raises(WiringError, match=said):
        backend_of(Settings("n1", run_dir=tmp_path, backend=name))
    assert "none" == backend_of(Settings("n1", run_dir=tmp_path, terms=Terms(GIB), backend="none")).name


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_metric_stands_in_the_documentation(name):
    """
    With its type, labels and help.
    """
    spec = CATALOGUE[name]
    row = f"| `{spec.name}` | {spec.kind} | {', '.join(spec.labels)} | {spec.help} |".replace("|  |", "| |")
    assert row in DOCS.read_text()
    assert set(spec.labels) <= set(LABELS)
