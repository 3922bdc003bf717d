# SPDX-License-Identifier: Apache-2.0
"""
What gpushare's hook adds to a container's start where the driver limits memory: the guard, and the node agent's answer.

A real API server, `gpushare node` with backend `kernel` on a simulated driver 615 that a process of root owns, and one
container in a control group and mount namespace of its own. The guard runs again and again as the runtime runs it, with
the mark that the agent wrote, in turn with its parts:

    exec      the program alone, which ends at once: what the machine takes for any hook
    guard     the guard without limits: mark, annotation, mounts
    agent     the question for limits, asked by us over the agent's socket
    hook      the guard as a container start has it

Once with an idle agent, once while containers of other pods start all the time. Prints medians and 99th percentiles in
milliseconds and their ratio to `exec`, or with --json one object. As root, with cgroup version 2; needs the control
plane of the tests: `make controlplane`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

BAR_MS = 20.0
"""For `hook`, at the median."""
ROUNDS = 200
NEIGHBOURS = 4
"""Other pods."""
_PATIENCE_SECONDS = 60.0
_GIB = 1 << 30
_IDLE = "time.sleep(1e6)\n"


@dataclass(frozen=True)
class Start:
    """What a container's start gave to the guard."""

    command: tuple[str, ...]
    state: str
    mark: Path
    text: str
    group: str
    """Control group, below the mount of cgroup version 2."""
    id: str

    def run(self, command: tuple[str, ...], text: str) -> None:
        """One hook with that mark; SystemExit where it refuses."""
        self.mark.write_text(text)
        self.mark.chmod(0o600)
        done = subprocess.run(command, input=self.state, capture_output=True, text=True, check=False, timeout=60)
        usage = 2 if len(command) == 1 else 0  # without arguments it only says how it is called
        if done.returncode not in {0, usage}:
            sys.exit(f"the guard refused: {done.stderr}")

    def ask(self) -> None:
        """The guard's question; SystemExit where the answer is not ok."""
        [line] = [line for line in self.text.splitlines() if line.startswith("limits\t")]
        _, place, parts = line.split("\t")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PATIENCE_SECONDS)
            connection.connect(place)
            connection.sendall(f"{self.id}\t{self.group}\t{parts}\n".encode())
            answer = connection.recv(1024)
        if answer != b"ok\n":
            sys.exit(f"the agent answered {answer!r}")

    def parts(self) -> dict[str, Callable[[], None]]:
        """What is measured, by name."""
        unlimited = "".join(line for line in self.text.splitlines(True) if not line.startswith("limits\t"))
        return {
            "exec": lambda: self.run(self.command[:1], unlimited),
            "guard": lambda: self.run(self.command, unlimited),
            "agent": self.ask,
            "hook": lambda: self.run(self.command, self.text),
        }


def runtime_of(root: Path, top: Path, stack: contextlib.ExitStack) -> tuple[Callable[[Path], Any], list[Start]]:
    """Makes the stand-in kubelet's runtime, with its marks in memory as in /run; and what each guard was given."""
    base: Any = import_module("support.process_runtime").ProcessRuntime
    starts: list[Start] = []

    class Recorded(base):  # type: ignore[misc]
        def _call_guard(self, made: Any, pid: int, hook: tuple[str, ...]) -> None:
            mark = self.marks / made.id
            text = mark.read_text()
            super()._call_guard(made, pid, hook)
            bundle = str(self._bundles / made.id)
            state = {"ociVersion": "1.2.0", "id": made.id, "status": "creating", "pid": pid, "bundle": bundle}
            line = Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1]
            starts.append(Start(tuple(hook), json.dumps(state), mark, text, line.partition("::")[2], made.id))

    def made(folder: Path) -> Any:
        runtime = Recorded(folder, root, top, _IDLE)
        runtime.marks.mkdir(mode=0o700, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0700", "none", runtime.marks], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", runtime.marks], check=True)
        return runtime

    return made, starts


