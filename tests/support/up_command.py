# SPDX-License-Identifier: Apache-2.0
"""`gpushare up` as a process, and within this one."""

from __future__ import annotations

from click.testing import CliRunner, Result

from gpushare import main


def invoke(*arguments: str) -> Result:
    """The command within this process, its output apart from its complaints."""
    return CliRunner().invoke(main, ["up", *arguments])
