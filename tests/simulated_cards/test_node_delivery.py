# SPDX-License-Identifier: Apache-2.0
"""
What the agent puts on the disk, and what becomes of a process that is started with exactly that.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from support.cdi_process import Boxed, namespaces
from support.simbox import boxes
from support.waiting import PATIENCE_SECONDS

from exporter.sources.promises import PromiseSource
from isolation.contract import abi
from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Card, Slice
from isolation.contract.quantity import GIB
from isolation.host import process
from isolation.lib import files
from isolation.node.backend import LibraryBackend, UndeliverableError
from isolation.node.core.container_check import Given
from isolation.node.delivery import Delivery, promise_id
from isolation.node.hardware import SimulatedHardware

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ROOT / "isolation" / "simgpu" / "lib"
OOM, OK = 2, 0
TENANT = Tenant("ml", "train-0", "1140914f-bf25-4cf5-a28a-2853bcd66768", "main")
pytestmark = pytest.mark.skipif(not (LIBRARIES / "libcuda.so.1").is_file(), reason="the simulated driver was not built")
needs_namespaces = pytest.mark.skipif(not namespaces(), reason="this user may not make mount namespaces")


@pytest.fixture
def node(tmp_path):
    """A node with a simulated V100 and a T4."""
    with boxes("v100-16g", "t4", teardown_ns=0) as box:
        uuids = [f"GPU-{UUID(bytes=bytes(card.model.uuid))}" for card in box.cards()]
        cards = [Card(uuid, at, 16 * GIB, model="Tesla V100") for at, uuid in enumerate(uuids)]
        run_dir = tmp_path / "run"
        hardware = SimulatedHardware(box.path, LIBRARIES, run_dir)
        backend = LibraryBackend(run_dir)
        made = SimpleNamespace(box=box, cards=cards, run_dir=run_dir, hardware=hardware, backend=backend)
        made.delivery = Delivery(run_dir, hardware, backend)
        made.boxed = Boxed(tmp_path)
        yield made


def given(node, *parts, enforced=True, core=0):
    """Parts of (card, GiB)."""
    return Given(tuple(Slice(node.cards[card].uuid, card, size * GIB, core) for card, size in parts), enforced)


def deliver(node, what, tenant=TENANT):
    """Put it in place; what the container's specification must have."""
    return node.delivery.deliver(tenant, what, {card.uuid: card for card in node.cards}).edits


def folder(node, tenant=TENANT):
    """Of one container's files."""
    return node.run_dir / "alloc" / promise_id(tenant)


@needs_namespaces
def test_a_process_started_as_the_edits_say_has_its_promise_and_no_more(node):
    """
    Two GiB of sixteen: that is all the card it sees, and one byte more is refused.
    """
    edits = deliver(node, given(node, (0, 2)))

    code = "rc = begin(); say([rc, info()[1], alloc(1 << 30)[0], alloc(1 << 30)[0]])"
    begun, total, first, second = node.boxed.run(edits, code)

    assert (OK, 2 * GIB, OK, OOM) == (begun, total, first, second)


