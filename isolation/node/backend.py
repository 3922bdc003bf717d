# SPDX-License-Identifier: Apache-2.0
"""
What enforces promises on this node: one interface, one choice.

Decides whether a backend can work here and what it adds to a container. `library` and `none` are done;
`kernel` and `mps` are names with a reason why not, so that configuration and metrics need not change later.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.names import FEED_ENV, IN_CONTAINER, LIMITS_ENV, PRELOAD, REGION_ENV
from isolation.lib.build import PLAIN
from isolation.lib.native import library_path
from isolation.node.cdi import Edits, Mount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

LIB: Final = "lib"
_LIST: Final = "ld.so.preload"
_SHA_CHARS: Final = 64


class UndeliverableError(Exception):
    """What a container needs could not be put in its place; the text says what is missing."""


class Backend(Protocol):
    """How a promise is made to hold."""

    @property
    def name(self) -> str:
        """What it is called in configuration and metrics."""

    def available(self) -> str:
        """Why it cannot work here; empty: it can."""

    def edits(self, folder: Path) -> Edits:
        """What it adds to a container whose files are in `folder`; UndeliverableError."""


@dataclass(frozen=True, slots=True)
class NoBackend:
    """Nothing is enforced: shares by agreement."""

    name: str = "none"

    def available(self) -> str:
        """See `Backend`."""
        return ""

    def edits(self, folder: Path) -> Edits:  # noqa: ARG002 (nothing of it is needed)
        """See `Backend`."""
        return Edits()


@dataclass(slots=True)
class LibraryBackend:
    """
    Our library, preloaded into every program of the container.

    Each version lies under its own checksum until no container names it, so an update of the agent takes
    nothing from those that run.
    """

    run_dir: Path
    source: Callable[[], Path] = library_path
    name: str = "library"
    _home: Path | None = field(default=None, init=False)

    def available(self) -> str:
        """See `Backend`."""
        try:
            self.home()
        except (OSError, UndeliverableError) as exc:
            return str(exc)
        return ""

    def edits(self, folder: Path) -> Edits:
        """See `Backend`."""
        home = self.home()
        limits, region = f"{IN_CONTAINER}/limits", f"{IN_CONTAINER}/region/region"
        return Edits(
            env={LIMITS_ENV: f"{limits}/limits", FEED_ENV: f"{limits}/feed", REGION_ENV: region},
            mounts=(
                Mount(str(home / PLAIN), f"{IN_CONTAINER}/lib/{PLAIN}"),
                Mount(str(home / _LIST), PRELOAD),
                Mount(str(folder / "limits"), limits),
                Mount(str(folder / "region" / "region"), region, writable=True),
            ),
        )

    def home(self) -> Path:
        """Where this version lies, put there if need be. OSError, UndeliverableError."""
        home = self._home or self._named()
        if not all(regular(home / name) for name in (PLAIN, _LIST)):
            self._install(home)
        self._home = home
        return home

    def forget(self, used: set[str]) -> None:
        """Remove the versions that nobody names; `used`: their checksums."""
        current = self.home().name
        for old in (self.run_dir / LIB).iterdir():
            if old.name not in used | {current} and len(old.name.lstrip(".")) >= _SHA_CHARS:
                shutil.rmtree(old, ignore_errors=True)

    def _named(self) -> Path:
        return self.run_dir / LIB / hashlib.sha256(self.source().read_bytes()).hexdigest()

    def _install(self, home: Path) -> None:
        draft = home.with_name(f".{home.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for folder in (draft, draft.parent):
            folder.chmod(0o755)
        shutil.copyfile(self.source(), draft / PLAIN)
        (draft / PLAIN).chmod(0o755)
        (draft / _LIST).write_text(f"{IN_CONTAINER}/lib/{PLAIN}\n", encoding="ascii")
        (draft / _LIST).chmod(0o644)
        if hashlib.sha256((draft / PLAIN).read_bytes()).hexdigest() != home.name:
            raise UndeliverableError(f"{self.source()} changed while it was being copied")
        for name in (PLAIN, _LIST):
            fd = os.open(draft / name, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(fd)
            os.close(fd)
        shutil.rmtree(home, ignore_errors=True)  # what is there lacks a file: nothing can be mounted from it
        draft.rename(home)


@dataclass(frozen=True, slots=True)
class PreparedBackend:
    """One that this release knows by name only."""

    name: str
    reason: str

    def available(self) -> str:
        """See `Backend`."""
        return self.reason

    def edits(self, folder: Path) -> Edits:
        """See `Backend`."""
        raise UndeliverableError(f"{folder}: {self.reason}")


def regular(path: Path) -> bool:
    """Whether a mount's source is what it has to be: a missing one becomes a folder, and nothing is enforced."""
    try:
        about = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_size > 0


def backends(run_dir: Path) -> Mapping[str, Backend]:
    """Every backend by name."""
    kernel = "this release does not support memory limits of the driver (615 or newer): use library"
    mps = "this release does not support limits of NVIDIA MPS: use library"
    made: tuple[Backend, ...] = (
        LibraryBackend(run_dir),
        NoBackend(),
        PreparedBackend("kernel", kernel),
        PreparedBackend("mps", mps),
    )
    return MappingProxyType({one.name: one for one in made})
