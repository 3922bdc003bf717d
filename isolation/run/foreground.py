# SPDX-License-Identifier: Apache-2.0
"""
`gpushare run` while its command runs: it forwards signals and returns the command's exit status.

Starts the supervisor and waits for its messages. Signals sent to us go on to the command, unless the terminal sent
them: those the command has already, as a member of the same process group.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from isolation.run.launch import FAILED
from isolation.run.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.run.supervisor import Supervisor

FORWARDED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
_SI_KERNEL: Final = 0x80  # sent by the kernel, here by the terminal: linux/include/uapi/asm-generic/siginfo.h
_SIGNALLED: Final = 128


class ForegroundError(Exception):
    """The command could not be started, or its exit status is unknown; `code` is our exit status."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


def block_signals() -> frozenset[int]:
    """Block signals until there is a command to forward them to; returns what was blocked before."""
    ours = {number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    return frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ours | {signal.SIGCHLD}))


def run_supervised(supervisor: Supervisor, listen: int) -> int:
    """Start the supervisor, wait for the command: its exit status as a shell would report it."""
    pid = os.fork()
    if pid == 0:
        os.close(listen)
        supervisor.run()
    # ours are closed: the report ends, and the allocation's lock goes, with the last process that works for the command
    os.close(supervisor.report_fd)
    os.close(supervisor.command.lock)
    for line in _lines(listen):
        if "pid" in line:
            _forward_to(int(line["pid"]))
        elif "failed" in line:
            _release(supervisor)
            program = supervisor.command.words[0]
            raise ForegroundError(int(line["failed"]), f"{program}: {os.strerror(int(line['errno']))}")
        elif "code" in line:
            code = int(line["code"])
            _release(supervisor)
            return code if code >= 0 else _SIGNALLED - code
    raise ForegroundError(
        FAILED,
        "the supervisor process was killed: the exit status of the command is unknown; "
        f"processes that still run keep allocation {supervisor.held.entry.id}",
    )


def _release(supervisor: Supervisor) -> None:
    """Where a short command ended before we had closed our lock, the supervisor could not remove the allocation."""
    if supervisor.held.folder.exists():
        with contextlib.suppress(OSError, StoreError):
            supervisor.store.release(supervisor.held)


def _lines(fd: int) -> Iterator[dict[str, Any]]:
    with os.fdopen(fd, encoding="ascii") as stream:
        for line in stream:
            yield json.loads(line)


def _forward_to(pid: int) -> None:
    """From now on signals reach the command; a descriptor names it, so a reused pid is never hit."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as exc:
        if exc.errno not in {errno.ENOSYS, errno.ESRCH}:
            raise
        handle = -1
    threading.Thread(target=_forward, args=(pid, handle), name="signals", daemon=True).start()


def _forward(pid: int, handle: int) -> None:
    ours = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    while True:
        got = signal.sigwaitinfo(ours)
        with contextlib.suppress(ProcessLookupError):
            # Ctrl-C goes to the whole foreground group: a command in it has the signal already
            if got.si_code == _SI_KERNEL and os.getpgid(pid) == os.getpgrp():
                continue
            if handle >= 0:
                signal.pidfd_send_signal(handle, got.si_signo)
            else:
                os.kill(pid, got.si_signo)
