# SPDX-License-Identifier: Apache-2.0
"""
Programs of others, unmodified, on two simulated cards: as they are, and under `gpushare run` with a share of both.

What a program showed becomes a row of docs/cuda-programs.md: a test says it with `showed` once it holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cuda_programs import pins
from support.run_command import words
from support.simbox import Program

from isolation.simgpu.hardware import DRIVER, create, install, open_box
from isolation.simgpu.report import build_document

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "build" / "cuda-programs"
LIMIT_SECONDS = 600
"""Of one run of a program; it takes a tenth of this, on a busy machine more."""
MODEL, NAME, CARD_MIB = "a10", "NVIDIA A10", 23028
SHARE_MIB = 5120
SHARE = ("--gpu-mem", "10", "--gpu-count", "2")
"""Two cards of SHARE_MIB each."""


class Machine:
    """Two cards, and a home folder for what programs keep of their own."""

    def __init__(self, folder: Path, driver_version: str = DRIVER, **settings: int) -> None:
        self.folder = folder
        self.box = folder / "driver" / "hardware"
        self.box.parent.mkdir()
        create(self.box, [MODEL, MODEL], settings, driver_version)
        install(self.box.parent)
        self.home = folder / "home"
        self.home.mkdir()

    def plain(self, *command: object, **options: object) -> str:
        """What a program prints that has the cards to itself."""
        return _output(*self.prepared(*command, **options))

    def shared(self, *command: object, **options: object) -> str:
        """What it prints with the isolation library and a share."""
        return _output(*self.prepared(*command, share=SHARE, **options))

    def both(self, *command: object, **options: object) -> tuple[str, str]:
        """The same command without the library and with it."""
        return self.plain(*command, **options), self.shared(*command, **options)

    @contextlib.contextmanager
    def conversation(self, *command: object, **options: object) -> Iterator[subprocess.Popen[str]]:
        """The same with pipes for its input and output, while it runs."""
        words_, env = self.prepared(*command, **options)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(words_, env=env, cwd=ROOT, **pipes) as process:
            try:
                yield process
            finally:
                process.terminate()  # of `timeout`, which passes it on

    def prepared(
        self, *command: object, share: tuple[str, ...] = (), libraries: str = "", **env: object
    ) -> tuple[list[str], dict[str, str]]:
        """A command and its environment. It ends after LIMIT_SECONDS; what it keeps is in its home."""
        front = words(self.box, "--state-dir", str(self.folder / "state"), *share, "--") if share else []
        path = libraries if share else ":".join(filter(None, (str(self.box.parent), libraries)))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "XDG_"))}
        kept |= {"HOME": str(self.home), "LD_LIBRARY_PATH": path, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"}
        kept |= {name: str(value) for name, value in env.items()}
        return ["timeout", "--kill-after", "9", str(LIMIT_SECONDS), *front, *(str(word) for word in command)], kept

    def neighbour(self, code: str, **env: object) -> Program:
        """A process outside of the share that runs these lines of tests/support/simclient.py."""
        return Program(self.box, code, **env)

    def records(self) -> dict:
        """What the cards themselves know, as `gpushare simgpu show --json` prints it."""
        with open_box(self.box) as box:
            box.settle()
            return build_document(box)

    def peak_mib(self) -> int:
        """The most that one process ever held of one card, as the cards know it."""
        return max(one["peak_bytes"] for card in self.records()["cards"] for one in card["processes"]) >> 20


def _output(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
    )
    assert 0 == done.returncode, (done.returncode, done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout


def python_home(name: str = "requirements") -> Path:
    """The programs of the virtual environment of `NAME.txt`; a skip where it was not fetched."""
    return _there(pins.python_place(pins.HERE / f"{name}.txt")) / "bin"


def debian_home(program: str) -> Path:
    """The folder of Debian's unpacked packages; a skip where it was not fetched or is no longer to be had."""
    _need("apt-get", "dpkg-deb")
    folder = _there(pins.debian_place())
    if (folder / f"{program}.withdrawn").exists():
        pytest.skip(f"withdrawn by Debian: {program} {pins.programs()[program]}")
    return folder


def debian_libraries(folder: Path) -> str:
    """Where its libraries lie, for LD_LIBRARY_PATH."""
    return ":".join(sorted({str(file.parent) for file in (folder / "usr" / "lib").rglob("*.so*")}))


def rust_program(name: str) -> Path:
    """A program that is built on a crate."""
    _need("cargo")
    return _there(pins.rust_place()) / "target" / "release" / name


def java_command(name: str, scratch: Path) -> tuple[str, ...]:
    """The command of a class that is built on the artifacts, which unpack their own libraries into `scratch`."""
    _need("java", "javac", "mvn")
    folder = _there(pins.java_place())
    return "java", f"-Djava.io.tmpdir={scratch}", "-cp", f"{folder}/classes:{folder}/jars/*", name


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _there(folder: Path) -> Path:
    if not pins.whole(folder):
        pytest.skip(f"{folder.name} is not fetched: run `make cuda-programs`")
    return folder


def showed(program: str, what: str, plain: str, shared: str) -> None:
    """A row of docs/cuda-programs.md: what was run, and what came out of it without the library and with it."""
    ROWS.mkdir(parents=True, exist_ok=True)
    row = {"program": program, "version": pins.programs()[program], "what": what, "plain": plain, "shared": shared}
    (ROWS / f"{program}.json").write_text(json.dumps(row, indent=2) + "\n")


def python(home: Path) -> tuple[str, str]:
    """A program's own interpreter, blind to this checkout."""
    return str(home / "python"), "-P"
