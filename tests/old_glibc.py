# SPDX-License-Identifier: Apache-2.0
"""
Old C libraries for the loader tests, fetched from where their distributions keep them and unpacked without root.

    python tests/old_glibc.py [FOLDER]

One folder per version below FOLDER (`build/glibc`), with the loader, libc.so.6 and libdl.so.2 of a real
release: 2.17 as CentOS 7 shipped it, 2.31 as Debian 11 did. What cannot be had is said in one line and
left out; nothing is installed. Standard library only. x86-64.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import sys
import tarfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME: Final = Path(__file__).resolve().parents[1] / "build" / "glibc"
SECONDS: Final = 20
XZ: Final = b"\xfd7zXZ\x00"


@dataclass(frozen=True)
class Release:
    """One build of glibc and who keeps it."""

    version: str
    urls: tuple[str, ...]
    sha256: str = ""
    """Empty: the keeper's TLS is what is relied on; the tests ask the library itself for its version."""

    @property
    def wanted(self) -> dict[str, str]:
        """Files of the package, by the name under which the tests look for them."""
        return {f"ld-{self.version}.so": "ld", f"libc-{self.version}.so": "libc", f"libdl-{self.version}.so": "libdl"}


RELEASES: Final = (
    Release(
        "2.17",
        (
            "https://vault.centos.org/7.9.2009/os/x86_64/Packages/glibc-2.17-317.el7.x86_64.rpm",
            "https://archive.kernel.org/centos-vault/7.9.2009/os/x86_64/Packages/glibc-2.17-317.el7.x86_64.rpm",
        ),
    ),
    Release(
        "2.31",
        tuple(
            f"http://{host}/debian/pool/main/g/glibc/libc6_2.31-13+deb11u11_amd64.deb"
            for host in ("deb.debian.org", "archive.debian.org")
        ),
        "05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282",
    ),
)
NAMES: Final = {"ld": "ld-linux-x86-64.so.2", "libc": "libc.so.6", "libdl": "libdl.so.2"}


def deb_files(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Regular files of a Debian package: an `ar` archive that holds data.tar.xz."""
    at = len(b"!<arch>\n")
    while at + 60 <= len(raw):
        name, size = raw[at : at + 16].decode().strip(), int(raw[at + 48 : at + 58])
        body = raw[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.isreg() else None
                    if file is not None:
                        yield member.name, file.read()


def rpm_files(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Regular files of an rpm: headers, then a cpio archive (SVR4 without checksums) packed with xz."""
    cpio = lzma.LZMADecompressor().decompress(raw[raw.index(XZ) :])
    at = 0
    while cpio[at : at + 6] == b"070701":
        field = [int(cpio[at + 6 + 8 * index : at + 14 + 8 * index], 16) for index in range(13)]
        mode, size, named = field[1], field[6], field[11]
        name = cpio[at + 110 : at + 110 + named - 1].decode()
        at += (110 + named + 3) // 4 * 4
        if mode >> 12 == 0o10:
            yield name, cpio[at : at + size]
        at += (size + 3) // 4 * 4


def download(release: Release) -> bytes:
    """The package from the first keeper that has it; OSError where none does."""
    lines = []
    for url in release.urls:
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310 (the table above)
                raw: bytes = answer.read()
        except (urllib.error.URLError, OSError) as exc:
            lines.append(f"{url}: {getattr(exc, 'reason', exc)}")
            continue
        if release.sha256 in {"", hashlib.sha256(raw).hexdigest()}:
            return raw
        lines.append(f"{url}: not the file it was")
    raise OSError("; ".join(lines))


def unpack(release: Release, raw: bytes, folder: Path) -> None:
    """The loader and the two libraries; nothing appears unless all three are there."""
    files = rpm_files(raw) if raw.startswith(b"\xed\xab\xee\xdb") else deb_files(raw)
    found = {release.wanted[Path(name).name]: body for name, body in files if Path(name).name in release.wanted}
    if set(found) != set(NAMES):
        raise OSError(f"glibc {release.version}: the package holds {sorted(found)} only")
    draft = folder.with_name(f".{folder.name}")
    draft.mkdir(parents=True, exist_ok=True)
    for what, body in found.items():
        (draft / NAMES[what]).write_bytes(body)
        (draft / NAMES[what]).chmod(0o755)
    draft.rename(folder)


def main(home: Path) -> None:
    """Fetch what is not there yet; one line for each."""
    for release in RELEASES:
        folder = home / release.version
        if not folder.is_dir():
            try:
                unpack(release, download(release), folder)
            except OSError as exc:
                print(f"glibc {release.version} cannot be had: {exc}", file=sys.stderr)  # noqa: T201
                continue
        print(f"glibc {release.version}: {folder}")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HOME)
