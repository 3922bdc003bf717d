# SPDX-License-Identifier: Apache-2.0
"""
What the agent puts on the disk, and what becomes of a process that is started with exactly that.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from support.cdi_process import Boxed, namespaces
from support.cdi_runtime import resolve
from support.simbox import boxes
from support.waiting import PATIENCE_SECONDS

from exporter.sources.promises import PromiseSource
from isolation.contract import abi
from isolation.contract.model import Card, Slice
from isolation.contract.quantity import GIB
from isolation.host import process
from isolation.lib import files
from isolation.node.backend import LibraryBackend, NoBackend, backends
from isolation.node.book import device_of, hash_of, id_of
from isolation.node.cdi import Edits, Vendor, spec
from isolation.node.delivery import NodeDelivery, Places
from isolation.node.hardware import NvidiaHardware, SimulatedHardware
from isolation.node.world import Bound, Promise, UndeliverableError

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ROOT / "isolation" / "simgpu" / "lib"
OOM, OK = 2, 0
UID = "1140914f-bf25-4cf5-a28a-2853bcd66768"
pytestmark = pytest.mark.skipif(not (LIBRARIES / "libcuda.so.1").is_file(), reason="the simulated driver was not built")
needs_namespaces = pytest.mark.skipif(not namespaces(), reason="this user may not make mount namespaces")
_serial = itertools.count()


@pytest.fixture
def node(tmp_path):
    """A node with a simulated V100 and a T4."""
    with boxes("v100-16g", "t4", teardown_ns=0) as box:
        uuids = [f"GPU-{UUID(bytes=bytes(card.model.uuid))}" for card in box.cards()]
        cards = [Card(uuid, at, 16 * GIB, model="Tesla V100") for at, uuid in enumerate(uuids)]
        places = Places(tmp_path / "run", tmp_path / "cdi")
        inventory = SimpleNamespace(cards=lambda: cards)
        hardware = SimulatedHardware(box.path, LIBRARIES, places.run_dir)
        backend = LibraryBackend(places.run_dir)
        made = SimpleNamespace(box=box, cards=cards, places=places, backend=backend, inventory=inventory)
        made.delivery = NodeDelivery(places, hardware, backend, inventory)
        made.boxed = Boxed(tmp_path, places.cdi_dir)
        yield made


def promised(node, *parts, container="main", uid=UID, policy="fixed", core=0, name="train-0"):
    """A promise of (card, GiB) parts."""
    slices = tuple(Slice(node.cards[card].uuid, card, size * GIB, core) for card, size in parts)
    ids = tuple(id_of(part.uuid, next(_serial)) for part in slices for _ in range(part.bytes // GIB))
    return Promise(hash_of(ids), ids, Bound(uid, name, "ml", (), None), container, slices, policy, "{}")


def deliver(node, promise):
    """Put it in place; the names of its devices."""
    asyncio.run(node.delivery.deliver(promise))
    return [device_of(promise.ids)]


@needs_namespaces
def test_a_process_started_as_the_spec_says_has_its_promise_and_no_more(node):
    """
    Two GiB of sixteen: that is all the card it sees, and one byte more is refused.
    """
    names = deliver(node, promised(node, (0, 2)))

    code = "rc = begin(); say([rc, info()[1], alloc(1 << 30)[0], alloc(1 << 30)[0]])"
    begun, total, first, second = node.boxed.run(names, code)

    assert (OK, 2 * GIB, OK, OOM) == (begun, total, first, second)


@needs_namespaces
def test_parts_of_two_cards_are_two_cards(node):
    """
    N over M: each card shows its part.
    """
    names = deliver(node, promised(node, (0, 2), (1, 2)))

    code = "begin(); say([info()[1], alloc(3 << 30)[0], alloc(1 << 30)[0]])"
    assert [2 * GIB, OOM, OK] == node.boxed.run(names, code)
    code = "begin(1); say([info()[1], alloc(3 << 30)[0], alloc(1 << 30)[0]])"
    assert [2 * GIB, OOM, OK] == node.boxed.run(names, code)


@needs_namespaces
@pytest.mark.parametrize(
    "wish",
    [
        {"env": {"LD_PRELOAD": "", "GPUSHARE_LIMITS": "/nowhere", "GPUSHARE_REGION": "/nowhere"}},
        {"env": {"GPUSHARE_SIMGPU": "/nowhere", "LD_LIBRARY_PATH": "/nowhere"}},
        {"mounts": {"/etc/ld.so.preload": "EMPTY", "/run/gpushare/lib/libgpushare.so": "EMPTY"}},
        {"mounts": {"/run/gpushare/limits": "FOLDER", "/run/gpushare/region/region": "EMPTY"}},
    ],
    ids=["env", "driver", "preload", "limits"],
)
def test_a_tenants_env_or_mount_over_our_paths_changes_nothing(node, tmp_path, wish):
    """
    CDI's edits come last.
    """
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    places = {"EMPTY": str(tmp_path / "empty"), "FOLDER": str(tmp_path / "folder")}
    mounts = {inside: places[source] for inside, source in wish.get("mounts", {}).items()}
    names = deliver(node, promised(node, (0, 2)))

    said = node.boxed.run(names, "begin(); say([info()[1], alloc(3 << 30)[0]])", env=wish.get("env", {}), mounts=mounts)

    assert [2 * GIB, OOM] == said


@needs_namespaces
def test_a_tenant_cannot_write_its_limits(node):
    """
    The folder is read-only in the container; the region is its own.
    """
    names = deliver(node, promised(node, (0, 2)))
    code = """
