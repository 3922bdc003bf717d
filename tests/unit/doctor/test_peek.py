# SPDX-License-Identifier: Apache-2.0
"""How the doctor reads what others wrote."""

from __future__ import annotations

import os
import socket

import pytest

from isolation.doctor.bounded_files import FileReader, Folder, Missing, Unreadable
from isolation.doctor.machine_reader import MachinePaths, read_containerd_imports, read_machine


def test_a_file_is_read_and_a_missing_one_is_missing(tmp_path):
    """
    The two plain cases.
    """
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/a").write_text("text")
    peek = FileReader(tmp_path)

    assert ("text", Missing(), Missing()) == (peek.text("/etc/a"), peek.text("/etc/b"), peek.text("/etc/a/b"))


@pytest.mark.parametrize("make", ["fifo", "socket", "folder", "device", "huge", "sparse"])
def test_what_is_no_plain_small_file_is_not_read(tmp_path, make):
    """
    Nothing of it blocks, floods memory or is taken for text.
    """
    path = tmp_path / "x"
    if make == "fifo":
        os.mkfifo(path)
    elif make == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif make == "folder":
        path.mkdir()
    elif make == "device":
        path.symlink_to("/dev/zero")
    elif make == "huge":
        path.write_bytes(b"x" * 2000)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)

    assert isinstance(FileReader().text(str(path), 1000), Unreadable)


def test_links_are_followed_inside_the_root_only(tmp_path):
    """
    A host's /etc/x -> /y is the host's /y, and .. does not lead out.
    """
    root = tmp_path / "host"
    (root / "etc").mkdir(parents=True)
    (tmp_path / "outside").write_text("ours")
    (root / "y").write_text("the host's")
    (root / "etc/absolute").symlink_to("/y")
    (root / "etc/up").symlink_to("../../outside")
    (root / "etc/away").symlink_to(str(tmp_path / "outside"))
    (root / "etc/round").symlink_to("round")
    peek = FileReader(root)

    assert "the host's" == peek.text("/etc/absolute")
    assert (Missing(), Missing()) == (peek.text("/etc/up"), peek.text("/etc/away"))
    assert isinstance(peek.text("/etc/round"), Unreadable)
    assert peek.exists("/etc/round") is None


def test_a_folder_tells_at_most_a_thousand_names(tmp_path):
    """
    Whoever fills a folder does not fill our memory.
    """
    for at in range(1100):
        (tmp_path / f"{at:04}").touch()

    found = FileReader().folder(str(tmp_path))

    assert isinstance(found, Folder)
    assert 1024 == len(found.names)


def test_imports_of_a_configuration_are_read_in_order_and_inside_the_root(tmp_path):
    """
    Patterns relative to the main file and absolute ones; other entries are left out.
    """
    (tmp_path / "etc/containerd/conf.d").mkdir(parents=True)
    for name in ("b.toml", "a.toml", "c.txt"):
        (tmp_path / "etc/containerd/conf.d" / name).write_text(name)
    text = 'imports = ["conf.d/*.toml", 3, "/etc/containerd/conf.d/c.*", "/nowhere/*"]'

    assert ["a.toml", "b.toml", "c.txt"] == list(read_containerd_imports(text, FileReader(tmp_path)))
    assert [] == list(read_containerd_imports("imports = 7", FileReader(tmp_path)))
    assert [] == list(read_containerd_imports("= broken", FileReader(tmp_path)))


def test_a_look_at_a_node_of_files_finds_its_kubelet(tmp_path):
    """
    The kubelet's own command line says where its configuration and its sockets are; one that runs in a container is
    another machine's.
    """
    process = tmp_path / "proc/42"
    process.mkdir(parents=True)
    (process / "cmdline").write_bytes(b"/usr/bin/kubelet\0--config\0/opt/k.yaml\0--root-dir=/data/kubelet\0")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/k.yaml").write_text("cpuManagerPolicy: static")
    (tmp_path / "data/kubelet/device-plugins").mkdir(parents=True)
    (tmp_path / "data/kubelet/device-plugins/kubelet.sock").touch()
    (tmp_path / "data/kubelet/pod-resources").mkdir()
    (tmp_path / "data/kubelet/pod-resources/kubelet.sock").touch()

    for number, name in (("1", "systemd"), ("41", "kubelet")):
        other = tmp_path / "proc" / number
        (other / "ns").mkdir(parents=True)
        (other / "ns/pid").symlink_to("pid:[7]" if name == "kubelet" else "pid:[1]")
        (other / "cmdline").write_bytes(f"/usr/bin/{name}\0--config=/of/a/container\0".encode())
    (process / "ns").mkdir()
    (process / "ns/pid").symlink_to("pid:[1]")

    seen = read_machine(MachinePaths(tmp_path, run_dir="/data/gpushare"))

    assert "cpuManagerPolicy: static" == seen.kubelet.config
    assert ("kubelet.sock",) == seen.kubelet.plugins.names
    assert seen.kubelet.pod_resources
    assert () == seen.mps
    assert seen.run_dir.kind is not None
