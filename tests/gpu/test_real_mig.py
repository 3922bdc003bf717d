# SPDX-License-Identifier: Apache-2.0
"""
What only a real card with MIG can show. Skipped where there is none; nothing here changes how a card is divided.

    nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 3g.40gb,2g.20gb,1g.10gb -C
    pytest tests/gpu/test_real_mig.py

Run it as root on an A100 or H100 that nobody uses. The length of time slices is tried where no card is divided, and set
back to the driver's default.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import realgpu

from isolation.contract import abi
from isolation.host.feed import uuid_of
from isolation.host.machine import NvmlMachine
from isolation.lib import files, native
from isolation.node.hardware import CAPABILITIES, NvidiaHardware
from isolation.node.inventory import NodeInventory, Terms
from isolation.node.time_slices import LENGTHS, NvidiaDriver, TimeSlices
from isolation.simgpu.mig import PROFILES

ROOT = Path(__file__).resolve().parents[2]
GIB, MIB = 1 << 30, 1 << 20
pytestmark = pytest.mark.gpu
MODELS = {"A100-SXM4-80GB": "a100-80g", "A100 80GB": "a100-80g", "H100 80GB HBM3": "h100-80g"}
NUMBERS = {"1g": 0, "2g": 1, "3g": 2, "4g": 3, "7g": 4}
"""NVML_GPU_INSTANCE_PROFILE_<N>_SLICE."""


@pytest.fixture
def instances(tmp_path):
    """The MIG instances of this machine as the agent knows them."""
    if not realgpu.cards():
        pytest.skip("no NVIDIA card: NVML finds none")
    machine = NvmlMachine()
    inventory = NodeInventory(machine, Terms(GIB), tmp_path / "node.json")
    try:
        inventory.refresh()
    finally:
        machine.close()
    found = {card.uuid: card for card in inventory.cards() if card.instance is not None}
    if not found:
        pytest.skip(f"no MIG instances: nvidia-smi -mig 1, nvidia-smi mig -cgi PROFILE -C {inventory.trouble}")
    return found


def test_instances_are_read_as_nvidia_smi_lists_them(instances):
    """UUID and profile of each, in one line of `nvidia-smi -L`; indices from 0 without a gap."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
    lines = {uuid: line for line in listed.splitlines() for uuid in instances if uuid in line}

    assert lines.keys() == instances.keys()
    assert all(f"MIG {card.instance.profile}" in lines[uuid] for uuid, card in instances.items())
    assert all(card.board in listed and 0 < card.instance.slices <= 7 for card in instances.values())


def test_the_driver_has_the_files_that_a_container_needs(instances, tmp_path):
    """Each instance becomes a device of the agent's CDI spec: its card, and two capability files of its own."""
    if not shutil.which("nvidia-ctk"):
        pytest.skip("nvidia-container-toolkit is not installed")
    spec = tmp_path / "nvidia.json"
    subprocess.run(["nvidia-ctk", "cdi", "generate", f"--output={spec}"], check=True, capture_output=True, timeout=120)
    hardware = NvidiaHardware(tmp_path, vendor_dirs=(tmp_path,))
    assert CAPABILITIES.is_dir()
    hardware.edits([], instances)
    made = json.loads((tmp_path / "gpushare-cards.json").read_text())
    nodes = {each["name"]: [one["path"] for one in each["containerEdits"]["deviceNodes"]] for each in made["devices"]}
    theirs = json.dumps(json.loads(spec.read_text())["devices"])

    assert instances.keys() <= nodes.keys()
    own = [path for uuid in instances for path in nodes[uuid][1:]]
    assert len(own) == len(set(own)) == 2 * len(instances)
    assert all(f'"{path}"' in theirs for path in own)


def test_the_library_holds_a_promise_within_an_instance(instances, tmp_path):
    """Two GiB of it: a context and 500 MiB are had, and two GiB more are refused; NVML has no time of the process."""
    card = min(instances.values(), key=lambda one: one.total_bytes)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": card.uuid, "PYTHONPATH": str(ROOT)}
    costs = subprocess.run(
        [sys.executable, "tests/support/realgpu.py", "costs"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    limit = abi.CardLimit(uuid_of(card.uuid), 2 * GIB, json.loads(costs.stdout)["context_bytes"])
    files.write_limits(tmp_path / "limits", abi.Limits(1, "real", (limit,)))
    files.create_region(tmp_path / "region", "real")
    env |= {f"GPUSHARE_{name.upper()}": str(tmp_path / name) for name in ("limits", "region", "feed")}
    env |= {"LD_PRELOAD": str(native.library_path())}
    command = [sys.executable, "tests/support/realgpu.py", "hold"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    machine = NvmlMachine()
    with subprocess.Popen([*command, "500"], env=env, cwd=ROOT, **pipes) as process:
        said = process.stdout.readline()
        memory, samples = machine.memory(card.uuid), machine.samples(card.uuid, 0)
        process.communicate("", timeout=60)
    machine.close()
    more = subprocess.run([*command, "2048"], env=env, cwd=ROOT, input="", capture_output=True, text=True, check=False)

    assert "held\n" == said
    assert memory is not None
    assert memory.used >= 500 * MIB
    assert process.pid in memory.users
    assert () == samples
    assert 0 != more.returncode


def test_the_simulators_profiles_are_those_of_the_card():
    """SMs, slices, memory within 1 %, and places, of each profile that NVML tells of a divided card."""
    nvml = pytest.importorskip("pynvml")
    if not realgpu.cards():
        pytest.skip("no NVIDIA card: NVML finds none")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    name = str(nvml.nvmlDeviceGetName(handle))
    model = next((model for part, model in MODELS.items() if part in name), "")
    try:
        divided = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        divided = False
    if not model or not divided:
        pytest.skip(f"{name} is not an A100-80 or H100-80 in MIG mode")
    for profile in PROFILES[model].values():
        number = NUMBERS[profile.name[:2]]
        if profile.name.endswith("+me"):
            number = nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1
        elif (profile.compute, profile.size) == (1, 2):
            number = nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2
        told = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
        assert (profile.sms, profile.compute) == (told.multiprocessorCount, told.sliceCount), profile.name
        assert abs(told.memorySizeMB - profile.mib) <= profile.mib // 100, profile.name


def test_the_driver_takes_every_length_of_time_slices():
    """On undivided cards; back to the default at the end."""
    machine = NvmlMachine()
    if not realgpu.cards() or os.geteuid() != 0 or not shutil.which("nvidia-smi"):
        pytest.skip("needs a card, root and nvidia-smi")
    boards = [card.uuid for card in machine.cards() if card.instance is None]
    machine.close()
    if not boards:
        pytest.skip("every card is divided by MIG")
    if not os.environ.get("GPUSHARE_TEST_MAY_SET"):
        pytest.skip("changes a setting of the driver for a moment: set GPUSHARE_TEST_MAY_SET=1")
    slices = TimeSlices(NvidiaDriver())
    try:
        for length in LENGTHS:
            slices.keep(length, boards)
    finally:
        slices.keep(None, boards)
