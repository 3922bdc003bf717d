# SPDX-License-Identifier: Apache-2.0
"""The gate: the guard and its CDI device in their place, and a mark for each container that may start."""

from __future__ import annotations

import json
import os
import stat
from types import SimpleNamespace

import pytest

from isolation.contract.names import START_NONCE
from isolation.node.cdi import Mount
from isolation.node.guard_device import GuardDevice, GuardDeviceError
from isolation.node.nri.model import NriRefusedError

CID = "a" * 64


@pytest.fixture
def places(tmp_path):
    (tmp_path / "built").write_bytes(b"\x7fELF one")
    return SimpleNamespace(
        **{name: tmp_path / name for name in ("built", "run", "cdi", "marks")},
        program=tmp_path / "run/bin/gpushare-guard",
        spec=tmp_path / "cdi/gpushare-gate.json",
    )


@pytest.fixture
def gate(places):
    made = GuardDevice(places.run, places.cdi, places.marks, places.built)
    put_right(made)
    return made


def put_right(gate):
    """As the device plugin does, as long as it is shown all creates."""
    gate.install()
    gate.offer()


def names(folder):
    """What is in it."""
    return [path.name for path in folder.iterdir()]


def mode(path):
    """Permissions."""
    return stat.S_IMODE(path.stat().st_mode)


def test_the_device_closes_a_container_and_runs_the_guard(gate, places):
    """Its name, which the kubelet keeps for ever, and the file, which specifications of containers name."""
    document = json.loads(places.spec.read_text())
    [device] = document["devices"]
    assert gate.device == f"{document['kind']}={device['name']}" == "gpushare.dev/gate=closed"
    [hook] = device["containerEdits"]["hooks"]
    assert ["NVIDIA_VISIBLE_DEVICES=void"] == device["containerEdits"]["env"]
    assert ("createRuntime", str(places.program)) == (hook["hookName"], hook["path"])
    assert list(gate.hook) == hook["args"] == [str(places.program), str(places.marks)]
    assert (0o755, 0o700, 0o644) == (mode(places.program), mode(places.marks), mode(places.spec))


def test_it_is_installed_again_as_often_as_asked_and_changes_nothing(gate, places):
    """A runtime that watches the folder reads no spec again for nothing; a start in progress keeps its program."""
    before = [path.stat().st_ino for path in (places.program, places.spec)]
    gate.mark(CID, ())
    put_right(gate)
    assert before == [path.stat().st_ino for path in (places.program, places.spec)]
    assert (places.marks / CID).is_file()


@pytest.mark.parametrize("spoil", ["updated", "missing", "cut", "open", "spec", "no spec"])
def test_what_was_changed_is_put_right(gate, places, spoil):
    match spoil:
        case "updated":
            places.built.write_bytes(b"\x7fELF two")
        case "missing":
            places.program.unlink()
        case "cut":
            places.program.write_bytes(b"")
        case "open":
            places.marks.chmod(0o777)
        case "spec":
            places.spec.write_text("{}")
        case "no spec":
            places.spec.unlink()
    old = os.open(places.program, os.O_RDONLY) if places.program.exists() else None
    put_right(gate)
    assert (places.built.read_bytes(), 0o755) == (places.program.read_bytes(), mode(places.program))
    assert (0o700, "closed") == (mode(places.marks), json.loads(places.spec.read_text())["devices"][0]["name"])
    if old is not None:
        os.close(old)
    assert ["gpushare-guard"] == names(places.program.parent)


def test_a_gate_that_is_withdrawn_leaves_no_device_to_find(gate, places):
    """The runtime refuses such a create, which the kubelet repeats; the guard and the marks stay for what runs."""
    gate.mark(CID, ())
    for _ in range(2):
        gate.withdraw()
        assert ([], True, [CID]) == (names(places.spec.parent), places.program.is_file(), names(places.marks))
    gate.offer()
    assert ["gpushare-gate.json"] == names(places.spec.parent)


def test_a_device_that_cannot_be_withdrawn_is_reported(gate, places):
    places.spec.unlink()
    places.spec.mkdir()
    with pytest.raises(GuardDeviceError, match="cannot remove"):
        gate.withdraw()


def test_what_cannot_be_written_is_reported(gate, places):
    places.program.unlink()
    places.program.parent.rmdir()
    places.program.parent.write_text("in the way")
    with pytest.raises(GuardDeviceError, match="cannot write"):
        gate.install()


def test_a_program_that_may_not_be_run_there_is_reported(gate, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(GuardDeviceError, match="noexec: set --state-dir to another"):
        gate.install()


def test_a_mark_is_a_fresh_nonce_and_the_mounts_for_root_alone(gate, places):
    mounts = (Mount("/h/list", "/etc/ld.so.preload"), Mount("/h/region", "/run/gpushare/region", writable=True))
    nonces = set()
    for _ in range(3):
        [(name, nonce)] = gate.mark(CID, mounts).items()
        nonces.add(nonce)
        assert (START_NONCE, 32) == (name, len(bytes.fromhex(nonce)) * 2)
        assert [
            nonce,
            "/h/list\t/etc/ld.so.preload\tro",
            "/h/region\t/run/gpushare/region\trw",
        ] == (places.marks / CID).read_text().splitlines()
    assert (3, 0o600, [CID]) == (len(nonces), mode(places.marks / CID), names(places.marks))


@pytest.mark.parametrize("ident", ["", ".", "..", "../x", "a/b", ".hidden", "a\n", "ä", "a" * 129, "a b"])
def test_an_id_that_is_no_name_is_refused(gate, places, ident):
    (places.marks.parent / "x").write_text("stays")
    with pytest.raises(NriRefusedError, match="invalid id"):
        gate.mark(ident, ())
    gate.forget(ident)
    assert ("stays", []) == ((places.marks.parent / "x").read_text(), names(places.marks))


def test_marks_of_unknown_containers_are_swept(gate, places):
    for ident in ("old", "new", CID):
        gate.mark(ident, ())
    gate.sweep(lambda: {CID, "new"})
    gate.forget("new")
    gate.forget("new")
    assert [CID] == names(places.marks)


def test_why_the_guard_refused_a_container_is_read_once(gate, places):
    """Not every runtime passes on what a hook writes."""
    note = places.marks / f"{CID}.refused"
    note.write_bytes(b"no mark\x1b[31m\xff" + b"x" * 5000)
    said = gate.forget(CID)
    assert (True, True, len(said) <= 1024) == (said.startswith("no mark"), said.isprintable(), True)
    assert ("", []) == (gate.forget(CID), names(places.marks))
    note.write_text("left behind")
    gate.sweep(lambda: {CID})
    assert [note.name] == names(places.marks)
    gate.sweep(set)
    assert [] == names(places.marks)


def test_a_container_that_is_created_amid_a_sweep_keeps_its_mark(gate, places):
    """The runtime's answer is on its way: without the mark the start would be refused, and a pod might fail for it."""
    known = {"before"}
    gate.mark("before", ())
    gate.mark("gone", ())

    def asked():
        found = set(known)
        gate.mark("meanwhile", ())  # by another thread
        return found

    gate.sweep(asked)
    assert {"before", "meanwhile"} == set(names(places.marks))


def test_a_container_is_guarded_by_our_program_alone(gate, places):
    assert gate.is_guarded(["/other", str(places.program)])
    assert not gate.is_guarded([f"{places.program}x", "/usr/bin/gpushare-guard"])
