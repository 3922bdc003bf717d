# SPDX-License-Identifier: Apache-2.0
"""
What the driver counts corrects the records of a pod's container, fed by the node agent's own feeding.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from uuid import UUID

import pytest
from support.simbox import boxes
from support.unseen_client import CLIENT
from support.waiting import PATIENCE_SECONDS

pytest.importorskip("pynvml")

from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocation, Process, Tenant, dump
from isolation.contract.model import Slice
from isolation.host.machine import NvmlMachine
from isolation.lib import files, native
from isolation.node.feeding import Feeding
from isolation.node.overlimit import KILL, OverLimit

MIB = 1 << 20
BOOT = "this-boot"
REPORTED = OverLimit()


class Pod:
    """A container as the agent leaves it, with a promise of 5 GiB and no share of compute; and a program in it."""

    def __init__(self, alloc, box, name, card):
        self.folder, self.pids = alloc / name, set()
        for part in ("limits", "region"):
            (self.folder / part).mkdir(parents=True)
        uuid = card.uuid
        hold = HostAllocation(
            id=f"uid-{name}.main",
            name=name,
            boot=BOOT,
            created=1.0,
            uid=0,
            runner=Process(1, 1),
            command=(),
            slices=(Slice(uuid, 0, 5 << 30, 0),),
            policy="fixed",
            tenant=Tenant("ml", name, f"uid-{name}", "main"),
        )
        raw = UUID(uuid.removeprefix("GPU-").removeprefix("MIG-"))
        limits = abi.Limits(1, hold.id, (abi.CardLimit(raw, 5 << 30, 320 * MIB),))
        files.write_limits(self.folder / "limits/limits", limits)
        files.write_feed(self.folder / "limits/feed", [abi.CardFeed(0, 0)], now_ns=1)
        files.create_region(self.folder / "region/region", hold.id)
        (self.folder / "promise.json").write_text(dump(hold))
        self.box, self.uuid, self.running = box, uuid, []

    def start(self, code):
        """A program under the library."""
        paths = {"LIMITS": "limits/limits", "FEED": "limits/feed", "REGION": "region/region"}
        env = os.environ | {f"GPUSHARE_{key}": str(self.folder / path) for key, path in paths.items()}
        env |= {
            "GPUSHARE_SIMGPU": str(self.box.path),
            "LD_LIBRARY_PATH": str(files.__file__).replace("lib/files.py", "simgpu/lib"),
        }
        env |= {"LD_PRELOAD": str(native.library_path()), "CUDA_VISIBLE_DEVICES": self.uuid}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        made = subprocess.Popen([sys.executable, "-S", "-c", CLIENT + code], env=env, text=True, **pipes)
        self.running.append(made)
        self.pids.add(made.pid)
        return made

    def run(self, code):
        """To its end: what it said last."""
        out, err = (made := self.start(code)).communicate("", timeout=PATIENCE_SECONDS)
        assert 0 == made.returncode, err
        return json.loads(out.splitlines()[-1])


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Make a box, containers on its last card, and keep them fed."""
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    stop, threads, machines, stacks, pods = threading.Event(), [], [], [], {}

    def make(model, *names, policy=REPORTED, **settings):
        manager = boxes(model, **settings)
        box = manager.__enter__()
        stacks.append(manager)
        (alloc := tmp_path / "alloc").mkdir()
        machine = NvmlMachine(box.path)
        machines.append(machine)
        card = machine.cards()[-1]
        pods.update({f"uid-{name}": Pod(alloc, box, name, card) for name in names})
        feeding = Feeding(alloc, machine, lambda hold: frozenset(pods[hold.tenant.uid].pids), BOOT, policy)

        def feed():
            while not stop.is_set():
                feeding.turn(time.monotonic())
                stop.wait(0.05)

        threads.append(threading.Thread(target=feed, daemon=True))
        threads[0].start()
        return tuple(pods.values())

    yield make
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    for machine in machines:
        machine.close()
    for pod in pods.values():
        for one in pod.running:
            one.kill()
            one.communicate(timeout=300)
    for manager in stacks:
        manager.__exit__(None, None, None)


UNSEEN = """
begin()
before = left()
unseen(3 << 10)
say([before, until(lambda: left() < 2 << 10, 10) and left(), alloc(1900)[0]])
"""


@pytest.mark.parametrize("model", ["v100-16g", "a100-80g-mig"])
def test_a_container_with_memory_alone_is_corrected(node, model):
    """
    No share of compute, on a card and on a MIG instance: what it took unseen is charged, and its neighbour's
    3 GiB are not.
    """
    mine, other = node(model, "mine", "other")
    held = other.start("begin()\nsay(alloc(1 << 10)[0])\nunseen(2 << 10)\nwait()")
    assert "0" == held.stdout.readline().strip(), held.communicate(timeout=300)
    before, after, rc = mine.run(UNSEEN)
    assert before - 3072 - 100 <= after <= before - 3072 + 320
    assert 2 == rc


@pytest.mark.parametrize("settings", [{"mps": 1}, {"nvml_no_bytes": 1}], ids=["mps", "no bytes"])
def test_what_the_driver_cannot_tell_corrects_nothing(node, settings):
    """
    Under MPS memory stands under the server, elsewhere there are no bytes: the records stand as without a feed.
    """
    (pod,) = node("v100-16g", "mine", **settings)
    code = "begin()\nunseen(3 << 10)\ntime.sleep(0.7)\nsay([left(), alloc(4 << 10)[0]])"
    assert [5120 - 320, 0] == pod.run(code)


def test_a_node_may_end_who_takes_unseen_what_was_not_promised(node):
    """
    7 GiB under 5, on a path that no library stops: ended after some samples; the neighbour within its promise stays.
    """
    mine, other = node("v100-16g", "mine", "other", policy=OverLimit(KILL, 3, 256 * MIB))
    beside = other.start("begin()\nsay(alloc(4 << 10)[0])\nwait()\nsay(1)")
    over = mine.start("begin()\nunseen(7 << 10)\nwait()")
    assert -signal.SIGKILL == over.wait(PATIENCE_SECONDS)
    assert ("0\n1\n", 0) == (beside.communicate("go\n", timeout=300)[0], beside.returncode)
