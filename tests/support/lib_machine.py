# SPDX-License-Identifier: Apache-2.0
"""Boxes of simulated cards, of any model and driver, on which programs run under the library."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.simcontainers import SimBox

from isolation.simgpu import hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def machines(name: str, plain_library: Path) -> Iterator[Callable[..., SimBox]]:
    """Make boxes: `make("t4", "v100-16g", cuda_version=12000)`; none outlives the test of this name."""
    if not (hardware.LIBRARIES / "libcuda.so.1").is_file():
        pytest.skip("the simulated driver is not built")
    made: list[SimBox] = []

    def make(*models: str, library: Path = plain_library, **settings: int) -> SimBox:
        folder = Path("/dev/shm") / f"gpushare-test-{os.getpid()}-{name}-{len(made)}"  # noqa: S108 (removed below)
        folder.mkdir()
        made.append(SimBox(folder, library, models or ("v100-16g",), settings))
        return made[-1]

    yield make
    for one in made:
        one.close()
