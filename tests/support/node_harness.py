# SPDX-License-Identifier: Apache-2.0
"""
A node for tests of the whole exporter: simulated cards, a stand-in kubelet, trees of /proc and control groups.

    with exporter_node("t4", "t4") as world:
        pod = world.pod("train-0", {"main": {0: 5}})        # its hold: 5 GiB of card 0
        world.process(pod, "main", gib=3)                    # a real process on the simulated card
        told = world.run_once()

Processes are real on the simulated cards; which container they are in is what the tree of /proc says.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import NAMESPACE_OID, UUID, uuid5

from prometheus_client.parser import text_string_to_metric_families
from support.cgroup_tree import CgroupTree
from support.fake_kubelet import FakeKubelet
from support.simbox import HOLD, Program, boxes, programs
from support.waiting import PATIENCE_SECONDS, until

from exporter.app import NodeExporter
from exporter.http.pages import FreshPages
from exporter.http.router import MetricsRouter
from exporter.http.server import MetricsServer
from exporter.settings import ExporterSettings
from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocation, Process, Tenant, dump
from isolation.contract.model import Slice
from isolation.host.core.compute_rates import card_limit
from isolation.lib import files
from isolation.simgpu.report import card_uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from exporter.evaluate import CycleResult
    from exporter.front import Front
    from isolation.simgpu.hardware import Box

GIB = 1 << 30
MIB = 1 << 20
BOOT = "boot-of-the-tree"


@dataclass
class Pod:
    """A pod with a hold for each of its containers that have some of a card."""

    name: str
    uid: str
    namespace: str = "ml"
    folders: list[Path] = field(default_factory=list)
    containers: dict[str, str] = field(default_factory=dict)
    """Container IDs by name."""


class World:
    """See the module."""

    def __init__(self, box: Box, folder: Path, kubelet: FakeKubelet, running: list[Program], **chosen: Any):
        self.box, self.folder, self.kubelet, self.running = box, folder, kubelet, running
        self.tree = CgroupTree(folder / "tree")
        self.run_dir = folder / "run"
        (self.run_dir / "alloc").mkdir(parents=True)
        self.uuids = [card_uuid(card) for card in box.cards()]
        settings: dict[str, Any] = {
            "node": "n",
            "period": 100.0,  # turns are made by hand; sources may take their parts of it on a busy machine
            "proc": self.tree.proc,
            "cgroup": self.tree.cgroup,
            "agent_state_dir": self.run_dir,
            "kubelet_socket": kubelet.socket,
            "pods_socket": kubelet.pods_socket,
            "log_dir": self.tree.links,
            "simgpu": box.path,
        }
        self.chosen = ExporterSettings(**(settings | chosen))
        self.front = InProcess()
        self.node = NodeExporter(self.chosen, cast("Front", self.front))
        self.front.fresh = FreshPages(self.node.pages, self.chosen.stale_seconds, time.monotonic)
        self.serial = 0

    def again(self) -> None:
        """The exporter is restarted."""
        self.node.__exit__(None, None, None)
        self.node = NodeExporter(self.chosen, cast("Front", self.front))
        self.front.fresh = FreshPages(self.node.pages, self.chosen.stale_seconds, time.monotonic)

    def pod(self, name: str, shares: dict[str, dict[int, int]], *, uid: str = "", **more: Any) -> Pod:
        """A pod whose containers have so many GiB of cards by index; `policy`, `core`, by default nothing enforced."""
        self.serial += 1
        pod = Pod(name, uid or str(uuid5(NAMESPACE_OID, f"{name} {self.serial}")))
        self.tree.pod(pod.uid)
        for container, cards in shares.items():
            pod.folders.append(self._hold(pod, container, cards, **more))
        self._known(pod, shares)
        return pod

    def whole(self, name: str, cards: list[int], *, init: bool = False) -> Pod:
        """A pod with whole cards, of which only the kubelet knows."""
        return self.granted(name, {"nvidia.com/gpu": [self.uuids[card] for card in cards]}, init=init)

    def granted(self, name: str, ids: dict[str, list[str]], *, init: bool = False) -> Pod:
        """A pod with devices by resource, of which only the kubelet knows."""
        self.serial += 1
        pod = Pod(name, str(uuid5(NAMESPACE_OID, f"{name} {self.serial}")))
        self.tree.pod(pod.uid)
        names = ("prepare", "main") if init else ("main",)
        self._known(pod, dict.fromkeys(names, ids))
        self.kubelet.add(pod.namespace, pod.name, dict.fromkeys(names, ids), uid=pod.uid)
        return pod

    def _known(self, pod: Pod, containers: Iterable[str]) -> None:
        """Its containers run, and the kubelet links their logs."""
        for container in containers:
            ident = sha256(f"{pod.uid} {container}".encode()).hexdigest()
            pod.containers[container] = ident
            self.tree.log(pod.namespace, pod.name, pod.uid, container, ident)

    def _hold(self, pod: Pod, container: str, cards: dict[int, int], *, policy: str = "none", core: int = 0) -> Path:
        ident = f"promise-{self.serial}-{container}"
        folder = self.run_dir / "alloc" / ident
        (folder / "limits").mkdir(parents=True)
        (folder / "region").mkdir()
        slices = tuple(Slice(self.uuids[index], index, gib * GIB, core) for index, gib in cards.items())
        tenant = Tenant(pod.namespace, pod.name, pod.uid, container)
        hold = HostAllocation(
            ident,
            pod.name,
            BOOT,
            1.7e9,
            0,
            Process(1, 1),
            (),
            slices,
            policy,
            tenant=tenant,
            enforced=policy != "none",
        )
        if policy != "none":
            limits = tuple(card_limit(UUID(part.uuid.removeprefix("GPU-")), part, hold.compute, 0) for part in slices)
            files.write_limits(folder / "limits/limits", abi.Limits(1, ident, limits))
            files.create_region(folder / "region/region", ident)
        (folder / "promise.json").write_text(dump(hold))
        return folder

    def process(self, pod: Pod | None, container: str = "", *, gib: float, card: int = 0, **more: Any) -> Program:
        """A process with so much memory, in a container or (None) the host's own."""
        program = Program(self.box.path, HOLD, BYTES=int(gib * GIB), CARD=card)
        self.running.append(program)
        assert "up" == program.line()
        self.tree.process(program.pid, container=(pod.uid, pod.containers[container]) if pod else None, **more)
        return program

    def kill(self, program: Program) -> None:
        """It is gone, from the card and from /proc."""
        program.kill()
        self.running.remove(program)
        self.tree.exit(program.pid)
        # the driver takes its time to give memory back
        until(lambda: not any(program.pid in self.driver_bytes(card) for card in range(len(self.uuids))))

    def end(self, pod: Pod) -> None:
        """The pod is gone: its holds, its control groups; an old kubelet still lists it."""
        for folder in pod.folders:
            (folder / "promise.json").unlink()
        self.tree.end_pod(pod.uid)
        if (pod.namespace, pod.name, pod.uid) in self.kubelet.pods:
            self.kubelet.end(pod.namespace, pod.name, pod.uid)

    def run_once(self) -> CycleResult:
        """One cycle of the exporter."""
        return self.node.cycle.run_once()

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """The page as it is now: {name: {labels in the order of their names: value}}."""
        return parsed(self.node.page())

    def driver_bytes(self, card: int) -> dict[int, int]:
        """The simulator's own: bytes by pid."""
        self.box.settle()
        return {client.pid: client.total_bytes for client in self.box.clients(card) if client.total_bytes}

    def adds_up(self, expected: dict[tuple[str, str, int], tuple[Program, ...]]) -> None:
        """
        Each container's figure is that of its processes in the simulator's records, to 1 % or 64 MiB; and of each
        card containers + unattributed + reserved = used = total - free, to 1 % of the card.
        """
        reading = self.run_once().reading
        assert reading is not None
        assert sorted(expected) == sorted((one.pod, one.container, one.index) for one in reading.containers)
        for card in reading.cards:
            records = self.driver_bytes(card.index)
            mine = [one for one in reading.containers if one.uuid == card.uuid]
            theirs = dict(records)
            for one in mine:
                programs_ = expected[one.pod, one.container, one.index]
                booked = sum(theirs.pop(program.pid) for program in programs_)
                assert one.used_bytes is not None
                assert abs(one.used_bytes - booked) <= max(64 * MIB, booked // 100), one
            assert card.unattributed_bytes is not None
            assert card.used_bytes is not None
            assert abs(card.unattributed_bytes - sum(theirs.values())) <= 64 * MIB
            assert card.used_bytes == card.reserved_bytes + sum(records.values())
            parts = sum(one.used_bytes or 0 for one in mine) + card.unattributed_bytes + card.reserved_bytes
            assert abs(card.used_bytes - parts) <= card.total_bytes // 100
            remainder = self.samples()["gpushare_card_memory_unaccounted_bytes"][str(card.index), "n", card.uuid]
            assert abs(remainder) <= card.total_bytes // 100
        self.joins()

    def joins(self) -> None:
        """Allocated and used series have the same labels, and no two series of a name are the same."""
        found = self.samples()
        allocated, used = (found.get(f"gpushare_container_memory_{word}_bytes", {}) for word in ("allocated", "used"))
        assert set(allocated) == set(used)


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """{name: {labels in the order of their names: value}}; two samples of one series are a mistake."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = tuple(value for _, value in sorted(one.labels.items()))
            assert labels not in found.setdefault(one.name, {}), (one.name, labels)
            found[one.name][labels] = one.value
    return found


@contextlib.contextmanager
def exporter_node(*models: str, kubelet: FakeKubelet | None = None, **chosen: Any) -> Iterator[World]:
    """A node with these cards; nothing of it is left afterwards."""
    with (
        boxes(*models) as box,
        tempfile.TemporaryDirectory(prefix="gpushare-node-") as folder,
        kubelet or FakeKubelet() as asked,
        programs() as running,
    ):
        world = World(box, Path(folder), asked, running, **chosen)
        try:
            yield world
        finally:
            world.node.__exit__(None, None, None)


class InProcess:
    """What `exporter.front.Front` is for a node, without a process of its own."""

    pid = os.getpid()
    fresh: FreshPages

    def publish(self, _pages: object, _documents: object) -> None:
        """The node's own pages are shown."""
        self.fresh.renew()


@contextlib.contextmanager
def served(world: World) -> Iterator[str]:
    """The world's pages over HTTP."""
    with MetricsServer(MetricsRouter(world.front.fresh, documents={"/breaches": world.node.breaches})) as server:
        yield server.url.removesuffix("/metrics")


def get(url: str) -> tuple[int, bytes]:
    """Status and body."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (our own)
            return answer.status, answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read()


def breaches(world: World) -> list[dict[str, Any]]:
    """What stands at /breaches."""
    with served(world) as url:
        found: list[dict[str, Any]] = json.loads(get(f"{url}/breaches")[1])["breaches"]
    return found
