# SPDX-License-Identifier: Apache-2.0
"""
How the command is started: its files, its environment, and the fork that becomes the command.

The forked child waits at a pipe until the supervisor has written its pid into the store, so the command is known before
its first instruction.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract import abi
from isolation.contract.names import ACK, FEED_ENV, LIMITS_ENV, REGION_ENV
from isolation.contract.quantity import GIB
from isolation.host import cgroup
from isolation.host.core.compute_rates import card_limit
from isolation.host.core.context_memory import context_bytes
from isolation.host.feed import FEED, uuid_of
from isolation.host.liveness import MARK, REGION
from isolation.lib import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.host_allocation import HostAllocation
    from isolation.contract.model import Card, Slice

LIMITS: Final = "limits"
CANNOT_RUN, NOT_FOUND, FAILED = 126, 127, 125
_PATHS: Final = frozenset({"LD_PRELOAD", "LD_LIBRARY_PATH"})
_HIGH: Final = 200
"""The lock's descriptor stands above those that shells and programs use by number."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be run, as whom and in which state."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    mask: frozenset[int]
    """Signals that were blocked when we were started."""
    lock: int
    group: str


def write_promise_files(entry: HostAllocation, folder: Path, models: Mapping[str, str]) -> None:
    """Write the limits, the feed and an empty region where the library will look. `models`: product by uuid."""
    cards = tuple(
        card_limit(uuid_of(part.uuid), part, entry.compute, context_bytes(models.get(part.uuid, "")))
        for part in entry.slices
    )
    files.write_limits(folder / LIMITS, abi.Limits(1, entry.id, cards))
    files.write_feed(folder / FEED, [abi.CardFeed(0, 0) for _ in cards], now_ns=1)
    files.create_region(folder / REGION, entry.id)
    (folder / REGION).chmod(0o644)  # the command's own user charges; neighbours' feeders read


def build_environment(
    base: Mapping[str, str],
    machine: Mapping[str, str],
    held: tuple[str, Iterable[Slice], Mapping[str, Card]],
    library: Path | None,
    folder: Path,
) -> dict[str, str]:
    """The command's environment; without `library` nothing is enforced."""
    ident, parts, cards = held
    slices = tuple(parts)
    made = dict(base)
    made[MARK] = ident
    made["CUDA_VISIBLE_DEVICES"] = ",".join(part.uuid for part in slices)
    made[ACK.env_container_memory] = str(slices[0].bytes // GIB)
    made[ACK.env_card_memory] = str(cards[slices[0].uuid].allocatable_bytes // GIB)
    added = dict(machine)
    if library is not None:
        added["LD_PRELOAD"] = ":".join(filter(None, (str(library), machine.get("LD_PRELOAD"))))
        added |= {
            LIMITS_ENV: str(folder / LIMITS),
            FEED_ENV: str(folder / FEED),
            REGION_ENV: str(folder / REGION),
        }
    for name, value in added.items():
        before = base.get(name, "") if name in _PATHS else ""
        made[name] = f"{value}:{before}" if before else value
    return made


def fork_command(command: Command) -> tuple[int, int, int]:
    """Fork the command up to its gate: (pid, gate to write to, pipe that tells a failed exec)."""
    gate_read, gate_write = os.pipe()
    error_read, error_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate_write)
        os.close(error_read)
        _exec_command(command, gate_read, error_write)
    os.close(gate_read)
    os.close(error_write)
    return pid, gate_write, error_read


def _exec_command(command: Command, gate: int, errors: int) -> None:
    """In the child: never returns."""
    code = FAILED
    try:
        if command.group:
            with contextlib.suppress(OSError):
                cgroup.join(Path(command.group))
        os.set_inheritable(_move_descriptor_up(command.lock), True)
        if os.read(gate, 1):
            _restore_signals(command.mask)
            os.execvpe(command.words[0], command.words, command.environment)  # noqa: S606 (that is the job)
    except OSError as exc:
        code = NOT_FOUND if isinstance(exc, FileNotFoundError) else CANNOT_RUN
        with contextlib.suppress(OSError):
            os.write(errors, f"{code} {exc.errno}".encode())
    finally:
        os._exit(code)


def _move_descriptor_up(lock: int) -> int:
    """The lock's descriptor with a number that shells do not use, if the limit allows it."""
    try:
        return fcntl.fcntl(lock, fcntl.F_DUPFD, _HIGH)
    except OSError:
        return os.dup(lock)


def _restore_signals(mask: Iterable[int]) -> None:
    """Signals as they were before Python changed them; what was ignored (nohup) stays ignored."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
