# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` says all that is wrong with what it is reported, and its documentation tells what it serves.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from isolation.contract.metrics.node import CATALOGUE, LABELS
from isolation.contract.model import Card, Instance, Mode
from isolation.contract.quantity import GIB
from isolation.node.cli import node
from isolation.node.inventory import NodeInventory, Terms
from isolation.node.settings import Settings
from isolation.node.web import PortError, serving
from isolation.node.wiring import WiringError, backends_of
from isolation.simgpu.cli import simgpu

DOCS = Path(__file__).resolve().parents[3] / "docs" / "node.md"


def test_every_mistake_is_reported_at_once(tmp_path):
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


def test_the_command_that_makes_simulated_cards_works_as_shown(tmp_path):
    """
    Whoever copies it from the message has the file that was missing.
    """
    path = tmp_path / "cards"
    problem = next(text for text in Settings("n1", kubelet_dir=tmp_path, simgpu=path).problems() if "--simgpu" in text)
    words = problem.split("`")[1].removeprefix("gpushare simgpu ").split()

    done = CliRunner().invoke(simgpu, words)

    assert (0, True) == (done.exit_code, path.is_file()), done.output


@pytest.mark.parametrize(
    "host", ["a" * 300, "bad host", "256.1.1.1", "\udcff"], ids=["long", "space", "octet", "bytes"]
)
def test_an_address_that_is_none_is_reported_with_what_to_change(host):
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
    As a DaemonSet gives it; without any the remedy is reported.
    """
    without = CliRunner().invoke(node, [f"--kubelet-dir={tmp_path}"], env={"NODE_NAME": ""})
    assert "fieldRef spec.nodeName" in without.output
    named = CliRunner().invoke(node, [f"--kubelet-dir={tmp_path}/none"], env={"NODE_NAME": "n1"})
    assert "--node is missing" not in named.output
    assert "--kubelet-dir" in named.output


def chosen(folder, option, label="", mode=Mode.CGPU, cards=()):
    """What a node uses, by option, label and mode; its cards' driver knows no memory limits."""
    inventory = NodeInventory(SimpleNamespace(cards=lambda: cards), Terms(GIB), folder / "node.json")
    inventory.refresh()
    inventory.serves(mode, whole=False, backend=label)
    driver = SimpleNamespace(unavailable=lambda *_: "driver 595.45 is older than 615")
    return backends_of(
        Settings("n1", run_dir=folder, terms=Terms(GIB), backend=option), inventory, driver, lambda: None
    )


def test_an_unknown_backend_is_reported_at_the_start(tmp_path):
    """
    Not when the first container starts.
    """
    with pytest.raises(WiringError, match="unknown: choose one of auto"):
        chosen(tmp_path, "x")


@pytest.mark.parametrize(
    ("given", "name", "said"),
    [
        (("auto", "", Mode.CGPU), "library", "older than 615"),
        (("auto", "", Mode.SHARE), "none", ""),
        (("auto", "library", Mode.CGPU), "library", ""),
        (("library", "kernel", Mode.CGPU), "", "older than 615"),
        (("mps", "", Mode.CGPU), "", "it serves node mode mps alone"),
        (("library", "", Mode.MPS), "", "node mode mps is served by backend mps alone"),
        (("auto", "", Mode.MPS), "", "no MPS keeper runs on this node"),
        (("mig", "", Mode.CGPU), "", "no card of this node is divided"),
        (("none", "", Mode.CORE_MEM), "", "no hard memory limit"),
        (("none", "", Mode.SHARE), "none", ""),
        (("auto", "speed", Mode.CGPU), "", "unknown"),
    ],
)
def test_the_label_comes_before_the_option_and_nothing_is_promised_that_cannot_be_held(tmp_path, given, name, said):
    """
    What cannot be used has a reason, which the node tells and does not become ready.
    """
    backends = chosen(tmp_path, *given)
    assert backends.name == name
    assert bool(backends.available()) == (not name)
    assert said in backends.choice.reason


INSTANCE = Card("MIG-0", 0, 10 * GIB, instance=Instance("GPU-0", "1g.10gb", 7))


@pytest.mark.parametrize(
    ("cards", "mode", "label", "name", "said"),
    [
        ((INSTANCE,), Mode.CGPU, "", "mig", "do not cover MIG instances"),
        ((INSTANCE,), Mode.CORE_MEM, "", "library", "mig: no compute limit"),
        ((INSTANCE,), Mode.CGPU, "kernel", "", "do not cover MIG instances"),
        (
            (INSTANCE, Card("GPU-1", 1, 10 * GIB)),
            Mode.CGPU,
            "",
            "library",
            "mig: some cards",
        ),
        ((Card("GPU-1", 1, 10 * GIB),), Mode.CGPU, "mig", "", "no card of this node is divided"),
    ],
)
def test_a_node_of_mig_instances_has_them_and_the_library(tmp_path, cards, mode, *, label, name, said):
    """The driver's own limits do not cover instances; of compute nothing is held there."""
    backends = chosen(tmp_path, "auto", label, mode, cards)

    assert backends.name == name
    assert said in backends.choice.reason


def test_a_container_that_keeps_its_limits_has_them_on_a_node_that_promises_nothing(tmp_path):
    """
    Node mode `share` after `cgpu`: limits of a pod stay while it lives.
    """
    assert chosen(tmp_path, "auto", mode=Mode.SHARE).holds()
    assert not chosen(tmp_path, "none", mode=Mode.SHARE).holds()


def test_every_label_of_a_metric_is_explained():
    """
    docs/metrics.md is printed from both tables.
    """
    assert {label for spec in CATALOGUE.values() for label in spec.labels} <= set(LABELS)


def test_every_option_stands_in_the_documentation():
    """
    In the table of the page.
    """
    table = "\n".join(line for line in DOCS.read_text().splitlines() if line.startswith("| `--"))
    shown = [one.opts[0] for one in node.params if not one.hidden]

    assert [] == [name for name in shown if not re.search(rf"{name}\b", table)]