def writable(path):
    try:
        open(path, "r+b").close()
    except OSError as exc:
        return exc.errno
    return 0
say([writable("/run/gpushare/limits/limits"), writable("/run/gpushare/limits/feed"), writable("/etc/ld.so.preload"),
     writable("/run/gpushare/region/region")])
"""
    assert [30, 30, 30, 0] == node.boxed.run(names, code)


@needs_namespaces
def test_a_promise_that_grows_in_place_is_seen_by_the_running_process(node):
    """
    The files are rewritten, never replaced: a new inode would not cross the mount.
    """
    promise = promised(node, (0, 2))
    names = deliver(node, promise)
    code = "begin(); say(alloc(3 << 30)[0]); sys.stdin.readline(); time.sleep(0.2); say(alloc(3 << 30)[0])"
    running = node.boxed.start(names, code)
    assert "2" == running.stdout.readline().strip()

    more = replace(promise, slices=(replace(promise.slices[0], bytes=4 * GIB),))
    deliver(node, more)
    out, err = running.communicate("go\n", timeout=PATIENCE_SECONDS)

    assert "0" == out.strip(), err
    assert 2 == abi.unpack_limits((node.places.alloc / promise.hash / "limits/limits").read_bytes()).generation


@needs_namespaces
def test_a_restarted_container_finds_the_books_of_its_processes(node):
    """
    What a process that would not die has stays charged; the dead are cleared away.
    """
    promise = promised(node, (0, 2))
    names = deliver(node, promise)
    survivor = node.boxed.start(names, "begin(); say(alloc(1 << 30)[0]); sys.stdin.readline()")
    assert "0" == survivor.stdout.readline().strip()

    again = deliver(node, promise)
    assert OOM == node.boxed.run(again, "begin(); say(alloc(1 << 30)[0])")
    survivor.communicate("go\n", timeout=PATIENCE_SECONDS)
    assert OK == node.boxed.run(deliver(node, promise), "begin(); say(alloc(1 << 30)[0])")


def test_a_spoilt_region_is_made_anew_for_the_next_start(node):
    """
    A tenant harms itself until it restarts, no longer.
    """
    promise = promised(node, (0, 2))
    deliver(node, promise)
    region = node.places.alloc / promise.hash / "region/region"
    before = region.stat().st_ino

    deliver(node, promise)
    assert before == region.stat().st_ino
    region.write_bytes(b"x" * 100)
    deliver(node, promise)

    assert promise.id[:63] == files.read_region(region).promise


def test_the_next_owner_of_the_same_devices_gets_a_region_of_its_own(node):
    """
    Nothing of the former pod's books is charged to it.
    """
    promise = promised(node, (0, 2))
    deliver(node, promise)
    other = replace(promise, pod=replace(promise.pod, uid=UID.replace("1", "2"), name="eval-0"))
    deliver(node, other)

    assert other.id[:63] == files.read_region(node.places.alloc / promise.hash / "region/region").promise


@pytest.mark.parametrize("core", [0, 30])
def test_the_exporter_reads_what_the_agent_wrote(node, core):
    """
    Hold, limits and region agree, under the pod's names and its UID.
    """
    promise = promised(node, (0, 2), (1, 2), core=core)
    deliver(node, promise)

    found = PromiseSource((), node.places.run_dir, Path("/proc"), Path("/sys/fs/cgroup")).read(0.0)

    assert (True, 0, 1) == (found.agent, found.unreadable, len(found.holds))
    facts = found.holds[0]
    assert ("", promise.id, UID) == (facts.limits_error, facts.hold.id, facts.hold.tenant.uid)
    assert ("ml", "train-0", "main") == (
        facts.hold.tenant.namespace,
        facts.hold.tenant.pod,
        facts.hold.tenant.container,
    )
    assert promise.slices == facts.hold.slices
    assert facts.region is not None


def test_where_nothing_is_enforced_there_is_no_library(node):
    """
    Share-only: devices and environment, a hold that says so, no promise files.
    """
    promise = promised(node, (0, 2), policy="none")
    edits = resolve(node.places.cdi_dir, deliver(node, promise))

    assert "/etc/ld.so.preload" not in edits.mounts
    assert (node.cards[0].uuid, "2", "16") == tuple(
        edits.env[name] for name in ("NVIDIA_VISIBLE_DEVICES", "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV")
    )
    found = PromiseSource((), node.places.run_dir, Path("/proc"), Path("/sys/fs/cgroup")).read(0.0)
    assert ["none"] == [facts.hold.policy for facts in found.holds]


def test_retired_means_gone(node):
    """
    Folder, hold and device; the second time is no error.
    """
    promise = promised(node, (0, 2))
    deliver(node, promise)
    assert {promise.hash} == set(node.delivery.standing())

    for _ in range(2):
        asyncio.run(node.delivery.retire(promise.hash))

    assert (set(), []) == (set(node.delivery.standing()), list(node.places.cdi_dir.iterdir()))


@pytest.mark.parametrize("name", ["libgpushare.so", "ld.so.preload"])
@pytest.mark.parametrize("spoil", ["missing", "folder", "link", "empty"])
def test_a_source_that_is_no_file_is_made_good_before_anything_starts(node, name, spoil):
    """
    A missing source would be a folder in the container, and the container unlimited.
    """
    source = node.backend.home() / name
    source.unlink()
    match spoil:
        case "folder":
            source.mkdir()
        case "link":
            source.symlink_to("/etc/hostname")
        case "empty":
            source.touch()

    deliver(node, promised(node, (0, 2)))

    assert source.is_file()
    assert not source.is_symlink()
    assert source.stat().st_size


def test_without_a_library_nothing_starts(node):
    """
    It says which file is missing.
    """
    node.backend.source = lambda: node.places.run_dir / "no-such-library.so"
    shutil.rmtree(node.places.run_dir / "lib", ignore_errors=True)

    with pytest.raises(UndeliverableError, match="no-such-library"):
        deliver(node, promised(node, (0, 2)))


def test_an_update_leaves_the_library_of_running_containers(node, tmp_path):
    """
    Versions lie side by side; one that no container names goes.
    """
    old = promised(node, (0, 2))
    deliver(node, old)
    before = node.backend.home()
    newer = tmp_path / "newer.so"
    newer.write_bytes((before / "libgpushare.so").read_bytes() + b"\0")
    updated = LibraryBackend(node.places.run_dir, lambda: newer)
    hardware = SimulatedHardware(node.box.path, LIBRARIES, node.places.run_dir)
    delivery = NodeDelivery(node.places, hardware, updated, node.inventory)
    asyncio.run(delivery.deliver(promised(node, (1, 2))))

    delivery.sweep_libraries()
    assert before.is_dir()
    asyncio.run(delivery.retire(old.hash))
    delivery.sweep_libraries()

    assert (False, True) == (before.is_dir(), updated.home().is_dir())


def test_backends_say_what_they_cannot_do(tmp_path):
    """
    Two work; the others are names with a reason.
    """
    reasons = {name: bool(backend.available()) for name, backend in backends(tmp_path).items()}

    assert {"library": False, "none": False, "kernel": True, "mps": True} == reasons
    assert isinstance(backends(tmp_path)["none"], NoBackend)


@needs_namespaces
def test_the_first_device_of_a_program_is_its_own_card(node):
    """
    The second card of the machine is all it was promised: to the driver there is no other, as on a real machine.
    """
    names = deliver(node, promised(node, (1, 2)))
    assert [OK, 2 * GIB] == node.boxed.run(names, "rc = begin(); say([rc, info()[1]])")
    found = resolve(node.places.cdi_dir, names)
    assert node.cards[1].uuid == found.env["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [((0, 3, 0), "0.5.0"), ((0, 7, 0), "0.7.0"), ((1, 0, 0), "1.0.0"), ((1, 4, 2), "1.0.0"), ((7, 0, 0), "1.0.0")],
)
def test_a_spec_is_of_no_version_that_a_runtime_may_not_know(theirs, ours):
    """
    The vendor's tool may be newer than the container runtime, which refuses specs of versions to come.
    """
    assert ours == json.loads(spec("a", Edits(), Vendor(theirs, {})))["cdiVersion"]


def test_real_cards_come_by_their_minor_numbers_and_the_vendors_libraries(tmp_path):
    """
    UUIDs, not indices, say which node; the vendor's own devices and environment are left out.
    """
    gpus, cdi = tmp_path / "gpus", tmp_path / "cdi"
    for minor, bus in ((7, "0000:01:00.0"), (2, "0000:02:00.0")):
        (gpus / bus).mkdir(parents=True)
        (gpus / bus / "information").write_text(
            f"Model: \t Tesla\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n"
        )
    cdi.mkdir()
    (cdi / "nvidia.yaml").write_text(
        "cdiVersion: 0.7.0\nkind: nvidia.com/gpu\n"
        "devices: [{name: all, containerEdits: {deviceNodes: [{path: /dev/x}]}}]\n"
        "containerEdits:\n  env: [NVIDIA_VISIBLE_DEVICES=void]\n  deviceNodes: [{path: /dev/nvidiactl}]\n"
        "  mounts: [{hostPath: /lib/libcuda.so.1, containerPath: /lib/libcuda.so.1, options: [ro]}]\n"
        "  hooks: [{hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [a]}]\n"
    )
    hardware = NvidiaHardware(Path("/nowhere"), gpus, (tmp_path / "none", cdi))
    vendor = hardware.vendor()
    assert ((0, 7, 0), {"deviceNodes", "mounts", "hooks"}) == (vendor.version, set(vendor.edits))

    with pytest.raises(UndeliverableError, match="nvidia7 is not a device file"):
        hardware.edits([Slice("GPU-7", 0, GIB)])
    with pytest.raises(UndeliverableError, match="does not list GPU-9"):
        hardware.edits([Slice("GPU-9", 0, GIB)])


def test_the_hold_keeps_its_age_and_knows_its_boot(node):
    """
    A restart is no new promise.
    """
    promise = promised(node, (0, 2))
    deliver(node, promise)
    hold = node.places.alloc / promise.hash / "promise.json"
    before = hold.read_text()
    deliver(node, promise)

    assert before == hold.read_text()
    assert process.boot() in before
    assert os.geteuid() == hold.stat().st_uid
    assert 0o644 == hold.stat().st_mode & 0o777
