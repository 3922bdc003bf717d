# SPDX-License-Identifier: Apache-2.0
"""
The library on a real NVIDIA card. Skipped where there is none; PyTorch only where it is installed.

Needs a card that nobody else uses. What is measured goes to build/measured/, as parameters of the simulator.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from support import realgpu

from isolation.contract import abi
from isolation.lib import files, native
from isolation.simgpu import hardware
from isolation.simgpu.models import MODELS

ROOT = Path(__file__).resolve().parents[2]
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
GIB, MIB = 1 << 30, 1 << 20
pytestmark = pytest.mark.gpu

PAST = """
import json, os, torch
from pathlib import Path
from isolation.lib import files
held, refused = [], False
total = torch.cuda.mem_get_info()[1]
try:
    while len(held) < 1 << 16:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    refused = True
kinds = [int(breach.kind) for breach in files.read_breaches(Path(os.environ["GPUSHARE_REGION"]))[2]]
print(json.dumps([total >> 20, 64 * len(held), refused, sorted(set(kinds))]))
"""
RATE = """
import json, time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
b = a @ a
torch.cuda.synchronize()
begin, start, count = time.monotonic(), None, 0
while True:
    for _ in range(20):
        torch.mm(a, a, out=b)
    torch.cuda.synchronize()
    now = time.monotonic()
    if start is None:
        start = now if now - begin > 2 else None
        continue
    count += 20
    if now - start > 10:
        break
print(json.dumps(count / (now - start)))
"""
TRAIN = """
import json, time, torch
torch.manual_seed(1)
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(2048, 2048), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).cuda()
optimiser = torch.optim.AdamW(model.parameters())
data = torch.randn(512, 2048, device="cuda")
def step():
    optimiser.zero_grad(set_to_none=True)
    model(data).square().mean().backward()
    optimiser.step()
for _ in range(50):
    step()
found = []
for _ in range(20):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(25):
        step()
    torch.cuda.synchronize()
    found.append((time.perf_counter() - begin) / 25)
print(json.dumps(found))
"""


def idle_bytes(uuid: str) -> int:
    """Bytes in use once what ran last is gone: the driver takes a moment to give memory back."""
    end = time.monotonic() + 5
    while (used := realgpu.used_bytes(uuid)) > 64 * MIB and time.monotonic() < end:
        time.sleep(0.2)
    return used


@pytest.fixture(scope="module")
def card() -> realgpu.RealCard:
    """The first card of this machine, if it is a real one."""
    found = realgpu.cards()
    if not found:
        pytest.skip("no NVIDIA card: NVML finds none")
    if idle_bytes(found[0].uuid) > 64 * MIB:
        pytest.skip(f"card 0 ({found[0].name}) is in use: these tests measure, and want it for themselves")
    return found[0]


@pytest.fixture(scope="module")
def torch_installed(card) -> None:  # noqa: ARG001 (no card: no torch either)
    """PyTorch with CUDA."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: pip install torch")


def run(command: list[str], **env: str) -> str:
    """A command to its end; what it printed."""
    given = os.environ | {"PYTHONPATH": str(ROOT)} | env
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def shared(book: Path, *words: str) -> str:
    """`gpushare run` with a book of its own; what the command printed."""
    return run([sys.executable, "-c", FRONT, "run", "--state-dir", str(book), *words])


def test_pytorch_is_stopped_at_its_promise(torch_installed, tmp_path):  # noqa: ARG001
    """It sees a card of 4 GiB, gets most of it, is refused with its own error, and the breach is recorded."""
    total, got, refused, kinds = json.loads(
        shared(tmp_path / "book", "--gpu-mem", "4", "--", sys.executable, "-c", PAST)
    )

    assert (4096, True) == (total, refused)
    assert 3 * 1024 <= got <= 4 * 1024
    assert abi.Breach.DENIED in kinds


