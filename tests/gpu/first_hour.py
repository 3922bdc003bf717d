# SPDX-License-Identifier: Apache-2.0
"""
The first hour on a real card: one command that decides what is open, without the network, in 20 minutes at most.

    make gpu                                          or, with the Python that has PyTorch:
    python tests/gpu/first_hour.py [--python PYTHON] [--seconds N] [--out FILE] [--simgpu BOX]

Prints an answer to each question and writes all of them as JSON into build/measured/. A question that cannot be
decided says why. `--simgpu` asks simulated cards, to try the command itself.

Exit status: 0 answered; 1 something does not hold; 77 no card here, nothing was asked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NO_CARD = 77
WHOLE_SECONDS = 19 * 60.0
EACH_SECONDS = 150.0
MIB, GIB = 1 << 20, 1 << 30
SHARE_GIB = 5
PROBE = ROOT / "tests" / "gpu" / "probe.py"
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
PYTORCH = """
import json, torch
held, refused = [], False
total = torch.cuda.mem_get_info()[1]
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
optimiser = torch.optim.AdamW(model.parameters())
for _ in range(20):
    optimiser.zero_grad(set_to_none=True)
    model(torch.randn(512, 2048, device="cuda")).square().mean().backward()
    optimiser.step()
torch.cuda.synchronize()
try:
    while len(held) < 1 << 12:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    refused = True
held.clear()
torch.cuda.empty_cache()
again = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").numel() == 1 << 30
print(json.dumps({"total_mib": total >> 20, "refused": refused, "recovers": again}))
"""
LAZY = """
import json, sys, torch
sys.argv = ["probe"]
sys.path.insert(0, sys.path.pop())
from probe import Nvml
a = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
nvml = Nvml()
before, reserved = nvml.used(), torch.cuda.memory_reserved()
a @ a
torch.cuda.synchronize()
print(json.dumps({"cublas_bytes": nvml.used() - before - (torch.cuda.memory_reserved() - reserved)}))
"""


class CannotTellError(Exception):
    """A question that this machine does not decide; the text says why."""


@dataclass
class Answer:
    """To one question: `yes`, `no`, `figure` or `could not tell`, what was measured, and why."""

    name: str
    question: str
    result: str
    figures: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    seconds: float = 0.0


@dataclass
class Machine:
    """The card that is asked, and how programs are started on it."""

    uuid: str
    name: str
    driver: str
    python: str
    simgpu: Path | None
    folder: Path
    measure_seconds: float
    ends: float

    def env(self, **more: str) -> dict[str, str]:
        """Of a program that has the card to itself."""
        kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        kept |= {"CUDA_VISIBLE_DEVICES": self.uuid, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{PROBE.parent}"}
        if self.simgpu:
            kept["LD_LIBRARY_PATH"] = f"{self.simgpu.parent}:{kept.get('LD_LIBRARY_PATH', '')}"
        return kept | more

    def start(self, command: list[str], *share: str, **more: str) -> subprocess.Popen[str]:
        """A program, with a share if words of `gpushare run` are given."""
        env = self.env(**more)
        if share:
            box = ("--simgpu", str(self.simgpu)) if self.simgpu else ()
            front = [sys.executable, "-c", FRONT, "run", *box, "--state-dir", str(self.folder / "state")]
            command = [*front, *share, "--", *command]
            env.pop("CUDA_VISIBLE_DEVICES")
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        limit = ("timeout", "--kill-after=5", str(int(self.left())))
        return subprocess.Popen([*limit, *command], env=env, cwd=ROOT, **streams)

    def left(self) -> float:
        """Seconds that a program may still take; CannotTellError where there are none."""
        left = min(EACH_SECONDS, self.ends - time.monotonic())
        if left < 1:
            raise CannotTellError(f"no time left of {WHOLE_SECONDS / 60:.0f} minutes")
        return left

    def run(self, command: list[str], *share: str, **more: str) -> str:
        """What it prints; CannotTellError with its last line where it fails."""
        return finished(self.start(command, *share, **more))

    def probe(self, *words: str, share: tuple[str, ...] = (), **more: str) -> dict[str, Any]:
        """An answer of tests/gpu/probe.py."""
        return dict(json.loads(self.run([self.python, str(PROBE), *words], *share, **more)))

    def torch(self, code: str, *share: str) -> dict[str, Any]:
        """What a PyTorch program prints."""
        if subprocess.run(
            [self.python, "-c", "import torch"], capture_output=True, timeout=120, check=False
        ).returncode:
            raise CannotTellError(f"{self.python} has no PyTorch: choose one by --python")
        return dict(json.loads(self.run([self.python, "-c", code], *share).splitlines()[-1]))


def finished(process: subprocess.Popen[str]) -> str:
    """What a program printed."""
    out, err = process.communicate()
    if process.returncode == 124:
        raise CannotTellError("still running at its deadline")
    if process.returncode:
        raise CannotTellError((err.strip().splitlines() or [f"exit status {process.returncode}"])[-1])
    return out


def yes(holds: bool) -> str:  # noqa: FBT001 (a word for a fact)
    """`yes` or `no`."""
    return "yes" if holds else "no"


def runtime_context(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Does NVIDIA's runtime make its context through a call that the library sees?"""
    found = machine.probe("runtime", share=("--gpu-mem", str(SHARE_GIB)))
    if found["status"]:
        raise CannotTellError(f"cudaFree(0) of {found['runtime']} answers {found['status']}")
    return yes(found["after"] - found["before"] >= 64 * MIB), found


