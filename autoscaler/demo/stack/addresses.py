# SPDX-License-Identifier: Apache-2.0
"""
The ports of the demo stack, and which programs of the system it can use.

All ports are chosen before anything is started: each must be free, or the error names the one that is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

HOST: Final = "127.0.0.1"
OFFSETS: Final = (0, 3, 4, 5, 6)
"""Exporter (9445) and autoscaler (9448) as on Kubernetes, Prometheus, Alertmanager, the cluster's exporters."""
LAST_PORT: Final = 65535
INSTALL: Final = "no alerts: {missing} not installed; run apt-get install prometheus prometheus-alertmanager"


@dataclass(frozen=True, slots=True)
class Ports:
    """One for each endpoint, used or not."""

    exporter: int
    autoscaler: int
    prometheus: int
    alertmanager: int
    cluster: int


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs of the system; None where it has none."""

    prometheus: str | None
    alertmanager: str | None

    @property
    def remark(self) -> str:
        """What could be installed; empty: nothing."""
        named = {"prometheus": self.prometheus, "prometheus-alertmanager": self.alertmanager}
        missing = [name for name, path in named.items() if path is None]
        return INSTALL.format(missing=" and ".join(missing)) if missing else ""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where to look: URLs without a path; None where nothing runs."""

    exporter: str
    autoscaler: str
    prometheus: str | None
    alertmanager: str | None
    cluster: str


def find_tools() -> Tools:
    """What is installed: Debian prefixes Alertmanager's name, others do not."""
    return Tools(shutil.which("prometheus"), shutil.which("prometheus-alertmanager") or shutil.which("alertmanager"))


def choose_ports(first: int) -> Ports:
    """From this one on, or any free ones for 0; OSError names the one that is taken."""
    if first and first + OFFSETS[-1] > LAST_PORT:
        raise OSError(f"ports {first} to {first + OFFSETS[-1]} are needed, but the last port is {LAST_PORT}")
    found = []
    with ExitStack() as held:  # all at once, so that no two are the same
        for offset in OFFSETS:
            wanted = first + offset if first else 0
            try:
                found.append(held.enter_context(socket.create_server((HOST, wanted))).getsockname()[1])
            except OSError as exc:
                raise OSError(f"port {wanted} of {HOST} is in use") from exc
    return Ports(*found)


def build_addresses(at: Ports, have: Tools) -> Addresses:
    """As URLs."""
    return Addresses(
        _url(at.exporter),
        _url(at.autoscaler),
        _url(at.prometheus) if have.prometheus else None,
        _url(at.alertmanager) if have.prometheus and have.alertmanager else None,
        _url(at.cluster),
    )


def write_addresses(path: Path, where: Addresses) -> None:
    """As JSON, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(asdict(where)) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(path)) from exc
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"
