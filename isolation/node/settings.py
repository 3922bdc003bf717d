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

from isolation.contract.backends import AUTO
from isolation.contract.quantity import GIB
from isolation.host.core.card_health import HEALTHY_AFTER_SECONDS, HealthTerms
from isolation.node.containers import REFUSE
from isolation.node.inventory import Terms
from isolation.node.overlimit import OverLimit
from isolation.node.paths import Paths

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP: Final = Path("/sys/fs/cgroup")
PORT: Final = 9447
_NODE: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_XIDS: Final = re.compile(r"(?:[0-9]{1,5}(?:,[0-9]{1,5}){0,99})?")
ALL_XIDS: Final = "all"


@dataclass(frozen=True, slots=True)
class Settings(Paths):
    """See `cli` for what each means to people."""

    node: str
    cgroup: Path = CGROUP
    simgpu: Path | None = None
    terms: Terms = Terms(GIB)  # noqa: RUF009 (frozen)
    backend: str = AUTO
    host: str = "0.0.0.0"  # noqa: S104 (Prometheus comes from outside the pod)
    port: int = PORT
    kubeconfig: Path | None = None
    context: str | None = None
    ignore_xids: str = ""
    healthy_after_minutes: int = int(HEALTHY_AFTER_SECONDS / 60)
    over_limit: OverLimit = OverLimit()  # noqa: RUF009 (frozen)
    unsupported_images: str = REFUSE

    @property
    def health(self) -> HealthTerms:
        """What makes a card unhealthy; only where there are no problems."""
        if self.ignore_xids == ALL_XIDS:
            return HealthTerms(watched=False)
        ignored = frozenset(int(one) for one in self.ignore_xids.split(",") if one)
        return HealthTerms(ignored=ignored, healthy_after=self.healthy_after_minutes * 60.0)

    def problems(self) -> Iterator[str]:
        """What cannot be done as asked."""
        if not self.node:
            yield "--node is missing: set it, or set NODE_NAME in the environment (fieldRef spec.nodeName)"
        elif not _NODE.fullmatch(self.node):
            yield f"--node {self.node[:80]!r} is not a node name: use lower-case letters, digits, '-' and '.'"
        yield from self.wrong_paths()
        if not self.cgroup.is_dir():
            yield f"--cgroup {self.cgroup} is not a directory: mount the host's /sys/fs/cgroup there, or set --cgroup"
        if self.simgpu is not None and not self.simgpu.is_file():
            yield f"--simgpu {self.simgpu} is not a file: run `gpushare simgpu create {self.simgpu} --model t4`"
        if self.ignore_xids != ALL_XIDS and not _XIDS.fullmatch(self.ignore_xids):
            yield f"--ignore-xids {self.ignore_xids[:80]!r} must be numbers with commas, as in 48,79, or {ALL_XIDS}"
        if self.terms.reserved_bytes < 0:
            yield "--reserved-memory must be 0 MiB or more"
