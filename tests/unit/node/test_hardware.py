# SPDX-License-Identifier: Apache-2.0
"""How a container reaches its cards: one CDI device for each, made of the driver's word and the vendor's spec."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from isolation.contract.model import Card, Instance, Slice
from isolation.contract.quantity import GIB
from isolation.node.backend import UndeliverableError
from isolation.node.cdi import Vendor, cards_spec, vendor_of
from isolation.node.hardware import NvidiaHardware
from isolation.node.nri.model import Adjustment

VENDOR = """
cdiVersion: 0.7.0
kind: nvidia.com/gpu
devices: [{name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia9}]}}]
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=all, NVIDIA_CTK_LIBCUDA_DIR=/x]
  deviceNodes: [{path: /dev/nvidiactl}, {path: /dev/nvidia-modeset}]
  mounts: [{hostPath: /lib/libcuda.so.1, containerPath: /lib/libcuda.so.1, options: [ro]}]
  hooks: [{hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [a]}]
  additionalGids: [44]
"""
SLICES = [Slice("GPU-7", 0, GIB), Slice("GPU-2", 1, GIB)]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A host with cards 7 and 2 (by minor number), and the vendor's spec."""
    for minor, bus in ((7, "0000:01:00.0"), (2, "0000:02:00.0")):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        information = f"Model: \t Tesla\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n"
        (tmp_path / "gpus" / bus / "information").write_text(information)
    for name in ("dev", "cdi", "etc"):
        (tmp_path / name).mkdir()
    for name in ("nvidia7", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    monkeypatch.setattr(Path, "is_char_device", Path.is_file)  # nobody but root makes device files
    (tmp_path / "cdi/nvidia.yaml").write_text(VENDOR)
    return tmp_path


def hardware(machine):
    """Of an agent that has just started."""
    return NvidiaHardware(machine / "cdi", machine / "dev", machine / "gpus", (machine / "etc", machine / "cdi"))


def written(machine):
    """Our spec."""
    return json.loads((machine / "cdi/gpushare-cards.json").read_text())


def test_each_card_is_a_device_by_uuid_with_the_node_that_the_kernel_says(machine):
    edits = hardware(machine).edits(SLICES, {})

    assert ("gpushare.dev/card=GPU-7", "gpushare.dev/card=GPU-2") == edits.devices
    assert {"NVIDIA_VISIBLE_DEVICES": "void"} == edits.env
    assert () == edits.mounts
    spec = written(machine)
    assert "gpushare.dev/card" == spec["kind"]
    assert {"GPU-7": ["/dev/nvidia7"], "GPU-2": ["/dev/nvidia2"]} == {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]] for device in spec["devices"]
    }


def test_the_driver_comes_from_the_vendor_and_no_card_and_no_variable_does(machine):
    hardware(machine).edits(SLICES, {})
    common = written(machine)["containerEdits"]

    assert {"deviceNodes", "mounts", "hooks", "additionalGids"} == set(common)
    nodes = [node["path"] for node in common["deviceNodes"]]
    assert ["/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm"] == nodes, "each once; those that are there"
    assert ("/usr/bin/nvidia-cdi-hook", [44]) == (common["hooks"][0]["path"], common["additionalGids"])


def test_where_the_runtime_ignores_cdi_devices_of_plugins_it_is_told_what_they_stand_for(machine, monkeypatch):
    """CRI-O: nodes of these cards and of the driver, its files and hooks; the other card is not among them."""
    monkeypatch.setattr(os, "major", lambda _: 195)
    monkeypatch.setattr(os, "minor", lambda _: 3)
    (machine / "dev/nvidia-modeset").touch()
    folders = machine / "cdi", machine / "dev", machine / "gpus", (machine / "etc", machine / "cdi")

    edits = NvidiaHardware(*folders, looks_up=lambda: False).edits(SLICES[:1], {})

    assert () == edits.devices
    message = Adjustment(edits.env, injected=edits.injected, hook=("/guard", "/marks")).message()
    linux = message.DESCRIPTOR.fields_by_name["linux"].message_type
    assert 1 == linux.fields_by_name["devices"].number, "2 in a container, 1 in its adjustment (api.proto)"
    nodes = [(node.path, node.type, node.major, node.minor) for node in message.linux.devices]
    paths = "/dev/nvidia7", "/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm"
    assert [(path, "c", 195, 3) for path in paths] == nodes
    [mount] = message.mounts
    assert ("/lib/libcuda.so.1", "bind", ["ro"]) == (mount.destination, mount.type, list(mount.options))
    [hook] = message.hooks.create_container
    assert ("/usr/bin/nvidia-cdi-hook", ["a"]) == (hook.path, list(hook.args))
    assert ["/guard"] == [one.path for one in message.hooks.create_runtime]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("hookName: createContainer", "hookName: later"),
        ("hostPath: /lib", "host: /lib"),
        ("path: /dev/nvidia-m", "p: m"),
    ],
)
def test_a_vendors_spec_that_cannot_be_resolved_is_reported(machine, was, now):
    (machine / "cdi/nvidia.yaml").write_text(VENDOR.replace(was, now))
    (machine / "dev/nvidia-modeset").touch()
    folders = machine / "cdi", machine / "dev", machine / "gpus", (machine / "etc", machine / "cdi")
    with pytest.raises(UndeliverableError, match="the vendor's CDI spec has an invalid entry"):
        NvidiaHardware(*folders, looks_up=lambda: False).edits(SLICES, {})


