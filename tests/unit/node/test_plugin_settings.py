# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` says all that is wrong with what it is told, and its documentation tells what it serves.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from isolation.contract.metrics.node import CATALOGUE, LABELS
from isolation.contract.quantity import GIB
from isolation.node.cli import node
from isolation.node.inventory import Terms
from isolation.node.settings import Settings
from isolation.node.web import PortError, serving
from isolation.node.wiring import WiringError, backend_of
from isolation.simgpu.cli import simgpu

DOCS = Path(__file__).resolve().parents[3] / "docs" / "node.md"


def test_every_mistake_is_told_at_once(tmp_path):
    """
    Each with what to write instead, status 2, and nothing is started.
    """
    given = [f"--kubelet-dir={tmp_path}/none", "--simgpu=/none/cards", "--state-dir=/with space", "--node-name=Not_One"]
    given.append("--marks-dir=/with:colon")
    done = CliRunner().invoke(node, [*given, f"--cgroup={tmp_path}/gone"], env={"NODE_NAME": ""})
    assert 2 == done.exit_code
    said = (
        "--node 'Not_One'",
        "--kubelet-dir",
        "gpushare simgpu create",
        "without spaces, quotes",
        "--cgroup",
        "--marks-dir",
    )
    assert [] == [word for word in said if word not in done.output]


def test_the_command_that_makes_simulated_cards_works_as_it_is_told(tmp_path):
    """
    Whoever copies it from the message has the file that was missing.
    """
    path = tmp_path / "cards"
    told = next(text for text in Settings("n1", kubelet_dir=tmp_path, simgpu=path).problems() if "--simgpu" in text)
    words = told.split("`")[1].removeprefix("gpushare simgpu ").split()

    done = CliRunner().invoke(simgpu, words)

    assert (0, True) == (done.exit_code, path.is_file()), done.output


@pytest.mark.parametrize(
    "host", ["a" * 300, "bad host", "256.1.1.1", "\udcff"], ids=["long", "space", "octet", "bytes"]
)
def test_an_address_that_is_none_is_told_with_what_to_change(host):
    """
    Also where Python calls it an error of encoding.
    """

    async def story():
        async with serving(Settings("n1", host=host, port=0), lambda: b"", lambda: "", lambda: ""):
            pass

    with pytest.raises(PortError, match="choose another --listen"):
        asyncio.run(story())


def test_the_nodes_name_comes_from_the_environment(tmp_path):
    """
    As a DaemonSet gives it; without any the remedy is told.
    """
    without = CliRunner().invoke(node, [f"--kubelet-dir={tmp_path}"], env={"NODE_NAME": ""})
    assert "fieldRef spec.nodeName" in without.output
    named = CliRunner().invoke(node, [f"--kubelet-dir={tmp_path}/none"], env={"NODE_NAME": "n1"})
    assert "--node is missing" not in named.output
    assert "--kubelet-dir" in named.output


@pytest.mark.parametrize(("name", "said"), [("kernel", "use library"), ("mps", "use library"), ("x", "unknown")])
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


def test_every_option_stands_in_the_documentation():
    """
    In the table of the page.
    """
    table = "\n".join(line for line in DOCS.read_text().splitlines() if line.startswith("| `--"))
    shown = [one.opts[0] for one in node.params if not one.hidden]

    assert [] == [name for name in shown if not re.search(rf"{name}\b", table)]
