# SPDX-License-Identifier: Apache-2.0
"""`gpushare up` where something is not installed: the rest works, and it says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.stack_run import ROOT, runs_in
from support.waiting import PATIENCE_SECONDS

pytest.importorskip("pynvml")
pytest.importorskip("bcrypt")


@pytest.fixture
def started(tmp_path):
    """Starts runs."""
    with runs_in(tmp_path) as start:
        yield start


WITHOUT = "import sys; sys.modules['{name}'] = None; from gpushare import main; main()"


def test_without_what_the_tenants_need_the_embedded_cluster_runs_alone_and_says_so():
    """What is missing, and how it is had, in one line; the rest works, and the document says that there is no stack."""
    program = WITHOUT.format(name="pynvml")
    done = subprocess.run(
        [sys.executable, "-c", program, "up", "--for", "1", "--port", "0", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert 0 == done.returncode
    remark = (
        "running only the simulated cluster: Python packages are missing: run pip install 'gpushare-k8s[exporter,run]'"
    )
    assert remark in done.stderr.splitlines()
    document = json.loads(done.stdout)
    assert document["stack"] is None
    assert document["frame"]["nodes"]


def test_without_prometheus_alerts_are_unknown_and_it_says_what_to_install(started):
    """No alert is not the same as nobody who could tell."""
    run = started("--for", "6", "--json", PATH="/nonexistent")
    run.process.wait(PATIENCE_SECONDS)

    stack = json.loads((run.folder / "out").read_text())["stack"]
    assert stack["alerts"] is None
    assert ["exporter", "autoscaler"] == [part["name"] for part in stack["processes"]]
    assert (None, None) == (stack["addresses"]["prometheus"], stack["addresses"]["alertmanager"])
    (remark,) = stack["remarks"]
    assert "no alerts: prometheus and prometheus-alertmanager not installed" in remark
    assert "apt-get install prometheus prometheus-alertmanager" in remark
