# SPDX-License-Identifier: Apache-2.0
"""
What tests compile, once for all workers and runs: kept under build/tests by what went into it.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "tests"
SOURCES = (".c", ".h", ".S", ".def", ".py")


@cache
def compiler() -> str:
    """Which gcc this is: another one makes everything again."""
    said = subprocess.run(["gcc", "--version"], check=True, capture_output=True, text=True)
    return said.stdout.splitlines()[0] + platform.machine()


def kept(name: str, words: Iterable[object], inputs: Iterable[Path], make: Callable[[Path], object]) -> Path:
    """
    The file of this name that `make(target)` writes: as it was made before from the same words and inputs.

    Whole folders may be inputs. Who comes while another one makes it waits; nobody ever sees half of a file.
    """
    seal = hashlib.sha256("\0".join([compiler(), name, *map(str, words)]).encode())
    for path in inputs:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            if file == path or file.suffix in SOURCES:
                seal.update(file.name.encode() + b"\0" + file.read_bytes())
    folder = KEPT / seal.hexdigest()[:24]
    if (folder / name).exists():
        return folder / name
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            draft = Path(tempfile.mkdtemp(dir=KEPT))
            try:
                make(draft / name)
                folder.mkdir(exist_ok=True)
                (draft / name).replace(folder / name)
            finally:
                shutil.rmtree(draft)
    return folder / name


def gcc(name: str, sources: Iterable[Path], *flags: object, beside: Iterable[Path] = ()) -> Path:
    """One program or library; `beside`: folders of headers, and what else the result depends on."""
    files = list(sources)
    words = [str(flag) for flag in flags]

    def make(target: Path) -> None:
        ends = [word for word in words if word.startswith(("-l", "-L", "-Wl,"))]
        rest = [word for word in words if word not in ends]
        subprocess.run(["gcc", *rest, "-o", target, *map(str, files), *ends], check=True)

    return kept(name, [*words, *files], [*files, *beside], make)