def test_cublas_gets_its_share_of_the_card(torch_installed, card, tmp_path):  # noqa: ARG001
    """
    Backlogged matrix products at 30 %: NVML's figure for the card is 30 % of the time, within 2 points.

    Not as many products as alone, times 0.30: alone the card reaches its power limit and slows down, at 30 % it does
    not (35.7 % of the products on an H200).
    """
    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
    words = ("run", "--state-dir", str(tmp_path / "book"), "--gpu-mem", "4", "--gpu-core", "30", "--")
    command = [sys.executable, "-c", FRONT, *words, sys.executable, "-c", RATE]
    loads: list[int] = []
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, stdout=subprocess.PIPE) as run:
        while run.poll() is None:
            loads.append(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            time.sleep(0.25)
    assert 0 == run.returncode
    busy = [load for load in loads if load > 10][8:-4]  # without the start, whose kernels are unknown
    assert len(busy) > 20
    assert pytest.approx(30, abs=2) == statistics.mean(busy)


def test_a_training_step_costs_no_more(torch_installed, tmp_path):  # noqa: ARG001
    """Memory promised only: 0.5 % at most, over eight runs in alternation, so that a warming card favours nobody."""
    plain: list[float] = []
    promised: list[float] = []
    for limited in (False, True, True, False, False, True, True, False):
        command = [sys.executable, "-c", TRAIN]
        text = shared(tmp_path / "book", "--gpu-mem", "8", "--", *command) if limited else run(command)
        (promised if limited else plain).extend(json.loads(text))

    assert statistics.median(promised) <= 1.005 * statistics.median(plain)


def test_the_ledger_is_what_nvml_sees(card, tmp_path):
    """A context and 1,000 MiB: the records are within 64 MiB of what the card's own figure grew by."""
    costs = json.loads(run([sys.executable, "tests/support/realgpu.py", "costs"], CUDA_VISIBLE_DEVICES=card.uuid))
    uuid = UUID(card.uuid.removeprefix("GPU-"))
    files.create_region(tmp_path / "region", "real")
    promise = abi.CardLimit(uuid, 4 * GIB, costs["context_bytes"])
    files.write_limits(tmp_path / "limits", abi.Limits(1, "real", (promise,)))
    env = os.environ | {f"GPUSHARE_{name.upper()}": str(tmp_path / name) for name in ("limits", "region", "feed")}
    env |= {"LD_PRELOAD": str(native.library_path()), "CUDA_VISIBLE_DEVICES": card.uuid}
    command = [sys.executable, "tests/support/realgpu.py", "hold", "1000"]
    before = idle_bytes(card.uuid)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, cwd=ROOT, **pipes) as process:
        said = process.stdout.readline()
        grown = realgpu.used_bytes(card.uuid) - before
        booked = files.read_region(tmp_path / "region").cards[0].used_bytes
        process.communicate("", timeout=60)

    assert "held\n" == said
    assert abs(grown - booked) <= 64 * MIB, (grown, booked)


def test_nvidia_smi_shows_the_promise(card, tmp_path):
    """The vendor's own tool, unmodified: one card, of 5 GiB, with its true name."""
    if not shutil.which("nvidia-smi"):
        pytest.skip("nvidia-smi is not installed")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    lines = shared(tmp_path / "book", "--gpu-mem", "5", "--", *query).splitlines()

    assert [[card.name, "5120"]] == [re.split(r",\s*", line) for line in lines]


def test_what_this_card_costs_becomes_parameters_of_the_simulator(card, tmp_path):
    """Slice, switch, event, launch and context, measured and written down with the driver's version."""
    measure = [sys.executable, "tests/support/realgpu.py"]
    found = json.loads(run([*measure, "costs"], CUDA_VISIBLE_DEVICES=card.uuid))
    env = os.environ | {"CUDA_VISIBLE_DEVICES": card.uuid}
    pair = [subprocess.Popen([*measure, "gaps", "3"], env=env, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
    pauses = [json.loads(process.communicate(timeout=120)[0]) for process in pair]
    assert all(len(each) > 10 for each in pauses), "the two never took turns"
    away = statistics.median(end - begin for each in pauses for begin, end in each)
    here = statistics.median(after[0] - before[1] for each in pauses for before, after in pairwise(each))
    found |= {"slice_ns": int(here), "switch_ns": max(0, int(away - here) // 2)}
    target = ROOT / "build" / "measured" / f"{re.sub(r'[^a-z0-9]+', '-', card.name.lower())}-{card.driver}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"model": card.name, "driver": card.driver, "parameters": found}, indent=2) + "\n")

    hardware.create(tmp_path / "hardware", [next(iter(MODELS))], found)
    with hardware.open_box(tmp_path / "hardware") as box:
        taken_over = {name: box.settings()[name] for name in found}

    assert found == taken_over
    assert 10 * MIB < found["context_bytes"] < 4 * GIB
    assert all(0 < found[name] < 1_000_000 for name in ("launch_ns", "event_ns"))
    assert 100_000 < found["slice_ns"] < 100_000_000
