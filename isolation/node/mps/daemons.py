# SPDX-License-Identifier: Apache-2.0
"""
Keeps an MPS daemon with one server for each card that containers need one of.

`core.mps.decide` says what is done; this does it, with a deadline for every call. A card is put into compute mode
EXCLUSIVE_PROCESS before its daemon begins, so that a program beside the server gets nothing of it (NVIDIA,
"Multi-Process Service", appendix-common-tasks.html). A daemon sees its card alone, which is its device 0. Daemons end
with the keeper: nobody else would notice that they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from isolation.host.drop_privileges import end_with_parent
from isolation.host.machine import SIMGPU, MachineError, NvmlMachine
from isolation.host.process import read_living
from isolation.node.core.mps import MpsStep, Observed, Served, Wish, decide
from isolation.node.lock import alone
from isolation.node.mps.exchange import LOCK, LOG, PIPE, SHARED_MEMORY, MpsExchange, MpsServer, folder_of
from isolation.node.regions import mount_tmpfs

if TYPE_CHECKING:
    from pathlib import Path

    from isolation.node.paths import Paths

_log: Final = logging.getLogger(__name__)
PROGRAM: Final = "nvidia-cuda-mps-control"
_SERVER: Final = "nvidia-cuda-mps"
"""What the kernel keeps of a server's name."""
CYCLE_SECONDS: Final = 0.25
_STATUS_SECONDS: Final = 1.0
_COMMAND_SECONDS: Final = 5.0
_START_SECONDS: Final = 20.0
_END_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 5.0
"""After a start that failed."""
SHARED_BYTES: Final = 1 << 30
"""Of the memory that the clients of one server share: as much as NVIDIA's device plugin gives its own."""
_DEFAULT, _EXCLUSIVE = 0, 3
"""nvmlComputeMode_t."""
_MODES: Final = {_DEFAULT: "DEFAULT", _EXCLUSIVE: "EXCLUSIVE_PROCESS"}


class MpsError(Exception):
    """It was not done; the message says why."""


class Modes(Protocol):
    """Who sets compute modes."""

    def set(self, uuid: str, mode: int) -> None:
        """MpsError."""


class NvmlModes:
    """By NVML, as root."""

    def __init__(self, machine: NvmlMachine) -> None:
        self._machine = machine

    def set(self, uuid: str, mode: int) -> None:
        """See `Modes`. Read back: a mode that does not stand keeps nobody away."""
        try:
            nvml, handle = self._machine.nvml(), self._machine.handle(uuid)
        except MachineError as exc:
            raise MpsError(str(exc)) from None
        try:
            nvml.nvmlDeviceSetComputeMode(handle, mode)
            found = int(nvml.nvmlDeviceGetComputeMode(handle))
        except nvml.NVMLError as exc:
            raise MpsError(f"cannot set card {uuid} to compute mode {_MODES[mode]}: {exc}") from None
        if found != mode:
            raise MpsError(f"card {uuid} stays in compute mode {found} instead of {_MODES[mode]}")


def program_of(hardware: Path | None) -> tuple[str, ...]:
    """NVIDIA's program, or the simulator's; MpsError."""
    if hardware is not None:
        return sys.executable, "-m", "isolation.simgpu.mps"
    found = shutil.which(PROGRAM)
    if found is None:
        raise MpsError(
            f"{PROGRAM} is not found: it comes with the driver (NVIDIA_DRIVER_CAPABILITIES: compute,utility)"
        )
    return (found,)


@dataclass(slots=True)
class _Daemon:
    """One card's."""

    process: subprocess.Popen[bytes] | None = None
    served: Served | None = None
    unanswered: int = 0
    asked: float = 0.0
    why: str = ""
    failed: bool = False
    again: float = 0.0


