# SPDX-License-Identifier: Apache-2.0
"""
MPS for simulated cards: the control daemon, its servers, and the commands that people and agents give it.

    python -m isolation.simgpu.mps -d                       # the daemon, in the background; -f: in the foreground
    echo get_server_list | python -m isolation.simgpu.mps   # a command; one a line

Clients are the simulated driver's (driver/cuda/mps.c, driver/hw/mps.c): these compute at the same time, within their
part of the card. Here it is decided who gets a server: one user at a time, the others wait until all its clients have
ended.
Commands and behaviour: NVIDIA, "Multi-Process Service" (https://docs.nvidia.com/deploy/mps/latest/mpsv2-interface.html,
appendix-environment-variables.html) and nvidia-cuda-mps-control(1). What these leave open is simulated at its worst: a
daemon that dies takes its servers along, and while a user waits, no new client of the served user is taken either.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.simgpu.hardware import LIBRARIES, SimulatorError, open_box

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"
DIRECTORY: Final = "/tmp/nvidia-mps"  # noqa: S108 (NVIDIA's)
JOIN, COMMANDS, PID_FILE = "control", "commands", "nvidia-cuda-mps-control.pid"
"""In the pipe directory: where clients ask, where commands come from, and the daemon's number."""
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_START_SECONDS: Final = 30.0
_COMMAND_SECONDS: Final = 60.0
_MAX_MESSAGE_BYTES: Final = 1 << 16
_PR_SET_NAME: Final = 15


@dataclass(slots=True)
class _Server:
    """One server process."""

    process: subprocess.Popen[str]
    uid: int
    start_time: int
    percent: int
    limits: dict[int, int]
    clients: dict[int, int] = field(default_factory=dict)
    """Process by connection."""
    drains: bool = False
    """Another user waits: it ends with its last client."""

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process.poll() is None

    def answer(self) -> str:
        """What its clients are told."""
        limits = ",".join(str(self.limits.get(at, 0)) for at in range(max(self.limits, default=-1) + 1))
        return f"{self.process.pid} {self.start_time} {self.percent} {limits}"


class Daemon:
    """See the module. `serve` ends with `quit`."""

    def __init__(self, pipes: Path) -> None:
        """SimulatorError where one runs at this directory already."""
        self._pipes = pipes
        pipes.mkdir(parents=True, exist_ok=True)
        if _running(pipes):
            raise SimulatorError("An instance of this daemon is already running")
        self._changed = threading.Condition()
        self._servers: list[_Server] = []
        self._waiting: list[int] = []
        self._percent, self._limits = 100, dict[int, int]()
        self._join, self._commands = _listen(pipes / JOIN, 0o666), _listen(pipes / COMMANDS, 0o600)
        (pipes / PID_FILE).write_text(f"{os.getpid()}\n")

    def serve(self) -> None:
        """Until `quit`."""
        threading.Thread(target=self._accept, args=(self._join, self._client), daemon=True).start()
        self._accept(self._commands, self._command)
        self.close()

    def close(self) -> None:
        """Servers end, and with them what their clients compute."""
        with self._changed:
            for server in self._servers:
                server.process.kill()
                server.process.wait()
        for name in (JOIN, COMMANDS, PID_FILE):
            (self._pipes / name).unlink(missing_ok=True)

    def _accept(self, listening: socket.socket, act: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection, act), daemon=True).start()

    def _talk(self, connection: socket.socket, act: Callable[[socket.socket], None]) -> None:
        with connection, contextlib.suppress(OSError):
            act(connection)

    # Clients.

    def _client(self, connection: socket.socket) -> None:
        pid, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if connection.recv(16) != b"join":
            return
        ticket = id(connection)
        server = self._server_for(uid, ticket, pid)
        if server is None:
            return
        try:
            connection.send(server.answer().encode())
            connection.recv(1)  # until its end
        finally:
            with self._changed:
                server.clients.pop(ticket, None)
                if server.drains and not server.clients:
                    server.process.kill()
                    server.process.wait()
                self._changed.notify_all()

    def _server_for(self, uid: int, ticket: int, pid: int) -> _Server | None:
        """The user's server, once it is the user's turn; None: none can be started."""
        with self._changed:
            self._waiting.append(ticket)
            try:
                while True:
                    self._servers = [one for one in self._servers if one.alive]
                    mine = next((one for one in self._servers if one.uid == uid and not one.drains), None)
                    if self._waiting[0] == ticket and mine is None and not self._servers:
                        mine = self._start(uid)
                        if mine is None:
                            return None
                    if self._waiting[0] == ticket and mine is not None:
                        mine.clients[ticket] = pid
                        return mine
                    if self._waiting[0] == ticket:
                        self._drain()
                    self._changed.wait(0.2)
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _drain(self) -> None:
        for one in self._servers:
            one.drains = True
            if not one.clients:
                one.process.kill()
                one.process.wait()

    def _start(self, uid: int) -> _Server | None:
        process = subprocess.Popen(  # noqa: S603 (this very program)
            [sys.executable, "-m", "isolation.simgpu.mps", "--server", str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, PIPES: "/dev/null"},
        )
        timer = threading.Timer(_START_SECONDS, process.kill)
        timer.start()
        words = process.stdout.readline().split() if process.stdout is not None else []
        timer.cancel()
        if not words:
            process.kill()
            process.wait()
            return None
        made = _Server(process, uid, int(words[0]), self._percent, dict(self._limits))
        self._servers.append(made)
        return made

    # Commands.

    def _command(self, connection: socket.socket) -> None:
        words = connection.recv(_MAX_MESSAGE_BYTES).decode("utf-8", "replace").split()
        if words[:1] == ["quit"]:
            connection.send(b"\n")
            for one in (self._join, self._commands):
                one.shutdown(socket.SHUT_RDWR)
                one.close()
            return
        try:
            answer = self._answer(words)
        except (IndexError, KeyError, ValueError):
            answer = f"{' '.join(words)[:80]}: invalid command"
        connection.send(answer.encode() + b"\n")

    def _answer(self, words: Sequence[str]) -> str:
        """What a command prints; ValueError for one that is none."""
        with self._changed:
            self._servers = [one for one in self._servers if one.alive]
            if words == ["get_server_list"]:
                return "\n".join(str(one.process.pid) for one in self._servers)
            if len(words) > 1 and words[0] in {"get_server_status", "get_client_list"}:
                return self._tell_server(words[0], int(words[1]))
            if len(words) == 3 and words[:2] == ["start_server", "-uid"]:  # noqa: PLR2004 (words)
                started = not self._servers and self._start(int(words[2]))
                return "" if started else "Failed to start server"
            if len(words) > 1 and words[0] in {"set_active_thread_percentage", "set_device_pinned_mem_limit"}:
                return self._change_server(words)
            return self._default(words)

    def _change_server(self, words: Sequence[str]) -> str:
        """For clients that come from now on."""
        found = next((one for one in self._servers if one.process.pid == int(words[1])), None)
        if found is None:
            return f"Server {words[1]} not found"
        if words[0] == "set_active_thread_percentage":
            found.percent = min(100, max(1, int(float(words[2]))))
            return f"{float(found.percent)}"
        found.limits[int(words[2])] = _bytes(words[3])
        return ""

    def _tell_server(self, what: str, pid: int) -> str:
        found = next((one for one in self._servers if one.process.pid == pid), None)
        if found is None:
            return f"Server {pid} not found"
        if what == "get_client_list":
            return "\n".join(map(str, sorted(found.clients.values())))
        return _status(pid)

    def _default(self, words: Sequence[str]) -> str:
        """Of servers that are started from now on."""
        match words:
            case ["set_default_active_thread_percentage", percent]:
                self._percent = min(100, max(1, int(float(percent))))
            case ["get_default_active_thread_percentage"]:
                pass
            case ["set_default_device_pinned_mem_limit", device, size]:
                self._limits[int(device)] = _bytes(size)
                return ""
            case ["get_default_device_pinned_mem_limit", device]:
                return f"{self._limits[int(device)] >> 20}MB" if int(device) in self._limits else "no limit"
            case _:
                raise ValueError
        return f"{float(self._percent)}"


