# SPDX-License-Identifier: Apache-2.0
"""
The version of this program, as it is installed.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """`unknown` where it runs from a folder that was never installed."""
    try:
        return version("gpushare")
    except PackageNotFoundError:
        return "unknown"
