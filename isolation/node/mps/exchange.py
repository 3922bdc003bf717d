# SPDX-License-Identifier: Apache-2.0
"""
What the agent and the keeper of MPS daemons tell each other: two small files, so that either may be away.

    <run-dir>/mps/wishes.json     by the agent: what containers need of each card's server
    <run-dir>/mps/servers.json    by the keeper: which server each card has, or why none
    <run-dir>/mps.lock            held by a keeper that lives
    <run-dir>/mps/<card>/pipe     the daemon's sockets; log, its log; shm, the memory that its clients share

What the keeper said counts only while it lives: its daemons end with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.files import replace_file
from isolation.host.files import read_text
from isolation.node.core.mps import Wish
from isolation.node.lock import is_held

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_log: Final = logging.getLogger(__name__)
LOCK: Final = "mps.lock"
FOLDER: Final = "mps"
PIPE: Final = "pipe"
LOG: Final = "log"
SHARED_MEMORY: Final = "shm"
NO_KEEPER: Final = (
    "no MPS keeper runs on this node: apply manifests/components/mps, or start `gpushare mps` with the same directories"
)


@dataclass(frozen=True, slots=True)
class MpsServer:
    """What the keeper says of one card."""

    generation: str = ""
    """Empty: there is no server."""
    uid: int = 0
    bytes: int = 0
    percent: int = 0
    why: str = ""
    """Why there is none, or why the one before ended."""
    failed: bool = False
    """Whether the one before took its clients with it: a keeper older than this agent does not say so."""


def folder_of(run_dir: Path, uuid: str) -> Path:
    """Of one card; its name is short, for a socket's path is at most 107 bytes."""
    return run_dir / FOLDER / hashlib.sha256(uuid.encode()).hexdigest()[:10]


class MpsExchange:
    """See the module."""

    def __init__(self, run_dir: Path) -> None:
        self._lock = run_dir / LOCK
        self._wishes, self._servers = run_dir / FOLDER / "wishes.json", run_dir / FOLDER / "servers.json"

    def keeper_lives(self) -> bool:
        """Whether daemons are kept at all."""
        return self._lock.is_file() and is_held(self._lock)

    def wish(self, wishes: Mapping[str, Wish]) -> None:
        """As the agent: what each card that is served needs. OSError."""
        document = {
            uuid: {"uid": one.uid, "bytes": one.bytes, "percent": one.percent, "held": sorted(one.held)}
            for uuid, one in wishes.items()
        }
        _write(self._wishes, document)

    def wishes(self) -> dict[str, Wish] | None:
        """As the keeper; None: nobody has said anything that can be read."""
        found = _read(self._wishes)
        try:
            return (
                None
                if found is None
                else {
                    uuid: Wish(
                        None if one["uid"] is None else int(one["uid"]),
                        int(one["bytes"]),
                        int(one["percent"]),
                        frozenset(map(str, one["held"])),
                    )
                    for uuid, one in found.items()
                }
            )
        except (KeyError, TypeError, ValueError) as exc:
            _log.warning("ignoring unreadable file %s: %s", self._wishes, exc)
            return None

    def serve(self, servers: Mapping[str, MpsServer]) -> None:
        """As the keeper. OSError."""
        document = {
            uuid: {
                "generation": one.generation,
                "uid": one.uid,
                "bytes": one.bytes,
                "percent": one.percent,
                "why": one.why,
                "failed": one.failed,
            }
            for uuid, one in servers.items()
        }
        _write(self._servers, document)

    def servers(self) -> dict[str, MpsServer]:
        """As the agent; empty where no keeper lives."""
        found = _read(self._servers) if self.keeper_lives() else None
        try:
            return {
                uuid: MpsServer(
                    str(one["generation"]),
                    int(one["uid"]),
                    int(one["bytes"]),
                    int(one["percent"]),
                    str(one["why"]),
                    one.get("failed") is True,
                )
                for uuid, one in (found or {}).items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            _log.warning("ignoring unreadable file %s: %s", self._servers, exc)
            return {}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(document))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
