# SPDX-License-Identifier: Apache-2.0
"""
Memory limits of the kernel driver for containers: set before their first program runs, and kept as promised.

The guard asks for them when the container's control group exists. It is root, and reads what to set from the mark that
the agent wrote: nothing of a question comes from a tenant. The agent keeps no state for it, so a container may be
started by another agent than the one that prepared it. While containers run, their limits follow their promises.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final

from isolation.contract.text import printable
from isolation.host.memory_limits import UNLIMITED, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from isolation.contract.model import Slice
    from isolation.host.memory_limits import MemoryLimits

log: Final = logging.getLogger(__name__)
SOCKET: Final = "memory-limits.sock"
"""Beside the folder of marks."""
ANSWER_SECONDS: Final = 3.0
"""For a whole exchange; the guard waits a second longer."""
_MAX_ANSWER_BYTES: Final = 8192
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PART: Final = re.compile(r"([A-Za-z0-9-]{1,64})=([0-9]{1,16})")


def line_of(place: Path, slices: Iterable[Slice]) -> str:
    """What a mark says of limits, for `GuardDevice.mark`."""
    return f"limits\t{place}\t{','.join(f'{part.uuid}={part.bytes}' for part in slices)}"


class LimitServer:
    """Answers the guard. `cycle` is called over and over by one thread."""

    def __init__(self, place: Path, cgroup: Path, limits: MemoryLimits) -> None:
        """`cgroup`: where cgroup version 2 is mounted."""
        self._place, self._cgroup, self._limits = place, cgroup, limits
        self._socket: socket.socket | None = None

    @property
    def place(self) -> Path:
        """The socket, as the guard finds it on the host."""
        return self._place

    def open(self) -> socket.socket:
        """Listen; OSError. One that another agent left is replaced."""
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._place.unlink(missing_ok=True)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            made.bind(str(self._place))
        finally:
            os.umask(before)
        made.listen(64)
        made.settimeout(0.5)
        self._socket = made
        return made

    def cycle(self) -> float:
        """Take one question, or none for a while; seconds until the next time."""
        listening = self._socket or self.open()
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            return 0.0
        except OSError:
            if self._socket is listening:
                raise
            return 0.0  # closed while it waited
        threading.Thread(target=self._serve, args=(connection,), daemon=True, name="memory-limits-question").start()
        return 0.0

    def close(self) -> None:
        """Nobody is answered any more: what would be limited does not start."""
        listening, self._socket = self._socket, None
        if listening is not None:
            listening.close()
        self._place.unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(ANSWER_SECONDS)
            uid = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            text = b""
            while not text.endswith(b"\n") and len(text) < _MAX_ANSWER_BYTES:
                data = connection.recv(_MAX_ANSWER_BYTES)
                if not data:
                    return
                text += data
            answer = self.answer(text.decode("utf-8", "replace").rstrip("\n")) if uid == os.geteuid() else "not root"
            connection.sendall(f"{printable(answer, 400)}\n".encode())

    def answer(self, question: str) -> str:
        """`ok`, or why not."""
        ident, _, rest = question.partition("\t")
        name, _, listed = rest.partition("\t")
        parts = [_PART.fullmatch(one) for one in listed.split(",")]
        if not _ID.fullmatch(ident) or not name.startswith("/") or ".." in name.split("/") or not all(parts):
            return "the question of the guard is not valid"
        if ident not in name.rpartition("/")[2]:
            return f"group {name} is not the container's own"
        group = self._cgroup / name.lstrip("/")
        try:
            for part in parts:
                if part is not None:
                    _apply(self._limits, part[1], group, int(part[2]))
        except MemoryLimitError as exc:
            log.error("cannot limit the memory of container %s: %s", ident, exc)  # noqa: TRY400 (its text says all)
            return str(exc)
        return "ok"


class LimitKeeper:
    """Keeps the limits of running containers as promised."""

    def __init__(
        self, limits: MemoryLimits, group_of: Callable[[str, str], Path | None], wanted: Callable[[], bool]
    ) -> None:
        """`group_of`: control group by pod UID and container id, None: it has none; `wanted`: whether it keeps any."""
        self._wanted = wanted
        self._limits, self._group_of = limits, group_of
        self._trouble: dict[str, str] = {}

    def keep(self, key: str, uid: str, containers: Iterable[str], slices: Iterable[Slice]) -> None:
        """Compare what stands with what should; `key`: for people."""
        if not self._wanted():
            return
        for container in containers:
            group = self._group_of(uid, container)
            if group is None:
                continue
            for part in slices:
                try:
                    found = self._limits.get(part.uuid, group)
                    if found.hard != part.bytes:
                        self._limits.set(part.uuid, group, part.bytes)
                        before = "no limit" if found.hard == UNLIMITED else found.hard
                        log.info("memory limit of %s on %s: %d, before: %s", key, part.uuid, part.bytes, before)
                except MemoryLimitError as exc:
                    if group.is_dir() and self._trouble.get(key) != str(exc):
                        self._trouble[key] = str(exc)
                        log.error("cannot keep the memory limit of %s: %s", key, exc)  # noqa: TRY400 (its text says all)


def _apply(limits: MemoryLimits, uuid: str, group: Path, hard: int) -> None:
    """Set and read back: a limit that does not stand is none."""
    limits.set(uuid, group, hard)
    found = limits.get(uuid, group)
    if found.hard != hard:
        raise MemoryLimitError(f"a limit of {hard} bytes on {uuid} reads back as {found.hard}")
