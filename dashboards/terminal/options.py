# SPDX-License-Identifier: Apache-2.0
"""
Options that views share: the source to read and the output to write.

Decides what is a usage error (exit status 2) and reads the environment: NO_COLOR, COLUMNS, the terminal's size.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from dashboards.terminal.read.http import checked
from dashboards.terminal.read.source import LOCAL, SourceSelection
from dashboards.terminal.table import NARROWEST, TextOutput
from isolation.contract.quantity import UNITS
from isolation.kube.options import NumberType
from isolation.options import memory_unit

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")
_WIDEST: Final = 400
EXIT_CODES: Final = "Exit status: 0 success, 2 usage error, 3 no source can be read, 4 pod or node not found."


class HttpAddress(click.ParamType[str]):
    """An http or https URL."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The URL, checked."""
        try:
            return checked(str(value))
        except ValueError as exc:
            self.fail(f"{str(value)[:80]!r}: {exc}", param, ctx)


_CLUSTER: Final = (
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="FILE",
        help="Kubeconfig of the cluster. Default: $KUBECONFIG, the pod's service account or ~/.kube/config.",
    ),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig to use."),
    click.option("--as", "user", metavar="USER", help="User to impersonate, as for kubectl."),
    click.option(
        "--as-group", "groups", multiple=True, metavar="GROUP", help="Group to impersonate; repeat for several."
    ),
)
_MACHINE: Final = (
    click.option(
        "--local",
        is_flag=False,
        flag_value=LOCAL,
        type=HttpAddress(),
        metavar="[URL]",
        help=f"Read the exporter of one machine at URL ({LOCAL} if no URL is given) instead of a cluster. This is "
        "the default if there is no kubeconfig.",
    ),
)
_READING: Final = (
    click.option(
        "--prometheus",
        type=HttpAddress(),
        metavar="URL",
        help="Read the memory in use from this Prometheus instead of from each exporter.",
    ),
    click.option(
        "--timeout",
        "seconds",
        type=NumberType(0.1, 600),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time limit for all reads together.",
    ),
    memory_unit("Size of a gpu-mem unit."),
    click.option("--no-color", "plain", is_flag=True, help="Disable colours, as NO_COLOR does."),
)


def cluster_options(command: F) -> F:
    """Add the options that choose a cluster and how it is read."""
    return _add(command, *_CLUSTER, *_READING)


def source_options(command: F) -> F:
    """Add the same, and the one that reads a single machine instead."""
    return _add(command, *_CLUSTER, *_MACHINE, *_READING)


def _add(command: F, *decorators: Callable[[F], F]) -> F:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


NO_HEADERS: Final = click.option(
    "--no-headers", "no_headers", is_flag=True, help="Print rows only: no heading, no totals."
)
SELECTOR: Final = click.option(
    "-l",
    "--selector",
    default="",
    metavar="LABELS",
    help="Show only objects that match this label selector, as kubectl does.",
)


def with_selector(source: SourceSelection, selector: str, *, pods: bool) -> SourceSelection:
    """The source limited to nodes, or pods, with these labels."""
    if selector and source.on_one_machine:
        raise click.UsageError("-l requires a cluster: use it with --kubeconfig and without --local")
    return replace(source, pod_selector=selector) if pods else replace(source, node_selector=selector)


def parse_options(given: dict[str, Any]) -> tuple[SourceSelection, TextOutput]:
    """Take the source and the output out of a command's options; UsageError."""
    kubeconfig, context, local = given.pop("kubeconfig"), given.pop("context"), given.pop("local", "")
    if local and (kubeconfig or context):
        raise click.UsageError("--local cannot be used with --kubeconfig or --context")
    user, groups = given.pop("user"), given.pop("groups")
    if groups and not user:
        raise click.UsageError("--as-group requires --as")
    impersonated = (user, *groups) if user else ()
    if any(not name.strip() or not name.isprintable() for name in impersonated):
        raise click.UsageError("--as and --as-group must be names without control characters")
    source = SourceSelection(
        kubeconfig,
        context,
        local or "",
        given.pop("prometheus") or "",
        given.pop("seconds"),
        UNITS[given.pop("unit")],
        impersonated,
    )
    if impersonated and source.on_one_machine:
        raise click.UsageError("--as requires a cluster: use it with --kubeconfig and without --local")
    if source.prometheus and source.on_one_machine:
        raise click.UsageError("--prometheus requires a cluster: use it with --kubeconfig and without --local")
    return source, replace(detect_output(plain=given.pop("plain")), headers=not given.pop("no_headers", False))


def detect_output(*, plain: bool) -> TextOutput:
    """Whether standard output is a terminal, with its size, or a pipe."""
    encoding = (sys.stdout.encoding or "ascii").lower()
    unicode = encoding.startswith("utf")
    if not sys.stdout.isatty():
        return TextOutput(None, unicode=unicode)
    colour = not plain and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns
    return TextOutput(min(_WIDEST, max(NARROWEST, width)), colour, unicode)


def interactive() -> bool:
    """Whether standard input and output are a terminal that can draw a screen, and the process is in the foreground."""
    try:
        both = sys.stdin.isatty() and sys.stdout.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # closed, or another session's
        return False
    return both and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def lines_left(used: int) -> int | None:
    """Lines that a terminal has left for rows; None for a pipe."""
    return max(1, shutil.get_terminal_size().lines - used) if sys.stdout.isatty() else None


def write_lines(lines: list[str]) -> None:
    """Print lines; characters that the encoding lacks are replaced."""
    text = "".join(f"{line}\n" for line in lines)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
