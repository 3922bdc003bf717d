# SPDX-License-Identifier: Apache-2.0
"""
A node with one backend, and containers as a runtime starts them: created, in their control group, the guard run as
its hook, then the program.

    with stand("kernel", tmp_path) as node:
        container = node.start("a", 2 * GIB, code)     # the guard ran; the program waits
        answer = container.release()                   # ... and runs to its end

With "mig" the card is divided, and the pods' cards are its instances.
With "mps" a keeper runs beside the node, as a process of its own.
With "kernel" the cards belong to the process that owns the hardware (`gpushare simgpu own`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.cdi_process import Boxed, namespaces
from support.cgroups import groups, remove, unified
from support.simbox import boxes
from support.waiting import PATIENCE_SECONDS

from isolation.contract.codec import node_of
from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Mode, Slice, Trust
from isolation.contract.names import ACK
from isolation.host.backend_record import write_backend
from isolation.host.machine import NvmlMachine
from isolation.host.memory_limits import MemoryLimits
from isolation.node.backend import KernelBackend, LibraryBackend, MigBackend, NodeBackends, UndeliverableError
from isolation.node.core.container_check import Given
from isolation.node.core.mps import Wish
from isolation.node.delivery import ALLOC, CLIENT, Delivery, promise_id
from isolation.node.guard_device import GuardDevice
from isolation.node.hardware import SimulatedHardware
from isolation.node.inventory import NodeInventory, Terms
from isolation.node.memory_limits import SOCKET, LimitServer
from isolation.node.mps.backend import MpsBackend, percent_of
from isolation.node.mps.exchange import MpsExchange
from isolation.node.status import wish
from isolation.simgpu.owner import ask_books

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.contract.model import Node
    from isolation.node.cdi import Edits
    from isolation.node.delivery import Delivered
    from isolation.simgpu.hardware import Box

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ROOT / "isolation" / "simgpu" / "lib"
GIB = 1 << 30
WAITING = "import sys\nsys.stdin.readline()\n"
MODELS = {"mig": "a100-80g:2g.20gb,3g.40gb"}
"""Cards of a node with that backend; else one of 16 GiB."""
MPS_RUNS = pytest.mark.skipif(
    not (LIBRARIES / "libcuda.so.1").is_file() or not namespaces() or os.geteuid() != 0,
    reason="daemons run as root, in mount namespaces, beside the simulated driver",
)
"""Mark of a test that runs MPS daemons."""


def kernel_here() -> bool:
    """Whether tests of the kernel's limits can run: root, and groups of version 2 to be made."""
    return os.geteuid() == 0 and unified() is not None


class RefusedStartError(Exception):
    """The guard refused; its words."""


@dataclass
class Container:
    """One that the guard let start; its program waits for `release`."""

    id: str
    tenant: Tenant
    edits: Edits
    group: Path | None
    process: subprocess.Popen[str]
    guard_seconds: float

    def go(self) -> Any:
        """Run; the first that it says. It may run on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def release(self) -> Any:
        """Run to the end; what it said last."""
        out, err = self.process.communicate("go\n", timeout=PATIENCE_SECONDS)
        assert self.process.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    def kill(self) -> None:
        """SIGKILL; the runtime removes its group."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        if self.group is not None:
            remove(self.group)


