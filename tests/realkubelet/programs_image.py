# SPDX-License-Identifier: Apache-2.0
"""
An image for the manifests' pods without a builder: this tree and the packages that the tests run on, as an OCI layer.

Stands for `images/Containerfile`, of which it has the layout (/opt/gpushare with the packages of all three images, a
Python, a shell), and not the base, the users and the hashes. Files keep their times, so that compiled modules count.
"""

from __future__ import annotations

import compileall
import io
import re
import shutil
import sys
import sysconfig
import tarfile
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

from realkubelet.oci import FOLDERS, archive, with_libraries

from isolation.distribution import DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).resolve().parents[2]
OURS = (
    "gpushare.py",
    "isolation",
    "exporter",
    "autoscaler",
    "dashboards",
    f"{DISTRIBUTION.replace('-', '_')}.egg-info",
)
TOOLS = ("sh", "cat", "cksum", "cut", "env", "ls", "mkdir", "sleep")
_HOME = Path("opt/gpushare")
_SKIPPED = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "distutils"}
"""Folders that no process of ours reads."""
_ENTRY = """#!/{home}/bin/python
import sys
import gpushare
sys.argv[0] = "gpushare"
gpushare.run()
"""


def make_image(folder: Path, name: str, programs: Mapping[str, Path], scripts: Mapping[str, Path]) -> Path:
    """
    The archive for `ctr images import`, written into the folder: all our processes, more programs, and Python scripts.

    Both by their paths in the image.
    """
    layer, out = folder / "layer", folder / "image.tar"
    _layer(layer, folder / "ours", programs, scripts)
    config = {"Entrypoint": ["gpushare"], "User": "65532:65532", "WorkingDir": "/", "Env": [f"PATH=/{_HOME}/bin:/bin"]}
    with out.open("wb") as file, layer.open("rb") as content:
        archive(file, name, content, config)
    layer.unlink()
    return out


def _layer(out: Path, ours: Path, programs: Mapping[str, Path], scripts: Mapping[str, Path]) -> None:
    python = Path(sys.executable).resolve()
    site = _HOME / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    files: dict[Path, Path] = {}
    for name in _requirements():
        files |= {site / path: Path(path.locate()) for path in distribution(name).files or () if ".." not in path.parts}
    files |= {site / path.relative_to(ours): path for path in _compiled(ours)}
    stdlib = Path(sysconfig.get_path("stdlib"))
    for path in stdlib.rglob("*"):
        if path.relative_to(stdlib).parts[0] != "site-packages":
            files[_inside(path)] = path
    tools = {name: Path(shutil.which(name) or "/bin/false").resolve() for name in TOOLS}
    files |= {Path("bin") / name: path for name, path in tools.items()}
    files[_inside(python)] = python
    libraries = [path for path in files.values() if ".so" in path.suffixes and path.is_file()]
    files |= {Path(inside): path for inside, path in programs.items()}
    for path in (python, *tools.values(), *programs.values(), *libraries):
        # those within a package lie there already, by a name that has `..` in it
        files |= {Path(name): where for name, where in with_libraries(path).items() if not _packaged(where)}
    files = {inside: path for inside, path in files.items() if not _SKIPPED & {*inside.parts} and path.suffix != ".a"}
    made = {
        _HOME / "pyvenv.cfg": f"home = {python.parent}\ninclude-system-site-packages = false\n",
        _HOME / "bin/gpushare": _ENTRY.format(home=_HOME),
        Path("etc/passwd"): "root:x:0:0::/:/bin/sh\n",
    } | {Path(inside): f"#!/{_HOME}/bin/python\n{path.read_text()}" for inside, path in scripts.items()}
    links = {_HOME / "bin/python": str(python)}
    _write(out, files, made, links)


def _requirements() -> list[str]:
    """The packages of all three images, by the files that their builds install."""
    texts = [path.read_text() for path in (ROOT / "images/requirements").glob("*.txt") if "-ack" not in path.name]
    return sorted({name for text in texts for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)})


def _compiled(folder: Path) -> Iterable[Path]:
    """A copy of our packages, compiled as pip would."""
    folder.mkdir()
    for name in OURS:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "tests"))
        else:
            shutil.copy2(source, target)
    compileall.compile_dir(folder, quiet=2)
    return [path for path in folder.rglob("*") if path.is_file()]


def _packaged(path: Path) -> bool:
    return path.is_relative_to(Path(sys.prefix).resolve())


def _inside(path: Path) -> Path:
    return path.relative_to("/")


def _write(out: Path, files: Mapping[Path, Path], made: Mapping[Path, str], links: Mapping[Path, str]) -> None:
    with tarfile.open(out, "w") as tar:
        for folder in FOLDERS:
            about = tarfile.TarInfo(folder)
            about.type, about.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(about)
        for inside, path in sorted(files.items()):
            if path.is_file():
                about = tar.gettarinfo(path.resolve(), str(inside))
                about.uid = about.gid = 0
                about.mode = 0o755 if about.mode & 0o111 else 0o644
                about.type, about.linkname = tarfile.REGTYPE, ""  # not as a hard link to one that was added before
                about.size = path.stat().st_size
                with path.open("rb") as content:
                    tar.addfile(about, content)
        for inside, text in made.items():
            about = tarfile.TarInfo(str(inside))
            about.size, about.mode = len(text.encode()), 0o755
            tar.addfile(about, io.BytesIO(text.encode()))
        for inside, target in links.items():
            about = tarfile.TarInfo(str(inside))
            about.type, about.linkname = tarfile.SYMTYPE, target
            tar.addfile(about)
