# SPDX-License-Identifier: Apache-2.0
"""
Where kubelet, container runtime and our two processes on a node meet.

The same options for the agent and for the device plugin: a node on which they differ works with neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isolation.contract.names import CDI_DIR, MARKS_DIR, RUN_DIR
from isolation.contract.nri_api import SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PREFIX: Final = "GPUSHARE_NODE"
"""Of environment variables that stand for options."""
KUBELET_DIR: Final = Path("/var/lib/kubelet")
_NOT_IN_PATHS: Final = frozenset(' :"\n\r\t')
"""The loader takes no space and no colon in what is preloaded; the rest keeps CDI specs readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """See `options` for what each means to people."""

    kubelet_dir: Path = KUBELET_DIR
    run_dir: Path = Path(RUN_DIR)
    cdi_dir: Path = Path(CDI_DIR)
    marks_dir: Path = Path(MARKS_DIR)
    nri_socket: Path = Path(SOCKET)

    @property
    def plugins(self) -> Path:
        """Where device plugins and the kubelet meet."""
        return self.kubelet_dir / "device-plugins"

    def wrong_paths(self) -> Iterator[str]:
        """What cannot be done as asked."""
        if not self.kubelet_dir.is_dir():
            yield f"--kubelet-dir {self.kubelet_dir} is not a directory: run on a node and mount the directory"
        for option, path in (
            ("--state-dir", self.run_dir),
            ("--cdi-dir", self.cdi_dir),
            ("--marks-dir", self.marks_dir),
        ):
            if not path.is_absolute() or _NOT_IN_PATHS & set(str(path)):
                yield f"{option} {path} must be an absolute path without spaces, quotes or colons, the same on the host"


_USUAL: Final = Paths()
_OPTIONS: Final[Mapping[str, tuple[Path, str, str]]] = {
    "--kubelet-dir": (_USUAL.kubelet_dir, "DIR", "Root directory of the kubelet (its --root-dir)."),
    "--state-dir": (
        _USUAL.run_dir,
        "DIR",
        "Directory for allocations, limits and the library. Must have the same path on the host.",
    ),
    "--cdi-dir": (_USUAL.cdi_dir, "DIR", "Directory where the container runtime reads CDI specs."),
    "--marks-dir": (
        _USUAL.marks_dir,
        "DIR",
        "Directory, in memory, for the marks of containers that may start. Must have the same path on the host.",
    ),
    "--nri-socket": (_USUAL.nri_socket, "FILE", "Socket on which the container runtime serves NRI plugins."),
}


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command; `paths_of` reads them."""
    for name, (default, metavar, text) in reversed(tuple(_OPTIONS.items())):
        kind = click.Path(path_type=Path)
        command = click.option(name, type=kind, default=default, show_default=True, metavar=metavar, help=text)(command)
    return command


def paths_of(given: Mapping[str, Any]) -> dict[str, Path]:
    """Fields of `Paths` by what click has read."""
    return {
        "kubelet_dir": given["kubelet_dir"],
        "run_dir": given["state_dir"].absolute(),
        "cdi_dir": given["cdi_dir"].absolute(),
        "marks_dir": given["marks_dir"].absolute(),
        "nri_socket": given["nri_socket"],
    }