def _bytes(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)


def _status(pid: int) -> str:
    with open_box(Path(os.environ["GPUSHARE_SIMGPU"])) as box:
        for at in range(len(box.cards())):
            for one in box.clients(at):
                if one.pid == pid and one.fault:
                    return "FAULT"
    return "ACTIVE"


def _listen(path: Path, mode: int) -> socket.socket:
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(path))
    path.chmod(mode)
    made.listen(128)
    return made


def _running(pipes: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(str(pipes / COMMANDS)) == 0


def _be_called(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _serve_clients(uid: int) -> int:
    """A server: it has a context on each device that it sees, until its daemon ends."""
    _be_called("nvidia-cuda-mps-server")
    driver = ctypes.CDLL(str(LIBRARIES / "libcuda.so.1"))
    count, context = ctypes.c_int(), ctypes.c_void_p()
    # As root: devices are everybody's, but the file that stands for them may lie in a folder of root's.
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 1
    if os.geteuid() == 0 and uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    for device in range(count.value):
        if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return 1
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    print(start, flush=True)  # noqa: T201 (its daemon reads it)
    sys.stdin.read()
    return 0


def _give_commands(pipes: Path) -> int:
    """Each line of the input, to the daemon."""
    for line in sys.stdin:
        if not line.strip():
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_COMMAND_SECONDS)
            try:
                connection.connect(str(pipes / COMMANDS))
                connection.send(line.strip().encode())
                answer = connection.recv(_MAX_MESSAGE_BYTES).decode().strip("\n")
            except OSError:
                print("Cannot find MPS control daemon process")  # noqa: T201 (NVIDIA's words)
                return 1
        if answer:
            print(answer)  # noqa: T201
    return 0


def main(words: Sequence[str]) -> int:
    """The program; its exit status."""
    pipes = Path(os.environ.get(PIPES) or DIRECTORY)
    if words[:1] == ["--server"]:
        return _serve_clients(int(words[1]))
    if not words:
        return _give_commands(pipes)
    if list(words) not in (["-d"], ["-f"]):
        return 2
    try:
        daemon = Daemon(pipes)
    except (SimulatorError, OSError) as exc:
        print(exc)  # noqa: T201
        return 1
    if list(words) == ["-d"] and os.fork():
        return 0
    _be_called("nvidia-cuda-mps-control")
    if list(words) == ["-d"]:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        (pipes / PID_FILE).write_text(f"{os.getpid()}\n")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    daemon.serve()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
