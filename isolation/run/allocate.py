# SPDX-License-Identifier: Apache-2.0
"""
From an ask to a hold: look, choose and write in one decision, or wait for room.

Decides when waiting can help; where a command goes is `ask`'s business, who lives is `book`'s.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isolation.contract.abi import Policy
from isolation.contract.host_allocation import HostAllocation
from isolation.contract.model import Refusal
from isolation.host import cgroup, process
from isolation.run import listing, wait_queue
from isolation.run.launch import promise
from isolation.run.store import GROUP, PREFIX, Book, BookError, Held
from isolation.run.unallocated import warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from isolation.contract.model import Card, CardChoice, Placement
    from isolation.host.machine import Machine
    from isolation.run.core.request import Wanted

LOOK_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 1.0
LINE_SECONDS: Final = 30.0
"""Between lines of progress where nobody watches a terminal."""


class NoRoomError(Exception):
    """A refusal, told with who holds what."""


@dataclass(frozen=True, slots=True)
class Options:
    """One call of `gpushare run`."""

    wanted: Wanted
    command: tuple[str, ...]
    policy: str
    placement: CardChoice
    wait: bool
    name: str
    online: bool


def obtain(options: Options, machine: Machine, book: Book, cards: Sequence[Card]) -> tuple[Held, int]:
    """A hold and its lock; waits where that was asked for and can help, the oldest first."""
    told = _Progress()
    with contextlib.ExitStack() as line:
        made, holds = _until_there_is_room(options, book, cards, told, line)
    told.end()
    for sentence in warnings(made[0].entry.slices, {card.uuid: card for card in cards}, holds, machine):
        click.echo(f"note: {sentence}", err=True)
    return made


def _until_there_is_room(
    options: Options, book: Book, cards: Sequence[Card], told: _Progress, line: contextlib.ExitStack
) -> tuple[tuple[Held, int], tuple[Held, ...]]:
    """The hold, and those that were there before it. `line` ends the ticket."""
    ask, began = placing(), time.monotonic()
    ticket: wait_queue.Ticket | None = None
    while True:
        with book.deciding():
            holds = book.holds()
            if options.wait and ticket is None:
                ticket = wait_queue.take(book.home)
                line.callback(ticket.drop)
            held = [one.entry for one in holds]
            found = ask.choose(options.wanted, cards, held, options.placement)
            ahead = ticket.ahead() if ticket else 0
            if not isinstance(found, Refusal) and not ahead:
                made = _write(options, book, found, cards)
                line.close()
                return made, holds
            stamp = book.stamp()
        if isinstance(found, Refusal) and (ticket is None or found.why in ask.FOR_EVER):
            told.end()
            raise NoRoomError(found.reason if found.why in ask.FOR_EVER else _explained(found, cards, held))
        first = f"{ahead} {'run is' if ahead == 1 else 'runs are'} ahead in the queue"
        told.line(found.reason if isinstance(found, Refusal) else first, cards, held, time.monotonic() - began)
        _await_change(book, stamp)
        if ticket is not None:
            ticket.touch()


def _await_change(book: Book, stamp: int) -> None:
    """Until a hold came or went; or for a moment, since one whose keeper was killed goes unsaid."""
    end = time.monotonic() + LONGEST_SECONDS
    while book.stamp() == stamp and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def _write(options: Options, book: Book, placement: Placement, cards: Sequence[Card]) -> tuple[Held, int]:
    """The hold in the book, with everything its command will look for. pre: deciding."""
    ident = f"{PREFIX}{secrets.token_hex(6)}"
    draft = book.draft(ident)
    group = cgroup.create(ident, draft.folder / GROUP)
    entry = HostAllocation(
        id=ident,
        name=options.name or Path(options.command[0]).name or ident,
        boot=process.boot(),
        created=time.time(),
        uid=os.geteuid(),
        runner=process.identify(os.getpid()),
        command=options.command,
        slices=placement.slices,
        policy=options.policy,
        owner=options.name,
        online=options.online,
        cgroup=str(group or ""),
    )
    try:
        if options.policy != "none":
            promise(entry, draft.folder, Policy[options.policy.upper()], {card.uuid: card.model for card in cards})
        return book.publish(draft, entry), draft.lock
    except (OSError, ValueError) as exc:
        book.drop(draft)
        raise BookError(f"{book.home}: cannot write allocation: {exc}") from None


def _explained(refusal: Refusal, cards: Sequence[Card], held: Sequence[HostAllocation]) -> str:
    """The reason, then who holds what, as text for the error stream."""
    told = [refusal.reason, *listing.taken(cards, held), listing.listed(held, time.time(), console(stderr=True))]
    return "\n".join(line for line in told if line)


def console(*, stderr: bool) -> Console:
    """Where holds are shown."""
    from rich.console import Console  # noqa: PLC0415 (a command that runs needs no terminal view)

    return Console(stderr=stderr, highlight=False)


def placing() -> Any:
    """The placement side, loaded without the thread pool that its array library would start."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        from isolation.run.core import request as ask  # noqa: PLC0415 (numpy: not for --list)
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before
    return ask


class _Progress:
    """The waiting line: rewritten in place on a terminal, now and then in a log."""

    def __init__(self) -> None:
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._said, self._at, self._reason = False, 0.0, ""

    def line(self, reason: str, cards: Sequence[Card], held: Sequence[HostAllocation], seconds: float) -> None:
        """Say how things stand."""
        short = reason.partition(": ")[0] if self._terminal else reason
        text = listing.waiting(short, cards, held, seconds)
        if self._terminal:
            click.echo(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", err=True, nl=False)
        elif not self._said or reason != self._reason or seconds - self._at >= LINE_SECONDS:
            self._at, self._reason = seconds, reason
            click.echo(text, err=True)
        self._said = True

    def end(self) -> None:
        """Leave the terminal clean."""
        if self._said and self._terminal:
            click.echo("\r\033[K", err=True, nl=False)
