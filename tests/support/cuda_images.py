# SPDX-License-Identifier: Apache-2.0
"""Module images as CUDA's tools write them: PTX, cubins (ELF) and fat binaries, as small as a test wants them."""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALLOC = 2
NOBITS = 8
COMPRESSED = 0x2000
"""Flag of an entry of a fat binary: LZ4."""


def ptx(kernels: Sequence[str] = ("k",), variables: str = "", arch: int = 50) -> bytes:
    """PTX with these kernels, which do nothing, and declarations."""
    bodies = "".join(f".visible .entry {name}()\n{{\n ret;\n}}\n" for name in kernels)
    return f".version 7.0\n.target sm_{arch}\n.address_size 64\n{variables}\n{bodies}\0".encode()


def cubin(kernels: Mapping[str, int], variables: Mapping[str, int] | None = None) -> bytes:
    """An ELF file with code of so many bytes for each kernel and zeroed variables (`.nv.global`, NOBITS)."""
    variables = variables or {}
    sections = [(f".text.{name}", 1, ALLOC | 4, bytes(size), size, 0) for name, size in kernels.items()]
    symbols, strings, at = bytes(24), b"\0", 0
    for name, size in variables.items():
        symbols += struct.pack("<IBBHQQ", len(strings), 0x11, 0, len(sections) + 1, at, size)
        strings += name.encode() + b"\0"
        at += size
    sections.append((".nv.global", NOBITS, ALLOC | 1, b"", at, 0))
    sections.append((".debug_info", 1, 0, bytes(4096), 4096, 0))
    sections.append((".strtab", 3, 0, strings, len(strings), 0))
    sections.append((".symtab", 2, 0, symbols, len(symbols), len(sections)))
    names = b"\0" + b"\0".join(name.encode() for name, *_ in sections) + b"\0.shstrtab\0"
    sections.append((".shstrtab", 3, 0, names, len(names), 0))
    places = list(accumulate((len(part[3]) for part in sections), initial=64))
    table = bytes(64)
    for place, (name, kind, flags, _, size, link) in zip(places, sections, strict=False):
        where = names.index(b"\0" + name.encode() + b"\0") + 1
        table += struct.pack("<IIQQQQIIQQ", where, kind, flags, 0, place, size, link, 0, 1, 24 if kind == 2 else 0)
    count = len(sections) + 1
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0, places[-1], 0, 64, 0, 0, 64, count,
                       count - 1)  # fmt: skip
    return head + b"".join(part[3] for part in sections) + table


def entry(payload: bytes, arch: int, *, kind: int | None = None, full_bytes: int = 0) -> bytes:
    """One of a fat binary's: PTX or a cubin; `full_bytes` says that the payload is compressed, and how large it was."""
    payload += bytes(-len(payload) % 8)
    kind = kind or (2 if payload.startswith(b"\x7fELF") or full_bytes else 1)
    flags = 0x11 | (COMPRESSED if full_bytes else 0)
    compressed = len(payload) if full_bytes else 0
    sizes = (len(payload), compressed, 0, 0, 7, arch, 0, 0)
    return struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, *sizes, flags, 0, full_bytes) + payload


def fat(*entries: bytes) -> bytes:
    """A fat binary."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
