# SPDX-License-Identifier: Apache-2.0
"""
What PyTorch does with memory of a card, one scenario a run: `python pytorch_program.py SCENARIO`, result as JSON.

Needs PyTorch alone. Kernels compute nothing here: nothing looks at what they would have computed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import threading
import time

import torch

MIB = 1 << 20
CHUNK = 256 * MIB
THREADS = 16


def block(size: int = CHUNK) -> torch.Tensor:
    """Device memory."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def fill(size: int = CHUNK) -> list[torch.Tensor]:
    """Blocks until there is no room."""
    blocks = []
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        while True:
            blocks.append(block(size))
    return blocks


def let_go() -> int:
    """Bytes that are still allocated after everything was given back."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def pause() -> None:
    """Answer each line of input with the bytes that are charged, until an empty one."""
    torch.cuda.synchronize()
    while sys.stdin.readline().strip():
        free, total = torch.cuda.mem_get_info()
        print(total - free, flush=True)  # noqa: T201


def memory() -> dict:
    """A pause once there is a context; out of memory, and again after all was freed; a copy there and back."""
    torch.ones(1, device="cuda")
    let_go()
    pause()
    first, left = len(fill()), let_go()
    second = len(fill())
    numbers = torch.arange(1000)
    same = bool((numbers.to("cuda").cpu() == numbers).all())
    total = torch.cuda.get_device_properties(0).total_memory
    return {"taken": first * CHUNK, "again": second * CHUNK, "total": total, "left": left + let_go(), "copied": same}


def graphs() -> dict:
    """A graph is captured with memory of its own and replayed."""
    x = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 3 + 1).clone()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    shape = list(y.shape)
    del graph, x, y
    return {"shape": shape, "left": let_go()}


def receive(tensors: torch.multiprocessing.Queue, answers: torch.multiprocessing.Queue) -> None:
    """The other process: uses what it gets, and lets it go."""
    tensor = tensors.get()
    tensor.add_(1)
    torch.cuda.synchronize()
    answers.put([list(tensor.shape), str(tensor.device), torch.cuda.memory_allocated()])
    del tensor
    gc.collect()


def share() -> dict:
    """A tensor is used by another process, without a copy."""
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(tensors, answers), daemon=True)
    process.start()
    tensor = block(1024 * MIB)
    tensors.put(tensor)
    there = answers.get(timeout=120)
    process.join(120)
    del tensor
    torch.cuda.ipc_collect()
    return {"there": there, "status": process.exitcode, "left": let_go()}


def threads() -> dict:
    """Sixteen threads together want more than there is, each in a stream of its own; then they have it all again."""
    served, refused, wrong = [], [], []
    together = threading.Barrier(THREADS, timeout=120)

    def take(at: int) -> list[torch.Tensor]:
        kept = []
        try:
            kept.extend(block((1 + (at + turn) % 4) * CHUNK) for turn in range(4))
        except torch.cuda.OutOfMemoryError:
            refused.append(at)
        return kept

    def work(at: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(5):
                    kept = take(at)
                    served.append(len(kept))
                    together.wait()
                    del kept
                    together.wait()
        except Exception as exc:  # noqa: BLE001 (whatever else it is, it is the result)
            wrong.append(repr(exc))
            together.abort()

    workers = [threading.Thread(target=work, args=(at,)) for at in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"wrong": wrong, "served": sum(served) > 0, "refused": len(refused) > 0, "left": let_go()}


class Rows(torch.utils.data.Dataset):
    """Rows of a table, by number."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.full((1000,), float(at))


def loader() -> dict:
    """Batches come from workers into pinned memory, and from there to the card while the next is made."""
    batches = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=2, pin_memory=True)
    pinned, sums = [], []
    for batch in batches:
        pinned.append(batch.is_pinned())
        sums.append(batch.to("cuda", non_blocking=True).cpu().sum().item())
    return {"pinned": pinned, "sums": sums, "left": let_go()}


def refusal(call) -> str:
    """The error of a call."""
    try:
        call()
    except RuntimeError as exc:
        return str(exc)
    return "it worked"


def unavailable() -> dict:
    """What NVIDIA's libraries with a runtime of their own inside answer."""
    x = torch.ones(8, 8, device="cuda")

    def reduce() -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
        torch.distributed.all_reduce(x)

    convolution = torch.nn.Conv2d(1, 1, 3).cuda()
    return {
        "cublas": refusal(lambda: x @ x),
        "cudnn": refusal(lambda: convolution(x.view(1, 1, 8, 8))),
        "nccl": refusal(reduce),
    }


def libraries() -> dict:
    """Touch what the wheel brings, a pause after each; then as many blocks as there is room for."""
    x = torch.ones(64, 64, device="cuda")
    where = torch.zeros(2, 3, dtype=torch.long)
    touches = [
        lambda: x * 3 + 1,
        torch.cuda.current_blas_handle,
        lambda: torch.nn.functional.linear(x.half(), x.half(), x[0].half()),
        lambda: torch.nn.Conv2d(1, 1, 3).cuda()(x.view(1, 1, 64, 64)),
        lambda: torch.fft.fft(x),
        lambda: torch.linalg.cholesky(x),
        lambda: torch.sparse_coo_tensor(where, torch.ones(3), (64, 64)).cuda() @ x,
        lambda: torch.randn(100_000, device="cuda").sort(),
        lambda: torch.special.bessel_j0(x),  # compiled by NVRTC, loaded through the driver API
        lambda: globals().update(kept=block(300 * MIB)),
    ]
    said = []
    for touch in touches:
        said.append(refusal(touch))
        pause()
    blocks = fill(64 * MIB)
    pause()
    return {"said": said, "blocks": len(blocks)}


def receive_and_fill(tensors: torch.multiprocessing.Queue, answers: torch.multiprocessing.Queue) -> None:
    """The other process: uses what it gets, and takes what room there is when told to."""
    tensor = tensors.get()
    tensor.add_(1)
    torch.cuda.synchronize()
    answers.put("there")
    tensors.get()
    time.sleep(0.2)  # the library reads the host's samples every 50 ms: what it read may be older than the pause
    answers.put(len(fill(64 * MIB)))
    tensors.get()


def share_tight() -> dict:
    """A tensor in two processes, of which there is not room for two; a pause, and one of them takes the rest."""
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=receive_and_fill, args=(tensors, answers), daemon=True)
    process.start()
    tensor = block(1024 * MIB)
    tensors.put(tensor)
    answers.get(timeout=120)
    pause()
    tensors.put("fill")
    blocks = answers.get(timeout=120)
    pause()
    tensors.put("end")
    process.join(120)
    return {"blocks": blocks, "status": process.exitcode}


if __name__ == "__main__":
    scenarios = [memory, graphs, share, threads, loader, unavailable, libraries, share_tight]
    found = {scenario.__name__: scenario for scenario in scenarios}[sys.argv[1]]()
    print(json.dumps(found), flush=True)  # noqa: T201
