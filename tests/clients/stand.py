"""
Programs of others, unmodified, on two simulated cards: as they are, and under `gpushare run` with a share of both.

What a client showed becomes a row of docs/clients.md: a test says it with `showed` once it holds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from clients import pins
from run_command import words

from isolation.simgpu.hardware import create, install, opened
from isolation.simgpu.report import document

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "build" / "clients"
LIMIT_SECONDS = 600.0
"""Of one run of a client; it takes a tenth of this at most."""
MODEL, NAME, CARD_MIB = "a10", "NVIDIA A10", 23028
SHARE_MIB = 5120
SHARE = ("--gpu-mem", "10", "--gpu-count", "2")
"""Two cards of SHARE_MIB each."""


class Machine:
    """Two cards, and a home folder for what clients keep of their own."""

    def __init__(self, folder: Path, **settings: int) -> None:
        self.folder = folder
        self.box = folder / "driver" / "hardware"
        self.box.parent.mkdir()
        create(self.box, [MODEL, MODEL], settings)
        install(self.box.parent)
        self.home = folder / "home"
        self.home.mkdir()

    def plain(self, *command: object, **more: object) -> str:
        """What a client prints that has the cards to itself."""
        return self._run([str(word) for word in command], LD_LIBRARY_PATH=self.box.parent, **more)

    def shared(self, *command: object, share: tuple[str, ...] = SHARE, **more: object) -> str:
        """What it prints with the isolation library and a share."""
        front = words(self.box, "--state-dir", str(self.folder / "state"), *share, "--")
        return self._run([*front, *(str(word) for word in command)], LD_LIBRARY_PATH="", **more)

    def both(self, *command: object, **more: object) -> tuple[str, str]:
        """The same command without the library and with it."""
        return self.plain(*command, **more), self.shared(*command, **more)

    def books(self) -> dict:
        """What the cards themselves know, as `gpushare simgpu show --json` prints it."""
        with opened(self.box) as box:
            box.settle()
            return document(box)

    def _run(self, command: list[str], *, fails: bool = False, libraries: str = "", **env: object) -> str:
        driver = str(env.pop("LD_LIBRARY_PATH"))
        path = ":".join(filter(None, (driver, libraries)))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "XDG_"))}
        kept |= {"HOME": str(self.home), "LD_LIBRARY_PATH": path, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"}
        kept |= {name: str(value) for name, value in env.items()}
        done = subprocess.run(
            command, env=kept, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        assert fails is (done.returncode != 0), (done.returncode, done.stdout[-4000:], done.stderr[-4000:])
        return done.stdout


def python_home(name: str = "requirements") -> Path:
    """The programs of the virtual environment of `NAME.txt`; a skip where it was not fetched."""
    return _there(pins.python_place(pins.HERE / f"{name}.txt")) / "bin"


def debian_home(client: str) -> Path:
    """The folder of Debian's unpacked packages; a skip where it was not fetched or is no longer to be had."""
    _need("apt-get", "dpkg-deb")
    folder = _there(pins.debian_place())
    if (folder / f"{client}.withdrawn").exists():
        pytest.skip(f"withdrawn by Debian: {client} {pins.clients()[client]}")
    return folder


def rust_home() -> Path:
    """Rust's programs."""
    _need("cargo")
    return _there(pins.rust_place()) / "target" / "release"


def java_home() -> Path:
    """The folder of jars and classes."""
    _need("java", "javac", "mvn")
    return _there(pins.java_place())


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _there(folder: Path) -> Path:
    if not pins.whole(folder):
        pytest.skip(f"{folder.name} is not fetched: run `make clients`")
    return folder


def showed(client: str, what: str, plain: str, shared: str) -> None:
    """A row of docs/clients.md: what was run, and what came out of it without the library and with it."""
    ROWS.mkdir(parents=True, exist_ok=True)
    row = {"client": client, "version": pins.clients()[client], "what": what, "plain": plain, "shared": shared}
    (ROWS / f"{client}.json").write_text(json.dumps(row, indent=2) + "\n")


def python(home: Path) -> tuple[str, str]:
    """A client's own interpreter, blind to this checkout."""
    return str(home / "python"), "-P"
