# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` as a process, for tests: on simulated cards, at a stand-in kubelet, ended with the test.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Self

from support.waiting import PATIENCE_SECONDS

from isolation.simgpu.hardware import create

if TYPE_CHECKING:
    from pathlib import Path

    from support.device_manager import DeviceManager

# PR_SET_PDEATHSIG, SIGKILL: nothing outlives a test that is killed.
_TIED = "import ctypes; ctypes.CDLL(None).prctl(1, 9); "
COMMAND = (sys.executable, "-c", f"{_TIED}from isolation.node.cli import node; node()")
_DEVICE_PLUGIN = f"{_TIED}from isolation.node.device_plugin.cli import device_plugin; device_plugin()"


def cards(path: Path, number: int = 2, model: str = "t4") -> Path:
    """A simulated machine."""
    create(path, [model] * number)
    return path


class NodeProcess:
    """
    One agent; start it again with `start`, kill it with `kill`, end it well with `stop`.

    Its device plugin is started with the first of them and lives on as `device_plugin`, until the block ends.
    """

    def __init__(self, folder: Path, kubelet: DeviceManager, node: str, kubeconfig: Path, simgpu: Path, *more: str):
        self.run_dir, self.log = folder / "run", folder / "node.log"
        paths = [
            f"--kubelet-dir={kubelet.folder}",
            f"--state-dir={self.run_dir}",
            f"--cdi-dir={kubelet.cdi}",
            f"--marks-dir={kubelet.runtime.marks}",
            f"--nri-socket={kubelet.runtime.nri.path}",
        ]
        self._command = [
            *COMMAND,
            *paths,
            f"--node-name={node}",
            f"--cgroup={kubelet.cgroups}",
            f"--kubeconfig={kubeconfig}",
            f"--simgpu={simgpu}",
            "--metrics-host=127.0.0.1",
            "--metrics-port=0",
            "--log-level=info",
            *more,
        ]
        self._plugin_command = [sys.executable, "-c", _DEVICE_PLUGIN, *paths, "--log-level=info"]
        self.process: subprocess.Popen[bytes] | None = None
        self.device_plugin: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.device_plugin is not None:
            self.device_plugin.kill()
            self.device_plugin.wait(PATIENCE_SECONDS)

    def start(self) -> None:
        """Begin; what it says is added to the log."""
        with self.log.open("ab") as log:
            if self.device_plugin is None or self.device_plugin.poll() is not None:
                self.device_plugin = subprocess.Popen(
                    self._plugin_command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def again(self, log: Path) -> subprocess.Popen[bytes]:
        """A second one of the same node."""
        with log.open("ab") as words:
            return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=words, stderr=words)

    def kill(self) -> None:
        """SIGKILL at any moment."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def end_device_plugin(self) -> int:
        """SIGTERM, as the kubelet does when the agent has ended; the exit status."""
        self.device_plugin.send_signal(signal.SIGTERM)
        return self.device_plugin.wait(PATIENCE_SECONDS)

    def words(self) -> str:
        """All that it said."""
        return self.log.read_text(errors="replace")

    def page(self, path: str = "metrics") -> str:
        """One of its pages."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.findall(r"metrics at (http://\S+)/metrics", self.words())):
            assert time.monotonic() < end, self.words()
            time.sleep(0.05)
        try:
            with urllib.request.urlopen(f"{found[-1]}/{path}", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (its own word)
                return answer.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.read().decode()

    def promise(self, uid: str, container: str) -> Path:
        """Where the exporter reads what a container has."""
        return self.run_dir / "alloc" / f"{uid}.{container}" / "promise.json"

    def hold(self, uid: str, container: str) -> dict:
        """What a container has."""
        return json.loads(self.promise(uid, container).read_text())

    def holds(self) -> set[tuple[str, str]]:
        """Pod UID and name of every container of which anything stands on the disk."""
        return {(path.name[:36], path.name[37:]) for path in self.run_dir.glob("alloc/*")}