def memory_costs(machine: Machine) -> tuple[str, dict[str, Any]]:
    """What do a context and a module with 64 MiB of globals cost?"""
    found = machine.probe("costs")
    return "figure", {"context_bytes": found["context"], "module_bytes": found["module"]}


def lazy_library(machine: Machine) -> tuple[str, dict[str, Any]]:
    """What does cuBLAS cost, which the runtime loads when it is first used?"""
    return "figure", machine.torch(LAZY)


def managed_in_nvml(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Is managed memory that lies on the card in NVML's figure per process?"""
    found = machine.probe("costs")
    if found["managed_in_processes"] is None:
        raise CannotTellError("NVML has no bytes per process here")
    if found["managed_on_card"] < 256 * MIB:
        raise CannotTellError("the managed memory did not move to the card")
    return yes(found["managed_in_processes"] >= 256 * MIB), found


def driver_limit(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Is a program of the driver API stopped at 5 GiB, and sees a card of 5 GiB?"""
    found = machine.probe("fill", str(2 * SHARE_GIB * 1024), share=("--gpu-mem", str(SHARE_GIB)))
    stopped = found["status"] == 2 and found["got_mib"] <= SHARE_GIB * 1024 == found["total_mib"]
    return yes(stopped), found


def pytorch_limit(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Does a PyTorch script train, meet its limit of 5 GiB as its own error, and go on?"""
    found = machine.torch(PYTORCH, "--gpu-mem", str(SHARE_GIB))
    return yes(found["total_mib"] == SHARE_GIB * 1024 and found["refused"] and found["recovers"]), found


def compute_shares(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Do two programs with 30 % and 70 % get that of the card at the same time, within 5 points?"""
    count = machine.probe("calibrate")["count"]
    words = [machine.python, str(PROBE), "busy", str(machine.measure_seconds), str(count)]
    alone = json.loads(machine.run(words))["kernels_per_second"]
    pair = {core: machine.start(words, "--gpu-mem", "2", "--gpu-core", str(core)) for core in (30, 70)}
    rates = {core: json.loads(finished(process))["kernels_per_second"] for core, process in pair.items()}
    got = {f"percent_of_{core}": round(100 * rate / alone, 1) for core, rate in rates.items()}
    return yes(all(abs(got[f"percent_of_{core}"] - core) <= 5 for core in rates)), got


def overheads(machine: Machine) -> tuple[str, dict[str, Any]]:
    """What do an allocation with its release and a launch cost, without the library and with it?"""
    found = {}
    sides = {"plain": (), "memory": ("--gpu-mem", "2"), "compute": ("--gpu-mem", "2", "--gpu-core", "100")}
    for side, share in sides.items():
        found |= {f"{name}_{side}": value for name, value in machine.probe("times", share=share).items()}
    return "figure", found


def nvidia_smi(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Does nvidia-smi show one card, the promised one with 5 GiB, and no process of a neighbour?"""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise CannotTellError("nvidia-smi is not installed")
    share = ("--gpu-mem", str(SHARE_GIB))
    with machine.start([machine.python, str(PROBE), "hold", "512"]) as neighbour:
        neighbour.stdout.readline()
        query = ["--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
        cards = [re.split(r", *", line) for line in machine.run([tool, *query], *share).splitlines()]
        apps = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        others = [line for line in machine.run([tool, *apps], *share).splitlines() if line[:1].isdigit()]
        neighbour.communicate("")
    figures = {"cards": cards, "processes_of_others": len(others)}
    return yes([[machine.uuid, str(SHARE_GIB * 1024)]] == cards and not others), figures


def mps(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Is a client of MPS stopped at its 5 GiB?"""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise CannotTellError("nvidia-cuda-mps-control is not installed")
    folders = {f"CUDA_MPS_{name}_DIRECTORY": str(machine.folder / name.lower()) for name in ("PIPE", "LOG")}
    for folder in folders.values():
        Path(folder).mkdir()
    machine.run([control, "-d"], **folders)
    try:
        words = ("fill", str(2 * SHARE_GIB * 1024))
        found = machine.probe(*words, share=("--gpu-mem", str(SHARE_GIB)), **folders)
    finally:
        subprocess.run([control], input="quit\n", text=True, env=machine.env(**folders), timeout=60, check=False)
    return yes(found["status"] == 2 and found["got_mib"] <= SHARE_GIB * 1024), found


QUESTIONS: dict[str, Callable[[Machine], tuple[str, dict[str, Any]]]] = {
    "runtime-context": runtime_context,
    "memory-costs": memory_costs,
    "lazy-library": lazy_library,
    "managed-in-nvml": managed_in_nvml,
    "driver-limit": driver_limit,
    "pytorch-limit": pytorch_limit,
    "compute-shares": compute_shares,
    "overheads": overheads,
    "nvidia-smi": nvidia_smi,
    "mps": mps,
}


def answers(machine: Machine) -> Iterator[Answer]:
    """To each question, one after another: they measure, and want the card for themselves."""
    for name, ask in QUESTIONS.items():
        began = time.monotonic()
        answer = Answer(name, str(ask.__doc__), "could not tell")
        try:
            answer.result, answer.figures = ask(machine)
        except (CannotTellError, OSError, ValueError, KeyError, subprocess.SubprocessError) as exc:
            answer.why = str(exc) or type(exc).__name__
        answer.seconds = round(time.monotonic() - began, 1)
        yield answer


def first_card(simgpu: Path | None) -> tuple[str, str, str] | None:
    """(UUID, name, driver version) of the card that is asked; None where there is none."""
    from support import realgpu  # noqa: PLC0415 (after the path)

    if simgpu is None:
        found = realgpu.cards()
        return (found[0].uuid, found[0].name, found[0].driver) if found else None
    from isolation.simgpu.hardware import open_box  # noqa: PLC0415
    from isolation.simgpu.report import build_document  # noqa: PLC0415

    with open_box(simgpu) as box:
        card = build_document(box)["cards"][0]
    return card["uuid"], card["name"], "simulated"


def main() -> int:
    """Exit status."""
    words = argparse.ArgumentParser(description="Decide on a real card what is open.")
    words.add_argument("--python", default=sys.executable, help="Python that has PyTorch.")
    words.add_argument("--seconds", type=float, default=10, help="Length of a measurement of compute.")
    words.add_argument("--out", type=Path, help="Where the answers go; default: build/measured/.")
    words.add_argument("--simgpu", type=Path, help="Ask simulated cards instead.")
    given = words.parse_args()
    card = first_card(given.simgpu)
    if card is None:
        sys.stdout.write("no NVIDIA card: NVML finds none, nothing was asked\n")
        return NO_CARD
    uuid, name, driver = card
    stem = f"first-hour-{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{driver}.json"
    target = given.out or ROOT / "build" / "measured" / stem
    given_answers = []
    with tempfile.TemporaryDirectory(prefix="gpushare-first-hour-") as folder:
        ends = time.monotonic() + WHOLE_SECONDS
        machine = Machine(uuid, name, driver, given.python, given.simgpu, Path(folder), given.seconds, ends)
        for answer in answers(machine):
            given_answers.append(answer)
            shown = answer.why or ", ".join(f"{key}={value}" for key, value in answer.figures.items())
            sys.stdout.write(f"{answer.name}: {answer.result}  {shown}\n    {answer.question}\n")
            sys.stdout.flush()
            target.parent.mkdir(parents=True, exist_ok=True)
            text = {"card": name, "driver": driver, "answers": [asdict(one) for one in given_answers]}
            target.write_text(json.dumps(text, indent=2) + "\n")
    sys.stdout.write(f"written to {target}\n")
    return int(any(one.result == "no" for one in given_answers))


if __name__ == "__main__":
    sys.exit(main())
