# SPDX-License-Identifier: Apache-2.0
"""
From a request to an allocation: read the store, choose cards and write the allocation in one step, or wait.

Decides when waiting can help. Which cards fit is decided in `core.request`; which allocations live, in `store`.
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

from isolation.contract.host_allocation import HostAllocation
from isolation.contract.model import Refusal
from isolation.host import cgroup, process
from isolation.run import listing, wait_queue
from isolation.run.launch import write_promise_files
from isolation.run.store import GROUP, PREFIX, AllocationStore, StoredAllocation, StoreError
from isolation.run.unallocated import find_warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from isolation.contract.model import Card, CardChoice, Placement
    from isolation.host.machine import Machine
    from isolation.run.core.request import RunRequest

LOOK_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 1.0
LINE_SECONDS: Final = 30.0
"""Between lines of progress where the output is no terminal."""


class CapacityError(Exception):
    """Not enough free capacity; the message lists the allocations in the way."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One call of `gpushare run`."""

    wanted: RunRequest
    command: tuple[str, ...]
    policy: str
    placement: CardChoice
    wait: bool
    name: str
    online: bool


def allocate(
    options: RunOptions, machine: Machine, store: AllocationStore, cards: Sequence[Card]
) -> tuple[StoredAllocation, int]:
    """The allocation and its lock; with --wait and where waiting can help, waits its turn, the oldest first."""
    progress = _WaitLine()
    with contextlib.ExitStack() as line:
        made, living = _allocate_or_wait(options, store, cards, progress, line)
    progress.clear()
    for sentence in find_warnings(made[0].entry.slices, {card.uuid: card for card in cards}, living, machine):
        click.echo(f"note: {sentence}", err=True)
    return made


def _allocate_or_wait(
    options: RunOptions, store: AllocationStore, cards: Sequence[Card], progress: _WaitLine, line: contextlib.ExitStack
) -> tuple[tuple[StoredAllocation, int], tuple[StoredAllocation, ...]]:
    """The allocation, and those that lived before it. `line` gives the ticket back."""
    placement, began = load_placement(), time.monotonic()
    ticket: wait_queue.Ticket | None = None
    while True:
        with store.locked():
            living = store.list_living()
            if options.wait and ticket is None:
                ticket = wait_queue.enqueue(store.home)
                line.callback(ticket.drop)
            held = [stored.entry for stored in living]
            found = placement.choose_cards(options.wanted, cards, held, options.placement)
            ahead = ticket.ahead() if ticket else 0
            if not isinstance(found, Refusal) and not ahead:
                made = _write(options, store, found, cards)
                line.close()
                return made, living
            revision = store.revision()
        if isinstance(found, Refusal) and (ticket is None or found.why in placement.PERMANENT):
            progress.clear()
            raise CapacityError(
                found.reason if found.why in placement.PERMANENT else _explain_refusal(found, cards, held)
            )
        queued = f"{ahead} {'run is' if ahead == 1 else 'runs are'} ahead in the queue"
        progress.show(found.reason if isinstance(found, Refusal) else queued, cards, held, time.monotonic() - began)
        _await_change(store, revision)
        if ticket is not None:
            ticket.touch()


def _await_change(store: AllocationStore, revision: int) -> None:
    """Until an allocation came or went; or for a moment, since a killed supervisor changes nothing in the store."""
    end = time.monotonic() + LONGEST_SECONDS
    while store.revision() == revision and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def _write(
    options: RunOptions, store: AllocationStore, placement: Placement, cards: Sequence[Card]
) -> tuple[StoredAllocation, int]:
    """Write the allocation with every file that its command needs. pre: store locked."""
    ident = f"{PREFIX}{secrets.token_hex(6)}"
    draft = store.draft(ident)
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
        enforced=options.policy != "none",
    )
    try:
        if entry.enforced:
            write_promise_files(entry, draft.folder, {card.uuid: card.model for card in cards})
        return store.publish(draft, entry), draft.lock
    except (OSError, ValueError) as exc:
        store.discard(draft)
        raise StoreError(f"{store.home}: cannot write allocation: {exc}") from None


def _explain_refusal(refusal: Refusal, cards: Sequence[Card], held: Sequence[HostAllocation]) -> str:
    """The reason, then the allocations of each card, as text for the error stream."""
    lines = [
        refusal.reason,
        *listing.describe_cards(cards, held),
        listing.render_table(held, time.time(), open_console(stderr=True)),
    ]
    return "\n".join(line for line in lines if line)


def open_console(*, stderr: bool) -> Console:
    """Where allocations are listed."""
    from rich.console import Console  # noqa: PLC0415 (a command that runs needs no terminal view)

    return Console(stderr=stderr, highlight=False)


def load_placement() -> Any:
    """The module `core.request`, with numpy but without the thread pool that OpenBLAS would start."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        from isolation.run.core import request  # noqa: PLC0415 (numpy: not for --list)
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before
    return request


class _WaitLine:
    """The waiting line: rewritten in place on a terminal, now and then in a log."""

    def __init__(self) -> None:
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown, self._at, self._reason = False, 0.0, ""

    def show(self, reason: str, cards: Sequence[Card], held: Sequence[HostAllocation], seconds: float) -> None:
        """Show the reason and how long it has lasted."""
        short = reason.partition(": ")[0] if self._terminal else reason
        text = listing.describe_wait(short, cards, held, seconds)
        if self._terminal:
            click.echo(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", err=True, nl=False)
        elif not self._shown or reason != self._reason or seconds - self._at >= LINE_SECONDS:
            self._at, self._reason = seconds, reason
            click.echo(text, err=True)
        self._shown = True

    def clear(self) -> None:
        """Leave the terminal clean."""
        if self._shown and self._terminal:
            click.echo("\r\033[K", err=True, nl=False)
