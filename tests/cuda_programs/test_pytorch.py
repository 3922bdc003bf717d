# SPDX-License-Identifier: Apache-2.0
"""
The stock wheels of PyTorch on the runtime for simulated cards: the same with and without the library, but for the size.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cuda_programs.harness import CARD_MIB, SHARE, SHARE_MIB, python, python_home, showed
from support import waiting

MIB = 1 << 20
PROGRAM = Path(__file__).with_name("pytorch_program.py")
WHEELS = {"cuda12": "requirements-pytorch", "cuda13": "requirements-pytorch-cuda13"}
ALLOCATORS = {
    "native": "backend:native",
    "expandable": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
UNSEEN_MIB = 800
"""At most: what the driver keeps back, a context, and the modules and blocks that PyTorch uses."""
CONTEXT_MIB = 256
"""Of a card of MODEL."""
TIGHT = ("--gpu-mem", "2")
ROOM_MIB, BLOCK_MIB = 2048, 64


@pytest.fixture(params=WHEELS)
def wheel(request):
    """The folder of a wheel's interpreter."""
    return python_home(WHEELS[request.param])


def both(machine, wheel, scenario, allocator="native"):
    """The result of a scenario without the library and with it; no process holds anything of a card afterwards."""
    plain = alone(machine, wheel, scenario, allocator)
    shared = machine.shared(*python(wheel), PROGRAM, scenario, **settings(allocator))
    assert all_have_ended(machine)
    return plain, json.loads(shared.splitlines()[-1])


def alone(machine, wheel, scenario, allocator):
    """The result of a scenario without the library."""
    runtimes = ":".join(sorted(str(path) for path in machine.box.parent.glob("libcudart.so.*")))
    said = machine.plain(*python(wheel), PROGRAM, scenario, LD_PRELOAD=runtimes, **settings(allocator))
    return json.loads(said.splitlines()[-1])


def all_have_ended(machine):
    """Whether no process holds anything of a card."""
    return not [one for card in machine.records()["cards"] for one in card["processes"] if one["state"] == "live"]


def settings(allocator):
    """The environment that chooses it; the name changed between the wheels."""
    return {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator], "PYTORCH_ALLOC_CONF": ALLOCATORS[allocator]}


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_memory_ends_at_the_card_or_at_the_promise_and_comes_back(machine, wheel, allocator):
    """
    Out of memory is an error that a program recovers from: it gets as much a second time, context and all within the
    promise once the driver's figure has told what the runtime's context takes.
    """
    plain = alone(machine, wheel, "memory", allocator)
    with conversation(machine, "memory", allocator, wheel, SHARE) as process:
        charged_as_held(machine, process)
        shared = json.loads(process.stdout.readline())

    assert all_have_ended(machine)
    for found, size in ((plain, CARD_MIB), (shared, SHARE_MIB)):
        assert (found["taken"], 0, True) == (found["again"], found["left"], found["copied"])
        assert found["total"] / MIB <= size
        assert size - UNSEEN_MIB - 512 <= found["taken"] / MIB <= size - CONTEXT_MIB
    if allocator == "native":
        said = [f"{found['taken'] / MIB:,.0f} MiB until it is out of memory, and again" for found in (plain, shared)]
        showed("torch", "three allocators, graphs, processes, threads, `DataLoader`", *said)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_graphs_are_captured_and_replayed(machine, wheel, allocator):
    """With memory of their own, which is free afterwards."""
    plain, shared = both(machine, wheel, "graphs", allocator)

    assert {"shape": [1000], "left": 0} == plain == shared


@pytest.mark.parametrize("allocator", ["native", "expandable"])
def test_a_tensor_is_shared_with_another_process(machine, wheel, allocator):
    """By torch.multiprocessing, without a copy; PyTorch itself does not share what cudaMallocAsync gave."""
    plain, shared = both(machine, wheel, "share", allocator)

    assert {"there": [[1024 * MIB], "cuda:0", 0], "status": 0, "left": 0} == plain == shared


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_sixteen_threads_at_the_limit_are_refused_and_go_on(machine, wheel, allocator):
    """Each refusal is PyTorch's out of memory, and nothing is lost."""
    plain, shared = both(machine, wheel, "threads", allocator)

    assert {"wrong": [], "served": True, "refused": True, "left": 0} == plain == shared


