# SPDX-License-Identifier: Apache-2.0
"""Holds in a store, for tests of what counts there."""

from __future__ import annotations

import contextlib
import os
import subprocess

from isolation.contract.host_allocation import HostAllocation, Process
from isolation.contract.model import Slice
from isolation.contract.quantity import gib
from isolation.host import process

BOOT = process.boot()


def entry(ident="run-1", **more):
    """A hold of 5 GiB on one card, of this boot."""
    given = {
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


def hold(store, **more):
    """Publish a hold and let its lock go: nobody lives on it."""
    with store.locked():
        one = entry(**more)
        draft = store.draft(one.id)
        held = store.publish(draft, one)
    os.close(draft.lock)
    return held


def counted(store):
    """Ids that count."""
    with store.locked():
        return [held.entry.id for held in store.list_living()]


@contextlib.contextmanager
def running(*command, **more):
    """A process for the length of a block."""
    one = subprocess.Popen(command, stdin=subprocess.DEVNULL, **more)
    try:
        yield one
    finally:
        one.kill()
        one.wait()
