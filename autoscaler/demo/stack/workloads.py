# SPDX-License-Identifier: Apache-2.0
"""
The tenants of the demonstration: what each is promised, and how it behaves on the simulated cards.

Pure. What becomes of them is measured, never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODEL: Final = "v100-16g"
CARDS: Final = 2


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """One tenant: its promise, and what it does with the card."""

    name: str
    description: str
    promised_gib: int
    core_percent: int | None
    """Promised compute; None: no limit."""
    hold_mib: int
    grow_mib: int = 0
    """Taken on top every two seconds, up to `most_mib`."""
    most_mib: int = 0
    busy_ms: int = 0
    every_ms: int = 500
    enforced: bool = True

    @property
    def promised_bytes(self) -> int:
        """The promise in bytes."""
        return self.promised_gib * GIB

    @property
    def promised_core_ratio(self) -> float | None:
        """The promised part of a card's compute."""
        return None if self.core_percent is None else self.core_percent / 100

    def command(self, gpushare: Sequence[str], python: str, client: Path, box: Path) -> tuple[str, ...]:
        """How it is started."""
        core = () if self.core_percent is None else ("--gpu-core", str(self.core_percent))
        policy = () if self.enforced else ("--policy", "none")
        share = ("--simgpu", str(box), "--gpu-mem", str(self.promised_gib), *core, *policy, "--name", self.name)
        amounts = (self.hold_mib, self.grow_mib, self.most_mib, self.busy_ms, self.every_ms)
        return (*gpushare, "run", *share, "--", python, "-I", "-S", str(client), *map(str, amounts))


TENANTS: Final = (
    DemoTenant("serve", "stays within its promise", 4, 30, hold_mib=3000, busy_ms=20, every_ms=100),
    DemoTenant(
        "greedy", "requests more, is refused", 4, 20, 3000, grow_mib=1024, most_mib=1 << 20, busy_ms=40, every_ms=50
    ),
    DemoTenant(
        "stray", "no library: exceeds promise", 4, None, 3000, 1024, most_mib=6000, every_ms=1000, enforced=False
    ),
    DemoTenant("train", "uses all its compute", 6, 50, hold_mib=5000, busy_ms=40, every_ms=40),
    DemoTenant("notebook", "mostly idle", 3, None, hold_mib=500, busy_ms=5, every_ms=1000),
)
"""In the order of their start. Runs with a compute limit and runs without never share a card: two cards are needed."""
