# SPDX-License-Identifier: Apache-2.0
"""
A number on the command line.
"""

from __future__ import annotations

from math import isnan
from typing import Any

import click


class Number(click.FloatRange):
    """A number within its range; "nan", which is within each, is none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value} is not a number; write for example 60", param, ctx)
        return number