class Stand:
    """See the module."""

    def __init__(self, backend: str, folder: Path, box: Box, cgroup: Path | None) -> None:
        self.box, self.folder, self.cgroup = box, folder, cgroup
        run_dir, marks = folder / "run", folder / "marks"
        self.machine = NvmlMachine(box.path)
        self.inventory = NodeInventory(self.machine, Terms(GIB), folder / "node.json")
        self.inventory.refresh()
        self.inventory.serves(Mode.MPS if backend == "mps" else Mode.CGPU, whole=False, backend=backend)
        self.cards = {card.uuid: card for card in self.inventory.cards()}
        self.uuids = list(self.cards)
        self.limits = MemoryLimits(self.machine)
        place, mount = folder / SOCKET, unified() or Path("/sys/fs/cgroup")
        self.server = LimitServer(place, mount, self.limits)
        made: LibraryBackend = LibraryBackend(run_dir)
        if backend == "kernel":
            made = KernelBackend(
                run_dir, driver=self.limits, cgroup=mount, place=place, uuids=lambda: tuple(self.uuids)
            )
        if backend == "mps":
            made = MpsBackend(run_dir, tell=self.tell)
        if backend == "mig":
            made = MigBackend(run_dir, cards=self.inventory.cards)
        self.backend = made
        self.backends = NodeBackends(
            {backend: made}, self.inventory.backend, self.inventory.mode, partial(write_backend, run_dir)
        )
        self.gate = GuardDevice(run_dir, folder / "cdi", marks)
        self.gate.install()
        self.delivery = Delivery(run_dir, SimulatedHardware(box.path, LIBRARIES, run_dir), self.backends)
        self.boxed = Boxed(folder)
        self.running: list[Container] = []
        self.keeper: subprocess.Popen[bytes] | None = None
        """Of MPS daemons."""
        self.given: dict[str, Given] = {}
        """Of containers that have not ended, by promise."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def agent_on(self) -> None:
        """The agent answers the guard."""
        self.server.open()
        self._stop.clear()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def agent_off(self) -> None:
        """It is gone."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_SECONDS)
        self.server.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            self.server.cycle()

    def tell(self) -> None:
        """As the agent: what the card's MPS server is to hold."""
        held = {(self.folder / "run" / ALLOC / one / CLIENT) for one in self.given}
        sizes = [one.slices[0].bytes for one in self.given.values()]
        generations = frozenset(one.read_text().split()[0] for one in held if one.is_file())
        wish = Wish(0, max(sizes), max(map(percent_of, self.given.values())), generations) if sizes else Wish()
        MpsExchange(self.folder / "run").wish({self.uuids[0]: wish})

    def node(self) -> Node:
        """The node as admission and scheduler read it from what the agent says."""
        mode = self.inventory.mode()
        said = wish(self.inventory.cards(), mode, "ready", choice=self.backends.choice)
        units = sum(card.allocatable_bytes // GIB for card in self.inventory.cards())
        amounts = {name: str(amount) for name, amount in said.resources.items()} | {ACK.memory: str(units)}
        amounts |= {"cpu": "8", "memory": "64Gi", "pods": "110"}
        metadata = {"name": "n", "labels": {ACK.mode_label: mode.value}, "annotations": said.annotations}
        ready = [{"type": "Ready", "status": "True"}]
        return node_of(
            {"metadata": metadata, "status": {"capacity": amounts, "allocatable": amounts, "conditions": ready}}
        )

    def asked(self, name: str, size: int, core: int = 0, *, card: str = "") -> tuple[Tenant, Given]:
        """A container with so many bytes of that card, or of the first one, which counts from here on."""
        tenant = Tenant("ml", name, str(uuid.uuid4()), "main")
        card = card or self.uuids[0]
        given = Given((Slice(card, self.cards[card].index, size, core),), trust=Trust("ml", 0))
        self.given[promise_id(tenant)] = given
        return tenant, given

    def deliver(self, name: str, size: int, core: int = 0, *, card: str = "") -> tuple[Tenant, Delivered]:
        """What it gets; UndeliverableError."""
        tenant, given = self.asked(name, size, core, card=card)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return tenant, self.delivery.deliver(tenant, given, self.cards)
            except UndeliverableError as exc:  # as the kubelet does
                if "retry" not in str(exc) or time.monotonic() > deadline:
                    del self.given[promise_id(tenant)]
                    raise

    def start(
        self,
        name: str,
        size: int,
        code: str,
        *,
        core: int = 0,
        card: str = "",
        without: tuple[str, ...] = (),
        loader: Path | None = None,
    ) -> Container:
        """
        Create and start a container with so many bytes of that card, or of the first; RefusedStartError.

        `without`: files of ours that the tenant got rid of; `loader`: the program brings this one.
        """
        tenant, delivered = self.deliver(name, size, core, card=card)
        ident = uuid.uuid4().hex * 2
        annotations = self.gate.mark(ident, (), delivered.limits)
        edits = delivered.edits
        edits = replace(edits, mounts=tuple(one for one in edits.mounts if one.container not in without))
        process = self.boxed.start(edits, "", first=f"{WAITING}CLIENT\n{code}", loader=loader)
        group = self._enter(tenant.uid, ident, process.pid)
        try:
            seconds = self._hook(ident, process.pid, annotations)
        except RefusedStartError:
            process.kill()
            process.communicate()
            raise
        made = Container(ident, tenant, edits, group, process, seconds)
        self.running.append(made)
        return made

    def _enter(self, uid: str, ident: str, pid: int) -> Path | None:
        if self.cgroup is None:
            return None
        group = self.cgroup / "kubepods" / f"pod{uid}" / ident
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text(str(pid))
        return group

    def _hook(self, ident: str, pid: int, annotations: dict[str, str]) -> float:
        bundle = self.folder / "bundles" / ident
        bundle.mkdir(parents=True, exist_ok=True)
        spec = {"ociVersion": "1.2.0", "root": {"path": "rootfs"}, "annotations": annotations}
        (bundle / "config.json").write_text(json.dumps(spec))
        state = {"ociVersion": "1.2.0", "id": ident, "status": "creating", "pid": pid, "bundle": str(bundle)}
        began = time.monotonic()
        command = [*self.gate.hook]
        done = subprocess.run(
            command, input=json.dumps(state), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        took = time.monotonic() - began
        if done.returncode:
            raise RefusedStartError(done.stderr)
        return took

    def books(self) -> dict[str, Any]:
        """Of the process that owns the hardware."""
        return ask_books(self.box.path)

    def end(self, container: Container) -> None:
        """The container and its pod are gone."""
        container.kill()
        if container.group is not None:
            remove(container.group.parent)
        self.delivery.retire(promise_id(container.tenant))
        self.given.pop(promise_id(container.tenant), None)
        self.running.remove(container)


@contextlib.contextmanager
def stand(backend: str, folder: Path, **settings: int) -> Iterator[Stand]:
    """A node whose promises this backend holds."""
    with contextlib.ExitStack() as stack:
        box = stack.enter_context(boxes(MODELS.get(backend, "v100-16g"), teardown_ns=0, **settings))
        cgroup = stack.enter_context(groups(f"{backend}-{time.monotonic_ns()}")) if kernel_here() else None
        if backend == "kernel":
            stack.enter_context(owner_of(box.path))
        keeper = None
        if backend == "mps":
            stack.enter_context(shared_mount(folder / "run"))
            keeper = stack.enter_context(keeper_of(box.path, folder))
        made = Stand(backend, folder, box, cgroup)
        made.keeper = keeper
        made.agent_on()
        stack.callback(made.agent_off)
        try:
            yield made
        finally:
            for one in tuple(made.running):
                made.end(one)
            made.machine.close()


@contextlib.contextmanager
def shared_mount(folder: Path) -> Iterator[None]:
    """What is mounted below it shows in other namespaces, as below a directory of a host."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "--make-shared", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", folder], check=True)


@contextlib.contextmanager
def keeper_of(hardware: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process that keeps MPS daemons, as root."""
    words = ["--state-dir", folder / "run", "--kubelet-dir", folder, "--simgpu", hardware, "--log-level", "warning"]
    code = "from isolation.node.mps.cli import mps; mps()"
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, words)])
    try:
        while not MpsExchange(folder / "run").keeper_lives():
            assert process.poll() is None
            time.sleep(0.01)
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def owner_of(hardware: Path) -> Iterator[subprocess.Popen[str]]:
    """The process that owns it, as root."""
    command = [sys.executable, "-c", "from isolation.simgpu.cli import simgpu; simgpu()", "own", str(hardware)]
    process = subprocess.Popen([*command, "--cgroup", str(unified())], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("owning")
        yield process
    finally:
        process.kill()
        process.communicate()