def test_batches_come_through_pinned_memory(machine, wheel):
    """A DataLoader with workers; what arrives on the card is what was sent."""
    plain, shared = both(machine, wheel, "loader")

    sums = [1000.0 * sum(range(first, first + 16)) for first in range(0, 64, 16)]
    assert {"pinned": [True] * 4, "sums": sums, "left": 0} == plain == shared


def test_libraries_with_a_runtime_of_their_own_say_that_they_cannot_begin(machine, wheel):
    """An error that names the library, never a crash: what stands in docs/simgpu.md."""
    plain, shared = both(machine, wheel, "unavailable")

    for found in (plain, shared):
        assert "CUBLAS_STATUS_NOT_INITIALIZED" in found["cublas"]
        assert "CUDNN_STATUS_NOT_INITIALIZED" in found["cudnn"]
        assert "NCCL" in found["nccl"]


def conversation(machine, scenario, allocator="native", wheel=None, share=TIGHT):
    """A scenario under a share that pauses and says then what is charged; of 2 GiB, with one wheel, unless told."""
    command = (*python(wheel or python_home(WHEELS["cuda12"])), PROGRAM, scenario)
    return machine.conversation(*command, share=share, **settings(allocator))


def charged_as_held(machine, process):
    """At a pause: bytes that the cards themselves count, to which what is charged comes within a tenth; go on."""
    latest = []

    def look():
        process.stdin.write("charged\n")
        process.stdin.flush()
        charged = int(process.stdout.readline())
        held = sum(card["used_bytes"] for card in machine.records()["cards"])
        latest[:] = charged, held
        return abs(charged - held) <= held / 10

    waiting.until(look, lambda: latest)
    process.stdin.write("\n")
    process.stdin.flush()
    return latest[1]


@pytest.mark.parametrize("times", [0.5, 1, 2])
def test_what_libraries_cost_is_charged_as_the_card_counts_it(make_machine, times):
    """
    Contexts, modules and libraries of half, all and twice the size: after whatever PyTorch touches, 2 GiB have been
    charged as far as the card has given them, and the rest can be had.
    """
    machine = make_machine(context_bytes=int(CONTEXT_MIB * MIB * times), module_permille=int(1000 * times))
    with conversation(machine, "libraries") as process:
        held = [charged_as_held(machine, process) for _ in range(11)]
        found = json.loads(process.stdout.readline())

    refused = ["it worked", *["NOT_INITIALIZED"] * 3, "CUFFT", "CUSOLVER", *["it worked"] * 4]
    assert [part for part, said in zip(refused, found["said"], strict=True) if part not in said] == []
    assert CONTEXT_MIB * times * MIB < held[0] < held[-2] - 300 * MIB
    assert ROOM_MIB - BLOCK_MIB - 4 <= held[-1] / MIB <= ROOM_MIB


@pytest.mark.parametrize("imports", [0, 1], ids=["once", "at both"])
@pytest.mark.parametrize("allocator", ["native", "expandable"])
def test_a_tensor_in_two_processes_is_charged_once(make_machine, allocator, imports):
    """Whether NVML counts it at its owner alone or at whoever maps it: the room that is left can be had."""
    machine = make_machine(nvml_imports=imports)
    with conversation(machine, "share_tight", allocator) as process:
        held = [charged_as_held(machine, process) for _ in range(2)]
        found = json.loads(process.stdout.readline())

    assert held[0] / MIB < 1024 + 2 * (CONTEXT_MIB + 32)
    assert ROOM_MIB - BLOCK_MIB - 4 <= held[1] / MIB <= ROOM_MIB
    assert (found["status"], True) == (0, found["blocks"] > 0)