@dataclass(slots=True)
class MpsDaemons:
    """See the module. The thread that calls `cycle` lives as long as the daemons: the kernel ends them with it."""

    run_dir: Path
    modes: Modes
    program: tuple[str, ...]
    hardware: Path | None = None
    shared_bytes: int = SHARED_BYTES
    """0: no memory of its own for a server's clients."""
    _daemons: dict[str, _Daemon] = field(default_factory=dict, init=False)
    _said: dict[str, MpsServer] | None = field(default=None, init=False)

    def cycle(self) -> float:
        """One look at every card; seconds until the next."""
        exchange = MpsExchange(self.run_dir)
        wishes = exchange.wishes()
        if self._said is None:
            self._say(exchange)  # of a keeper before: none of its servers is there any more
        for uuid in {*self._daemons, *(wishes or {})}:
            # Where nothing can be read nothing is new, and a server that fails is seen all the same.
            self._keep(uuid, Wish() if wishes is None else wishes.get(uuid))
        self._say(exchange)
        return CYCLE_SECONDS

    def close(self) -> None:
        """End every daemon."""
        for uuid in tuple(self._daemons):
            self._end(uuid, "the MPS keeper ended")

    def _say(self, exchange: MpsExchange) -> None:
        now = {uuid: _server_of(one) for uuid, one in self._daemons.items()}
        if now != self._said:
            exchange.serve(now)
            self._said = now

    def _keep(self, uuid: str, wish: Wish | None) -> None:
        daemon = self._daemons.setdefault(uuid, _Daemon())
        decision = decide(wish, daemon.served, self._observe(uuid, daemon))
        if decision.step is MpsStep.END:
            _log.error("ending MPS server: card=%s: %s", uuid, decision.why)
            self._end(uuid, decision.why, failed=decision.failed)
            if wish is None:
                with contextlib.suppress(MpsError):
                    self.modes.set(uuid, _DEFAULT)
        elif wish is not None and decision.step is MpsStep.BEGIN and time.monotonic() >= daemon.again:
            try:
                self._begin(uuid, daemon, wish)
            except (MpsError, OSError) as exc:
                self._end(uuid, str(exc))
                daemon.again = time.monotonic() + _AGAIN_SECONDS
                _log.error("cannot start MPS server: card=%s: %s", uuid, exc)
        elif wish is not None and decision.step is MpsStep.RAISE:
            self._raise(uuid, daemon, wish)

    def _observe(self, uuid: str, daemon: _Daemon) -> Observed:
        alive = daemon.process is not None and daemon.process.poll() is None
        if not alive or daemon.served is None:
            return Observed(alive)
        server = daemon.served.server
        lives = _is_server(server)
        if not lives or time.monotonic() < daemon.asked + _STATUS_SECONDS:
            return Observed(alive, lives)
        daemon.asked = time.monotonic()
        try:
            status = self._tell(uuid, f"get_server_status {server}")
        except MpsError:
            daemon.unanswered += 1
            return Observed(alive, server=True, unanswered=daemon.unanswered)
        daemon.unanswered = 0
        return Observed(alive, server=True, status=status if status.isupper() else "")

    def _begin(self, uuid: str, daemon: _Daemon, wish: Wish) -> None:
        folder = folder_of(self.run_dir, uuid)
        for name in (PIPE, LOG, SHARED_MEMORY):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if self.shared_bytes and (why := mount_tmpfs(folder / SHARED_MEMORY, self.shared_bytes, "1777")):
            raise MpsError(why)
        self.modes.set(uuid, _EXCLUSIVE)
        daemon.process = subprocess.Popen(  # noqa: S603 (the driver's own program)
            [*self.program, "-f"],
            env=self._env(uuid, CUDA_VISIBLE_DEVICES=uuid),
            preexec_fn=end_with_parent,  # noqa: PLW1509 (one system call)
        )
        self._until_answers(uuid, daemon)
        self._tell(
            uuid,
            f"set_default_active_thread_percentage {wish.percent}",
            f"set_default_device_pinned_mem_limit 0 {wish.bytes >> 20}M",
            f"start_server -uid {wish.uid}",
            seconds=_START_SECONDS,
        )
        servers = self._tell(uuid, "get_server_list").split()
        if len(servers) != 1 or not servers[0].isdecimal() or wish.uid is None:
            raise MpsError(f"{PROGRAM} started no server for user {wish.uid}: see {folder / LOG}")
        daemon.served = Served(secrets.token_hex(8), wish.uid, wish.bytes, wish.percent, int(servers[0]))
        daemon.unanswered, daemon.why = 0, ""
        _log.info("started MPS server: card=%s user=%d pid=%s", uuid, wish.uid, servers[0])

    def _until_answers(self, uuid: str, daemon: _Daemon) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while daemon.process is not None and daemon.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(MpsError):
                self._tell(uuid, "get_server_list")
                return
            time.sleep(0.05)
        raise MpsError(f"{PROGRAM} did not start: see {folder_of(self.run_dir, uuid) / LOG}")

    def _raise(self, uuid: str, daemon: _Daemon, wish: Wish) -> None:
        served = daemon.served
        if served is None:
            return
        size, percent = max(wish.bytes, served.bytes), max(wish.percent, served.percent)
        try:
            self._tell(
                uuid,
                f"set_active_thread_percentage {served.server} {percent}",
                f"set_device_pinned_mem_limit {served.server} 0 {size >> 20}M",
            )
        except MpsError as exc:
            _log.error("cannot raise limits of MPS server: card=%s: %s", uuid, exc)
            return
        daemon.served = Served(served.generation, served.uid, size, percent, served.server)

    def _end(self, uuid: str, why: str, *, failed: bool = False) -> None:
        daemon = self._daemons[uuid]
        process, served = daemon.process, daemon.served
        daemon.process, daemon.served, daemon.why, daemon.failed = None, None, why, failed
        self._say(MpsExchange(self.run_dir))  # first of all: clients are to end, however long the rest takes
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(MpsError):
                self._tell(uuid, "quit")
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # in a call of a driver that hangs
                process.wait(_END_SECONDS)
        if served is not None and _is_server(served.server):  # one that outlives its daemon would keep the card
            with contextlib.suppress(OSError):
                os.kill(served.server, signal.SIGKILL)

    def _tell(self, uuid: str, *lines: str, seconds: float = _COMMAND_SECONDS) -> str:
        """What the daemon prints; MpsError."""
        try:
            done = subprocess.run(  # noqa: S603 (the driver's own program)
                self.program,
                input="\n".join((*lines, "")),
                env=self._env(uuid),
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise MpsError(f"{PROGRAM} does not answer: {exc}") from None
        if done.returncode:
            raise MpsError(" ".join((done.stdout or done.stderr).split())[:200])
        return done.stdout.strip()

    def _env(self, uuid: str, **more: str) -> dict[str, str]:
        folder = folder_of(self.run_dir, uuid)
        env = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
        env |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder / PIPE), "CUDA_MPS_LOG_DIRECTORY": str(folder / LOG)}
        return env | ({SIMGPU: str(self.hardware)} if self.hardware is not None else {}) | more


def _server_of(daemon: _Daemon) -> MpsServer:
    served = daemon.served
    if served is None:
        return MpsServer(why=daemon.why, failed=daemon.failed)
    return MpsServer(served.generation, served.uid, served.bytes, served.percent)


def _is_server(pid: int) -> bool:
    """Whether an MPS server runs under that number, which may be another process's by now."""
    stat = read_living(pid)
    return stat is not None and stat.name.startswith(_SERVER)


async def serve(paths: Paths, hardware: Path | None, stop: asyncio.Event) -> None:
    """Keep daemons until `stop` is set; MpsError, LockError."""
    daemons = MpsDaemons(paths.run_dir, NvmlModes(NvmlMachine(hardware)), program_of(hardware), hardware)
    async with alone(paths, LOCK, stop, "MPS keeper"):
        try:
            while not stop.is_set():
                # In this very thread: the kernel ends the daemons with the thread that started them.
                pause = daemons.cycle()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause)
        finally:
            daemons.close()
