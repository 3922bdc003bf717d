# SPDX-License-Identifier: Apache-2.0
"""
Builders of readings and frames for tests: what a test does not name is plausible and harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isolation.contract.quantity import GIB
from isolation.contract.reading import (
    CardReading,
    ContainerReading,
    FleetEvent,
    Frame,
    Hardware,
    NodeReading,
    PendingReading,
    PoolReading,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def use(
    pod: str,
    *,
    index: int = 0,
    node: str = "n-0",
    gib: float = 4.0,
    used: float | None = 2.0,
    core: float | None = None,
    **more: Any,
) -> ContainerReading:
    """One container on one card of a node; amounts in GiB."""
    fields: dict[str, Any] = {
        "namespace": "team",
        "pod": pod,
        "container": "main",
        "promise": f"uid-{pod}",
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "exclusive": False,
        "allocated_bytes": int(gib * GIB),
        "used_bytes": None if used is None else int(used * GIB),
        "allocated_core_ratio": core,
        "used_core_ratio": None if used is None else 0.25,
        "source": "simulation",
    }
    return ContainerReading(**(fields | more))


def card(
    index: int = 0,
    *,
    node: str = "n-0",
    total: float = 16.0,
    reserved: float = 0.5,
    unattributed: float = 0.0,
    uses: Iterable[ContainerReading] = (),
    **more: Any,
) -> CardReading:
    """One card whose figures agree with the containers on it."""
    mine = [u for u in uses if u.index == index]
    known = all(u.used_bytes is not None for u in mine)
    sums = sum(u.used_bytes or 0 for u in mine)
    fields: dict[str, Any] = {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "model": "T4",
        "total_bytes": int(total * GIB),
        "reserved_bytes": int(reserved * GIB),
        "used_bytes": sums + int((reserved + unattributed) * GIB) if known else None,
        "allocated_bytes": sum(u.allocated_bytes for u in mine),
        "allocatable_bytes": int(total - reserved) * GIB,
        "unattributed_bytes": int(unattributed * GIB),
        "utilisation_ratio": 0.5,
        "power_watts": 70.0,
        "temperature_celsius": 55.0,
        "healthy": True,
    }
    return CardReading(**(fields | more))


def node(
    name: str = "n-0", *, cards: int | Iterable[CardReading] = 2, uses: Sequence[ContainerReading] = (), **more: Any
) -> NodeReading:
    """One node with its containers; `cards` is their number, or ready-made readings."""
    made = tuple(card(i, node=name, uses=uses) for i in range(cards)) if isinstance(cards, int) else tuple(cards)
    fields: dict[str, Any] = {"pool": "shared", "mode": "cgpu", "isolation": "library", "state": "ready"}
    return NodeReading(node=name, cards=made, containers=tuple(uses), **(fields | more))


def frame(
    nodes: Sequence[NodeReading] = (),
    *,
    at: float = 750.0,
    pools: Iterable[PoolReading] | None = None,
    waiting: Iterable[PendingReading] = (),
    events: Iterable[FleetEvent] = (),
    counts: Iterable[tuple[str, int]] = (),
    fragmented: int | None = None,
) -> Frame:
    """One frame; pools follow from the nodes unless they are given."""
    if pools is None:
        names = sorted({n.pool for n in nodes})
        pools = [PoolReading(p, sum(n.pool == p for n in nodes), 0, 0, 10) for p in names]
    return Frame(at, tuple(nodes), tuple(pools), tuple(waiting), tuple(events), tuple(counts), fragmented)


def told_in_full() -> tuple[dict[str, Any], dict[str, Any]]:
    """What only a node's own exporter tells, of a card and of a container on it."""
    of_card = {
        "memory_utilisation_ratio": 0.25,
        "power_limit_watts": 70.0,
        "energy_joules": 5000.0,
        "sm_clock_hertz": 1.59e9,
        "memory_clock_hertz": 5.001e9,
        "busy_seconds": 90.5,
        "throttled_seconds": (("power_cap", 12.5), ("thermal", 0.0)),
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "xids": ((31, 2),),
        "pcie_replays": 1,
        "nvlink_errors": 0,
        "largest_free_bytes": 5 * GIB,
        "exclusive": False,
        "holders": 2,
        "attributable": True,
        "breaches": (("over_limit", 1), ("unallocated", 0)),
        "unhealthy": "",
        "processes": 3,
        "hardware": Hardware(recovery_action=0, remap_pending=False, encoder_ratio=0.125, pcie_errors=(("fatal", 1),)),
    }
    of_use = {
        "core_source": "simulation",
        "allocation_source": "agent",
        "policy": "fixed",
        "peak_bytes": 4 * GIB,
        "peak_source": "accounting",
        "energy_joules": 120.5,
        "compute_seconds": 30.25,
        "over_limit_episodes": 2,
        "denied": 7,
        "overrun_seconds": 2.5,
    }
    return of_card, of_use


def small_fleet() -> Frame:
    """A fleet with a bit of everything: over promise, unknown use, exclusive, waiting, booting, draining."""
    of_card, of_use = told_in_full()
    uses = [
        use("bert-0", node="shared-1", gib=5, used=3.5, core=0.3, limit_core_ratio=0.6, **of_use),
        use("bert-1", node="shared-1", gib=5, used=6.25, core=0.3),
        use("resnet", node="shared-1", index=1, gib=8, used=None),
    ]
    cards = [card(i, node="shared-1", uses=uses, unattributed=0.25, **(of_card if i == 0 else {})) for i in range(2)]
    counts = (("denied", 1), ("over_limit", 2))
    busy = node("shared-1", cards=cards, uses=uses, driver="580.65", host_pids=True, mps=False, breach_counts=counts)
    whole = [use("train", node="whole-1", index=i, gib=15, used=12, core=1.0, exclusive=True) for i in range(4)]
    return frame(
        [
            busy,
            node("shared-2", uses=[use("tiny", node="shared-2", gib=1, used=0.5)], state="draining"),
            node("shared-3", cards=0, state="booting"),
            node("whole-1", cards=4, uses=whole, pool="whole", mode="default"),
        ],
        pools=[PoolReading("shared", 3, 1, 1, 8), PoolReading("whole", 1, 0, 0, 4), PoolReading("spare", 0, 0, 0, 2)],
        waiting=[
            PendingReading("team/big", 42.0, "card_too_small", "20 GiB per card, but no card offers more than 15 GiB"),
            PendingReading("team/next", 5.0, "fragmented", "4 GiB per card on 2 cards: no node has them free together"),
        ],
        events=[
            FleetEvent(690.0, "place", "team/tiny", "on shared-2, card 0"),
            FleetEvent(700.0, "scale_up", "shared-3", "team/next needs 2 cards with 4 GiB each"),
            FleetEvent(740.0, "drain", "shared-2", "its 1 pod fits on shared-1"),
        ],
        counts=[("pods_placed", 7), ("nodes_added", 3)],
        fragmented=1,
    )
