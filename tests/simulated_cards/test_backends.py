# SPDX-License-Identifier: Apache-2.0
"""
One promise, several enforcers: what every backend must hold, in one suite, and what MIG and the kernel's limits hold
beyond that.

Real processes in control groups, the real guard as the runtime's hook, and the simulated driver. With `kernel` the
cards belong to a process of root, which judges by the socket's peer: what it granted is what there is.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from support.admission_pods import pod
from support.admission_reviews import asked, respond, world
from support.backend_harness import GIB, LIBRARIES, RefusedStartError, kernel_here, stand
from support.cdi_process import namespaces, own_loader
from support.cgroups import unified
from support.waiting import until

from exporter.sources.nvml.source import NvmlSource
from exporter.sources.promises import PromiseSource
from isolation.contract.codec import request_of
from isolation.contract.model import Placement
from isolation.contract.names import ACK, PRELOAD
from isolation.host.backend_record import read_backend
from isolation.host.feed import uuid_of
from isolation.host.memory_limits import UNLIMITED
from isolation.placement.engine import Engine
from isolation.scheduler.admission.core.node_sizes import measure_nodes

MIB = 1 << 20
OOM = 2
FILL = """
rc = begin()
got = 0
while alloc(32 * MIB)[0] == 0: got += 32 * MIB
say([rc, got, info()[1]])
"""
SEEN = """
begin()
say([uuid(0), info()[1], alloc(GIB)[0], alloc(GIB)[0]])
sys.stdin.readline()
"""
MANAGED = """
begin()
at = c_uint64()
say([cu.cuMemAllocManaged(byref(at), c_size_t(3 << 30), 1), cu.cuMemAllocManaged(byref(at), c_size_t(1 << 30), 1)])
"""
pytestmark = [
    pytest.mark.skipif(not (LIBRARIES / "libcuda.so.1").is_file(), reason="the simulated driver was not built"),
    pytest.mark.skipif(not namespaces() or os.geteuid() != 0, reason="the guard runs as root, in mount namespaces"),
]
NEEDS_KERNEL = pytest.mark.skipif(not kernel_here(), reason="needs root and cgroup version 2")


@pytest.fixture(params=["library", "mig", "mps", pytest.param("kernel", marks=NEEDS_KERNEL)])
def node(request, tmp_path):
    with stand(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def stack():
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def kernel(tmp_path):
    if not kernel_here():
        pytest.skip("needs root and cgroup version 2")
    with stand("kernel", tmp_path) as made:
        yield made


# What every backend holds.


def free_bytes(exporter):
    """By card, as the exporter reads it."""
    return {card.uuid: card.free_bytes for card in exporter.read(time.monotonic()).cards}


def promises(node):
    """As the exporter reads them."""
    source = PromiseSource((), node.folder / "run", Path("/proc"), Path("/sys/fs/cgroup"))
    return list(source.read(time.monotonic()).holds)


def test_a_pod_is_admitted_placed_delivered_held_seen_and_ended(node, stack):
    """One promise from the pod to its end, by what the agent says of its node."""
    said = node.node()
    assert (said.unheld, said.serving, [one.uuid for one in said.cards]) == ("", True, node.uuids)
    largest = max(one.allocatable_bytes // GIB for one in said.cards)
    where = {"nodeSelector": {ACK.mode_label: said.mode.value}, "securityContext": {"runAsUser": 0}}
    cluster = world(fleet=measure_nodes([said]))
    too_large = respond(asked(pod(str(largest + 1), **where)), cluster)
    assert (too_large["allowed"], f"the largest card offers {largest}" in too_large["message"]) == (False, True)
    wanted = pod("2", **where)
    assert respond(asked(wanted), cluster)["allowed"]

    found = Engine([said]).place(request_of(wanted["metadata"], wanted["spec"]))
    assert isinstance(found, Placement), found
    [part] = found.slices
    exporter = NvmlSource(node.box.path, beat=0)
    stack.callback(exporter.close)
    before = free_bytes(exporter)

    container = node.start("p", part.bytes, SEEN, card=part.uuid)
    assert container.go() == [part.uuid.split("-", 1)[1].replace("-", ""), 2 * GIB, 0, OOM]
    [promise] = promises(node)
    [card] = promise.region.reading.cards
    assert (promise.hold.slices, promise.hold.tenant, promise.hold.enforced) == (found.slices, container.tenant, True)
    assert (card.uuid, card.limit_bytes) == (uuid_of(part.uuid), 2 * GIB)
    assert GIB < card.used_bytes <= 2 * GIB
    taken = {one: before[one] - free for one, free in free_bytes(exporter).items()}
    assert GIB < taken.pop(part.uuid) <= 2 * GIB
    assert not any(taken.values())
    assert read_backend(node.folder / "run") == node.backend.name

    node.end(container)
    assert promises(node) == []
    until(lambda: before[part.uuid] - free_bytes(exporter)[part.uuid] < 512 * MIB)  # an MPS server stays for a while


def test_a_program_gets_its_promise_sees_it_as_the_card_and_gets_no_byte_more(node):
    """Admitted, delivered, held, seen."""
    begun, got, total = node.start("a", 2 * GIB, FILL).release()
    assert begun == 0
    assert total == 2 * GIB
    assert 2 * GIB - 600 * MIB < got <= 2 * GIB - 306 * MIB


def test_neighbours_keep_their_promises_side_by_side(node):
    several = [node.start(name, size * GIB, FILL) for name, size in (("a", 2), ("b", 3), ("c", 4))]
    found = [one.release() for one in several]
    assert [total for _, _, total in found] == [2 * GIB, 3 * GIB, 4 * GIB]


def test_managed_memory_beyond_the_promise_is_refused(node):
    """The kernel counts it as system memory: the library beside it refuses it."""
    assert node.start("a", 2 * GIB, MANAGED).release() == [OOM, 0]


def test_the_whole_promise_is_there_again_when_a_container_has_ended(node):
    for _ in range(3):
        container = node.start("a", 15 * GIB, FILL)
        assert container.release()[1] > 14 * GIB
        node.end(container)


def test_a_container_that_the_agent_did_not_prepare_does_not_start(node):
    container = node.start("a", 2 * GIB, FILL)
    with pytest.raises(RefusedStartError, match="did not prepare"):
        node._hook(container.id, container.process.pid, {})


# What MIG holds beyond that.


def test_who_gets_around_the_library_gets_at_most_its_own_instance(tmp_path):
    """A neighbour on the other instance of the card has all of its promise meanwhile."""
    with stand("mig", tmp_path) as node:
        own, other = node.uuids
        filled = node.start("a", 2 * GIB, FILL + "sys.stdin.readline()\n", without=(PRELOAD,))
        _, got, total = filled.go()
        assert 2 * GIB < got < total <= node.cards[own].total_bytes
        neighbour = node.start("b", 36 * GIB, FILL, card=other)
        assert neighbour.release()[1] > 35 * GIB


# What the kernel's limits hold beyond that.


EDITS_THE_FILE = """
import mmap
rc = begin()
got = 0
with open(os.environ["GPUSHARE_SIMGPU"], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
while alloc(32 * MIB)[0] == 0:
    got += 32 * MIB
    if got > 96 * MIB:
        continue
    word = (got + 306 * MIB).to_bytes(8, "little")  # its own accounts and the card's, wherever they stand
    at = memory.find(word)
    while 0 <= at:
        memory[at:at + 8] = bytes(8)
        at = memory.find(word, at + 8)
say([rc, got])
"""
PAST = {
    "no library": FILL,
    "own loader": FILL,
    "edits the file": EDITS_THE_FILE,
    "edits the limits": "os.environ.update(GPUSHARE_LIMITS='/nowhere')\n" + FILL,
}


@pytest.mark.parametrize("who", PAST)
def test_who_gets_around_the_library_gets_no_byte_beyond_the_promise(kernel, tmp_path, who):
    loader = own_loader(tmp_path) if who == "own loader" else None
    container = kernel.start("a", 2 * GIB, PAST[who], without=() if loader else (PRELOAD,), loader=loader)
    got = container.release()[1]
    assert 0 < got <= 2 * GIB - 306 * MIB
    [limit] = kernel.books()["groups"]
    assert (limit["hard"], limit["path"]) == (2 * GIB, str(container.group))
    assert limit["most"] <= 2 * GIB


def test_the_same_programs_pass_the_promise_where_only_the_library_holds_it(tmp_path):
    """So that the test above says something."""
    with stand("library", tmp_path) as node:
        assert node.start("a", 2 * GIB, FILL, without=(PRELOAD,)).release()[1] > 2 * GIB
        assert node.start("b", 2 * GIB, FILL, loader=own_loader(tmp_path)).release()[1] > 2 * GIB


def test_the_limit_stands_before_the_first_instruction(kernel):
    container = kernel.start("a", 3 * GIB, FILL)
    found = kernel.limits.get(kernel.uuids[0], container.group)
    assert (found.hard, found.used) == (3 * GIB, 0)
    assert kernel.limits.get(kernel.uuids[0], container.group.parent).hard == UNLIMITED


def test_without_the_agent_nothing_starts_and_the_next_agent_starts_it(kernel):
    """What an agent prepared, another one limits: nothing of it is kept in memory."""
    kernel.agent_off()
    with pytest.raises(RefusedStartError, match="did not limit the container's memory"):
        kernel.start("a", 2 * GIB, FILL)
    kernel.agent_on()
    assert kernel.start("b", 2 * GIB, FILL).release()[2] == 2 * GIB


def test_an_agent_that_was_killed_while_it_tried_the_driver_leaves_no_limit(kernel):
    """The next one removes its group; that of one that still tries stays."""
    mount, uuid = unified(), kernel.uuids[0]
    with subprocess.Popen(["sleep", "600"]) as lives, subprocess.Popen(["true"]) as died:
        died.wait()
        mine, left = (mount / f"gpushare-probe-{one.pid}" for one in (lives, died))
        for one in (mine, left):
            one.mkdir()
            kernel.limits.set(uuid, one, GIB)
        try:
            assert kernel.backend.available() == ""
            assert (mine.is_dir(), left.is_dir()) == (True, False)
            assert [one["path"] for one in kernel.books()["groups"]] == [str(mine)]
        finally:
            mine.rmdir()
            lives.kill()


def test_an_agent_that_does_not_answer_is_a_no_within_its_time(kernel):
    kernel._stop.set()
    kernel._thread.join(10)  # it listens and never answers
    began = time.monotonic()
    with pytest.raises(RefusedStartError, match="no answer in time"):
        kernel.start("a", 2 * GIB, FILL)
    assert 3 < time.monotonic() - began < 30


def test_a_tenant_cannot_speak_to_the_agent(kernel):
    container = kernel.start("a", 2 * GIB, FILL)
    place = kernel.folder / "memory-limits.sock"
    assert place.stat().st_mode & 0o777 == 0o600
    assert not [one for one in container.edits.mounts if "memory-limits" in one.host]
    asked = ["setpriv", "--reuid", "65534", "--clear-groups", "python3", "-c"]
    code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(place)!r})"
    assert subprocess.run([*asked, code], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize(
    "question",
    [
        "{id}\t/kubepods/other\t{uuid}=1",
        "{id}\t/kubepods/../{id}\t{uuid}=1",
        "{id}\trelative/{id}\t{uuid}=1",
        "{id}\t/kubepods/{id}\t{uuid}=-1",
        "{id}\t/kubepods/{id}\t",
        "../x\t/kubepods/../x\t{uuid}=1",
        "",
    ],
)
def test_a_question_that_names_another_group_or_no_amount_is_refused(kernel, question):
    answer = kernel.server.answer(question.format(id="c" * 64, uuid=kernel.uuids[0]))
    assert answer != "ok"
    assert kernel.books()["limits"] == 0


def test_kills_of_containers_and_of_the_agents_part_leave_no_limit_and_no_memory_behind(kernel, record_property):
    """Every fifth time the agent's part goes too; whole agents, and 1,000 kills: tests/e2e/test_node_kernel.py."""
    times = []
    for at in range(30):
        container = kernel.start(f"a{at}", 2 * GIB, "begin(); alloc(512 * MIB); say(1); time.sleep(60)")
        times.append(container.guard_seconds)
        container.process.stdin.write("go\n")
        container.process.stdin.flush()
        if at % 2:
            assert container.process.stdout.readline().strip() == "1"
        if at % 5 == 0:
            kernel.agent_off()
            kernel.agent_on()
        kernel.end(container)
    deadline = time.monotonic() + 20
    while kernel.books()["holders"]:
        assert time.monotonic() < deadline
    books = kernel.books()
    assert (books["limits"], books["used"]) == (0, [0])
    record_property("guard_ms", [round(1000 * one, 1) for one in sorted(times)])
