# SPDX-License-Identifier: Apache-2.0
"""A container's root as its programs see it: what hides our files, and whose loader would not load the library."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support.cdi_process import namespaces

from isolation.node.cdi import Mount
from isolation.node.image_check import Root

MACHINE = platform.machine()
LOADER = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}[MACHINE]
LIBRARY = f"lib/{MACHINE}-linux-gnu/libc.so.6"


@pytest.fixture
def image(tmp_path):
    """An empty root; the process that has it is 42 in `tmp_path`."""
    made = tmp_path / "root"
    made.mkdir()
    (tmp_path / "42").mkdir()
    (tmp_path / "42/root").symlink_to(made)
    return made


def put(image, path, content=b"x"):
    """A file of the image."""
    made = image / path
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(content)
    return made


def libc(*versions):
    """What stands in one: names of versions, ended by zeros."""
    return b"\x7fELF..." + b"\0".join(f"GLIBC_{one}".encode() for one in versions) + b"\0GLIBC_PRIVATE\0"


def hidden(image, *mounts):
    """By the process."""
    with Root(42, str(image.parent)) as root:
        return root.hidden(mounts)


def problem(image):
    """By the process."""
    with Root(42, str(image.parent)) as root:
        return root.preload_problem()


@pytest.fixture
def ours(tmp_path):
    """A file of ours on the host; where it is mounted, the same file is found."""
    made = tmp_path / "ours"
    made.write_text("/run/gpushare/lib/libgpushare.so\n")
    return made


def test_ours_on_top_is_found_also_through_links(image, ours):
    """An image may have its /etc elsewhere; a link to an absolute path stays in the container."""
    (image / "usr/etc").mkdir(parents=True)
    os.link(ours, image / "usr/etc/ld.so.preload")
    (image / "etc").symlink_to("/usr/etc")
    (image / "relative").symlink_to("../../../usr/etc")
    mounts = [Mount(str(ours), f"/{place}/ld.so.preload") for place in ("etc", "usr/etc", "relative")]
    assert hidden(image, *mounts) == ""


@pytest.mark.parametrize("how", ["another", "nothing", "absolute link", "folder", "loop"])
def test_whatever_else_is_found_hides_ours(image, ours, how):
    place = image / "etc/ld.so.preload"
    place.parent.mkdir()
    match how:
        case "another":
            place.write_bytes(ours.read_bytes())
        case "absolute link":
            place.symlink_to(ours)  # on the host it is ours; in the container there is no such path
        case "folder":
            place.mkdir()
        case "loop":
            place.symlink_to("/etc/ld.so.preload")
    os.link(ours, image / "fine")
    assert hidden(image, Mount(str(ours), "/fine"), Mount(str(ours), "/etc/ld.so.preload")) == "/etc/ld.so.preload"


def test_a_magic_link_is_not_followed(image, ours):
    """/proc/<pid>/fd of an image that mounts a /proc could lead anywhere."""
    fd = os.open(ours, os.O_RDONLY)
    (image.parent / "42/root").unlink()
    (image.parent / "42/root").symlink_to("/")
    try:
        assert hidden(image, Mount(str(ours), f"/proc/{os.getpid()}/fd/{fd}"))
    finally:
        os.close(fd)


@pytest.mark.skipif(not namespaces(), reason="this user may not make mount namespaces")
@pytest.mark.parametrize(("above", "found"), [("true", ""), ("mount --bind {other} {inside}", "/etc/ld.so.preload")])
def test_a_real_container_root_with_a_mount_above_ours(image, ours, tmp_path, above, found):
    """In a mount namespace and a root of its own, as a runtime's init waits in it."""
    inside, other = put(image, "etc/ld.so.preload"), tmp_path / "other"
    other.write_text("tenant's")
    code = f"import os, sys; os.chroot({str(image)!r}); print('in', flush=True); sys.stdin.read()"
    script = f'mount --bind {ours} {inside}; {above.format(other=other, inside=inside)}; exec "$@"'
    command = [*namespaces(), "sh", "-ec", script, "sh", sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in\n"
        with Root(process.pid) as root:
            assert found == root.hidden([Mount(str(ours), "/etc/ld.so.preload")])
        process.stdin.close()


@pytest.mark.parametrize(
    "place", [LIBRARY, f"usr/{LIBRARY}", "lib64/libc.so.6", "usr/lib64/libc.so.6", "lib/libc.so.6"]
)
def test_an_image_with_glibc_is_fine(image, place):
    put(image, LOADER)
    put(image, place, libc("2.2.5", "2.17", "2.36", "2.4"))
    assert problem(image) == ""


def test_a_merged_usr_and_versioned_names_are_links_that_stay_inside(image):
    put(image, f"usr/{LOADER}")
    put(image, f"usr/lib/{MACHINE}-linux-gnu/libc-2.31.so", libc("2.2.5", "2.31"))
    (image / f"usr/lib/{MACHINE}-linux-gnu/libc.so.6").symlink_to("libc-2.31.so")
    for name in ("lib", "lib64"):
        (image / f"usr/{name}").mkdir(exist_ok=True)
        (image / name).symlink_to(f"/usr/{name}" if name == "lib" else "usr/lib64")
    assert problem(image) == ""


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no glibc loader"),
        ({f"lib/ld-musl-{MACHINE}.so.1": b"", "lib/libc.musl.so.1": b""}, "musl"),
        ({LIBRARY: libc("2.36")}, "no glibc loader"),
        ({LOADER: b"x"}, "a glibc loader but no libc.so.6"),
        ({LOADER: b"x", LIBRARY: b"musl in disguise"}, "but no libc.so.6"),
        ({LOADER: b"x", LIBRARY: libc("2.2.5", "2.12", "2.4")}, "glibc 2.12, older than 2.17"),
    ],
)
def test_an_image_whose_programs_would_have_no_limits(image, files, said):
    for path, content in files.items():
        put(image, path, content)
    assert said in problem(image)


@pytest.mark.parametrize("kind", ["folder", "pipe", "host"])
def test_what_is_no_file_of_the_image_is_no_library_and_costs_nothing(image, tmp_path, kind):
    """It is opened without waiting, and nothing stays open: an image must not hang or exhaust the agent."""
    put(image, LOADER)
    place = image / LIBRARY
    place.parent.mkdir(parents=True)
    match kind:
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case "host":
            place.symlink_to(put(tmp_path, "host-libc", libc("2.36")))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert "no libc.so.6" in problem(image)
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_a_process_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Root(43, str(tmp_path))
