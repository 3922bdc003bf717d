# SPDX-License-Identifier: Apache-2.0
"""
What `gpushare node` is told at its start, checked at once and passed down, never imported.

Every mistake is found in one go, each with what to write instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.names import CDI_DIR, MARKS_DIR, RUN_DIR
from isolation.contract.nri_api import SOCKET
from isolation.contract.quantity import GIB
from isolation.host.core.health import WELL_AFTER_SECONDS, HealthTerms
from isolation.node.containers import REFUSE
from isolation.node.inventory import Terms
from isolation.node.overlimit import OverLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

KUBELET_DIR: Final = Path("/var/lib/kubelet")
CGROUP: Final = Path("/sys/fs/cgroup")
PORT: Final = 9447
_NODE: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_XIDS: Final = re.compile(r"(?:[0-9]{1,5}(?:,[0-9]{1,5}){0,99})?")
ALL_XIDS: Final = "all"
_NOT_IN_PATHS: Final = frozenset(' :"\n\r\t')
"""The loader takes no space and no colon in what is preloaded; the rest keeps CDI specs readable."""


@dataclass(frozen=True, slots=True)
class Settings:
    """See `cli` for what each means to people."""

    node: str
    kubelet_dir: Path = KUBELET_DIR
    run_dir: Path = Path(RUN_DIR)
    cdi_dir: Path = Path(CDI_DIR)
    marks_dir: Path = Path(MARKS_DIR)
    nri_socket: Path = Path(SOCKET)
    cgroup: Path = CGROUP
    simgpu: Path | None = None
    terms: Terms = Terms(GIB)  # noqa: RUF009 (frozen)
    backend: str = "library"
    host: str = "0.0.0.0"  # noqa: S104 (Prometheus comes from outside the pod)
    port: int = PORT
    kubeconfig: Path | None = None
    context: str | None = None
    ignore_xids: str = ""
    well_after_minutes: int = int(WELL_AFTER_SECONDS / 60)
    over_limit: OverLimit = OverLimit()  # noqa: RUF009 (frozen)
    unsupported_images: str = REFUSE

    @property
    def health(self) -> HealthTerms:
        """What makes a card sick; only where there are no problems."""
        if self.ignore_xids == ALL_XIDS:
            return HealthTerms(watched=False)
        ignored = frozenset(int(one) for one in self.ignore_xids.split(",") if one)
        return HealthTerms(ignored=ignored, well_after=self.well_after_minutes * 60.0)

    @property
    def plugins(self) -> Path:
        """Where device plugins and the kubelet meet."""
        return self.kubelet_dir / "device-plugins"

    def problems(self) -> Iterator[str]:
        """What cannot be done as asked."""
        if not self.node:
            yield "--node is missing: set it, or set NODE_NAME in the environment (fieldRef spec.nodeName)"
        elif not _NODE.fullmatch(self.node):
            yield f"--node {self.node[:80]!r} is not a node name: use lower-case letters, digits, '-' and '.'"
        if not self.kubelet_dir.is_dir():
            yield f"--kubelet-dir {self.kubelet_dir} is not a directory: run on a node and mount the directory"
        if not self.cgroup.is_dir():
            yield f"--cgroup {self.cgroup} is not a directory: mount the host's /sys/fs/cgroup there, or set --cgroup"
        if self.simgpu is not None and not self.simgpu.is_file():
            yield f"--simgpu {self.simgpu} is not a file: run `gpushare simgpu create {self.simgpu} --model t4`"
        for option, path in (
            ("--state-dir", self.run_dir),
            ("--cdi-dir", self.cdi_dir),
            ("--marks-dir", self.marks_dir),
        ):
            if not path.is_absolute() or _NOT_IN_PATHS & set(str(path)):
                yield f"{option} {path} must be an absolute path without spaces, quotes or colons, the same on the host"
        if self.ignore_xids != ALL_XIDS and not _XIDS.fullmatch(self.ignore_xids):
            yield f"--ignore-xids {self.ignore_xids[:80]!r} must be numbers with commas, as in 48,79, or {ALL_XIDS}"
        if self.terms.reserved_bytes < 0:
            yield "--reserved-memory must be 0 MiB or more"