def test_the_spec_is_written_again_only_when_something_has_changed(machine):
    """The runtime reads the folder when it changes; numbers of device files may change with a reset."""
    made = hardware(machine)
    made.edits(SLICES, {})
    file = machine / "cdi/gpushare-cards.json"
    before = file.stat().st_ino
    made.edits(SLICES[:1], {})
    assert before == file.stat().st_ino
    (machine / "dev/nvidia7").rename(machine / "dev/nvidia3")
    information = machine / "gpus/0000:01:00.0/information"
    information.write_text(information.read_text().replace("Minor: \t 7", "Minor: \t 3"))
    made.edits(SLICES, {})
    nodes = {
        device["name"]: device["containerEdits"]["deviceNodes"][0]["path"] for device in written(machine)["devices"]
    }
    assert "/dev/nvidia3" == nodes["GPU-7"]
    (machine / "cdi/nvidia.yaml").write_text(VENDOR.replace("libcuda.so.1", "libcuda.so.2"))
    made.edits(SLICES, {})
    assert "libcuda.so.2" in file.read_text()
    file.unlink()
    made.edits(SLICES, {})
    assert file.exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda machine: (machine / "dev/nvidia7").unlink(), "nvidia7 is not a device file: run `nvidia-modprobe"),
        (lambda machine: (machine / "dev/nvidia-uvm").unlink(), "nvidia-uvm is not a device file"),
        (
            lambda machine: (machine / "gpus/0000:01:00.0/information").unlink(),
            "does not list GPU-7: it may have fallen",
        ),
        (
            lambda machine: (machine / "cdi/nvidia.yaml").unlink(),
            "no CDI spec of kind nvidia.com/gpu in .* `nvidia-ctk",
        ),
        (lambda machine: (machine / "cdi/nvidia.yaml").write_text("kind: ["), "no CDI spec of kind"),
        (lambda machine: (machine / "cdi/nvidia.yaml").write_text(VENDOR + " " * (4 << 20)), "no CDI spec of kind"),
        (lambda machine: (machine / "cdi/nvidia.yaml").write_text("kind: other.com/x"), "no CDI spec of kind"),
    ],
)
def test_what_is_missing_is_reported_with_what_to_do(machine, spoil, said):
    spoil(machine)
    with pytest.raises(UndeliverableError, match=said):
        hardware(machine).edits(SLICES, {})


def test_a_card_without_a_device_file_takes_nothing_from_the_others(machine):
    (machine / "dev/nvidia7").unlink()
    hardware(machine).edits(SLICES[1:], {})
    assert ["GPU-2"] == [device["name"] for device in written(machine)["devices"]]


