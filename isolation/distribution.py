# SPDX-License-Identifier: Apache-2.0
"""
The distribution that pip installs: its name, its version as it is installed, and the command that adds extras.

The command and the import packages have other names: the distribution `gpushare` belongs to another project.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "gpushare-k8s"
"""As in pyproject.toml, whose name no program reads once it is installed."""


def release() -> str:
    """`unknown` where it runs from a folder that was never installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def install_command(*extras: str) -> str:
    """What to type for these extras; without any, for the commands that need none."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'" if extras else f"pip install '{DISTRIBUTION}'"
