# SPDX-License-Identifier: Apache-2.0
"""
A look at this machine: files, sockets, processes and NVML become `MachineFacts`.

Decides where to look and how long; judges nothing. Programs of the machine are asked with a deadline and
their answers cut; what hangs, floods or fails is "cannot tell".
"""

from __future__ import annotations

import os
import subprocess
import threading
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from typing import TYPE_CHECKING, Final

from isolation.contract.names import RUN_DIR
from isolation.contract.nri_api import SOCKET
from isolation.doctor.bounded_files import FileReader, Folder, Missing
from isolation.doctor.checks.machine.facts import (
    CDI_FOLDERS,
    CHECKPOINT,
    CONTAINERD,
    CONTAINERD_SOCKETS,
    CRIO,
    CRIO_PARTS,
    CRIO_SOCKET,
    KERNEL,
    KUBELET_CONFIG,
    NRI_PLUGINS,
    NVIDIA_RUNTIME,
    PLUGINS,
    POD_RESOURCES,
    PTRACE,
    SELINUX,
    UNIFIED,
    CardFacts,
    Disk,
    Kubelet,
    MachineFacts,
    Runtime,
)
from isolation.doctor.checks.machine.kubelet import parse_flags
from isolation.host.machine import MachineError, NvmlMachine
from isolation.lib import native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.doctor.bounded_files import Text
    from isolation.lib.native import Check

_SECONDS: Final = 5.0
_MAX_IMPORTS: Final = 32
_CONTAINERD_DIR: Final = "/etc/containerd"
_NVML_SECONDS: Final = 60.0
"""A card without persistence mode takes seconds to wake, eight of them take many."""
_MAX_PROCESSES: Final = 200_000
_MAX_WORDS: Final = 1 << 16
_POINT: Final = 4
"""Place of the mount point in a line of mountinfo; options and optional fields follow."""
_PROGRAMS: Final = frozenset({"kubelet", "containerd"})
"""Asked by their command lines, which speak of their own file system."""
_MAX_CONFIG: Final = 1 << 17
"""Bytes of a kubelet's configuration: reading YAML is slow."""
_MAX_CHECKPOINT: Final = 1 << 24
_MPS: Final = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


@dataclass(frozen=True, slots=True)
class MachinePaths:
    """What machine, and where its parts are."""

    root: Path = Path("/")
    """The machine's file system; another place where it is mounted in a container."""
    hardware: Path | None = None
    """Simulated cards."""
    run_dir: str = RUN_DIR
    kubelet_dir: str = "/var/lib/kubelet"


def read_machine(where: MachinePaths) -> MachineFacts:
    """Everything, once."""
    peek = FileReader(where.root)
    kubelet = _kubelet(peek, where)
    unified = peek.exists("/sys/fs/cgroup")
    return MachineFacts(
        cards=_cards(where.hardware),
        runtime=_runtime(peek, local=where.root == Path("/")),
        kubelet=kubelet,
        cdi={path: peek.folder(path) for path in CDI_FOLDERS},
        run_dir=_disk(peek, where.run_dir),
        library=_library(),
        unified=peek.exists(UNIFIED) if unified else None,
        kernel=peek.text(KERNEL),
        selinux=peek.text(SELINUX),
        ptrace=peek.text(PTRACE),
        mps=_mps(peek),
    )


def _cards(hardware: Path | None) -> CardFacts:
    """What NVML tells within its deadline: a driver that hangs must not hang us."""
    found: list[CardFacts] = []
    asking = threading.Thread(target=lambda: found.append(_asked(hardware)), daemon=True)
    asking.start()
    asking.join(_NVML_SECONDS)
    why = f"the driver did not respond within {_NVML_SECONDS:.0f} s"
    return found[0] if found else CardFacts(simulated=hardware is not None, why=why)


def _asked(hardware: Path | None) -> CardFacts:
    machine = NvmlMachine(hardware)
    simulated = hardware is not None
    try:
        cards = machine.cards()
        nvml = import_module("pynvml")
        try:
            version = nvml.nvmlSystemGetDriverVersion()
        except nvml.NVMLError:
            version = None
        driver = version.decode("utf-8", "replace") if isinstance(version, bytes) else version
        divided = tuple(sorted({card.index for card in cards if card.instance is not None}))
        return CardFacts(cards, driver, simulated, divided)
    except MachineError as exc:
        return CardFacts(simulated=simulated, why=str(exc))
    finally:
        machine.close()


def _library() -> tuple[Check, ...] | str:
    try:
        return native.self_check()
    except (native.LibraryMissingError, OSError, subprocess.SubprocessError) as exc:
        return str(exc)


def _runtime(peek: FileReader, *, local: bool) -> Runtime:
    """`local`: programs of the machine can be asked, since its file system is ours."""
    containerd = next((text for path in _configs(peek) if not isinstance(text := peek.text(path), Missing)), Missing())
    folder = peek.folder(CRIO_PARTS)
    names = folder.names if isinstance(folder, Folder) else ()
    sockets = frozenset(path for path in (*CONTAINERD_SOCKETS, CRIO_SOCKET) if peek.exists(path))
    return Runtime(
        containerd=containerd,
        containerd_parts=tuple(read_containerd_imports(containerd, peek)),
        containerd_version=_told("containerd", "--version") if local else None,
        crio=tuple(peek.text(path) for path in (CRIO, *(f"{CRIO_PARTS}/{name}" for name in names))),
        crio_version=_told("crio", "--version") if local else None,
        sockets=sockets,
        nvidia=peek.text(NVIDIA_RUNTIME),
        nri_socket=peek.exists(SOCKET),
        nri_plugins=peek.folder(NRI_PLUGINS),
    )


