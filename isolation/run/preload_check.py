# SPDX-License-Identifier: Apache-2.0
"""
Whether the preload library reaches a program: only dynamic programs of the same C library, started without privilege.

Looks at the first program that a command starts, through `#!` lines; what that one starts is its own
business. A sentence for a person, never a refusal: a static program may well not touch a card.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES: Final = 1 << 16
"""Headers of a program stand within its first pages."""
_SCRIPTS: Final = 4  # a script of a script: BINPRM_MAX_RECURSION, linux/fs/exec.c
_ELF: Final = b"\x7fELF"
_INTERP: Final = 3
_HEAD: Final = struct.Struct("<16sHHIQQQIHHH")  # up to the number of program headers, class 64
_PART: Final = struct.Struct("<IIQQQQQQ")


def explain_unloadable(head: bytes, machine: int) -> str:
    """Why a program with these first bytes cannot be reached, in words; empty where it can, or is no ELF program."""
    if not head.startswith(_ELF):
        return ""
    if len(head) < _HEAD.size or head[4:6] != b"\x02\x01":
        return "is not a 64-bit program"
    _, _, its, _, _, parts, _, _, _, stride, count = _HEAD.unpack_from(head)
    if its != machine:
        return "is built for another architecture"
    if stride != _PART.size or parts + count * stride > len(head):
        return ""  # unusual: cannot tell
    for index in range(count):
        kind, _, offset, _, _, size, _, _ = _PART.unpack_from(head, parts + index * stride)
        if kind == _INTERP:
            loader = head[offset : offset + size].rstrip(b"\0").rpartition(b"/")[2]
            return "uses musl libc" if b"musl" in loader else ""
    return "is statically linked"


def find_warning(words: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """One sentence where the library does not reach the command's program, else empty."""
    word = words[0]
    for _ in range(_SCRIPTS):
        path = shutil.which(word, path=environment.get("PATH", os.defpath))
        if path is None:
            return ""
        try:
            head, mode = _read_head(Path(path))
            machine = _own_architecture()
        except OSError:
            return ""
        why = explain_unloadable(head, machine)
        if not why and mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid():
            why = "is set-user-ID or set-group-ID and ignores LD_PRELOAD"
        if why:
            return f"{path} {why}: the isolation library cannot load into it, so its GPU use is not limited"
        word = _interpreter(head)
        if not word:
            return ""
    return ""


def _interpreter(head: bytes) -> str:
    """The program that a script names, through `env`; empty where this is none."""
    if not head.startswith(b"#!"):
        return ""
    named = head[2:256].split(b"\n", 1)[0].decode("utf-8", "replace").split()
    if named and named[0].endswith("/env"):
        named = [word for word in named[1:] if not word.startswith("-") and "=" not in word]
    return named[0] if named else ""


def _read_head(path: Path) -> tuple[bytes, int]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        return (os.pread(fd, MAX_BYTES, 0) if stat.S_ISREG(mode) else b""), mode
    finally:
        os.close(fd)


def _own_architecture() -> int:
    """What our own program is built for."""
    head, _ = _read_head(Path("/proc/self/exe"))
    return int(_HEAD.unpack_from(head)[2])
