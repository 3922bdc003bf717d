# SPDX-License-Identifier: Apache-2.0
"""
The guard under warnings as errors and the sanitizers: what it lets start, what it refuses, and what it binds again.

As a runtime calls it, with real mount namespaces; its JSON reader against Python's, and against any bytes.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cdi_process import namespaces

ROOT = Path(__file__).resolve().parents[2]
GUARD = ROOT / "isolation" / "node" / "guard"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wvla", "-g", "-O1", "-I", str(GUARD)]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
NONCE, OTHER, CID = "0123456789abcdef" * 2, "f" * 32, "c" * 64
KEY = "gpushare.dev/start-nonce"
pytestmark = [
    pytest.mark.sanitizer,
    pytest.mark.skipif(not namespaces(), reason="this user may not make mount namespaces"),
]


def compiled(target, *sources, flags=SANITIZED):
    """A program, or an error."""
    subprocess.run(["gcc", *STRICT, *flags, "-o", str(target), *map(str, sources)], check=True)
    return target


@pytest.fixture(scope="module")
def guard(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("guard") / "guard", *sorted(GUARD.glob("*.c")))


class Bundle:
    """A container that a runtime is about to start: its specification, its root and its mark."""

    def __init__(self, folder, guard):
        self.folder, self.guard, self.marks, self.rootfs = folder, guard, folder / "marks", folder / "bundle/rootfs"
        (self.rootfs / "etc").mkdir(parents=True)
        self.marks.mkdir(mode=0o700)
        self.mark = self.marks / CID
        self.mark.write_text(f"{NONCE}\n")
        self.spec = {"ociVersion": "1.2.0", "root": {"path": "rootfs"}, "annotations": {"a": "b", KEY: NONCE}}
        self.state = {
            "ociVersion": "1.2.0",
            "id": CID,
            "status": "creating",
            "pid": 1,
            "bundle": str(folder / "bundle"),
        }
        (folder / "ours").write_text("ours\n")
        (folder / "theirs").write_text("theirs\n")

    def mount(self, *targets):
        """These must be ours, the last one writable."""
        kinds = ["ro"] * (len(targets) - 1) + ["rw"]
        lines = [f"{self.folder}/ours\t{target}\t{kind}\n" for target, kind in zip(targets, kinds, strict=True)]
        self.mark.write_text(f"{NONCE}\n{''.join(lines)}")

    def run(self, *, state=None, spec=None, before="", after="true", process="$P"):
        """
        Exit status and words of a start.

        `before`: shell commands in the container's mount namespace ($R is its root), `after`: outside, once the guard
        let it start ($P is the container's process, unless the state says another).
        """
        (self.folder / "bundle/config.json").write_bytes(_bytes(self.spec if spec is None else spec))
        template = _bytes(self.state if state is None else state)
        (self.folder / "state").write_bytes(template)
        script = f"""
R={self.rootfs}; export R; cd {self.folder}; rm -f ready
unshare -m --propagation private sh -ec '{before}
touch ready; exec sleep 60' & P=$!
trap "kill $P" EXIT
while [ ! -e ready ]; do kill -0 $P || exit 99; sleep 0.01; done
sed "s/\\"pid\\": 1\\b/\\"pid\\": {process}/" state | {self.guard} {self.marks}
{after}"""
        if not before:
            script = f"{self.guard} {self.marks} < {self.folder}/state"
        environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0:exitcode=66"}
        command = [*namespaces(), "sh", "-ec", script]
        done = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=60)
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")

    def refused(self, **more):
        """The words; not a crash."""
        status, said = self.run(**more)
        assert (1, True) == (status, said.startswith("gpushare: container start refused: ")), said
        return said


def _bytes(value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.fixture
def bundle(tmp_path, guard):
    return Bundle(tmp_path, guard)


def test_a_prepared_container_starts_once(bundle):
    assert (0, "") == bundle.run()
    assert not bundle.mark.exists()
    assert "the node agent did not prepare this container" in bundle.refused()


@pytest.mark.parametrize(
    ("nonce", "said"),
    [
        ({}, "created without the node agent's annotation"),
        ({KEY: OTHER}, "created by another answer than the node agent's last one"),
        ({KEY: ""}, "by another answer"),
        ({KEY: NONCE[:31]}, "by another answer"),
        ({KEY: NONCE + "0"}, "without the node agent's annotation"),
        ({KEY: 7}, "without the node agent's annotation"),
    ],
)
def test_mark_and_annotation_must_be_the_same(bundle, nonce, said):
    """And whatever was refused is not tried a second time with the same mark."""
    bundle.spec["annotations"] = nonce
    assert said in bundle.refused()
    assert not bundle.mark.exists()


@pytest.mark.parametrize(
    "spec",
    [
        f'{{"root": {{"path": "rootfs"}}, "annotations": {{"{KEY}": "{NONCE}", "{KEY}": "{NONCE}"}}}}',
        f'{{"root": {{"path": "rootfs"}}, "annotations": {{"{KEY}": "{OTHER}", "\\u0067{KEY[1:]}": "{NONCE}"}}}}',
        f'{{"annotations": {{"{KEY}": "{NONCE}"}}, "root": {{"path": "rootfs"}}, "annotations": {{}}}}',
        f'{{"root": {{"path": "rootfs"}}, "annotations": {{"x": {{"{KEY}": "{NONCE}"}}}}}}',
        f'{{"root": {{"path": "rootfs"}}, "annotations": {{"{KEY}": "{NONCE}"}}, "x": {"[" * 66}{"]" * 66}}}',
        f'{{"root": {{"path": "rootfs"}}, "annotations": {{"{KEY}": "{NONCE}"}}',
        f'{{"root": {{}}, "annotations": {{"{KEY}": "{NONCE}"}}}}',
        f'["annotations", {{"{KEY}": "{NONCE}"}}]',
        "",
        "\x00",
    ],
    ids=["twice", "escaped twice", "annotations twice", "nested", "deep", "open", "no root", "array", "empty", "zero"],
)
def test_a_specification_that_can_be_read_in_two_ways_is_refused(bundle, spec):
    bundle.refused(spec=spec.encode())


def test_a_specification_that_breaks_off_anywhere_is_refused(bundle):
    text = json.dumps({"root": {"path": "rootfs"}, "annotations": {"a\n": "ä", KEY: NONCE}}).encode()
    assert (0, "") == bundle.run(spec=text)
    for size in range(0, len(text), 3):
        bundle.mark.write_text(f"{NONCE}\n")
        bundle.refused(spec=text[:size])


@pytest.mark.parametrize("ident", ["", ".", "..", f"../marks/{CID}", "a/b", "ä", "a\n", "x" * 129, None, 7, ".hidden"])
def test_an_id_that_is_no_name_is_refused(bundle, ident):
    (bundle.marks / ".hidden").write_text(f"{NONCE}\n")
    bundle.state["id"] = ident
    bundle.refused()
    assert bundle.mark.exists()


@pytest.mark.parametrize(
    "spoil", ["open folder", "linked folder", "link", "folder", "cut", "zero", "huge", "no line end", "one field",
              "two fields", "other kind", "too many"]
)  # fmt: skip
def test_a_mark_that_only_root_could_not_have_written_so_is_refused(bundle, spoil):
    good = f"{bundle.folder}/ours\t/etc/x\tro\n"
    texts = {
        "cut": NONCE[:20],
        "zero": f"{NONCE}\n\0{good}",
        "huge": f"{NONCE}\n{good * 1000}",
        "no line end": NONCE,
        "one field": f"{NONCE}\n/ours\n",
        "two fields": f"{NONCE}\n/ours\t/etc/x\n",
        "other kind": f"{NONCE}\n{good.replace('ro', 'rx')}",
        "too many": f"{NONCE}\n{good * 17}",
    }
    if spoil in texts:
        bundle.mark.write_text(texts[spoil])
    else:
        bundle.mark.rename(bundle.folder / "moved")
    match spoil:
        case "open folder":
            (bundle.folder / "moved").rename(bundle.mark)
            bundle.marks.chmod(0o750)
        case "linked folder":
            (bundle.folder / "moved").rename(bundle.mark)
            bundle.marks.rename(bundle.folder / "elsewhere")
            bundle.marks.symlink_to(bundle.folder / "elsewhere")
        case "link":
            bundle.mark.symlink_to(bundle.folder / "moved")
        case "folder":
            bundle.mark.mkdir()
    before = 'mkdir -p "$R/etc"; cp ours "$R/etc/x"; mount --bind ours "$R/etc/x"'
    assert "refused: " in bundle.refused(before=before)


def test_a_process_that_is_none_is_refused_where_mounts_are_asked_for(bundle):
    for pid in (0, -1, 1.5, "1", None, 4_194_305):
        bundle.mount("/etc/x")
        bundle.state["pid"] = pid
        bundle.refused()


PLACE = 'touch "$R/etc/ld.so.preload"; mount --bind ours "$R/etc/ld.so.preload"'
COVERED = f'{PLACE}; mkdir -p tenant; cp theirs tenant/ld.so.preload; mount --bind tenant "$R/etc"'


@pytest.mark.parametrize(
    ("before", "mounts"),
    [
        (PLACE, 1),
        (f'{PLACE}; mount --bind theirs "$R/etc/ld.so.preload"', 3),
        ('rmdir "$R/etc"; mkdir -p "$R/usr/etc"; ln -s /usr/etc "$R/etc"; cp theirs "$R/usr/etc/ld.so.preload"', 1),
    ],
    ids=["on top", "file above", "image's absolute link"],
)
def test_what_hides_ours_is_covered_again(bundle, before, mounts):
    """Looked up inside the root, as the container's programs will; read-only again, and bound no more than needed."""
    bundle.mark.write_text(f"{NONCE}\n" + f"{bundle.folder}/ours\t/etc/ld.so.preload\tro\n" * 2)
    place = f"{bundle.rootfs}{'/usr' if 'usr' in before else ''}/etc/ld.so.preload"
    status, said = bundle.run(before=before, after=f"grep ' {place} ' /proc/$P/mountinfo; cat /proc/$P/root{place}")
    *listed, content = said.splitlines()
    assert (0, mounts, "ours") == (status, len(listed), content), said
    if before != PLACE:
        assert listed[-1].split()[5].startswith("ro,nosuid,nodev")
    assert "theirs\n" == (bundle.folder / "theirs").read_text()


def test_of_several_mounts_only_what_is_hidden_is_bound_again(bundle):
    bundle.mount("/etc/a", "/etc/b", "/etc/c")
    places = "; ".join(f'touch "$R/etc/{one}"; mount --bind ours "$R/etc/{one}"' for one in "abc")
    before = f'{places}; mount --bind theirs "$R/etc/b"'
    names = " ".join(f"/proc/$P/root{bundle.rootfs}/etc/{one}" for one in "abc")
    status, said = bundle.run(before=before, after=f"cat {names}; grep -c {bundle.rootfs}/etc/ /proc/$P/mountinfo")
    assert (0, ["ours", "ours", "ours", "5"]) == (status, said.split()), said


def test_a_runtime_in_a_root_of_its_own_has_its_files_found_there(bundle, tmp_path):
    """Also when the guard has been in the container and comes back for a mount."""
    top = tmp_path / "top"
    program = compiled(tmp_path / "static", *sorted(GUARD.glob("*.c")), flags=["-static"])
    inside = tmp_path / "enter"
    inside.write_text(f"""#!/bin/sh -e
mkdir {top}; mount -t tmpfs none {top}; mkdir {top}/proc {top}/own; mount --rbind /proc {top}/proc
cp {program} {top}/guard; cp -a {bundle.marks} {bundle.folder}/bundle {top}/; echo ours > {top}/own/ours
exec chroot {top} /guard /marks
""")
    inside.chmod(0o755)
    bundle.guard, bundle.state["bundle"], bundle.spec["root"] = inside, "/bundle", {"path": str(bundle.rootfs)}
    bundle.mark.write_text(f"{NONCE}\n/own/ours\t/etc/x\tro\n")
    status, said = bundle.run(
        before='touch "$R/etc/x"; mount --bind theirs "$R/etc/x"', after=f"cat /proc/$P/root{bundle.rootfs}/etc/x"
    )
    assert (0, "ours\n") == (status, said)


def test_a_region_stays_writable_where_it_is_bound_again(bundle):
    bundle.mount("/etc/region")
    before = 'touch "$R/etc/region"; mount --bind theirs "$R/etc/region"'
    after = f'echo written > /proc/$P/root{bundle.rootfs}/etc/region; grep "/etc/region " /proc/$P/mountinfo | tail -1'
    status, said = bundle.run(before=before, after=after)
    assert (0, "written\n") == (status, (bundle.folder / "ours").read_text()), said
    assert "rw" in said.split()[5].split(",")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (COVERED, "a volume of the pod, or a link of the image to one, hides /etc/ld.so.preload"),
        (f'{PLACE}; mount -t tmpfs none "$R/etc"', "hides /etc/ld.so.preload"),
        (
            'rmdir "$R/etc"; mkdir "$R/v"; mount -t tmpfs none "$R/v"; ln -s /v "$R/etc"; touch "$R/v/ld.so.preload"',
            "hides",
        ),
        ('mkdir "$R/etc/ld.so.preload"', "cannot mount over /etc/ld.so.preload"),
        ('ln -s /etc/ld.so.preload "$R/etc/ld.so.preload"', "is a link in the image"),
        ('ln -s /proc/self/root/etc/hostname "$R/etc/ld.so.preload"', "is a link in the image"),
        ('rmdir "$R/etc"', "/etc/ cannot be reached"),
        ("true", "/etc/ld.so.preload cannot be reached"),
    ],
    ids=["volume", "empty volume", "link to a volume", "folder", "loop", "magic link", "no folder", "no file"],
)
def test_a_place_that_is_not_the_containers_own_is_refused(bundle, before, said):
    """Whoever shares a volume could take a mount in it away. A word is left for the agent."""
    bundle.mount("/etc/ld.so.preload")
    text = bundle.refused(before=before)
    assert said in text
    assert text.endswith(f"refused: {(bundle.marks / f'{CID}.refused').read_text()}\n")


