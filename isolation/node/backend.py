# SPDX-License-Identifier: Apache-2.0
"""
What enforces promises on this node: one interface, one choice.

Finds out whether a backend can work here, and says what it adds to a container; which one is used is decided by
`contract.backends.choose`. A name that this release cannot enforce by has a reason why not.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import shutil
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.backends import AUTO, BACKENDS, LIBRARY, NONE, BackendChoice, Enforcer, choose, need_of
from isolation.contract.names import FEED_ENV, IN_CONTAINER, LIMITS_ENV, PRELOAD, REGION_ENV
from isolation.lib.build import PLAIN
from isolation.lib.native import library_path
from isolation.node.cdi import Edits, Mount
from isolation.node.memory_limits import SOCKET, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isolation.contract.model import Card, Mode, Slice
    from isolation.host.memory_limits import MemoryLimits
    from isolation.node.core.container_check import Given

_log: Final = logging.getLogger(__name__)

LIB: Final = "lib"
_LIST: Final = "ld.so.preload"
_SHA_CHARS: Final = 64
_INSTALLING: Final = Lock()
"""Several backends give containers the same library, and several threads ask them."""
_RETRY_SECONDS: Final = 10.0


class UndeliverableError(Exception):
    """What a container needs could not be put in its place; the text says what is missing."""


class EnforcementBackend(Protocol):
    """How a promise is made to hold."""

    @property
    def name(self) -> str:
        """What it is called in configuration and metrics."""

    def available(self) -> str:
        """Why it cannot work here; empty: it can."""

    def edits(self, folder: Path, given: Given) -> Edits:
        """What it adds to a container that gets `given`, whose files are in `folder`; UndeliverableError."""

    def holds(self) -> bool:
        """Whether it limits anything; UndeliverableError."""

    def limits_compute(self) -> bool:
        """Whether the library limits compute; False: another part does, or none. UndeliverableError."""

    def version(self) -> str:
        """Checksum of the library that it gives a container; empty: none."""

    def forget(self, used: set[str]) -> None:
        """Remove versions of the library that nobody names; `used`: their checksums."""

    def limits(self, slices: Sequence[Slice]) -> str:
        """What the guard must have limited before the start, as a line of its mark; empty: nothing."""


@dataclass(frozen=True, slots=True)
class NoBackend:
    """Nothing is enforced: shares by agreement."""

    name: str = "none"

    def available(self) -> str:
        """See `EnforcementBackend`."""
        return ""

    def edits(self, folder: Path, given: Given) -> Edits:  # noqa: ARG002 (nothing of it is needed)
        """See `EnforcementBackend`."""
        return Edits()

    def holds(self) -> bool:
        """See `EnforcementBackend`."""
        return False

    def limits_compute(self) -> bool:
        """See `EnforcementBackend`."""
        return False

    def version(self) -> str:
        """See `EnforcementBackend`."""
        return ""

    def forget(self, used: set[str]) -> None:
        """See `EnforcementBackend`."""

    def limits(self, slices: Sequence[Slice]) -> str:  # noqa: ARG002 (nothing of it is needed)
        """See `EnforcementBackend`."""
        return ""


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
        """See `EnforcementBackend`."""
        try:
            self.home()
        except (OSError, UndeliverableError) as exc:
            return str(exc)
        return ""

    def edits(self, folder: Path, given: Given) -> Edits:  # noqa: ARG002 (the library reads its own file)
        """See `EnforcementBackend`."""
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

    def holds(self) -> bool:
        """See `EnforcementBackend`."""
        return True

    def limits_compute(self) -> bool:
        """See `EnforcementBackend`."""
        return BACKENDS[self.name].compute is None

    def version(self) -> str:
        """See `EnforcementBackend`."""
        return self.home().name

    def limits(self, slices: Sequence[Slice]) -> str:  # noqa: ARG002 (the library reads its own file)
        """See `EnforcementBackend`."""
        return ""

    def home(self) -> Path:
        """Where this version lies, put there if need be. OSError, UndeliverableError."""
        home = self._home or self._named()
        with _INSTALLING:
            if not all(regular(home / name) for name in (PLAIN, _LIST)):
                self._install(home)
        self._home = home
        return home

    def forget(self, used: set[str]) -> None:
        """See `EnforcementBackend`."""
        current = self.home().name
        with _INSTALLING:
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


@dataclass(slots=True)
class KernelBackend(LibraryBackend):
    """
    Memory limits of NVIDIA's driver, and the library beside them.

    The library keeps its limits: it refuses managed memory, which the driver counts as system memory, and limits
    compute. Who gets around it is stopped by the driver.
    """

    name: str = "kernel"
    driver: MemoryLimits | None = None
    cgroup: Path = Path("/sys/fs/cgroup")
    """Where cgroup version 2 is mounted."""
    place: Path = Path("/run/gpushare") / SOCKET
    """Socket of the agent that the guard asks."""
    uuids: Callable[[], tuple[str, ...]] = tuple

    def available(self) -> str:
        """See `EnforcementBackend`."""
        if self.driver is None:
            return "NVML was not found"
        # Not super(): dataclasses with slots are made anew, and the bare form then finds the wrong class.
        if any(uuid.startswith("MIG-") for uuid in self.uuids()):
            return "the driver's memory limits do not cover MIG instances"
        return LibraryBackend.available(self) or self.driver.unavailable(self.cgroup, self.uuids())

    def limits(self, slices: Sequence[Slice]) -> str:
        """See `EnforcementBackend`."""
        return line_of(self.place, slices)


@dataclass(slots=True)
class MigBackend(LibraryBackend):
    """
    MIG instances, and the library within each.

    Who gets around the library has its instance's memory at most; of compute within an instance nothing is held.
    """

    name: str = "mig"
    cards: Callable[[], Sequence[Card]] = tuple

    def available(self) -> str:
        """See `EnforcementBackend`."""
        divided = [card.instance is not None for card in self.cards()]
        if not any(divided):
            return "no card of this node is divided into MIG instances"
        if not all(divided):
            return "some cards of this node are not divided into MIG instances"
        return LibraryBackend.available(self)


@dataclass(slots=True)
class NodeBackends:
    """
    The backend that this node uses; fulfils `EnforcementBackend` by it.

    What works is found out when it is asked for the first time, and again when mode, label or state of the node change;
    where nothing works, also every 10 s: what is missing may come.
    """

    known: Mapping[str, EnforcementBackend]
    wanted: Callable[[], str]
    """A name or `AUTO`: the node's label, else the option."""
    mode: Callable[[], Mode]
    told: Callable[[str], None] = lambda _: None
    """Receives the name of what is used when that has changed; empty: nothing can be."""
    state: Callable[[], object] = tuple
    """Of the node, its cards among it. Compared only: when it changes, everything is looked at again."""
    clock: Callable[[], float] = time.monotonic
    _asked: object = field(default=None, init=False)
    _again: float = field(default=math.inf, init=False)
    _choice: BackendChoice = field(default=BackendChoice(None, "not looked at yet"), init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    @property
    def choice(self) -> BackendChoice:
        """What is used, or why nothing can be."""
        asked = (self.wanted(), self.mode(), self.state())
        with self._lock:
            if asked != self._asked or self.clock() >= self._again:
                # Limits of a pod stay while it lives, also where the node promises nothing any more.
                reasons = {name: "this agent does not have it" for name in BACKENDS if name not in self.known}
                reasons |= {name: one.available() for name, one in self.known.items() if self._matters(name, asked[0])}
                before, self._choice = self._choice, choose(asked[0], need_of(asked[1]), reasons)
                self._asked = asked
                backend = self._choice.backend
                self._again = math.inf if backend is not None else self.clock() + _RETRY_SECONDS
                if self._choice != before:
                    self.told(backend.name if backend is not None else "")
                    _log.info("backend: %s", backend.sentence if backend is not None else self._choice.reason)
            return self._choice

    @property
    def name(self) -> str:
        """See `EnforcementBackend`."""
        return self.choice.backend.name if self.choice.backend is not None else ""

    def available(self) -> str:
        """See `EnforcementBackend`."""
        return "" if self.choice.backend is not None else self.choice.reason

    def edits(self, folder: Path, given: Given) -> Edits:
        """See `EnforcementBackend`."""
        return self._used().edits(folder, given)

    def limits_compute(self) -> bool:
        """See `EnforcementBackend`."""
        return self._used().limits_compute()

    def version(self) -> str:
        """See `EnforcementBackend`."""
        return self._used().version()

    def limits(self, slices: Sequence[Slice]) -> str:
        """See `EnforcementBackend`."""
        return self._used().limits(slices)

    def is_kernel(self) -> bool:
        """Whether the driver limits memory."""
        return self.choice.backend is not None and Enforcer.KERNEL in self.choice.backend.parts

    def holds(self) -> bool:
        """See `EnforcementBackend`."""
        return self._used().holds()

    def forget(self, used: set[str]) -> None:
        """See `EnforcementBackend`."""
        self.known[LIBRARY.name].forget(used)

    def _matters(self, name: str, wanted: str) -> bool:
        return wanted in {AUTO, name}

    def _used(self) -> EnforcementBackend:
        chosen = self.choice.backend
        if chosen is None:
            raise UndeliverableError(self.choice.reason)
        if chosen is NONE and self.wanted() == AUTO:
            return self.known[LIBRARY.name]  # a container that keeps its limits on a node that promises nothing
        return self.known[chosen.name]


def regular(path: Path) -> bool:
    """Whether a mount's source is what it has to be: a missing one becomes a folder, and nothing is enforced."""
    try:
        about = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_size > 0
