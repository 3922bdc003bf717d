# SPDX-License-Identifier: Apache-2.0
"""
The process that owns simulated hardware, as a kernel driver owns real one: memory is had from it and from nobody else.

Programs map the hardware file and can write what they like into it; which process has how much memory, and what a
control group may have, stands here alone. It knows who asks by the peer of the socket, as the host sees it: the process
and its control group. Linux 6.5 or newer (SO_PEERPIDFD), cgroup version 2, root in the host's PID and cgroup
namespaces. Messages: driver/hw/hw.h, `hw_question`.

Behaviour of the limits: NVIDIA, "MPS v3 Memory Partitioning"
(https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html) and the NVML API reference v615.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isolation.simgpu.hardware import SimulatorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.simgpu.hardware import Box

SUFFIX: Final = ".owner"
"""Of the socket, after the name of the hardware file."""
NO_LIMIT: Final = 2**64 - 1
_CHARGE, _REFUND, _ROOM, _SET, _GET = range(1, 6)
_QUESTION: Final = struct.Struct("=QQQQ")
_ANSWER: Final = struct.Struct("=qQQQ")
_BREATH_SECONDS: Final = 0.05
_RELEASE_SECONDS: Final = 1.0
"""A child that holds its ended parent's connection keeps the memory, and makes others wait no longer than this."""
_SO_PEERPIDFD: Final = 77
_SYS_ADMIN: Final = 1 << 21
SHOW: Final = b"show"
"""A question of another length: the books as JSON, for root."""


class OwnerError(SimulatorError):
    """The hardware cannot be owned; the message says what to do."""


@dataclass(slots=True)
class _Limit:
    """Of one control group on one card."""

    soft: int
    hard: int
    path: Path | None
    """None: its directory is not below the root that this process knows."""
    most: int = 0
    """Most bytes that the group ever had on the card while the limit stood."""


@dataclass(slots=True)
class _Client:
    """A connection: one process, in the group in which it was when it connected."""

    pid: int
    pidfd: int
    groups: tuple[int, ...]
    """Numbers of its group and those above, the nearest first."""
    privileged: bool
    bytes: dict[int, int] = field(default_factory=dict)
    """By card."""


