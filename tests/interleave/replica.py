# SPDX-License-Identifier: Apache-2.0
"""
One replica of the scheduler as it runs in the simulator: the real informers, cache, binder, leadership, verbs.

Nothing here decides; it is the wiring of `gpushare scheduler` without sockets. Verbs go in and out as the
bytes of the extender protocol. `Parts` are the classes that it is made of, so that a broken one can be put
in the place of a sound one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from interleave.calls import AwayError, call
from interleave.loop import Process
from interleave.server import EPOCH
from interleave.wire import Wire

from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.kube.store import Store
from isolation.kube.writes import LeaseClient, Writer
from isolation.scheduler.binder import Binder
from isolation.scheduler.core.cache import SchedulerCache
from isolation.scheduler.core.unschedulable import UnschedulableQueue
from isolation.scheduler.extender import Extender
from isolation.scheduler.extender import SchedulerContext as VerbWorld
from isolation.scheduler.informers import Informers
from isolation.scheduler.leader import Leadership
from isolation.scheduler.leader_tasks import LeaderTasks
from isolation.scheduler.live_read import LiveRead
from isolation.scheduler.resizer import Resizer
from isolation.scheduler.writes import ObjectWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from interleave.wire import Net

    from isolation.kube.store import ClusterChange

BESIDE: Final = ("kube-system", "kube-scheduler")


class Unmeasured:
    """Metrics that nobody reads."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_a, **_k: None


@dataclass(frozen=True, slots=True)
class Parts:
    """What a replica is made of."""

    cache: Callable[[], SchedulerCache] = SchedulerCache
    binder: Callable[..., Binder] = Binder
    leadership: Callable[..., Leadership] = Leadership
    extender: Callable[[VerbWorld], Extender] = Extender


class Replica:
    """One replica through all its lives."""

    def __init__(self, net: Net, name: str, parts: Parts | None = None) -> None:
        self._net, self.name, self._parts = net, name, parts or Parts()
        self.process = Process(f"scheduler {name}")
        self.process.alive = False
        self.cache: SchedulerCache | None = None
        self._extender: Extender | None = None

    def start(self) -> None:
        """A new life: everything is read anew."""
        self.process = Process(f"scheduler {self.name}")
        self.cache = self._extender = None
        self._net.loop.spawn(self.process, self._live(), self.process.name)

    def stop(self) -> None:
        """It dies."""
        self.process.die()

    def now(self) -> float:
        """Seconds since the epoch, as the run counts them."""
        return EPOCH + self._net.loop.time()

    async def _live(self) -> None:
        net, loop = self._net, self._net.loop
        wire: Any = Wire(net, self.process.name)
        me = f"{self.name}-{net.draw.getrandbits(32):08x}"
        cache = self.cache = self._parts.cache()
        store = Store()
        informers = Informers(wire, cache, store)
        ours = LeaseClient(wire, SYSTEM_NAMESPACE, SCHEDULER)
        leadership = self._parts.leadership(ours, me, beside=LeaseClient(wire, *BESIDE), host=self.name)
        writer = Writer(wire, me)
        binder = self._parts.binder(cache, writer, leadership.fence, clock=loop.time, wall=self.now)
        leadership.release_when(binder.settled)
        world = VerbWorld(informers, leadership, binder, LiveRead(wire, informers), UnschedulableQueue(), GIB, self.now)
        metrics: Any = Unmeasured()
        tasks = LeaderTasks(world, ObjectWriter(wire), writer, metrics, Resizer(world, wire, writer, loop.time))
        self._extender = self._parts.extender(world)
        store.listen(lambda change: _forget(change, world.unschedulable))
        for work in (informers.run(), leadership.run(), tasks.run()):
            loop.spawn(self.process, work, f"part of {self.process.name}")

    async def call(self, verb: str, body: bytes) -> bytes:
        """A verb over the loopback; RuntimeError where nobody answers."""
        extender = self._extender
        if extender is None:
            raise AwayError("connection refused")

        async def answered() -> bytes:
            answer: bytes = (await getattr(extender, verb)(body)).body
            return answer

        said: bytes = await call(self._net, self.process, answered, verb)
        return said


def _forget(change: ClusterChange, waiting: UnschedulableQueue) -> None:
    if change.pod is None and change.pod_before is not None:
        waiting.remove(change.pod_before.uid)
