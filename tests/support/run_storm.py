# SPDX-License-Identifier: Apache-2.0
"""
Many real `gpushare run` processes at once: forked from one that has everything imported.

A program, started by tests/simulated_cards/test_run_storm.py: `run_storm.py MODE HARDWARE FOLDER COUNT SEED`.
Prints what it saw as JSON and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.waiting import PATIENCE_SECONDS

import isolation.run.core.request  # noqa: F401 (imported once, here)
from gpushare import main
from isolation.contract.host_allocation import Process
from isolation.host import cgroup, process
from isolation.host.liveness import MARK
from isolation.run.store import AllocationStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from isolation.contract.host_allocation import HostAllocation


def run(hardware: Path, *arguments: str) -> int:
    """One `gpushare run` in a process of its own: its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(errors_of(hardware, os.getpid()), os.O_WRONLY | os.O_CREAT, 0o600)
        for number, fd in enumerate((null, null, errors)):
            os.dup2(fd, number)
        main(["run", "--simgpu", str(hardware), *arguments])
    except SystemExit as exc:
        code = int(exc.code or 0)
    finally:
        os._exit(code)


def errors_of(hardware: Path, pid: int) -> Path:
    """The error stream of a run."""
    return hardware.with_name(f"{hardware.name}.errors-{pid}")


def exit_code(pid: int) -> int:
    """How a process of ours ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def store_of(hardware: Path) -> AllocationStore:
    """The simulated machine's store."""
    return AllocationStore(hardware.with_name(f"{hardware.name}.allocations"))


def held(store: AllocationStore) -> list[HostAllocation]:
    """Every hold, as the next run would count them."""
    with store.locked():
        return [one.entry for one in store.list_living()]


def living(store: AllocationStore) -> dict[str, list[Process]]:
    """Processes that run on a hold of this store, by promise id: found without any help of the store."""
    found: dict[str, list[Process]] = {}
    ours = f"GPUSHARE_LIMITS={store.home}/".encode()
    for pid in process.pids():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            seen = process.read_living(pid)
            if seen is None or not any(word.startswith(ours) for word in words):
                continue
            mark = next(word for word in words if word.startswith(MARK.encode() + b"="))
            found.setdefault(mark.decode().partition("=")[2], []).append(Process(pid, seen.start))
    return found


def wait_until(holds: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether `holds` became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return False


def race(hardware: Path, folder: Path, count: int, _seed: int) -> dict[str, Any]:
    """Many ask for 5 GiB at one moment; those who get it stay until all are served."""
    fifo = folder / "go"
    os.mkfifo(fifo)
    note = f"{folder}/.$GPUSHARE_PROMISE"
    script = f'echo "$CUDA_VISIBLE_DEVICES" > {note}; mv {note} {folder}/$GPUSHARE_PROMISE; read x < {fifo}; exit 0'
    pids = [run(hardware, "--gpu-mem", "5", "--", "sh", "-c", script) for _ in range(count)]
    running, codes = set(pids), list[int]()

    def settled() -> bool:
        for pid in tuple(running):
            if os.waitpid(pid, os.WNOHANG)[0]:
                running.discard(pid)
                codes.append(75)
        return len(running) == len(list(folder.glob("run-*"))) == len(held(store_of(hardware)))

    ok = wait_until(settled)
    cards = [path.read_text().strip() for path in folder.glob("run-*")]
    sold = {uuid: 5 * cards.count(uuid) for uuid in sorted(set(cards))}
    go = os.open(fifo, os.O_RDWR)  # a line for each, also for those that open it only now
    os.write(go, b"\n" * len(running))
    codes += [exit_code(pid) for pid in running]
    os.close(go)
    left = [entry.id for entry in held(store_of(hardware))]
    return {"settled": ok, "sold": sold, "codes": {code: codes.count(code) for code in set(codes)}, "left": left}


def churn(hardware: Path, folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Everybody waits for room, computes a moment and writes down when that was."""
    draw, pids = random.Random(seed), []  # noqa: S311 (a storm that can be had again)
    for at in range(count):
        cards = draw.choice((1, 1, 1, 2, 4))
        units = cards * draw.randint(1, 15)
        script = (
            f"b=$(date +%s%N); sleep 0.0{draw.randint(1, 9)}; e=$(date +%s%N);"
            f' echo "$b $e {units // cards} $CUDA_VISIBLE_DEVICES" > {folder}/{at}'
        )
        wanted = ("--gpu-mem", str(units), "--gpu-count", str(cards))
        pids.append(run(hardware, *wanted, "--wait", "--", "sh", "-c", script))
    codes = {pid: exit_code(pid) for pid in pids}
    said = [errors_of(hardware, pid).read_text() for pid, code in codes.items() if code]
    spans = [path.read_text().split() for path in folder.iterdir()]
    most = 0
    for begin, *_ in spans:
        taken: dict[str, int] = {}
        for other, end, size, uuids in spans:
            if int(other) <= int(begin) < int(end):
                for uuid in uuids.split(","):
                    taken[uuid] = taken.get(uuid, 0) + int(size)
        most = max(most, *taken.values())
    left = [entry.id for entry in held(store_of(hardware))]
    return {"said": said, "codes": sorted(set(codes.values())), "ran": len(spans), "most": most, "left": left}


def kill_ungrouped(hardware: Path, folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Likewise where no control group may be made."""

    def refused(name: str, note: Path | None = None) -> Path | None:  # noqa: ARG001 (as it is called)
        return None

    cgroup.create = refused
    return kill(hardware, folder, count, seed)


def kill(hardware: Path, _folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Kill the runner, the keeper or both at a random moment; then see who lives and who is counted."""
    draw, store = random.Random(seed), store_of(hardware)  # noqa: S311 (a storm that can be had again)
    wrong, survived, unsettled = list[str](), 0, 0
    for _ in range(count):
        front = run(hardware, "--gpu-mem", "5", "--", "sh", "-c", "sleep 60 & exec sleep 60")
        time.sleep(draw.uniform(0.0, 0.5))
        stats = {pid: process.read_stat(pid) for pid in process.pids()}
        keepers = [pid for pid, stat in stats.items() if stat is not None and stat.parent == front]
        for pid in draw.choice(([front], keepers, [front, *keepers], [*keepers, front])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        def true(store: AllocationStore = store) -> bool:
            before, counted, after = set(living(store)), {entry.id for entry in held(store)}, set(living(store))
            wrong.extend((before & after) - counted)
            return before == counted == after and (bool(counted) or not front_alive())

        def front_alive(front: int = front) -> bool:
            return os.waitid(os.P_PID, front, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

        unsettled += not wait_until(true)
        for processes in living(store).values():
            survived += 1
            for one in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
        exit_code(front)
        unsettled += not wait_until(lambda: not held(store) and not living(store))
    left = [path.name for path in store.home.iterdir()]
    return {"wrong": wrong, "unsettled": unsettled, "survived": survived, "left": left}


if __name__ == "__main__":
    mode, hardware_, folder_, count_, seed_ = sys.argv[1:]
    modes: dict[str, Callable[[Path, Path, int, int], dict[str, Any]]] = {
        "race": race,
        "churn": churn,
        "kill": kill,
        "kill-ungrouped": kill_ungrouped,
    }
    print(json.dumps(modes[mode](Path(hardware_), Path(folder_), int(count_), int(seed_))))  # noqa: T201 (the answer)
