"""
The stock wheels of PyTorch on the runtime for simulated cards: the same with and without the library, but for the size.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clients.stand import CARD_MIB, SHARE_MIB, python, python_home, showed

MIB = 1 << 20
PROGRAM = Path(__file__).with_name("pytorch_client.py")
WHEELS = {"cuda12": "requirements-pytorch", "cuda13": "requirements-pytorch-cuda13"}
ALLOCATORS = {
    "native": "backend:native",
    "expandable": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
UNSEEN_MIB = 800
"""At most: what the driver keeps back, a context, and the modules and blocks that PyTorch uses."""


@pytest.fixture(params=WHEELS)
def wheel(request):
    """The folder of a wheel's interpreter."""
    return python_home(WHEELS[request.param])


def both(machine, wheel, scenario, allocator="native"):
    """The result of a scenario without the library and with it; no process holds anything of a card afterwards."""
    runtimes = sorted(str(path) for path in machine.box.parent.glob("libcudart.so.*"))
    command = (*python(wheel), PROGRAM, scenario)
    conf = {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator], "PYTORCH_ALLOC_CONF": ALLOCATORS[allocator]}
    plain = machine.plain(*command, LD_PRELOAD=":".join(runtimes), **conf)
    shared = machine.shared(*command, **conf)
    assert not [one for card in machine.books()["cards"] for one in card["processes"] if one["state"] == "live"]
    return json.loads(plain.splitlines()[-1]), json.loads(shared.splitlines()[-1])


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_memory_ends_at_the_card_or_at_the_promise_and_comes_back(machine, wheel, allocator):
    """Out of memory is an error that a program recovers from: it gets as much a second time."""
    results = both(machine, wheel, "memory", allocator)

    for found, size in zip(results, (CARD_MIB, SHARE_MIB), strict=True):
        assert (found["taken"], 0, True) == (found["again"], found["left"], found["copied"])
        assert size - UNSEEN_MIB - 512 <= found["taken"] / MIB <= found["total"] / MIB <= size
    if allocator == "native":
        said = [f"{found['taken'] / MIB:,.0f} MiB until it is out of memory, and again" for found in results]
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
