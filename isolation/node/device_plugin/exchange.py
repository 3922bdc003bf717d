# SPDX-License-Identifier: Apache-2.0
"""
What the agent and the device plugin tell each other: two small files, so that either may be away.

    <run-dir>/offer.json            by the agent: the units, and what the device plugin must know of this node
    <run-dir>/device-plugin.json    by the device plugin: how it stands with kubelet and container runtime
    <run-dir>/device-plugin.lock    held by a device plugin that lives

The offer stays while the agent is away, and over a restart of either. What the device plugin said counts only while it
lives, which the kernel knows by the lock.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.files import replace_file
from isolation.node.core.units import Device
from isolation.node.lock import is_held

if TYPE_CHECKING:
    from pathlib import Path

_log: Final = logging.getLogger(__name__)
LOCK: Final = "device-plugin.lock"
_OFFER: Final = "offer.json"
_REPORT: Final = "device-plugin.json"
_MAX_BYTES: Final = 16 << 20
"""More than the kubelet takes of a device plugin."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the agent says."""

    devices: tuple[Device, ...] = ()
    obstacle: str = "the node agent has not said what to offer yet"
    """Why the kubelet must not be offered units; empty: it may."""
    shares: bool = False
    """Whether containers without a share are to be closed."""
    exempt: frozenset[str] | None = None
    """Namespaces of system software; None: not known yet."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the device plugin says."""

    registered: bool = False
    registrations: int = 0
    """Since it started."""
    connected: bool = False
    """Whether every container that is created now is shown to it."""
    trouble: str = ""
    """Why it is not registered or not connected, for people."""
    refused: int = 0
    """Containers that it refused in the place of the agent, since it started."""


class Exchange:
    """See the module."""

    def __init__(self, run_dir: Path) -> None:
        self._offer, self._report, self._lock = run_dir / _OFFER, run_dir / _REPORT, run_dir / LOCK
        self._stamp: tuple[int, int] | None = None
        self._read = Offer()

    def offer(self) -> Offer:
        """The last one; read again when the file has changed."""
        stamp = stamp_of(self._offer)
        if stamp != self._stamp:
            found = _load(self._offer)
            try:
                self._read = _offer_of(found) if found is not None else Offer()
            except (KeyError, TypeError, ValueError) as exc:
                _log.warning("ignoring unreadable file %s: %s", self._offer, exc)
            self._stamp = stamp
        return self._read

    def say(self, offer: Offer) -> None:
        """As the agent. OSError."""
        text = json.dumps(
            {
                "healthy": [one.id for one in offer.devices if one.healthy],
                "unhealthy": [one.id for one in offer.devices if not one.healthy],
                "obstacle": offer.obstacle,
                "shares": offer.shares,
                "exempt": None if offer.exempt is None else sorted(offer.exempt),
            }
        )
        replace_file(self._offer, text)

    def reported(self) -> Report | None:
        """None: no device plugin lives."""
        if not is_held(self._lock):
            return None
        found = _load(self._report)
        try:
            return Report(**found) if found is not None else Report(trouble="it has just started")
        except TypeError as exc:
            return Report(trouble=f"its report cannot be read ({exc}): update it together with the agent")

    def report(self, report: Report) -> None:
        """As the device plugin. OSError."""
        replace_file(self._report, json.dumps(asdict(report)))


def stamp_of(path: Path) -> tuple[int, int] | None:
    """What tells a file, or a socket, from a later one of that name; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _load(path: Path) -> dict[str, Any] | None:
    """An object of JSON; None: there is none that can be read."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as exc:
        _log.warning("ignoring unreadable file %s: %s", path, exc)
        return None
    return found if isinstance(found, dict) else None


def _offer_of(found: dict[str, Any]) -> Offer:
    devices = [Device(str(one), healthy=kind == "healthy") for kind in ("healthy", "unhealthy") for one in found[kind]]
    exempt = found["exempt"]
    return Offer(
        tuple(devices),
        str(found["obstacle"]),
        bool(found["shares"]),
        None if exempt is None else frozenset(str(one) for one in exempt),
    )
