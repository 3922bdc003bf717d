# SPDX-License-Identifier: Apache-2.0
"""Every system whose pods are understood, by the name of its dialect."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract.dialects import gpu_manager, hami, kai, koordinator, qgpu, time_slices, vgpu_manager, volcano

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.dialects.system import System

_MODULES: Final = (hami, volcano, gpu_manager, qgpu, kai, koordinator, vgpu_manager, time_slices)
SYSTEMS: Final[Mapping[str, System]] = MappingProxyType({one.SYSTEM.name: one.SYSTEM for one in _MODULES})
SCHEDULERS: Final = frozenset(name for system in SYSTEMS.values() for name in system.schedulers)
"""Schedulers of these systems: none of them places a translated pod."""
