# SPDX-License-Identifier: Apache-2.0
"""
`gpushare doctor cluster` as a process, and what it answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

_DOCTOR = [sys.executable, "-c", "from isolation.doctor.cli import doctor; doctor()", "cluster", "--json"]


def examined(config: Path) -> tuple[dict[str, tuple[str, str]], int]:
    """States and words by check, and the exit status."""
    done = subprocess.run(
        [*_DOCTOR, "--kubeconfig", str(config)], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    document = json.loads(done.stdout)
    assert done.returncode == document["status"]
    return {f["check"]: (f["state"], f["evidence"]) for f in document["findings"]}, done.returncode
