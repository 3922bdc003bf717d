# SPDX-License-Identifier: Apache-2.0
"""The minimum is the same for the checks, docs/compatibility.md and the quick start's script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isolation.doctor.checks import minimum

ROOT = Path(__file__).resolve().parents[3]
NAMES = {"Kubernetes": minimum.KUBERNETES, "containerd": minimum.CONTAINERD, "CRI-O": minimum.CRIO}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_check_calls_too_old_is_below_the_minimum_of_the_page(name):
    """The bold number of its row, and what the script compares with before it changes anything."""
    wanted = ".".join(map(str, NAMES[name]))
    page = (ROOT / "docs/compatibility.md").read_text()
    script = (ROOT / "hack/quickstart-kind.sh").read_text()

    assert [wanted] == re.findall(rf"^\| {name} \| \*\*([\d.]+)\*\* ", page, re.MULTILINE)
    assert {wanted} == set(re.findall(rf"at_least \S+ ([\d.]+) .*{name} \$", script))
