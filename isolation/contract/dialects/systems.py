# SPDX-License-Identifier: Apache-2.0
"""Every system whose pods are understood, by the name of its dialect."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract.dialects import hami

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.dialects.system import System

SYSTEMS: Final[Mapping[str, System]] = MappingProxyType({one.SYSTEM.name: one.SYSTEM for one in (hami,)})
SCHEDULERS: Final = frozenset(name for system in SYSTEMS.values() for name in system.schedulers)
"""Schedulers of these systems: none of them places a translated pod."""