@needs_namespaces
def test_parts_of_two_cards_are_two_cards(node):
    """
    N over M: each card shows its part.
    """
    edits = deliver(node, given(node, (0, 2), (1, 2)))

    code = "begin(); say([info()[1], alloc(3 << 30)[0], alloc(1 << 30)[0]])"
    assert [2 * GIB, OOM, OK] == node.boxed.run(edits, code)
    code = "begin(1); say([info()[1], alloc(3 << 30)[0], alloc(1 << 30)[0]])"
    assert [2 * GIB, OOM, OK] == node.boxed.run(edits, code)


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
    The adjustment comes last.
    """
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    places = {"EMPTY": str(tmp_path / "empty"), "FOLDER": str(tmp_path / "folder")}
    mounts = {inside: places[source] for inside, source in wish.get("mounts", {}).items()}
    edits = deliver(node, given(node, (0, 2)))

    said = node.boxed.run(edits, "begin(); say([info()[1], alloc(3 << 30)[0]])", env=wish.get("env", {}), mounts=mounts)

    assert [2 * GIB, OOM] == said


@needs_namespaces
def test_a_tenant_cannot_write_its_limits(node):
    """
    The folder is read-only in the container; the region is its own.
    """
    edits = deliver(node, given(node, (0, 2)))
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
    assert [30, 30, 30, 0] == node.boxed.run(edits, code)


@needs_namespaces
def test_a_promise_that_grows_in_place_is_seen_by_the_running_process(node):
    """
    The files are rewritten, never replaced: a new inode would not cross the mount.
    """
    what = given(node, (0, 2))
    edits = deliver(node, what)
    code = "begin(); say(alloc(3 << 30)[0]); sys.stdin.readline(); time.sleep(0.2); say(alloc(3 << 30)[0])"
    running = node.boxed.start(edits, code)
    assert "2" == running.stdout.readline().strip()

    node.delivery.change(TENANT, given(node, (0, 4)), {card.uuid: card for card in node.cards})
    out, err = running.communicate("go\n", timeout=PATIENCE_SECONDS)

    assert "0" == out.strip(), err
    assert 2 == abi.unpack_limits((folder(node) / "limits/limits").read_bytes()).generation


@needs_namespaces
def test_a_restarted_container_finds_the_ledger_of_its_processes(node):
    """
    What a process that would not die has stays charged; the dead are cleared away.
    """
    what = given(node, (0, 2))
    edits = deliver(node, what)
    survivor = node.boxed.start(edits, "begin(); say(alloc(1 << 30)[0]); sys.stdin.readline()")
    assert "0" == survivor.stdout.readline().strip()

    again = deliver(node, what)
    assert OOM == node.boxed.run(again, "begin(); say(alloc(1 << 30)[0])")
    survivor.communicate("go\n", timeout=PATIENCE_SECONDS)
    assert OK == node.boxed.run(deliver(node, what), "begin(); say(alloc(1 << 30)[0])")


def test_a_spoilt_region_is_recreated_for_the_next_start(node):
    """
    A tenant harms itself until it restarts, no longer.
    """
    what = given(node, (0, 2))
    deliver(node, what)
    region = folder(node) / "region/region"
    before = region.stat().st_ino

    deliver(node, what)
    assert before == region.stat().st_ino
    region.write_bytes(b"x" * 100)
    deliver(node, what)

    assert promise_id(TENANT)[:63] == files.read_region(region).promise


@pytest.mark.parametrize("core", [0, 30])
def test_the_exporter_reads_what_the_agent_wrote(node, core):
    """
    Hold, limits and region agree, under the pod's names and its UID.
    """
    what = given(node, (0, 2), (1, 2), core=core)
    deliver(node, what)

    found = PromiseSource((), node.run_dir, Path("/proc"), Path("/sys/fs/cgroup")).read(0.0)

    assert (True, 0, 1) == (found.agent, found.unreadable, len(found.holds))
    facts = found.holds[0]
    assert ("", promise_id(TENANT), TENANT) == (facts.limits_error, facts.hold.id, facts.hold.tenant)
    assert what.slices == facts.hold.slices
    assert facts.region is not None


def test_where_nothing_is_enforced_there_is_no_library(node):
    """
    Share-only: devices and environment, a hold that says so, no promise files.
    """
    edits = deliver(node, given(node, (0, 2), enforced=False))

    assert "/etc/ld.so.preload" not in {mount.container for mount in edits.mounts}
    assert (node.cards[0].uuid, "2", "16") == tuple(
        edits.env[name] for name in ("NVIDIA_VISIBLE_DEVICES", "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV")
    )
    found = PromiseSource((), node.run_dir, Path("/proc"), Path("/sys/fs/cgroup")).read(0.0)
    assert ["none"] == [facts.hold.policy for facts in found.holds]


def test_retired_means_gone(node):
    """
    Folder and promise; the second time is no error.
    """
    deliver(node, given(node, (0, 2)))
    assert [promise_id(TENANT)] == [ident for ident, _ in node.delivery.standing()]
    for _ in range(2):
        node.delivery.retire(promise_id(TENANT))
    assert [] == list(node.delivery.standing())


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

    deliver(node, given(node, (0, 2)))

    assert source.is_file()
    assert not source.is_symlink()
    assert source.stat().st_size


def test_without_a_library_nothing_starts(node):
    """
    It says which file is missing.
    """
    node.backend.source = lambda: node.run_dir / "no-such-library.so"
    shutil.rmtree(node.run_dir / "lib", ignore_errors=True)

    with pytest.raises(UndeliverableError, match="no-such-library"):
        deliver(node, given(node, (0, 2)))


def test_an_update_leaves_the_library_of_running_containers(node, tmp_path):
    """
    Versions lie side by side; one that no container names goes.
    """
    deliver(node, given(node, (0, 2)))
    before = node.backend.home()
    newer = tmp_path / "newer.so"
    newer.write_bytes((before / "libgpushare.so").read_bytes() + b"\0")
    updated = LibraryBackend(node.run_dir, lambda: newer)
    node.delivery = Delivery(node.run_dir, node.hardware, updated)
    deliver(node, given(node, (1, 2)), replace(TENANT, container="other"))

    node.delivery.sweep_libraries()
    assert before.is_dir()
    node.delivery.retire(promise_id(TENANT))
    node.delivery.sweep_libraries()

    assert (False, True) == (before.is_dir(), updated.home().is_dir())


@needs_namespaces
def test_the_first_device_of_a_program_is_its_own_card(node):
    """
    The second card of the machine is all it was promised: to the driver there is no other, as on a real machine.
    """
    edits = deliver(node, given(node, (1, 2)))
    assert [OK, 2 * GIB] == node.boxed.run(edits, "rc = begin(); say([rc, info()[1]])")
    assert node.cards[1].uuid == edits.env["CUDA_VISIBLE_DEVICES"]


def test_the_hold_keeps_its_age_and_knows_its_boot(node):
    """
    A restart is no new promise.
    """
    what = given(node, (0, 2))
    deliver(node, what)
    hold = folder(node) / "promise.json"
    before = hold.read_text()
    deliver(node, what)

    assert before == hold.read_text()
    assert process.boot() in before
    assert os.geteuid() == hold.stat().st_uid
    assert 0o644 == hold.stat().st_mode & 0o777