def timed(parts: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each, in turn."""
    took: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds):
        for name, part in parts.items():
            began = time.perf_counter()
            part()
            took[name].append((time.perf_counter() - began) * 1000)
    return took


def figures(took: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median, 99th percentile and longest of each, and the median's ratio to that of `exec`."""
    found = {}
    floor = sorted(took["exec"])[len(took["exec"]) // 2]
    for name, times in took.items():
        order = sorted(times)
        median, p99 = order[len(order) // 2], order[math.ceil(len(order) * 0.99) - 1]
        found[name] = {
            "median": round(median, 2),
            "p99": round(p99, 2),
            "longest": round(order[-1], 2),
            "ratio": round(median / floor, 2),
            "over_bar": sum(one > BAR_MS for one in order),
        }
    return found


async def measure(plane: Any, folder: Path, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Both scenes."""
    stage_of = import_module("e2e.node_harness").stage
    share_pod = import_module("e2e.kubelets").share_pod
    stands, groups = import_module("support.backend_harness"), import_module("support.cgroups").groups
    with contextlib.ExitStack() as stack:
        machine = folder / "cards"
        import_module("isolation.simgpu.hardware").create(machine, ["v100-16g"], {"teardown_ns": 0})
        top = stack.enter_context(groups(f"bench-{time.monotonic_ns()}"))
        root = stack.enter_context(import_module("support.process_runtime").root_file_system(folder))
        stack.enter_context(stands.shared_mount(folder / "run"))
        stack.enter_context(stands.owner_of(machine))
        runtime, starts = runtime_of(root, top, stack)
        labels = {"gpushare.dev/backend": "kernel"}
        async with stage_of(plane, folder, "bench", machine=machine, runtime=runtime, **labels) as at:
            uid = await at.bind(share_pod("measured", 2), 0)
            await at.running(uid)
            parts = starts[0].parts()
            scenes = {"idle agent": figures(await asyncio.to_thread(timed, parts, rounds))}
            pods = [await at.running(await at.bind(share_pod(f"other-{i}", 2), 0)) for i in range(NEIGHBOURS)]
            over = asyncio.Event()
            churn = asyncio.create_task(_churn(at.kubelet, pods, over))
            began = len(starts)
            scenes["containers start meanwhile"] = figures(await asyncio.to_thread(timed, parts, rounds))
            over.set()
            await churn
            print(f"{len(starts) - began} starts meanwhile", file=sys.stderr)
            return scenes


async def _churn(kubelet: Any, pods: list[Any], over: asyncio.Event) -> None:
    """Containers end and start again."""
    while not over.is_set():
        for pod in pods:
            if pod.boxes["main"].state == "running":
                await asyncio.to_thread(kubelet.crash, pod, "main")
        await asyncio.sleep(0.01)


def show(scenes: dict[str, dict[str, dict[str, float]]]) -> None:
    """As a table."""
    for scene, rows in scenes.items():
        print(scene)
        for name, row in rows.items():
            times = "  ".join(f"{key} {row[key]:>7.2f} ms" for key in ("median", "p99", "longest"))
            print(f"  {name:<6} {times}  {row['ratio']:>5.2f} x exec  {row['over_bar']} over {BAR_MS:.0f} ms")


def main() -> int:
    """1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each part (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if os.geteuid() != 0 or not import_module("support.backend_harness").kernel_here():
        sys.exit("needs root and cgroup version 2")
    programs = import_module("e2e.binaries").find()
    if not isinstance(programs, dict):
        sys.exit(str(programs))
    with tempfile.TemporaryDirectory() as folder:
        plane = import_module("e2e.plane").ControlPlane(programs, Path(folder))
        plane.start()
        try:
            scenes = asyncio.run(measure(plane, Path(folder), args.rounds))
        finally:
            plane.stop()
    if args.json:
        print(json.dumps({"bar_ms": BAR_MS, "rounds": args.rounds, "scenes": scenes}))
    else:
        show(scenes)
    return int(any(rows["hook"]["median"] > BAR_MS for rows in scenes.values()))


if __name__ == "__main__":
    sys.exit(main())
