# SPDX-License-Identifier: Apache-2.0
"""
Builds libgpushare.so with gcc alone, for every Linux with glibc 2.17 or newer.

The library is linked with -nostdlib against a stub of libc that is generated here and exports
exactly the few functions allowed, at their oldest versions: anything else is a link error. Two
objects come from one source: the plain one, and the strict one whose SONAME is libcuda.so.1 and
which forwards every entry point of the driver. Standard library only: `setup.py` runs this file
before anything is installed.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HERE: Final = Path(__file__).resolve().parent
PLAIN: Final = "libgpushare.so"
STRICT: Final = "libgpushare-strict.so"
SONAMES: Final = {PLAIN: "libgpushare.so", STRICT: "libcuda.so.1"}

BASE: Final = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}
"""The version of the oldest symbols of glibc, by machine."""

FLAGS: Final = {"x86_64": (), "aarch64": ("-mno-outline-atomics",)}
"""gcc would call atomics in libgcc on aarch64; there is no libgcc here."""

IMPORTS: Final = {"dl_iterate_phdr": None, "getenv": None, "clock_gettime": "GLIBC_2.17"}
"""What may be imported, and since when where that is not the base version."""

DEADLINE_SECONDS: Final = 600

CFLAGS: Final = (
    *("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-fvisibility=hidden"),
    *("-fno-stack-protector", "-fno-builtin", "-fno-math-errno", "-fno-asynchronous-unwind-tables"),
    "-fstack-clash-protection",
)
"""
No stack protector: its canary is thread-local storage (x86-64) or a symbol of the loader (aarch64); threads that a
program made by itself may have neither. No FORTIFY: it replaces calls of libc, and there are none.
"""
LDFLAGS: Final = (
    *("-shared", "-nostdlib", "-nostartfiles", "-Wl,-z,defs", "-Wl,-Bsymbolic", "-Wl,--hash-style=both"),
    *("-Wl,-z,noexecstack", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,--build-id=none", "-Wl,-z,nopack-relative-relocs"),
)


def machine() -> str:
    """The machine that gcc builds for."""
    return os.environ.get("GPUSHARE_MACHINE", platform.machine())


def compiler() -> str:
    """gcc, or what CC names."""
    return os.environ.get("CC", "gcc")


def run(command: Sequence[str]) -> None:
    """One tool; its error output is the error. A compiler that hangs (a dead network disk) must not hang an install."""
    subprocess.run(command, check=True, timeout=DEADLINE_SECONDS)  # noqa: S603 (our own command line)


def sources() -> list[str]:
    """The C and assembler files of the library, in a fixed order."""
    return [str(path) for path in sorted((HERE / "src").glob("*.c")) + sorted((HERE / "src").glob("*.S"))]


def version() -> str:
    """The version that the library reports: that of pyproject.toml, which a source tree and an sdist both have."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def symbols() -> list[tuple[str, str, str]]:
    """The table of entry points: (WRAP or PASS, name, class)."""
    text = (HERE / "src" / "symbols.def").read_text(encoding="ascii")
    return re.findall(r"^(WRAP|PASS)\((\w+), (\w+)\)$", text, re.MULTILINE)


def stub_libc(folder: Path) -> Path:
    """A libc.so.6 to link against, with the allowed symbols and nothing else."""
    base = BASE[machine()]
    by_version: dict[str, list[str]] = {base: []}
    for name, version in IMPORTS.items():
        by_version.setdefault(version or base, []).append(name)
    code = folder / "libc.c"
    script = folder / "libc.map"
    stub = folder / "libc.so.6"
    code.write_text("".join(f"void {name}(void) {{}}\n" for name in IMPORTS), encoding="ascii")
    script.write_text(
        "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in by_version.items() if names),
        encoding="ascii",
    )
    flags = ("-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", "-Wl,-soname,libc.so.6")
    run([compiler(), *flags, f"-Wl,--version-script={script}", "-o", str(stub), str(code)])
    return stub


def forwarders(folder: Path) -> Path:
    """For the strict object: every driver function that has no wrapper jumps to the driver's own."""
    slot = {name: index for index, (_, name, _) in enumerate(symbols())}
    passed = [name for how, name, _ in symbols() if how == "PASS" and name.startswith("cu")]
    body = [FORWARD[machine()].format(name=name, index=slot[name], offset=8 * slot[name]) for name in passed]
    code = folder / "forwarders.S"
    # Named, or the symbol table has the name of a temporary file and no two builds are the same
    code.write_text(
        "".join(['.file "forwarders.S"\n.text\n', *body, '.section .note.GNU-stack, "", %progbits\n']), encoding="ascii"
    )
    return code


FORWARD: Final = {
    "x86_64": """.globl {name}
.type {name}, %function
{name}: endbr64
    mov gs_reals+{offset}(%rip), %r11
    test %r11, %r11
    jz 1f
    jmp *%r11
1:  mov ${index}, %r11d
    jmp gs_forward
""",
    "aarch64": """.globl {name}
.type {name}, %function
{name}: adrp x16, gs_reals+{offset}
    ldr x16, [x16, :lo12:gs_reals+{offset}]
    cbz x16, 1f
    br x16
1:  mov w16, #{index}
    b gs_forward
""",
}


def build(target: Path, variant: str, *flags: str) -> None:
    """Compile one variant to `target`; our own tests add `-Werror`, a user's newer compiler may warn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        local = folder / "local.map"  # the ends of fork.h's lists: ld exports them though they are hidden
        local.write_text("{ local: __start_gs_*; __stop_gs_*; };\n", encoding="ascii")
        extra: list[str] = []
        if variant == STRICT:
            extra = ["-DGS_STRICT_HOOK", str(forwarders(folder))]
        run(
            [
                *(compiler(), *CFLAGS, *FLAGS[machine()], *flags, *LDFLAGS, f"-Wl,-soname,{SONAMES[variant]}"),
                *(f'-DGS_VERSION="{version()}"', f"-I{HERE / 'include'}", "-o", str(target)),
                *(f"-Wl,--version-script={local}", *sources(), *extra, str(stub_libc(folder))),
            ]
        )


def main(targets: Iterable[str] = (PLAIN, STRICT)) -> None:
    """Build both variants beside this file."""
    for variant in targets:
        build(HERE / variant, variant)


if __name__ == "__main__":
    main()
