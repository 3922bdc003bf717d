# SPDX-License-Identifier: Apache-2.0
"""
Options, and the errors, that mean the same in every command.

Decides their spelling, once; kubectl's where kubectl has the option. What a command prints is its own decision.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from isolation.contract.quantity import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")
FOR_PROGRAMS = "Output format. json: for programs."


class InputError(click.ClickException):
    """Files or addresses that cannot be used: status 2 without the usage line that click's UsageError repeats."""

    exit_code = 2


class CannotReadError(click.ClickException):
    """The cluster, or what else is to be read, does not answer: status 3."""

    exit_code = 3


class WholeNumber(click.IntRange):
    """A whole number in a range; the error says so, and of what (`unit`), where click would speak of its own type."""

    def __init__(self, least: int, most: int, unit: str = "") -> None:
        super().__init__(least, most)
        self.name = f"whole number of {unit}" if unit else "whole number"


def memory_unit(text: str) -> Callable[[F], F]:
    """`--memory-unit`, as `unit`: one of `contract.quantity.UNITS`."""
    return click.option(
        "--memory-unit", "unit", type=click.Choice(list(UNITS)), default="1GiB", show_default=True, help=text
    )


def output(*more: str, text: str = FOR_PROGRAMS, alias: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """
    `-o FORMAT`: json and `more`; the command gets it as `output`, empty where it is not given.

    `alias`: `--json` means `-o json`, unless the command means something else by it.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("-o", "--output", type=click.Choice((*more, "json")), help=text)
        @wraps(command)
        def given(*args: Any, output: str | None, older: bool = False, **options: Any) -> Any:
            return command(*args, output="json" if older else output or "", **options)

        return click.option("--json", "older", is_flag=True, hidden=True)(given) if alias else given

    return decorate
