# SPDX-License-Identifier: Apache-2.0
"""
Many pods of one size come and go on a real node while everything on it is killed in turn.

Decides what comes next, and judges each pod by what its own program said: which card it saw, how much of it, and
whether it was given more. A pod that the kubelet rejects for good because it was admitted while no plugin was there is
counted by its reason; another one takes its place. `starts` is the same for pods that run once and are never restarted:
whatever fails there has failed for good, and is counted by its cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from realkubelet.pods import GIB, PODS, container, facts, pod_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from e2e.apiclient import ApiClient
    from realkubelet.harness import Stage

    Show = Callable[[int, int], None]

UNITS: Final = 2
AT_ONCE: Final = 10
"""Fewer than fit on two cards: a pod that is forcibly deleted keeps its part until its processes are gone."""
FAULTS: Final = ("agent-killed", "agent-told", "kubelet", "containerd", "agent-killed", "none", "reboot")
PATIENCE_SECONDS: Final = 240.0


@dataclass
class Tally:
    """What became of the pods."""

    ran: int = 0
    wrong_card: list[str] = field(default_factory=list)
    without_limits: list[str] = field(default_factory=list)
    wedged: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    """Pods that went though the test did not ask."""
    rejected: Counter[str] = field(default_factory=Counter)
    """For good, by the kubelet's reason."""
    faults: Counter[str] = field(default_factory=Counter)


