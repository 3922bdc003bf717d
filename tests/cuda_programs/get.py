# SPDX-License-Identifier: Apache-2.0
"""
Fetches the programs of `make cuda-programs` from their registries into the cache; what is there already stays.

    python tests/cuda_programs/get.py [NAME...]      all sets, or these: python, python-pytorch, debian, rust, java

Writes nothing outside the cache. A set whose toolchain is missing is left out, and the line says which; its tests
are skipped with the same words. Exit status 1: a set could not be fetched.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_programs import pins

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES = 3
LIMIT_SECONDS = 900.0
"""Of one command; PyTorch and its CUDA libraries are three gigabytes."""
PAUSE_SECONDS = 5.0


def say(text: str) -> None:
    """A line for people, at once also in a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def do(*words: object, retry: bool = False, **options: object) -> None:
    """Run a command; one that asks a registry is tried three times. CalledProcessError or TimeoutExpired at the end."""
    for left in reversed(range(TRIES if retry else 1)):
        try:
            subprocess.run([str(word) for word in words], check=True, timeout=LIMIT_SECONDS, **options)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            if not left:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


def python(file: Path, folder: Path) -> None:
    """A virtual environment."""
    do(sys.executable, "-m", "venv", folder)
    options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir")
    do(folder / "bin" / "python", "-m", "pip", "install", *options, "-r", file, retry=True)


def debian(folder: Path) -> None:
    """Packages and what they need that this machine lacks, unpacked; the machine's own packages stay as they are."""
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial", "parts"):
        (apt / name).mkdir(parents=True)
    etc = Path("/etc/apt")
    for source in [etc / "sources.list", *(etc / "sources.list.d").glob("*")]:
        if source.is_file():
            (apt / "parts" / source.name).write_text(with_components(source.read_text(), source.suffix))
    places = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": apt / "parts",
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt,
        "Debug::NoLocking": 1,
        "APT::Sandbox::User": "root",
    }
    options = ["-qq", *(word for name, value in places.items() for word in ("-o", f"{name}={value}"))]
    do("apt-get", *options, "update", retry=True)
    for name, (version, alone) in pins.debian_programs().items():
        package = f"{name}={version}"
        if not offered(package, options):
            (folder / f"{name}.withdrawn").touch()
            say(f"{name}: Debian no longer has {version}: move the pin in tests/cuda_programs/debian.txt")
        elif alone:
            do("apt-get", *options, "download", package, cwd=apt / "archives", retry=True)
        else:
            do("apt-get", *options, "-y", "--no-install-recommends", "--download-only", "install", package, retry=True)
    for package in (apt / "archives").glob("*.deb"):
        do("dpkg-deb", "-x", package, folder)
    shutil.rmtree(apt)


def offered(package: str, options: list[str]) -> bool:
    """Whether Debian has this version; a release replaces packages and forgets the older ones."""
    command = ["apt-cache", *options, "show", package]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_SECONDS, check=False)
    return done.returncode == 0 and bool(done.stdout)


def with_components(text: str, suffix: str) -> str:
    """Apt's sources with the components beside `main` that programs come from: contrib and non-free."""
    lines = []
    for line in text.splitlines():
        named = line.startswith("Components:") if suffix == ".sources" else line.startswith("deb ")
        more = [word for word in ("contrib", "non-free") if word not in line.split()]
        lines.append(" ".join([line, *more]) if named else line)
    return "\n".join(lines) + "\n"


def rust(folder: Path) -> None:
    """The programs of `rust/`, built by cargo with a registry cache of its own."""
    own = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo") / "config.toml"
    settings = ("--config", own) if own.is_file() else ()
    env = os.environ | {"CARGO_HOME": str(folder / "home"), "CARGO_TARGET_DIR": str(folder / "target")}
    words = ("build", "--quiet", "--release", "--locked", "--manifest-path", pins.HERE / "rust" / "Cargo.toml")
    do("cargo", *settings, *words, env=env, retry=True)
    shutil.rmtree(folder / "home")


def java(folder: Path) -> None:
    """Jars by Maven into a repository of its own, and the programs of `java/` compiled against them."""
    jars, source = folder / "jars", pins.HERE / "java"
    jars.mkdir()
    options = ("--batch-mode", "--quiet", f"-Dmaven.repo.local={folder / 'repository'}", "--file", source / "pom.xml")
    do("mvn", *options, f"-DoutputDirectory={jars}", "dependency:copy-dependencies", retry=True, cwd=folder)
    do("javac", "-d", folder / "classes", "-cp", f"{jars}/*", *source.glob("*.java"))
    shutil.rmtree(folder / "repository")


def sets() -> dict[str, tuple[Path, Callable[[Path], None], tuple[str, ...]]]:
    """(Place, what fills it, commands it takes) by name."""
    made: dict[str, tuple[Path, Callable[[Path], None], tuple[str, ...]]] = {}
    for file in pins.requirement_files():
        made[file.stem.replace("requirements", "python")] = (pins.python_place(file), partial(python, file), ())
    made["debian"] = (pins.debian_place(), debian, ("apt-get", "dpkg-deb"))
    made["rust"] = (pins.rust_place(), rust, ("cargo",))
    made["java"] = (pins.java_place(), java, ("mvn", "javac"))
    return made


def fill(folder: Path, build: Callable[[Path], None]) -> None:
    """One process at a time; what was left half done is done again."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if pins.whole(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        build(folder)
        (folder / ".whole").touch()


def main(names: list[str]) -> int:
    """Exit status."""
    failed = 0
    known = sets()
    for name in names or known:
        folder, build, commands = known[name]
        missing = [command for command in commands if shutil.which(command) is None]
        begun = time.monotonic()
        if pins.whole(folder):
            said = "there already"
        elif missing:
            said = f"left out: {missing[0]} is not installed"
        else:
            try:
                fill(folder, build)
                said = f"fetched in {time.monotonic() - begun:.0f} s"
            except (OSError, subprocess.SubprocessError) as exc:
                said, failed = f"could not be fetched: {exc}", 1
        say(f"{name}: {said}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
