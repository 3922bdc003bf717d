# SPDX-License-Identifier: Apache-2.0
"""
What is done with a container that has more memory of a card than it was promised, whatever way it took it.

Judged by the larger of its own books and the driver's figure, over some samples in a row. Report: the log says so (the
exporter's breach and the library's refusals are there anyway). Kill: every process of the container is ended, and the
kubelet does what the pod's restart policy says. Nothing is ended for what cannot be told.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from isolation.contract.host_allocation import HostAllocation

_log: Final = logging.getLogger(__name__)
REPORT: Final = "report"
KILL: Final = "kill"


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The node's policy."""

    action: str = REPORT
    samples: int = 10
    """So many samples in a row, some ten a second."""
    tolerance_bytes: int = 256 << 20
    """Beyond the promise on one card."""


class OverLimitWatch:
    """One container under that policy."""

    def __init__(self, policy: OverLimit) -> None:
        self._policy = policy
        self._row = 0

    def judge(
        self, hold: HostAllocation, used: Iterable[int | None], processes: Callable[[], frozenset[int] | None]
    ) -> None:
        """One more sample; `used`: bytes by card in the hold's order, None where they cannot be told."""
        pairs = zip(hold.slices, used, strict=True)
        over = [
            (part, size)
            for part, size in pairs
            if size is not None and size > part.bytes + self._policy.tolerance_bytes
        ]
        self._row = self._row + 1 if over else 0
        if self._row < self._policy.samples or self._row % self._policy.samples:
            return
        kills = self._policy.action == KILL
        if kills or self._row == self._policy.samples:
            part, size = over[0]
            what = "ending its processes (--over-limit kill)" if kills else "reporting it only (--over-limit report)"
            amounts = f"used={show_bytes(size)} promised={show_bytes(part.bytes)}"
            _log.warning(
                "container is over its limit, %s: container=%s card=%s %s", what, hold.name, part.uuid, amounts
            )
        if kills:
            end(processes)


def end(processes: Callable[[], frozenset[int] | None]) -> None:
    """SIGKILL to all of them; a pid that was used again meanwhile is not in the second list."""
    handles = {}
    for pid in processes() or ():
        with contextlib.suppress(OSError):
            handles[pid] = os.pidfd_open(pid)
    still = processes() or frozenset()
    for pid, handle in handles.items():
        with contextlib.suppress(OSError):
            if pid in still:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
