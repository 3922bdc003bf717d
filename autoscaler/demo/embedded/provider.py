# SPDX-License-Identifier: Apache-2.0
"""
The simulated cloud provider: delivers the machines that the autoscaler orders, after a boot delay, while in stock.

Machines change state only as `autoscaler.core.lifecycle` allows. What to buy and what to give back is the autoscaler's
decision.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from autoscaler.core.lifecycle import COMING, MachineState, PoolMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.demo.embedded.accounting import Accounting
    from autoscaler.demo.embedded.clock import SimulatedClock
    from autoscaler.demo.embedded.cluster_state import FakeClusterState
    from autoscaler.demo.embedded.node_pools import SimulatedFleet

RESPONSE_RATIO: Final = 0.1
"""Share of the boot delay after which the provider has found a machine, or says that it has none."""


class FakeProvider:
    """Every machine of the fleet, from its order to its return."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        clock: SimulatedClock,
        state: FakeClusterState,
        accounting: Accounting,
        ready: Callable[[], None],
    ) -> None:
        self._clock, self._state, self._accounting, self._ready = clock, state, accounting, ready
        self._supplies = {supply.pool.name: supply for supply in fleet.supplies}
        self._named = dict.fromkeys(self._supplies, 0)
        self.pools = {name: supply.pool for name, supply in self._supplies.items()}
        self.machines: dict[str, PoolMachine] = {}
        for node in fleet.nodes:
            self.machines[node.name] = PoolMachine(node.name, node.pool, MachineState.READY)
            state.add_node(node)

    def buy(self, pool: str, reason: str) -> str:
        """Order one machine; returns its name."""
        supply = self._supplies[pool]
        name = self._name(pool)
        have = sum(1 for m in self.machines.values() if m.pool == pool and m.state is not MachineState.FAILED)
        self.machines[name] = PoolMachine(name, pool, MachineState.REQUESTED, self._clock.now)
        self._state.changed.add(name)
        self._accounting.record("scale_up", name, reason, "nodes_added")
        answer = supply.boot_seconds * RESPONSE_RATIO
        if supply.stock is not None and have >= supply.stock:
            self._clock.after(answer, partial(self._none_left, name))
            return name
        # put down now, checked then: a machine given up meanwhile is left where it is
        self._clock.after(answer, partial(self._pass, name, MachineState.REQUESTED, MachineState.BOOTING))
        self._clock.after(supply.boot_seconds, partial(self._pass, name, MachineState.BOOTING, MachineState.NO_DEVICES))
        self._clock.after(supply.boot_seconds + supply.max_device_registration_seconds, partial(self._usable, name))
        return name

    def drain(self, name: str) -> None:
        """No new pods from now on."""
        self._move(name, MachineState.DRAINING)
        self._state.cordon(name, cordoned=True)

    def keep(self, name: str) -> None:
        """Pods are welcome again."""
        self._move(name, MachineState.READY)
        self._state.cordon(name, cordoned=False)
        self._ready()

    def delete(self, name: str) -> None:
        """Give a drained, empty node back."""
        self._move(name, MachineState.DELETING)
        self._state.remove_node(name)
        self._clock.after(self._supplies[self.machines[name].pool].return_seconds, partial(self._gone, name))

    def discard(self, name: str, reason: str) -> None:
        """Give up on a machine that is no node yet."""
        if self.machines[name].state in COMING:
            self._move(name, MachineState.FAILED)
        self._move(name, MachineState.DELETING)
        self._accounting.record("provisioning_failed", name, reason, "nodes_failed")
        self._clock.after(self._supplies[self.machines[name].pool].return_seconds, partial(self._gone, name))

    def _name(self, pool: str) -> str:
        while True:
            self._named[pool] += 1
            name = f"{pool}-{self._named[pool]}"
            if name not in self.machines:
                return name

    def _move(self, name: str, state: MachineState) -> None:
        self.machines[name] = self.machines[name].to(state, self._clock.now)
        self._state.changed.add(name)

    def _step(self, name: str, before: MachineState, after: MachineState) -> bool:
        """One step of a boot; False if the machine was given up meanwhile."""
        machine = self.machines.get(name)
        if machine is None or machine.state is not before:
            return False
        self._move(name, after)
        return True

    def _pass(self, name: str, before: MachineState, after: MachineState) -> None:
        self._step(name, before, after)

    def _usable(self, name: str) -> None:
        """The cards are registered: pods may come."""
        if self._step(name, MachineState.NO_DEVICES, MachineState.READY):
            pool = self.pools[self.machines[name].pool]
            self._state.add_node(pool.node(name))
            cards = len(pool.template.cards)
            what = "1 card registered" if cards == 1 else f"{cards} cards registered" if cards else "registered"
            self._accounting.record("ready", name, what, "nodes_ready")
            self._ready()

    def _none_left(self, name: str) -> None:
        if self._step(name, MachineState.REQUESTED, MachineState.FAILED):
            stock = self._supplies[self.machines[name].pool].stock
            self._accounting.record(
                "out_of_stock", name, f"out of stock: the provider has only {stock} machines for this pool"
            )

    def _gone(self, name: str) -> None:
        self._move(name, MachineState.GONE)
        del self.machines[name]
        self._accounting.count("nodes_removed")
