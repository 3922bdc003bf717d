# SPDX-License-Identifier: Apache-2.0
"""
What the flags of `gpushare sim` take: demands, policies, seeds.

Decides which words are good and says what to write instead of the others; runs nothing.
"""

from __future__ import annotations

import re
from typing import Final

import click

from isolation.placement.policy import POLICIES

MOST_RUNS: Final = 10_000
LARGEST_SEED: Final = 2**32 - 1
_SPAN: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")


class Policies(click.ParamType[tuple[str, ...]]):
    """Comma-separated names of policies."""

    name = "POLICY[,POLICY...]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names, each once, in the order given."""
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",")]
        unknown = [name for name in names if name not in POLICIES]
        if unknown:
            self.fail(f"unknown policy {unknown[0]!a}; choose from {', '.join(sorted(POLICIES))}", param, ctx)
        return tuple(dict.fromkeys(names))


class Seeds(click.ParamType[tuple[int, ...]]):
    """Seeds as spans and single numbers."""

    name = "SEEDS"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The seeds, each once, in the order given."""
        if isinstance(value, tuple):
            return value
        seeds: dict[int, None] = {}
        for part in str(value).split(","):
            span = _SPAN.fullmatch(part.strip())
            if span is None:
                self.fail(f"{part[:40]!a} is not a seed; write 42, 42-51 or 42,45,50-59", param, ctx)
            first, last = int(span[1]), int(span[2] or span[1])
            if last < first:
                self.fail(f"range {part.strip()} is descending; write {last}-{first}", param, ctx)
            if last > LARGEST_SEED:
                self.fail(f"seed {last} is larger than {LARGEST_SEED}", param, ctx)
            if last - first + len(seeds) >= MOST_RUNS:
                self.fail(f"more than {MOST_RUNS} seeds; write a shorter range", param, ctx)
            seeds.update(dict.fromkeys(range(first, last + 1)))
        return tuple(seeds)
