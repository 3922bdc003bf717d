# SPDX-License-Identifier: Apache-2.0
"""
The programs of `make cuda-programs` and their versions, as the files beside this one pin them, and where each is kept.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
_ARTIFACT = re.compile(r"<dependency>.*?<artifactId>(.*?)</artifactId>\s*<version>(.*?)</version>", re.DOTALL)
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?==([\w.+!-]+)")


def requirement_files() -> list[Path]:
    """Each becomes a virtual environment of its own: `requirements.txt`, `requirements-NAME.txt`."""
    return sorted(HERE.glob("requirements*.txt"))


def python_programs() -> dict[str, str]:
    """Version by name of what the requirement files pin (`1.0,2.0`: two do); a line with a comment is no program."""
    lines = [line for file in requirement_files() for line in file.read_text().splitlines() if "#" not in line]
    pinned: dict[str, set[str]] = {}
    for found in filter(None, (_REQUIREMENT.fullmatch(line.strip()) for line in lines)):
        pinned.setdefault(found[1], set()).add(found[2])
    return {name: ",".join(sorted(versions)) for name, versions in pinned.items()}


def debian_programs() -> dict[str, tuple[str, bool]]:
    """(Version, whether it is unpacked without its dependencies) by name."""
    lines = [line.split() for line in (HERE / "debian.txt").read_text().splitlines() if not line.startswith("#")]
    return {name: (version, rest == ["alone"]) for name, version, *rest in filter(None, lines)}


def rust_programs() -> dict[str, str]:
    """Version by name of the crates."""
    wanted = tomllib.loads((HERE / "rust" / "Cargo.toml").read_text())["dependencies"]
    return {name: (one if isinstance(one, str) else one["version"]).lstrip("=") for name, one in wanted.items()}


def java_programs() -> dict[str, str]:
    """Version by name of the artifacts that `java/pom.xml` depends on."""
    return dict(_ARTIFACT.findall((HERE / "java" / "pom.xml").read_text().partition("<build>")[0]))


def programs() -> dict[str, str]:
    """Every program and its version, by name."""
    debian = {name: version for name, (version, _) in debian_programs().items()}
    return dict(sorted((python_programs() | debian | rust_programs() | java_programs()).items()))


def cache() -> Path:
    """The folder that `get.py` fills, and outside of which it writes nothing."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gpushare" / "clients"  # the name that filled caches have


def place(name: str, *files: Path) -> Path:
    """Where a set of programs with these pins is kept: other pins, another place."""
    said = b"\0".join(file.read_bytes() for file in files)
    return cache() / f"{name}-{hashlib.sha256(said).hexdigest()[:12]}"


def python_place(file: Path) -> Path:
    """The virtual environment of a requirement file, and of the constraints that it names."""
    constraints = [HERE / name for name in re.findall(r"^-c (\S+)$", file.read_text(), re.MULTILINE)]
    return place(file.stem.replace("requirements", "python"), file, *constraints)


def debian_place() -> Path:
    """The folder into which Debian's packages are unpacked."""
    return place("debian", HERE / "debian.txt")


def rust_place() -> Path:
    """Cargo's target folder."""
    return place("rust", *sorted(file for file in (HERE / "rust").rglob("*") if file.is_file()))


def java_place() -> Path:
    """Jars and compiled classes."""
    return place("java", *sorted(file for file in (HERE / "java").rglob("*") if file.is_file()))


def whole(folder: Path) -> bool:
    """Whether it was filled to the end."""
    return (folder / ".whole").is_file()