class Churn:
    """See the module."""

    def __init__(self, stage: Stage, client: ApiClient, seed: int) -> None:
        self._stage, self._client = stage, client
        self._draw = random.Random(seed)  # noqa: S311 (which pod, which fault)
        self._alive: dict[str, tuple[int, dict[str, Any]]] = {}
        """Card and pod by name."""
        self.tally = Tally()
        self.breaking = asyncio.Lock()
        """One fault at a time."""

    async def run(self, count: int, every: int) -> Tally:
        """So many pods; a fault after each `every` of them."""
        for number in range(count):
            await self._add(number)
            if number % every == every - 1:
                fault = FAULTS[number // every % len(FAULTS)]
                self.tally.faults[fault] += 1
                await self.break_with(fault)
            while len(self._alive) >= AT_ONCE:
                await self._take(self._draw.choice(sorted(self._alive)))
        for name in sorted(self._alive):
            await self._take(name)
        return self.tally

    async def _add(self, number: int) -> None:
        name, card = f"churn-{number}", number % 2
        box = container("main", UNITS, "1024", "2048")
        made = await self._client.create(pod_of(name, box, terminationGracePeriodSeconds=self._draw.choice([0, 1])))
        await self.until_ready()
        await self._stage.bind_to(self._client, made, card)
        self._alive[name] = card, made

    async def _take(self, name: str) -> None:
        """Judge it, once it runs, and delete it."""
        card, made = self._alive.pop(name)
        pod = await self._settled(name, made)
        if pod is None:
            return
        told = facts(await asyncio.to_thread(self._stage.said, pod))
        uuid = self._stage.cards[card].removeprefix("GPU-").replace("-", "")
        self.tally.ran += 1
        if set(told.get("card", ())) != {uuid}:
            self.tally.wrong_card.append(name)
        takes = told.get("take", [])
        if set(told.get("total", ())) != {str(UNITS * GIB)} or "2" not in takes[1:2]:
            self.tally.without_limits.append(name)
        await self._client.delete(f"{PODS}/{name}", force=self._draw.random() < 1 / 3)

    async def _settled(self, name: str, made: dict[str, Any]) -> dict[str, Any] | None:
        """The pod as it runs; None: it never will."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            listed = await self._client.get(PODS)
            pod = next((one for one in listed["items"] if one["metadata"]["name"] == name), None)
            if pod is None or pod["metadata"]["uid"] != made["metadata"]["uid"]:
                self.tally.deleted.append(name)
                return None
            if pod["status"].get("phase") == "Failed":
                self.tally.rejected[pod["status"].get("reason", "?")] += 1
                await self._client.delete(f"{PODS}/{name}", force=True)
                return None
            statuses = pod["status"].get("containerStatuses", ())
            if statuses and all(one["ready"] for one in statuses):
                return pod
            await asyncio.sleep(0.3)
        self.tally.wedged.append(name)
        await self._client.delete(f"{PODS}/{name}", force=True)
        return None

    async def until_ready(self) -> None:
        """What a scheduler waits for before it binds."""
        while True:
            node = await self._client.get(f"/api/v1/nodes/{self._stage.node.name}")
            if node["metadata"].get("annotations", {}).get("gpushare.dev/agent") == "ready":
                return
            await asyncio.sleep(0.2)

    async def ended(self, name: str) -> dict[str, Any]:
        """The pod when it has ended, or as it is after a long time."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            pod: dict[str, Any] = await self._client.get(f"{PODS}/{name}")
            if pod["status"].get("phase") in {"Succeeded", "Failed"} or time.monotonic() > end:
                return pod
            await asyncio.sleep(0.5)

    async def break_with(self, fault: str) -> None:
        """At a moment of its own within the way of the pods that were bound just now."""
        await asyncio.sleep(self._draw.random())
        stage = self._stage
        if fault == "rolling-update":
            await asyncio.to_thread(stage.replace_pod)
        elif fault.startswith("agent"):
            how = signal.SIGKILL if fault == "agent-killed" else signal.SIGTERM
            await asyncio.to_thread(stage.stop_agent, how)
            await asyncio.to_thread(stage.start_agent)
        elif fault == "kubelet":
            await asyncio.to_thread(stage.node.kill, "kubelet")
            await asyncio.to_thread(stage.node.start_kubelet)
        elif fault == "containerd":
            await asyncio.to_thread(stage.node.kill, "containerd")
            await asyncio.to_thread(stage.node.start_runtime)
        elif fault == "reboot":
            await asyncio.to_thread(stage.node.reboot)
            await asyncio.to_thread(stage.start_agent)
        await stage.ready(self._client)


@dataclass
class Starts:
    """What became of pods that are never restarted."""

    succeeded: int = 0
    wrong: list[str] = field(default_factory=list)
    """Ran with another card, or without limits; with what it said."""
    cut_short: int = 0
    """Ended before their program had said everything; nothing of what it said was wrong."""
    failed: Counter[str] = field(default_factory=Counter)
    """By cause."""
    faults: Counter[str] = field(default_factory=Counter)

    def heard(self, name: str, told: Mapping[str, list[str]], card: str) -> None:
        """Judge what a program with 1 GiB of a card said."""
        expected = {"card": [card], "total": [str(GIB)], "take": ["0", "2"]}
        said = {word: told.get(word, []) for word in expected}
        self.succeeded += said == expected
        if any(said[word] != expected[word][: len(said[word])] for word in expected):
            self.wrong.append(f"{name}: {told}")
        elif said != expected:
            self.cut_short += 1


async def starts(
    stage: Stage,
    client: ApiClient,
    count: int,
    faults: Mapping[str, float],
    show: Show,
    *,
    seconds: float = math.inf,
    at_once: int = AT_ONCE,
    shares: bool = True,
) -> Starts:
    """
    So many pods that run once, `at_once` at a time; after so many seconds no more of them.

    `faults`: seconds between two of a kind (as `FAULTS`, or `rolling-update`); `show` is told of the progress. Without
    `shares` the same pods ask for no card: what fails then, fails without gpushare too.
    """
    churn, found, end = Churn(stage, client, 1), Starts(), time.monotonic() + seconds
    over = asyncio.Event()
    numbers = iter(range(count))

    async def one_after_another() -> None:
        for number in numbers:
            if time.monotonic() > end:
                return
            name, card = f"once-{number}", number % 2
            box = container("main", int(shares), "/bin/sh", "-c", "/bin/client 512 1024 & sleep 0.5")
            made = await client.create(pod_of(name, box, restartPolicy="Never", terminationGracePeriodSeconds=0))
            await churn.until_ready()
            await (stage.bind_to(client, made, card) if shares else stage.bind(client, made))
            pod = await churn.ended(name)
            if pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                found.failed[f"stuck: {_cause(pod)}"] += 1
            elif pod["status"]["phase"] == "Failed":
                found.failed[_cause(pod)] += 1
            elif not shares:
                found.succeeded += 1
            else:
                told = facts(await asyncio.to_thread(stage.said, pod))
                found.heard(name, told, stage.cards[card].removeprefix("GPU-").replace("-", ""))
            await client.delete(f"{PODS}/{name}", force=True)
            show(found.succeeded + found.cut_short + found.failed.total() + len(found.wrong), count)

    async def every(kind: str, seconds: float) -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), seconds)
                return
            async with churn.breaking:
                found.faults[kind] += 1
                await churn.break_with(kind)

    troubles = [asyncio.create_task(every(kind, seconds)) for kind, seconds in faults.items()]
    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    over.set()
    await asyncio.gather(*troubles)
    return found


def _cause(pod: dict[str, Any]) -> str:
    """Why a pod failed, or waits, in a few words."""
    states = [state for one in pod["status"].get("containerStatuses", ()) for state in one["state"].values()]
    text = next((one["message"] for one in states if one.get("message")), pod["status"].get("message", ""))
    reason = next((one["reason"] for one in states if one.get("reason")), pod["status"].get("reason", "?"))
    return f"{reason}: {text.rpartition('gpushare: ')[2][:200]}"
