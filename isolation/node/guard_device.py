# SPDX-License-Identifier: Apache-2.0
"""
What keeps a container from starting that this agent did not prepare, also while no agent runs.

The kubelet is answered with one CDI device for every container that asks for shares. It closes the container to
NVIDIA's runtimes and carries the guard, a small program that the container runtime calls before the start: it refuses
unless a mark for that container and an annotation in its specification have the same nonce. Name, file and device stay
the same for ever: the kubelet keeps the name over restarts, and specifications of containers name the file.

    <run-dir>/bin/gpushare-guard        replaced as a whole by another version
    <cdi-dir>/gpushare-gate.json        device gpushare.dev/gate=closed; not there while nobody is shown the creates
    <marks-dir>/<container id>          nonce and mounts; in memory, gone with the boot
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import ACK, GATE_DEVICE, GATE_KIND, START_NONCE
from isolation.contract.nri_api import VOID
from isolation.contract.text import printable
from isolation.files import replace_file
from isolation.node.nri.model import NriRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from isolation.node.cdi import Mount

GUARD: Final = "gpushare-guard"
_BUILT: Final = Path(__file__).parent / "guard" / GUARD
_SPEC: Final = "gpushare-gate.json"
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_NONCE_BYTES: Final = 16
_REFUSED: Final = ".refused"
"""After a container's id: why the guard refused it, for runtimes that do not pass on what it writes."""
_LONGEST_NOTE: Final = 1024


class GuardDeviceError(Exception):
    """The guard device cannot be put in its place; the message says what to do."""


class GuardDevice:
    """See the module."""

    def __init__(self, run_dir: Path, cdi_dir: Path, marks: Path, built: Path = _BUILT) -> None:
        self._program, self._spec, self._marks, self._built = run_dir / "bin" / GUARD, cdi_dir / _SPEC, marks, built

    @property
    def device(self) -> str:
        """The CDI device that the kubelet is answered with."""
        return GATE_DEVICE

    @property
    def hook(self) -> tuple[str, ...]:
        """The guard's command line."""
        return str(self._program), str(self._marks)

    def is_guarded(self, hooks: Iterable[str]) -> bool:
        """Whether a container asks for shares: the kubelet was given our device for it."""
        return any(path == str(self._program) for path in hooks)

    def install(self) -> None:
        """The program and the folder of marks in their place, as often as asked; GuardDeviceError."""
        try:
            if not self._program.is_file() or self._program.read_bytes() != self._built.read_bytes():
                self._program.parent.mkdir(parents=True, exist_ok=True)
                draft = self._program.with_name(f".{GUARD}.new")
                shutil.copyfile(self._built, draft)
                draft.chmod(0o755)
                draft.replace(self._program)
            if os.statvfs(self._program).f_flag & os.ST_NOEXEC:
                raise GuardDeviceError(
                    f"{self._program} is on a file system mounted noexec: set --state-dir to another one"
                )
            self._marks.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._marks.chmod(0o700)
        except OSError as exc:
            raise GuardDeviceError(f"cannot write {exc.filename}: {exc.strerror}") from None

    def offer(self) -> None:
        """Containers that ask for shares can be created; GuardDeviceError."""
        try:
            self._spec.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self._document(), indent=1) + "\n"
            if not self._spec.is_file() or self._spec.read_text("utf-8") != text:
                replace_file(self._spec, text)
        except OSError as exc:
            raise GuardDeviceError(f"cannot write {exc.filename}: {exc.strerror}") from None

    def withdraw(self) -> None:
        """
        No container that asks for shares can be created: the runtime does not find the device. GuardDeviceError.

        The kubelet repeats a create, also for pods that never restart; a start that the guard refuses fails them.
        """
        try:
            self._spec.unlink(missing_ok=True)
        except OSError as exc:
            raise GuardDeviceError(f"cannot remove {exc.filename}: {exc.strerror}") from None

    def mark(self, container: str, mounts: Iterable[Mount], limits: str = "") -> dict[str, str]:
        """
        Let this container start once, with these mounts on top; the annotation that it must carry. OSError.

        `limits`: memory limits that must stand first (`memory_limits.line_of`); empty: none.
        """
        if not _ID.fullmatch(container):
            raise NriRefusedError("the container runtime names the container by an invalid id")
        self._marks.mkdir(mode=0o700, parents=True, exist_ok=True)
        nonce = secrets.token_hex(_NONCE_BYTES)
        lines = [limits] if limits else []
        lines += [f"{one.host}\t{one.container}\t{'rw' if one.writable else 'ro'}" for one in mounts]
        # In place: nobody reads it before the runtime has our answer, and half a mark fits no annotation.
        fd = os.open(self._marks / container, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write("\n".join([nonce, *lines]) + "\n")
        return {START_NONCE: nonce}

    def forget(self, container: str) -> str:
        """That container is gone; why the guard refused it, empty: it did not."""
        if not _ID.fullmatch(container):
            return ""
        (self._marks / container).unlink(missing_ok=True)
        note = self._marks / f"{container}{_REFUSED}"
        try:
            with note.open("rb") as file:
                text = printable(file.read(_LONGEST_NOTE).decode("utf-8", "replace"))
        except OSError:
            return ""
        note.unlink(missing_ok=True)
        return text

    def sweep(self, known: Callable[[], Collection[str]]) -> None:
        """
        Remove the marks of containers that nobody knows.

        `known` is asked once the marks are listed: that of a container which is being created now is in neither, or in
        both.
        """
        found = tuple(self._marks.iterdir()) if self._marks.is_dir() else ()
        still = known()
        for path in found:
            if path.name.removesuffix(_REFUSED) not in still:
                path.unlink(missing_ok=True)

    def _document(self) -> dict[str, Any]:
        hook = {"hookName": "createRuntime", "path": self.hook[0], "args": list(self.hook)}
        edits = {"env": [f"{ACK.env_visible}={VOID}"], "hooks": [hook]}
        name = GATE_DEVICE.partition("=")[2]
        return {"cdiVersion": "0.5.0", "kind": GATE_KIND, "devices": [{"name": name, "containerEdits": edits}]}
