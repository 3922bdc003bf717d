# SPDX-License-Identifier: Apache-2.0
"""NVML on simulated cards, in trouble or well: a source on a box, and programs on its cards."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from support.simbox import Program, programs

from exporter.sources.nvml.source import NvmlSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exporter.pipeline.snapshot import MachineSample
    from isolation.simgpu.hardware import Box

GIB = 1 << 30


@contextlib.contextmanager
def sourced(box: Box) -> Iterator[NvmlSource]:
    """A source on the box, closed afterwards, with the box well again so that nothing hangs."""
    reader = NvmlSource(box.path)
    yield reader
    box.set("nvml_hang", 0)
    reader.close()


@contextlib.contextmanager
def starting() -> Iterator[Callable[..., Program]]:
    """Starts programs that have said that they are up; none outlives the test."""
    with programs() as running:

        def start(box: Box, code: str, **env: Any) -> Program:
            running.append(Program(box.path, code, **env))
            assert "up" == running[-1].line()
            return running[-1]

        yield start


def read(reader: NvmlSource, now: float | None = None) -> MachineSample:
    """One reading."""
    return reader.read(time.monotonic() if now is None else now)
