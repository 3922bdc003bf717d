# SPDX-License-Identifier: Apache-2.0
"""NVML on simulated cards, in trouble or well: a source on a box, and programs on its cards."""

from __future__ import annotations

import contextlib
import time

from support.simbox import Program, programs

from exporter.sources.nvml.source import NvmlSource

GIB = 1 << 30


@contextlib.contextmanager
def sourced(box):
    """A source on the box, closed afterwards, with the box well again so that nothing hangs."""
    reader = NvmlSource(box.path)
    yield reader
    box.set("nvml_hang", 0)
    reader.close()


@contextlib.contextmanager
def starting():
    """Starts programs that have said that they are up; none outlives the test."""
    with programs() as running:

        def start(box, code, **env):
            running.append(Program(box.path, code, **env))
            assert "up" == running[-1].line()
            return running[-1]

        yield start


def read(reader, now=None):
    """One reading."""
    return reader.read(time.monotonic() if now is None else now)
