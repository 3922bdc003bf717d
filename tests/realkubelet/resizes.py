# SPDX-License-Identifier: Apache-2.0
"""
Running pods on a real node are resized at random while pods come and go and everything is killed in turn.

Decides what comes next, and watches two sums all the time: what the records book of each card, and what the limits in
force give. At the end every container has what its record says, and the kubelet counts accordingly.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from e2e.apiclient import RefusedError
from e2e.scheduler_pairs import leader, restart_ended, start_ours, start_scheduler
from realkubelet.churn import Churn
from realkubelet.pods import GIB, MEMORY, PODS, container, pod_of
from support.waiting import PATIENCE_SECONDS

from isolation.contract.abi import unpack_limits
from isolation.contract.codec import CodecError, decode_allocation
from isolation.contract.codec.resize import RESERVED, decode_status, encode_wanted
from isolation.contract.names import ALLOCATION, RESIZE, RESIZE_STATUS, SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from e2e.apiclient import ApiClient
    from e2e.sharing import Replica
    from realkubelet.harness import Stage

FAULTS: Final = ("agent-killed", "scheduler", "kubelet", "apiserver", "failover", "agent-told", "containerd")
GAP_SECONDS: Final = 30.0
"""After its restart a kubelet rejects pods that it admits before the device plugin has registered again."""
PODS_AT_ONCE: Final = 6
CARD_BYTES: Final = 14 * GIB
_OUTAGE_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.05
_AWAY: Final = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass
class Resizes:
    """What became of them."""

    asked: int = 0
    in_force: int = 0
    """Pods that had what was wanted last, at the end."""
    overcommitted: list[str] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    """Pods that the kubelet refused for good, by its reason."""
    in_gap: int = 0
    """Those that it refused just after its own restart."""
    differs: list[str] = field(default_factory=list)
    """What did not agree at the end."""
    evicted: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    """Conditions that were seen."""


class ResizeChurn:
    """See the module; `schedulers` are those of `pairs`, with their `folder`."""

    def __init__(
        self, stage: Stage, client: ApiClient, schedulers: Mapping[str, Replica], folder: Path, seed: int
    ) -> None:
        self._stage, self._client, self._schedulers, self._folder = stage, client, schedulers, folder
        self._draw = random.Random(seed)  # noqa: S311 (which pod, how much)
        self._churn = Churn(stage, client, seed)
        self._number = 0
        self._restarted = float("-inf")
        self.found = Resizes()

    async def run(self, count: int, every: int, show: Callable[[int, int], None] = lambda *_: None) -> Resizes:
        """So many resizes; a fault after each `every` of them."""
        over = asyncio.Event()
        watches = [asyncio.create_task(self._watch_limits(over)), asyncio.create_task(self._watch_records(over))]
        try:
            for number in range(count):
                alive = await self._alive()
                while len(alive) < PODS_AT_ONCE:
                    alive[await self._add()] = {}
                    alive = await self._alive()
                if self._draw.random() < 0.1:
                    gone = self._draw.choice(sorted(alive))
                    await self._remove(gone)
                    del alive[gone]
                await self._resize(self._draw.choice(sorted(alive)))
                if number % every == every - 1:
                    await self._break(FAULTS[number // every % len(FAULTS)])
                restart_ended(self._stage.plane, self._folder, self._schedulers)
                show(number + 1, count)
            await self._settle()
        finally:
            over.set()
            await asyncio.gather(*watches)
        return self.found

    async def _alive(self) -> dict[str, dict[str, Any]]:
        """Pods that have not ended, by name; what the kubelet refused is counted and goes."""
        listed = await self._answered(lambda: self._client.get(PODS))
        found = {}
        for pod in listed["items"]:
            name, status = pod["metadata"]["name"], pod["status"]
            if status.get("phase") == "Failed":
                if time.monotonic() - self._restarted < GAP_SECONDS:
                    self.found.in_gap += 1
                else:
                    self.found.rejected[f"{status.get('reason', '?')}: {status.get('message', '')[:200]}"] += 1
                await self._remove(name)
            elif not pod["metadata"].get("deletionTimestamp"):
                found[name] = pod
                text = pod["metadata"].get("annotations", {}).get(RESIZE_STATUS)
                if text:
                    told = decode_status(text)
                    self.found.statuses[f"{told.condition.value} {told.reason.value}".strip()] += 1
        return found

    async def _add(self) -> str:
        self._number += 1
        name, units = f"sized-{self._number}", self._draw.randint(1, 6)
        # every third one starts again and again
        words = ["/bin/sh", "-c", "/bin/client 300 & sleep 8; exit 1"] if self._number % 3 == 0 else ["300"]
        pod = pod_of(name, container("main", units, *words), schedulerName=SCHEDULER, terminationGracePeriodSeconds=0)
        pod["spec"]["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
        await self._answered(lambda: self._client.create(pod))
        return name

    async def _remove(self, name: str) -> None:
        how = self._draw.choice(("delete", "force", "evict"))
        if how == "evict":
            self.found.evicted += 1
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            await self._answered(lambda: self._client.call("POST", f"{PODS}/{name}/eviction", eviction))
        else:
            await self._answered(lambda: self._client.delete(f"{PODS}/{name}", force=how == "force"))

    async def _resize(self, name: str) -> None:
        units = self._draw.choice((1, 1, 2, 3, 4, 6, 8, 10, 12))
        wanted = {"main": {MEMORY: units}}
        if self._draw.random() < 0.25:
            wanted[RESERVED] = {MEMORY: min(12, units + self._draw.randint(0, 4))}
        change = {"metadata": {"annotations": {RESIZE: encode_wanted(wanted)}}}
        await self._answered(lambda: self._client.merge(f"{PODS}/{name}", change))
        self.found.asked += 1
        await asyncio.sleep(self._draw.random() * 0.3)

    async def _break(self, fault: str) -> None:
        self.found.faults[fault] += 1
        if fault == "scheduler":
            ours = self._schedulers[await self._leader()]
            await asyncio.to_thread(ours.end, signal.SIGKILL)
            start_ours(ours)
            await self._leader()
        elif fault == "failover":
            await self._fail_over()
        elif fault == "apiserver":
            self._stage.plane.freeze("kube-apiserver")
            await asyncio.sleep(_OUTAGE_SECONDS)
            self._stage.plane.thaw("kube-apiserver")
        else:
            await self._churn.break_with(fault)
            if fault == "kubelet":
                self._restarted = time.monotonic()

    async def _fail_over(self) -> None:
        """The pair that leads is killed; it comes back when the other one leads."""
        first = await self._leader()
        ours = self._schedulers[first]
        await asyncio.to_thread(ours.end, signal.SIGKILL)
        self._stage.plane.kill(f"kube-{first}")
        await leader(self._schedulers)
        start_ours(ours)
        start_scheduler(self._stage.plane, self._folder, first, ours.sidecar)

    async def _leader(self) -> str:
        restart_ended(self._stage.plane, self._folder, self._schedulers)
        return await leader(self._schedulers)

    async def _answered(self, call: Callable[[], Any]) -> Any:
        """What the API server says, once it answers; of what is gone meanwhile, nothing."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return await call()
                except RefusedError as exc:
                    if exc.status in {404, 409}:
                        return None
                except _AWAY:
                    pass
                await asyncio.sleep(0.2)

    # What must be true at every moment.

    async def _watch_limits(self, over: asyncio.Event) -> None:
        """Of containers that have processes, whether or not their pods still exist."""
        while not over.is_set():
            given = self._limits()
            if max(_sums(given).values(), default=0) > CARD_BYTES:
                living = {name: cards for name, cards in given.items() if self._has_processes(name)}
                found = [f"limits: {amount / GIB} GiB" for amount in _sums(living).values() if amount > CARD_BYTES]
                self.found.overcommitted += found
            await asyncio.sleep(_LOOK_SECONDS)

    def _limits(self) -> dict[str, dict[str, int]]:
        """Bytes by card of every container whose files stand."""
        found = {}
        for name, folder in self._stage.allocations().items():
            with contextlib.suppress(OSError, ValueError, struct.error):
                told = unpack_limits((folder / "limits/limits").read_bytes())
                found[name] = {str(card.uuid): card.memory_bytes for card in told.cards}
        return found

    def _has_processes(self, name: str) -> bool:
        """Whether anything but the sandbox runs in a group of its pod."""
        uid = name.partition(".")[0]
        for folder, _, _ in os.walk("/sys/fs/cgroup/memory"):
            if uid in folder or uid.replace("-", "_") in folder:
                with contextlib.suppress(OSError):
                    for pid in Path(folder, "cgroup.procs").read_text().split():
                        if Path(f"/proc/{pid}/comm").read_text().strip() != "pause":
                            return True
        return False

    async def _watch_records(self, over: asyncio.Event) -> None:
        while not over.is_set():
            with contextlib.suppress(RefusedError, *_AWAY):
                sums: Counter[str] = Counter()
                for pod in (await self._client.get(PODS))["items"]:
                    if pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                        sums += _booked(pod)
                most = [f"records: {amount / GIB} GiB" for amount in sums.values() if amount > CARD_BYTES]
                self.found.overcommitted += most
            await asyncio.sleep(10 * _LOOK_SECONDS)

    # What must be true at the end.

    async def _settle(self) -> None:
        """Until nothing is in progress; then records, limits, and both counts of the kubelet agree."""
        why: list[str] = ["never looked"]
        for _ in range(int(PATIENCE_SECONDS)):
            why = await self._disagreements()
            if not why:
                return
            await asyncio.sleep(1.0)
        self.found.differs = why

    async def _disagreements(self) -> list[str]:
        pods, why, less, units = await self._alive(), [], 0, list[str]()
        self.found.in_force = 0
        for name, pod in pods.items():
            told = pod["metadata"].get("annotations", {})
            record = decode_allocation(told[ALLOCATION]) if ALLOCATION in told else None
            if record is None:
                continue
            if "InProgress" in told.get(RESIZE_STATUS, ""):
                why.append(f"{name}: {told[RESIZE_STATUS]}")
            if record.resize is not None:
                less += (record.requested[0] - record.resize.card_bytes) // GIB
            has = {one.uuid: one.bytes for part in record.parts for one in part.slices}
            limits = self._stage.limits(pod).get("main")
            if limits is not None and limits != has:
                why.append(f"{name}: limits {limits}, record {has}")
            self.found.in_force += RESIZE_STATUS not in told
            units += [one for ids in self._stage.devices(pod).values() for one in ids]
        if len(units) != len(set(units)):
            why.append("a unit is given twice")
        node = await self._client.get(f"/api/v1/nodes/{self._stage.node.name}")
        counted, expected = int(node["status"]["allocatable"][MEMORY]), 2 * CARD_BYTES // GIB + less
        if counted != expected:
            why.append(f"the kubelet counts {counted} units, not {expected}")
        return why


def _sums(given: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for cards in given.values():
        sums.update(cards)
    return sums


def _booked(pod: dict[str, Any]) -> Counter[str]:
    try:
        record = decode_allocation(pod["metadata"].get("annotations", {}).get(ALLOCATION, ""))
    except CodecError:
        return Counter()
    return Counter({one.uuid: one.bytes for one in record.slices})
