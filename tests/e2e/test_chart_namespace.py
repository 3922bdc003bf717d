# SPDX-License-Identifier: Apache-2.0
"""The chart in another namespace than gpushare-system: a module alone, since the address of the pods is one for all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE_SECONDS

HERE = Path(__file__).resolve()
NAME = "test_it_is_installed_upgraded_from_the_first_chart_and_removed_while_a_pod_runs"


@pytest.mark.e2e
def test_all_of_it_works_in_another_namespace():
    """
    Installed, upgraded and removed where every name of the namespace is another one: for helm, for the script that
    makes certificates, and for our programs.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{HERE.with_name('test_chart.py')}::{NAME}"],
        cwd=HERE.parents[2],
        env={**os.environ, "GPUSHARE_NAMESPACE": "gpu-sharing", "NAMESPACE": "gpu-sharing"},
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE_SECONDS,
        check=False,
    )
    assert 0 == done.returncode, done.stdout[-6000:]
