# SPDX-License-Identifier: Apache-2.0
"""Programs that show cards: they see the promise as the card."""

from __future__ import annotations

import json
import os
import re
import select
import signal

from cuda_programs import pins
from cuda_programs.harness import (
    CARD_MIB,
    LIMIT_SECONDS,
    NAME,
    ROOT,
    SHARE,
    SHARE_MIB,
    debian_home,
    debian_libraries,
    python,
    python_home,
    rust_program,
    showed,
)
from support.children import at_terminal
from support.simbox import HOLD, programs
from support.waiting import PATIENCE_SECONDS

PY3NVML = """
from py3nvml.py3nvml import *
nvmlInit()
for index in range(nvmlDeviceGetCount()):
    card = nvmlDeviceGetHandleByIndex(index)
    print(nvmlDeviceGetName(card), nvmlDeviceGetMemoryInfo(card).total >> 20, sep="\\t")
"""
NVITOP = """
from nvitop import Device
for card in Device.all():
    print(card.name(), card.memory_total() >> 20, sep="\\t")
"""


def showed_cards(program: str, what: str, plain: list[tuple[str, int]], shared: list[tuple[str, int]]) -> None:
    """Both cards, whole without the library and as large as the promise with it: (name, MiB) of each."""
    assert [(NAME, CARD_MIB)] * 2 == plain
    assert [(NAME, SHARE_MIB)] * 2 == shared
    showed(program, what, *(f"{len(cards)} cards of {cards[0][1]:,} MiB" for cards in (plain, shared)))


def lines(text: str) -> list[tuple[str, int]]:
    """(Name, MiB) of lines `name<tab>MiB`."""
    return [(name, int(mib)) for name, mib in (line.split("\t") for line in text.splitlines())]


def test_gpustat(machine):
    """Its JSON."""
    found = [json.loads(text)["gpus"] for text in machine.both(python_home() / "gpustat", "--json")]
    showed_cards(
        "gpustat", "`gpustat --json`", *([(one["name"], one["memory.total"]) for one in each] for each in found)
    )


def test_nvitop(machine):
    """Its library, and its screen once."""
    table, small = machine.both(python_home() / "nvitop", "--once", "--ascii")

    assert 2 == table.count("22.49GiB")
    assert 2 == small.count("/ 5120MiB")
    showed_cards("nvitop", "`nvitop --once`", *map(lines, machine.both(*python(python_home()), "-c", NVITOP)))


def test_py3nvml(machine):
    """NVML as it was ten years ago."""
    showed_cards("py3nvml", "names and memory", *map(lines, machine.both(*python(python_home()), "-c", PY3NVML)))


def test_nvml_wrapper(machine):
    """From Rust."""
    showed_cards("nvml-wrapper", "names and memory (Rust)", *map(lines, machine.both(rust_program("nvml-wrapper"))))


def test_nvidia_smi(make_machine):
    """The vendor's own tool: its table, and what it is asked for by name. It wants a driver of its own version."""
    machine = make_machine(driver_version=pins.programs()["nvidia-smi"].partition("-")[0])
    tool = debian_home("nvidia-smi") / "usr" / "lib" / "nvidia" / "current" / "nvidia-smi"
    table, small = machine.both(tool)
    query = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    found = [[line.split(", ") for line in text.splitlines()] for text in machine.both(tool, *query)]

    assert [CARD_MIB, CARD_MIB] == [int(mib) for mib in re.findall(r"/ *(\d+)MiB", table)]
    assert [SHARE_MIB, SHARE_MIB] == [int(mib) for mib in re.findall(r"/ *(\d+)MiB", small)]
    showed_cards("nvidia-smi", "`nvidia-smi`", *([(name, int(mib)) for name, mib in each] for each in found))


def test_nvtop(machine):
    """Its screen, on a terminal."""
    folder = debian_home("nvtop")
    command, libraries = folder / "usr" / "bin" / "nvtop", debian_libraries(folder)
    found = []
    for share, whole in (((), CARD_MIB), (SHARE, SHARE_MIB)):
        prepared, env = machine.prepared(command, libraries=libraries, share=share)
        process, terminal = at_terminal(*prepared, rows=40, columns=160, env=env, cwd=ROOT)
        try:
            sizes = screen_sizes(terminal)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_SECONDS)
            os.close(terminal)
        assert all(abs(mib - whole) <= 1 for mib in sizes), sizes
        found.append(f"{len(sizes)} cards of {whole:,} MiB")
    showed("nvtop", "its screen", *found)


def screen_sizes(terminal: int) -> list[int]:
    """MiB of both cards, as soon as they stand on the screen in GiB."""
    text = ""
    while len(found := re.findall(r"/([\d.]+)Gi\]", text)) < 2:
        assert select.select([terminal], [], [], PATIENCE_SECONDS)[0], text
        text += os.read(terminal, 4096).decode(errors="replace")
    return [round(1024 * float(gib)) for gib in found[:2]]


def test_glances(machine):
    """How full the cards are: of the promise, where a neighbour's 10 GiB are nobody's business."""
    command = (python_home() / "glances", "--stdout", "gpu", "--stop-after", "1", "--disable-check-update")
    with programs() as running:
        running.append(machine.neighbour(HOLD, BYTES=10 << 30))
        assert "up" == running[0].line()
        plain, shared = (
            [float(part) for part in re.findall(r"'mem': ([\d.]+)", text)] for text in machine.both(*command)
        )

    assert 2 == len(plain) == len(shared)
    assert plain[0] > 40
    assert [0, 0] == shared
    showed("glances", "card memory in use, a neighbour holds 10 GiB", f"{plain[0]:.0f} % of card 0", "0 %")
