# SPDX-License-Identifier: Apache-2.0
"""
The first process of a machine within the machine: it has its own mounts and processes, and starts programs by request.

One JSON object a line: `{"start": [argv], "log": path, "env": {}}` answers `{"pid": n}`; `{"kill": pid, "how": n}`
sends a signal; `{"poll": pid}` answers `{"code": n | null}`. All paths and pids are the machine's own. When the
other side goes away this process ends, and with it, as the first of its namespace, everything it ever started.

Nothing of it reaches the host: /var/lib, /var/log and /run are folders below the root that is given,
/proc is its own, and the kernel settings that a kubelet insists on writing are plain files.
Every start is another boot.
Runs with the standard library alone; decides nothing about what is started.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

_OWN = ("/var/lib", "/var/log")
_KERNEL = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def furnish(root: Path) -> None:
    """Mounts of the machine; the caller has seen to it that none of them spreads."""
    for place in _OWN:
        own = root / place.strip("/").replace("/", "-")
        own.mkdir(exist_ok=True)
        _mount("--bind", str(own), place)
    _mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    Path("/run/lock").mkdir()
    _mount("-t", "proc", "proc", "/proc")
    # With files mounted over it, /proc alone would keep containers in user namespaces from mounting theirs.
    Path("/run/proc").mkdir()
    _mount("-t", "proc", "proc", "/run/proc")
    for name in _KERNEL:
        real = Path("/proc/sys") / name
        own = root / name.replace("/", "-")
        own.write_text(real.read_text())
        _mount("--bind", str(own), str(real))
    # CRI-O takes every controller that stands here for one that it can use, mounted or not (hierarchy 0).
    listed = Path("/proc/cgroups").read_text().splitlines(keepends=True)
    (root / "cgroups").write_text("".join(line for line in listed if line.split()[1] != "0"))
    _mount("--bind", str(root / "cgroups"), "/proc/cgroups")
    boot = root / "boot-id"
    boot.write_text(f"{uuid.uuid4()}\n")
    _mount("--bind", str(boot), "/proc/sys/kernel/random/boot_id")
    _mount("--make-rshared", "/")


class Children:
    """What was started, and how it ended."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}

    def start(self, argv: list[str], log: str, env: dict[str, str]) -> int:
        """A process of its own session; its pid here."""
        with Path(log).open("ab") as out:
            made = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **env},
                start_new_session=True,
            )
        made.returncode = (
            0  # not true: else the next Popen would collect it, and how it ended would never be known here
        )
        return made.pid

    def reap(self) -> None:
        """Collect whoever ended, orphans too: this is the first process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._ended[pid] = os.waitstatus_to_exitcode(status)

    def code(self, pid: int) -> int | None:
        """The exit code; None while it runs."""
        return self._ended.get(pid)


def answer(children: Children, asked: dict[str, object]) -> dict[str, object]:
    """One request."""
    if "start" in asked:
        return {"pid": children.start(asked["start"], asked["log"], asked.get("env", {}))}
    if "kill" in asked:
        try:
            os.kill(asked["kill"], asked["how"])
        except ProcessLookupError:
            return {"sent": False}
        return {"sent": True}
    children.reap()
    return {"code": children.code(asked["poll"])}


def serve() -> None:
    """Requests until there is nobody any more."""
    children = Children()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waiting = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.1)
        children.reap()
        if not ready:
            continue
        read = os.read(0, 1 << 16)
        if not read:
            return
        *lines, waiting = (waiting + read).split(b"\n")
        for line in lines:
            try:
                said = answer(children, json.loads(line))
            except OSError as exc:
                said = {"error": str(exc)}
            os.write(1, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    furnish(Path(sys.argv[1]))
    os.write(1, b'{"up": true}\n')
    serve()
