# SPDX-License-Identifier: Apache-2.0
"""
The node pools of the embedded cluster: those of the demonstration, and pools with the node shapes of a trace.

Values only. Card sizes are those that `nvidia-smi` shows for the models named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.limits import ScalingLimits
from autoscaler.core.pools import Pool
from autoscaler.demo.embedded.right_sizing import DAY_SECONDS
from autoscaler.demo.embedded.workload import SEARCH_POOL
from isolation.contract.model import Card, CardChoice, Mode, Node, Taint
from isolation.contract.names import ACK, POOL
from isolation.contract.quantity import MIB, gib

if TYPE_CHECKING:
    from collections.abc import Iterable


class ScenarioError(ValueError):
    """A fleet or a workload that cannot exist."""


@dataclass(frozen=True, slots=True)
class PoolSupply:
    """One pool, and how its provider delivers."""

    pool: Pool
    boot_seconds: float = 40.0
    """From the request to a Ready kubelet."""
    max_device_registration_seconds: float = 5.0
    """From there until the cards are registered."""
    return_seconds: float = 10.0
    """From the deletion until the machine is gone."""
    stock: int | None = None
    """Most machines the provider has at one time; None: as many as the pool allows."""

    def __post_init__(self) -> None:
        if min(self.boot_seconds, self.max_device_registration_seconds, self.return_seconds, self.stock or 0) < 0:
            raise ScenarioError(f"pool {self.pool.name}: delays and stock must not be negative")


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """The pools, and the nodes that stand there at the start (`Node.pool` names a pool of the fleet)."""

    supplies: tuple[PoolSupply, ...]
    nodes: tuple[Node, ...] = ()

    def __post_init__(self) -> None:
        pools = [supply.pool.name for supply in self.supplies]
        names = [node.name for node in self.nodes]
        for what, given in (("pool", pools), ("node", names)):
            double = sorted({name for name in given if given.count(name) > 1} if len(set(given)) < len(given) else ())
            if double:
                raise ScenarioError(f"{what} {double[0]} is defined twice; give each {what} its own name")
        for node in self.nodes:
            if node.pool not in pools:
                raise ScenarioError(f"node {node.name}: pool {node.pool!r} does not exist")


DEMO_TEMPO: Final = 0.1
"""The demonstration waits a tenth of what a real fleet waits."""
DEMO_MOVES_PER_HOUR: Final = 600
PRICED_CPU_MILLI: Final = 96_000
"""CPU that is priced like one card where no price is known: a rough parity of public list prices."""
HOSTNAME: Final = "kubernetes.io/hostname"


def demo_fleet() -> SimulatedFleet:
    """A pool of each kind, and one that cannot grow; small enough for one screen. The first nodes stand already."""
    shared = _pool(
        "shared", Mode.CGPU, CardChoice.BINPACK, _cards(2, "Tesla-T4", 15360, 450), 16, min_nodes=1, max_nodes=6
    )
    compute = _pool("compute", Mode.CORE_MEM, CardChoice.SPREAD, _cards(2, "NVIDIA-A10", 23028, 500), 32, price=2.4)
    train = _pool(
        "whole", Mode.EXCLUSIVE, CardChoice.POLICY, _cards(2, "NVIDIA-A100-SXM4-80GB", 81920, 600), 64, price=8.0
    )
    cards = _cards(2, "Tesla-T4", 15360, 450)
    search = _pool(SEARCH_POOL, Mode.CGPU, CardChoice.BINPACK, cards, 16, min_nodes=1, max_nodes=1, taint=SEARCH_POOL)
    return SimulatedFleet(
        (
            PoolSupply(search),
            PoolSupply(shared, boot_seconds=40, max_device_registration_seconds=5),
            PoolSupply(compute, boot_seconds=45, max_device_registration_seconds=5),
            PoolSupply(train, boot_seconds=60, max_device_registration_seconds=8),
        ),
        (shared.node("shared-1"), search.node("search-1")),
    )


def demo_limits() -> ScalingLimits:
    """The autoscaler's limits in the demonstration's tempo; its pods have no siblings, and may move all the same."""
    tempo = replace(ScalingLimits().scaled(DEMO_TEMPO), right_size_trial_seconds=DAY_SECONDS, max_resizes_per_hour=10)
    return replace(tempo, min_moves_per_hour=DEMO_MOVES_PER_HOUR, min_replicas=1)


def _cards(count: int, model: str, mib: int, reserved_mib: int) -> tuple[Card, ...]:
    return tuple(Card(f"{model}/{index}", index, mib * MIB, reserved_mib * MIB, model=model) for index in range(count))


def _pool(
    name: str,
    mode: Mode,
    choice: CardChoice,
    cards: tuple[Card, ...],
    cores: int,
    *,
    min_nodes: int = 0,
    max_nodes: int = 4,
    price: float = 1.0,
    taint: str = "",
) -> Pool:
    # whole cards are scarce: pods that need none stay off them, as with the vendor's usual taint
    taints = (Taint(ACK.whole),) if mode is Mode.EXCLUSIVE else (Taint(taint),) if taint else ()
    labels = {POOL: name, ACK.mode_label: mode.value, ACK.model_labels[0]: cards[0].model}
    template = Node(name, cards, mode, choice, cores * 1000, gib(8 * cores), labels=labels, taints=taints)
    return Pool(name, template, min_nodes, max_nodes, price)


def build_fleet(nodes: Iterable[Node], *, boot_seconds: float = 120.0) -> SimulatedFleet:
    """
    The same kinds of node as a fleet: one pool per kind, of none to as many as there are.

    Nothing stands at the start: what runs is what the pods have asked for.
    """
    kinds: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        kinds.setdefault(_node_shape(node), []).append(node)
    supplies: list[PoolSupply] = []
    names: set[str] = set()
    for alike in kinds.values():
        name = _choose_pool_name(alike[0], names)
        names.add(name)
        labels = {key: value for key, value in alike[0].labels.items() if key != HOSTNAME}
        price = max(0.01, len(alike[0].cards) + alike[0].cpu_milli / PRICED_CPU_MILLI)
        pool = Pool(name, replace(alike[0], labels=labels, pool=name), 0, len(alike), price)
        supplies.append(PoolSupply(pool, boot_seconds=boot_seconds))
    return SimulatedFleet(tuple(supplies))


def _node_shape(node: Node) -> tuple[object, ...]:
    cards = tuple((c.model, c.total_bytes, c.reserved_bytes, c.unit_bytes) for c in node.cards)
    labels = tuple(sorted((key, value) for key, value in node.labels.items() if key != HOSTNAME))
    return (node.mode, node.choice, cards, node.cpu_milli, node.memory_bytes, node.pods, node.taints, labels)


def _choose_pool_name(node: Node, taken: set[str]) -> str:
    """Card model and count; CPU and then a number are added where two node shapes share them."""
    base = f"{node.cards[0].model or 'card'}x{len(node.cards)}".lower() if node.cards else "cpu"
    longer = f"{base}-{node.cpu_milli // 1000}c"
    numbered = (f"{longer}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (base, longer, *numbered) if name not in taken)