def _configs(peek: FileReader) -> Iterator[str]:
    """Where containerd's configuration may be: by the command line of the one that runs, then the usual places."""
    for words in _commands(peek):
        if Path(words[0]).name == "containerd":
            short = words[words.index("-c") + 1 :][:1] if "-c" in words else ()
            yield from (path for path in (parse_flags(words).get("config"), *short) if path)
    yield from CONTAINERD


def _told(*words: str) -> str | None:
    """What a program of this machine says of itself; None where there is none, or it does not answer in time."""
    try:
        done = subprocess.run(  # noqa: S603 (fixed words)
            words, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout[:1000].decode("utf-8", "replace") if done.returncode == 0 else None


def _kubelet(peek: FileReader, where: MachinePaths) -> Kubelet:
    running = next((words for words in _commands(peek) if Path(words[0]).name == "kubelet"), ())
    flags = parse_flags(running)
    base = flags.get("root-dir") or where.kubelet_dir
    config = flags.get("config") or KUBELET_CONFIG
    return Kubelet(
        running=running,
        config=peek.text(config, _MAX_CONFIG),
        plugins=peek.folder(f"{base}/{PLUGINS}"),
        pod_resources=peek.exists(f"{base}/{POD_RESOURCES}"),
        checkpoint=peek.text(f"{base}/{CHECKPOINT}", _MAX_CHECKPOINT),
    )


def _commands(peek: FileReader) -> Iterator[tuple[str, ...]]:
    """The command lines of this machine's processes, as far as /proc shows them; not those of machines inside it."""
    try:
        with os.scandir(peek.inside("/proc")) as entries:
            pids = [
                entry.name for entry, _ in zip(entries, range(_MAX_PROCESSES), strict=False) if entry.name.isdigit()
            ]
    except OSError:
        return
    for pid in pids:
        text = peek.text(f"/proc/{pid}/cmdline", _MAX_WORDS)
        if isinstance(text, str) and text.strip("\0"):
            words = tuple(text.rstrip("\0").split("\0"))
            if Path(words[0]).name not in _PROGRAMS or _ours(peek, pid):
                yield words


def _ours(peek: FileReader, pid: str) -> bool:
    """Whether it is in the first process's own namespace: a kubelet in a container is another machine's."""
    first, its = (peek.link(f"/proc/{one}/ns/pid") for one in ("1", pid))
    return first is None or its is None or first == its


def _mps(peek: FileReader) -> tuple[str, ...] | None:
    commands = list(_commands(peek))
    if not commands:
        return None
    return tuple(sorted({name for words in commands if (name := Path(words[0]).name) in _MPS}))


def _disk(peek: FileReader, path: str) -> Disk:
    """The file system of the path, or of the nearest folder above it that is there."""
    at = path
    while at != "/" and not peek.exists(at):
        at = os.path.dirname(at)  # noqa: PTH120 (text under another root, no path of ours)
    try:
        inside = peek.inside(at).resolve()
        about = os.statvfs(inside)
        kind, shared = _mount(inside)
        free, runs = about.f_bavail * about.f_frsize, not about.f_flag & os.ST_NOEXEC
        return Disk(path, kind, free, os.access(inside, os.W_OK), shared, runs)
    except OSError:
        return Disk(path, None, None, writable=False)


def _mount(path: Path) -> tuple[str | None, bool | None]:
    """The file system's name and whether the mount is shared, by our own mount table (proc_pid_mountinfo(5))."""
    table = FileReader().text("/proc/self/mountinfo", 1 << 22)
    best, kind, shared = "", None, None
    for line in table.splitlines() if isinstance(table, str) else ():
        left, _, right = line.partition(" - ")
        fields = left.split()
        point = fields[_POINT] if len(fields) > _POINT else ""
        if point and path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, right.split(" ", 1)[0] or None
            shared = any(field.startswith("shared:") for field in fields[_POINT + 2 :])
    return kind, shared


def read_containerd_imports(text: Text, peek: FileReader) -> Iterator[Text]:
    """The files that containerd's configuration imports, in its order; bounded, whatever its patterns match."""
    if not isinstance(text, str):
        return
    try:
        patterns = tomllib.loads(text).get("imports", [])
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return
    given = 0
    for pattern in patterns if isinstance(patterns, list) else []:
        if not isinstance(pattern, str):
            continue
        path = normpath(join(_CONTAINERD_DIR, pattern))
        folder = peek.folder(dirname(path))
        names = folder.names if isinstance(folder, Folder) else ()
        for name in names:
            if fnmatchcase(name, basename(path)) and given < _MAX_IMPORTS:
                given += 1
                yield peek.text(join(dirname(path), name))