def test_a_container_without_mounts_of_its_own_is_refused(bundle):
    """Ours would be bound on the host."""
    bundle.mount("/etc/x")
    assert "no mounts of its own" in bundle.refused(before="true", process="$$")


def test_a_source_of_ours_that_is_gone_is_refused(bundle):
    bundle.mount("/etc/ld.so.preload")
    assert "No such file" in bundle.refused(before=f'{PLACE}; mv "{bundle.folder}/ours" "{bundle.folder}/moved"')


# The JSON reader.


class Span(ctypes.Structure):
    """`struct json`."""

    _fields_ = (("at", ctypes.c_void_p), ("end", ctypes.c_void_p))


@cache
def reader():
    """Not sanitized: it is called from Python."""
    with TemporaryDirectory() as folder:
        return ctypes.CDLL(str(compiled(Path(folder) / "json.so", GUARD / "json.c", flags=["-fPIC", "-shared"])))


def looked_up(text, *path):
    """A string or number by path; None: refused."""
    buffer = ctypes.create_string_buffer(text, len(text))
    begin = ctypes.addressof(buffer)
    span = Span(begin, begin + len(text))
    for key in path:
        found = Span()
        if not reader().json_get(ctypes.byref(span), key.encode(), ctypes.byref(found)):
            return None
        span = found
    value, number = ctypes.create_string_buffer(200), ctypes.c_long()
    if reader().json_text(ctypes.byref(span), value, ctypes.c_size_t(len(value))):
        return value.value.decode()
    return number.value if reader().json_number(ctypes.byref(span), ctypes.byref(number)) else None


