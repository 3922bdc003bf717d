# SPDX-License-Identifier: Apache-2.0
"""
Prometheus' own judgement of a page of metrics.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from support.waiting import PATIENCE_SECONDS


def check(page: bytes) -> None:
    """`promtool check metrics`, plain and extended, finds nothing to complain about."""
    tool = shutil.which("promtool")
    if tool is None:
        message = "promtool is missing: apt-get install prometheus"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    for extended in ([], ["--extended"]):
        done = subprocess.run(
            [tool, "check", "metrics", *extended],
            input=page,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert (0, b"") == (done.returncode, done.stderr)
