# SPDX-License-Identifier: Apache-2.0
"""
Comparison with files under tests/golden; `GPUSHARE_UPDATE_GOLDEN=1` writes them again, to be read before they are kept.
"""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def check(name: str, text: str) -> None:
    """The text is what the file says."""
    path = GOLDEN / name
    if os.environ.get("GPUSHARE_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
