# SPDX-License-Identifier: Apache-2.0
"""
A machine within the machine: own mounts, own processes, own cgroups below one folder; gone without a trace.

Decides how programs are started in it and how it is cleared away. What they are is the caller's business.
Needs root. /dev is the host's and is not written to.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_INIT = Path(__file__).parent / "machine_init.py"
CGROUPS = Path("/sys/fs/cgroup")
_PREFIX = "gpushare-test-"
_LAST_WORDS_SECONDS = 1.0


class MachineError(Exception):
    """The machine cannot be made, or a program in it cannot be started."""


class Machine:
    """Namespaces with a first process that starts programs on request."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cgroup = f"/{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._init_pid = 0

    def start(self) -> None:
        """Make it."""
        for folder in self._cgroups():
            folder.mkdir()
        command = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL"]
        command += ["--propagation", "private", sys.executable, "-I", "-S", str(_INIT), str(self.root)]
        with (self.root / "machine.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        try:
            self._read()
        except MachineError:
            self.stop()
            raise
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self._init_pid = int(children[0])

    def stop(self) -> None:
        """Every process, every mount, every cgroup."""
        if self._process is not None:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait(10)
            self._process.stdout.close()
            self._process = None
        for folder in self._cgroups():
            _remove_cgroup(folder)

    def _cgroups(self) -> list[Path]:
        hierarchies = [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]
        return [path / self.cgroup.strip("/") for path in hierarchies if (path / "cgroup.procs").exists()]

    # Programs.

    def run(self, argv: Sequence[str | Path], log: str, env: Mapping[str, str] | None = None) -> int:
        """Start a program; its pid in the machine. `log` is a name below the root."""
        words = [str(word) for word in argv]
        asked = {"start": words, "log": str(self.root / log), "env": dict(env or {})}
        return int(self._ask(asked)["pid"])

    def call(
        self, argv: Sequence[str | Path], seconds: float = PATIENCE_SECONDS, env: Mapping[str, str] | None = None
    ) -> str:
        """Run a program to its end; what it wrote. Raises MachineError when it fails."""
        log = self.root / f"call-{time.monotonic_ns()}.log"
        pid = self.run(argv, log.name, env)
        try:
            code = self.wait(pid, seconds)
        except MachineError as exc:
            raise MachineError(f"{argv[0]}: {exc}: {log.read_text(errors='replace')[-4000:]}") from None
        said = log.read_text(errors="replace")
        log.unlink()
        if code:
            raise MachineError(f"{argv[0]} ended with {code}: {said[-2000:]}")
        return said

    def wait(self, pid: int, seconds: float) -> int:
        """The exit code of a program. One that takes too long may say where it stands, as Go does, and is killed."""
        for patience, how in ((seconds, signal.SIGQUIT), (_LAST_WORDS_SECONDS, signal.SIGKILL)):
            end = time.monotonic() + patience
            while time.monotonic() < end:
                code = self.code(pid)
                if code is not None:
                    if how is signal.SIGKILL:
                        break
                    return code
                time.sleep(0.03)
            self.kill(pid, how)
        raise MachineError(f"process {pid} did not end within {seconds} s")

    def code(self, pid: int) -> int | None:
        """The exit code; None while it runs."""
        return self._ask({"poll": pid})["code"]

    def kill(self, pid: int, how: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal; False when there is no such process."""
        return bool(self._ask({"kill": pid, "how": int(how)})["sent"])

    def _ask(self, question: dict[str, object]) -> dict[str, object]:
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, object]:
        line = self._process.stdout.readline()
        if not line:
            raise MachineError(f"the machine is gone: {(self.root / 'machine.log').read_text()[-2000:]}")
        said = json.loads(line)
        if "error" in said:
            raise MachineError(str(said["error"]))
        return said

    # A look inside, from the host.

    def path(self, inside: str) -> Path:
        """A path of the machine as the host sees it."""
        return Path(f"/proc/{self._init_pid}/root{inside}")


def _remove_cgroup(folder: Path) -> None:
    """A tree of cgroups, the deepest first; processes that are still ending get a moment."""
    if not folder.is_dir():
        return
    for deeper, _, _ in os.walk(folder, topdown=False):
        for _ in range(1200):
            try:
                Path(deeper).rmdir()
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.05)
            else:
                break
