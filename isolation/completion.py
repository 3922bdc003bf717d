# SPDX-License-Identifier: Apache-2.0
"""
`gpushare completion`: what a shell needs to complete command lines, made by click from the commands themselves.

Decides nothing about commands. kubectl asks a plug-in for completions by cobra's protocol, which is written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VARIABLE: Final = "_GPUSHARE_COMPLETE"
"""Set by a shell that asks what may come next."""
_SHELLS: Final = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_FILES, _NO_FILES = 0, 4  # cobra's ShellCompDirectiveDefault and ShellCompDirectiveNoFileComp


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(tuple(_SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """
    Print the completion script of SHELL.

    \b
    bash:  source <(gpushare completion bash)
    zsh:   source <(gpushare completion zsh)
    fish:  gpushare completion fish | source

    `kubectl gpushare` is completed by kubectl itself, which finds kubectl_complete-gpushare in PATH.
    """  # noqa: D301 (click's mark: do not wrap these lines)
    click.echo(_Script(_SHELLS[shell], ctx.find_root().command).text(), nl=False)


class _Script:
    """The script of one shell; click's own class for bash would start bash first, to learn its version."""

    def __init__(self, shell: type[ShellComplete], command: click.Command) -> None:
        self._made = shell(command, {}, "gpushare", VARIABLE)

    def text(self) -> str:
        """Ready to be sourced."""
        return ShellComplete.source(self._made)


def for_kubectl(command: click.Command, words: Sequence[str]) -> Iterator[str]:
    """
    What may stand in place of the last of these words, a line each, and what the shell should do besides.

    Source: kubectl, SetupPluginCompletion; cobra, ShellCompDirective.
    """
    *before, last = words or ("",)
    found = ShellComplete(command, {}, "kubectl gpushare", VARIABLE).get_completions(before, last)
    for one in found:
        if one.type == "plain":
            yield f"{one.value}\t{one.help}" if one.help else str(one.value)
    yield f":{_NO_FILES if all(one.type == 'plain' for one in found) else _FILES}"