def test_the_vendors_spec_is_the_first_that_can_be_read(machine):
    """/etc before /var/run; ours, drafts and others' kinds are none."""
    (machine / "etc/a.json").write_text("{")
    (machine / "etc/b.json").write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "x.com/y", "containerEdits": {}}))
    mounts = [{"hostPath": "/first", "containerPath": "/first"}]
    vendor = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "containerEdits": {"mounts": mounts}}
    for name in ("gpushare-x.json", ".draft.json", "note.txt", "c.json"):
        (machine / "etc" / name).write_text(json.dumps(vendor))
        mounts[0]["hostPath"] += "x"
    hardware(machine).edits(SLICES, {})
    assert "/firstxxx" == written(machine)["containerEdits"]["mounts"][0]["hostPath"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("0.3.0", "0.5.0"), ("v0.7.0", "0.7.0"), ("1.0.0", "1.0.0"), ("1.4.2", "1.0.0"), ("7.0.0", "1.0.0")],
)
def test_a_spec_is_of_no_version_that_a_runtime_may_not_know(theirs, ours):
    """The vendor's tool may be newer than the container runtime, which refuses specs of versions to come."""
    vendor = vendor_of({"cdiVersion": theirs, "kind": "k", "containerEdits": {}}, "k")
    assert ours == json.loads(cards_spec({}, [], vendor))["cdiVersion"]


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "kind: k",
        {"kind": "k", "cdiVersion": "0.6.0"},
        {"kind": "k", "cdiVersion": "new", "containerEdits": {}},
        {"kind": "k", "containerEdits": {}},
        {"kind": "k", "cdiVersion": "0.6.0", "containerEdits": []},
        {"kind": "other", "cdiVersion": "0.6.0", "containerEdits": {}},
    ],
)
def test_what_is_no_spec_of_the_vendors_is_none(document):
    assert vendor_of(document, "k") is None


def test_edits_of_another_shape_are_left_out():
    """A list is a list; what stands in it is the runtime's to judge."""
    edits = {"mounts": "no list", "hooks": [1], "deviceNodes": ["no object"], "intelRdt": {}}
    vendor = vendor_of({"kind": "k", "cdiVersion": "0.6.0", "containerEdits": edits}, "k")
    assert Vendor((0, 6, 0), {"hooks": [1], "deviceNodes": ["no object"]}) == vendor
    assert '"path": "/dev/nvidiactl"' in cards_spec({}, ["/dev/nvidiactl"], vendor)


def divide(machine, minor=7, places=((1, 0), (9, 0))):
    """MIG instances of a card, as the driver lists what may be done with them; their device files."""
    made = {}
    for at, (gpu, compute) in enumerate(places):
        folder = machine / f"capabilities/gpu{minor}/mig/gi{gpu}"
        (folder / f"ci{compute}").mkdir(parents=True)
        for file, number in ((folder / "access", 30 + 2 * at), (folder / f"ci{compute}/access", 31 + 2 * at)):
            file.write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
            (machine / "dev/nvidia-caps").mkdir(exist_ok=True)
            (machine / f"dev/nvidia-caps/nvidia-cap{number}").touch()
        uuid = f"MIG-{at}"
        made[uuid] = Card(uuid, at, GIB, instance=Instance(f"GPU-{minor}", "1g.10gb", gpu, compute))
    return made


def divided_hardware(machine):
    """The same of an agent on a node whose cards MIG divides."""
    dirs = machine / "etc", machine / "cdi"
    return NvidiaHardware(machine / "cdi", machine / "dev", machine / "gpus", dirs, machine / "capabilities")


def test_an_instance_comes_with_its_card_and_what_allows_it_alone(machine):
    """The card's node, the files of its own GPU and compute instance, and no other's."""
    cards = divide(machine)

    edits = divided_hardware(machine).edits([Slice("MIG-1", 1, GIB)], cards)

    assert ("gpushare.dev/card=MIG-1",) == edits.devices
    nodes = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in written(machine)["devices"]
    }
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert {
        "MIG-0": ["/dev/nvidia7", f"{caps}30", f"{caps}31"],
        "MIG-1": ["/dev/nvidia7", f"{caps}32", f"{caps}33"],
    } == {uuid: nodes[uuid] for uuid in cards}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda machine: (machine / "capabilities/gpu7/mig/gi9/access").unlink(), "no MIG instance MIG-1 .*changed"),
        (lambda machine: (machine / "capabilities/gpu7/mig/gi9/ci0/access").write_text("?"), "no MIG instance MIG-1"),
        (lambda machine: (machine / "dev/nvidia-caps/nvidia-cap33").unlink(), "cap33 is not a device file: run .* -f "),
        (lambda machine: (machine / "gpus/0000:01:00.0/information").unlink(), "does not list GPU-7"),
    ],
)
def test_an_instance_that_cannot_be_given_is_refused_and_takes_nothing_from_others(machine, spoil, said):
    cards = divide(machine)
    spoil(machine)

    with pytest.raises(UndeliverableError, match=said):
        divided_hardware(machine).edits([Slice("MIG-1", 1, GIB)], cards)
    assert () == divided_hardware(machine).edits([], cards).devices
    assert "MIG-1" not in {device["name"] for device in written(machine)["devices"]}