WORDS = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=12)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, VALUES, max_size=4), WORDS, WORDS, st.integers(0, 999_999_999), st.data())
def test_the_reader_finds_what_python_finds(around, key, word, number, data):
    """Among any other values, in both ways of writing them; cut anywhere, nothing is found."""
    wanted = {key: word, f"{key}-": number}
    members = data.draw(st.permutations([*around.items(), *wanted.items()]))
    indent, pure = data.draw(st.sampled_from([None, 2])), data.draw(st.booleans())
    text = json.dumps({"outer": dict(members) | wanted}, indent=indent, ensure_ascii=pure).encode()
    assert (word, number) == (looked_up(text, "outer", key), looked_up(text, "outer", f"{key}-"))
    assert looked_up(text[: data.draw(st.integers(0, len(text) - 1))], "outer", key) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"k": "a\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041"}', 'a"\\/\b\f\n\r\tA'),
        ('{"\\u006b": "v"}', "v"),
        (' \t\r\n{ "k" \n:\t"v" } trailing', "v"),
        ('{"k": "\\u0000"}', None),
        ('{"k": "\\u00e9"}', None),
        ('{"k": "\\ud83d\\ude00"}', None),
        ('{"k": "\\u00zz"}', None),
        ('{"k": "\\x41"}', None),
        ('{"k": "line\nend"}', None),
        ('{"k": "' + "a" * 199 + '"}', "a" * 199),
        ('{"k": "' + "a" * 200 + '"}', None),
        ('{"k": 1234567890}', None),
        ('{"k": -1}', None),
        ('{"k": 1.0}', None),
        ('{"k": "v",}', None),
        ('{"k": "v" "x": 1}', None),
        ('{"k" "v"}', None),
        ('{k: "v"}', None),
        ('{"a": [1, 2}, "k": "v"}', None),
        ('{"a": ' + "[" * 64 + "]" * 64 + ', "k": "v"}', "v"),
        ('{"a": ' + "[" * 66 + "]" * 66 + ', "k": "v"}', None),
        ('{"a": ' + "[" * 100_000, None),
        ('{"k": "v", "a": 1, "k": "v"}', None),
        ('{"k\\u0000": "x", "k": "v"}', "v"),
        ('{"' + "k" * 5000 + '": "x", "k": "v"}', "v"),
    ],
)
def test_what_is_no_plain_value_is_not_found(text, found):
    assert found == looked_up(text.encode(), "k")


def test_any_bytes_are_read_without_a_finding(tmp_path):
    program = compiled(tmp_path / "fuzz", GUARD / "json.c", Path(__file__).with_name("guard_fuzz.c"))
    for seed in (1, 2, 3):
        done = subprocess.run([program, str(seed), "100000"], capture_output=True, text=True, check=False, timeout=120)
        assert ("ok\n", "") == (done.stdout, done.stderr)
