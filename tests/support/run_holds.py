# SPDX-License-Identifier: Apache-2.0
"""Holds in a store, for tests of what counts there."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING, Any

from isolation.contract.host_allocation import HostAllocation, Process
from isolation.contract.model import Slice
from isolation.contract.quantity import gib
from isolation.host import process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.run.store import AllocationStore, StoredAllocation

BOOT = process.boot()


def entry(ident: str = "run-1", **more: Any) -> HostAllocation:
    """A hold of 5 GiB on one card, of this boot."""
    given: dict[str, Any] = {
        "id": ident,
        "name": "n",
        "boot": BOOT,
        "created": 1.0,
        "uid": os.geteuid(),
        "runner": Process(1, 1),
        "command": ("true",),
        "slices": (Slice("GPU-0", 0, gib(5)),),
        "policy": "fixed",
    }
    return HostAllocation(**(given | more))


def hold(store: AllocationStore, **more: Any) -> StoredAllocation:
    """Publish a hold and let its lock go: nobody lives on it."""
    with store.locked():
        one = entry(**more)
        draft = store.draft(one.id)
        held = store.publish(draft, one)
    os.close(draft.lock)
    return held


def counted(store: AllocationStore) -> list[str]:
    """Ids that count."""
    with store.locked():
        return [held.entry.id for held in store.list_living()]


@contextlib.contextmanager
def running(*command: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of a block."""
    one = subprocess.Popen(command, stdin=subprocess.DEVNULL, **more)
    try:
        yield one
    finally:
        one.kill()
        one.wait()