class Owner:
    """See the module. `serve` ends when the socket is closed."""

    def __init__(self, box: Box, cgroup: Path) -> None:
        self._box, self._cgroup = box, cgroup
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._closed = False
        self._known: dict[int, _Client] = {}
        self._limits: dict[tuple[int, int], _Limit] = {}
        models = [card.model for card in box.cards()]
        self._room = [int(one.total_bytes - one.reserved_bytes) for one in models]
        self._path = Path(f"{box.path}{SUFFIX}")
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.bind(str(self._path))
        except OSError as exc:
            raise OwnerError(f"cannot listen on {self._path}: {exc.strerror}") from None
        self._path.chmod(0o666)  # any program may ask; who may have what is decided here
        self._socket.listen(128)
        box.set("owned", 1)

    def serve(self) -> None:
        """Answer until closed."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_BREATH_SECONDS)  # no file descriptor is left, for one: those who hold them will end
                continue
            threading.Thread(target=self._client, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Nothing more is granted."""
        self._closed = True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _client(self, connection: socket.socket) -> None:
        with connection:
            try:
                client = self._identify(connection)
            except OSError:
                return  # gone already, or a process that cannot be identified: it gets nothing
            with self._lock:
                self._known[client.pidfd] = client
            try:
                self._answer_all(connection, client)
            except OSError:
                pass
            finally:
                with self._ended:
                    del self._known[client.pidfd]
                    self._ended.notify_all()
                os.close(client.pidfd)

    def _identify(self, connection: socket.socket) -> _Client:
        pid, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        try:
            proc = Path(f"/proc/{pid}")
            own = next(line[3:] for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::"))
            status = (proc / "status").read_text()
            caps = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
            same = (proc / "ns/user").readlink() == Path("/proc/self/ns/user").readlink()
            if _is_dead(pidfd):  # another process may have its number by now
                raise ProcessLookupError(errno.ESRCH, "the peer is gone")
        except (OSError, StopIteration, ValueError):
            os.close(pidfd)
            raise OSError(errno.ESRCH, "cannot identify the peer") from None
        return _Client(pid, pidfd, tuple(self._groups(own)), uid == 0 and same and bool(caps & _SYS_ADMIN))

    def _groups(self, own: str) -> Iterator[int]:
        path = self._cgroup / own.lstrip("/")
        for one in (path, *path.parents):
            if not one.is_relative_to(self._cgroup):
                return
            with contextlib.suppress(OSError):
                yield one.stat().st_ino

    def _answer_all(self, connection: socket.socket, client: _Client) -> None:
        while True:
            data, fds, _, _ = socket.recv_fds(connection, 64, 1)
            try:
                if not data:
                    return
                if data == SHOW:
                    connection.send(json.dumps(self.books() if client.privileged else {}).encode())
                    continue
                if len(data) != _QUESTION.size:
                    return
                with self._ended:
                    self._ended.wait_for(lambda: not self._leaving(client), _RELEASE_SECONDS)
                    answer = self._answer(client, _QUESTION.unpack(data), fds)
                connection.send(_ANSWER.pack(*answer))
            finally:
                for fd in fds:
                    os.close(fd)

    def _leaving(self, client: _Client) -> bool:
        """
        Whether another has ended and still holds memory.

        With a driver a process has not ended before its memory is free; here its thread may still have to hear of it.
        """
        others = (one for one in self._known.values() if one is not client)
        return any(any(one.bytes.values()) and _is_dead(one.pidfd) for one in others)

    def _answer(self, client: _Client, question: tuple[int, ...], fds: list[int]) -> tuple[int, int, int, int]:
        what, card, x, y = question
        if card >= len(self._room):
            return -errno.ENODEV, 0, 0, 0
        if what == _ROOM:
            return 0, *self._free(client, card), 0
        if what == _CHARGE:
            if x > self._free(client, card)[0] or _is_dead(client.pidfd):
                return -errno.ENOMEM, 0, 0, 0
            client.bytes[card] = client.bytes.get(card, 0) + x
            for group in client.groups:
                limit = self._limits.get((card, group))
                if limit is not None:
                    limit.most = max(limit.most, self._used(card, group))
            return 0, 0, 0, 0
        if what == _REFUND:
            client.bytes[card] = max(0, client.bytes.get(card, 0) - x)
            return 0, 0, 0, 0
        if what in {_SET, _GET} and len(fds) == 1:
            group = os.fstat(fds[0]).st_ino
            if what == _GET:
                return self._get(card, group)
            return self._set(card, fds[0], x, y) if client.privileged else (-errno.EPERM, 0, 0, 0)
        return -errno.EINVAL, 0, 0, 0

    def _set(self, card: int, fd: int, soft: int, hard: int) -> tuple[int, int, int, int]:
        self._sweep()
        group = os.fstat(fd).st_ino
        if not soft and hard == NO_LIMIT:
            self._limits.pop((card, group), None)
            return 0, 0, 0, 0
        path = self._path_of(fd)
        known = self._limits.get((card, group))
        self._limits[card, group] = _Limit(soft, hard, path, known.most if known else self._used(card, group))
        return 0, 0, 0, 0

    def _get(self, card: int, group: int) -> tuple[int, int, int, int]:
        limit = self._limits.get((card, group))
        used = self._used(card, group)
        return (0, limit.soft, limit.hard, used) if limit else (0, 0, NO_LIMIT, used)

    def _path_of(self, fd: int) -> Path | None:
        """Where the group's directory is for us, whatever its setter calls it."""
        group = os.fstat(fd).st_ino
        named = Path(f"/proc/self/fd/{fd}").readlink()
        with contextlib.suppress(OSError):
            if named.stat().st_ino == group:
                return named
        return next((Path(top) for top, _, _ in os.walk(self._cgroup) if Path(top).stat().st_ino == group), None)

    def _sweep(self) -> None:
        """The kernel takes a limit away with its group."""
        for key, limit in tuple(self._limits.items()):
            try:
                gone = limit.path is not None and limit.path.stat().st_ino != key[1]
            except FileNotFoundError:
                gone = True
            if gone:
                del self._limits[key]

    def _used(self, card: int, group: int) -> int:
        return sum(one.bytes.get(card, 0) for one in self._known.values() if group in one.groups)

    def _free(self, client: _Client, card: int) -> tuple[int, int]:
        """What the client could still get, and the total that it is shown."""
        total = self._room[card]
        free = total - sum(one.bytes.get(card, 0) for one in self._known.values())
        nests = self._box.settings()["memacct"] != 1
        for group in client.groups:
            limit = self._limits.get((card, group))
            if limit is None or limit.hard == NO_LIMIT:
                continue
            free, total = min(free, limit.hard - self._used(card, group)), min(total, limit.hard)
            if not nests:
                break
        return max(0, free), total

    def books(self) -> dict[str, Any]:
        """Who has what, and the most that each limited group ever had."""
        with self._lock:
            self._sweep()
            groups = [
                {
                    "card": card,
                    "path": str(limit.path),
                    "hard": limit.hard,
                    "used": self._used(card, group),
                    "most": limit.most,
                }
                for (card, group), limit in self._limits.items()
            ]
            used = [sum(one.bytes.get(card, 0) for one in self._known.values()) for card in range(len(self._room))]
            holders = sum(1 for one in self._known.values() if any(one.bytes.values()))
            return {"limits": len(groups), "holders": holders, "used": used, "groups": groups[:100]}


def ask_books(hardware: Path) -> dict[str, Any]:
    """The books of the process that owns this hardware; OSError, ValueError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(10)
        connection.connect(f"{hardware}{SUFFIX}")
        connection.send(SHOW)
        found: dict[str, Any] = json.loads(connection.recv(1 << 20))
        return found


def _is_dead(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])
