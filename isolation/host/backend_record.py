# SPDX-License-Identifier: Apache-2.0
"""
What enforces promises on this node, as the node agent wrote it down for others on the machine.

`<state-dir>/backend` holds one name of `isolation.contract.backends`. A file that cannot be read, or names none, says
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.backends import BACKENDS
from isolation.files import replace_file
from isolation.host.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

RECORD: Final = "backend"


def write_backend(state_dir: Path, name: str) -> None:
    """Empty: nothing is enforced, as nothing can be promised. OSError."""
    state_dir.mkdir(parents=True, exist_ok=True)
    replace_file(state_dir / RECORD, name + "\n")


def read_backend(state_dir: Path) -> str:
    """The name; empty: not known."""
    try:
        name = read_text(state_dir / RECORD).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return name if name in BACKENDS else ""
