# SPDX-License-Identifier: Apache-2.0
"""images/build.sh with stand-ins for docker and podman: what it asks them to do, and what it says where it cannot."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from itertools import pairwise

import pytest
from support.docs_reading import ROOT
from support.waiting import PATIENCE_SECONDS

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FILE = (ROOT / "images/Containerfile").read_text()
IMAGES = re.findall(r"^FROM runtime AS (\w+)$", FILE, re.MULTILINE)
BASE = re.search(r"^ARG PYTHON=(\S+)$", FILE, re.MULTILINE)[1]
TEAM = "registry.example.com/team"
BOTH = "linux/amd64,linux/arm64"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
LABEL = "org.opencontainers.image."
USED = ("bash", "cat", "date", "dirname", "git", "grep", "mkdir", "mktemp", "rm", "sed", "sleep", "timeout", "tr")
STAND_IN = r"""#!/bin/bash
printf '%q ' "${0##*/}" "$@" >>"$CALLS"; echo "SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-}" >>"$CALLS"
case "$*" in
--version) echo "${VERSION_SAYS:-${0##*/} version 5}" ;;
info) exit "${DEAF:-0}" ;;
info\ --format*) echo "${STORE:-[[Backing Filesystem extfs]]}" ;;
"buildx version") exit "${NO_BUILDX:-0}" ;;
"buildx inspect"*) printf 'Name: x\nDriver: %s\nPlatforms: %s\n' "${DRIVER:-docker-container}" \
  "${CAN:-linux/amd64*, linux/amd64/v2, linux/arm64}" ;;
manifest\ exists*) [ -n "$LIST" ] ;;
image\ exists*) [ -n "$OLD" ] ;;
*"$BROKEN"*) [ -z "$BROKEN" ] || { [ -z "$SLOW" ] || exec sleep 60; echo no space left; exit 1; } ;;
esac || exit
while [ $# -gt 0 ]; do
  case $1 in
    --metadata-file) printf '{\n  "containerimage.digest": "%s",\n  "image.name": "x"\n}\n' "$DIGEST" >"$2" ;;
    --digestfile) printf %s "$DIGEST" >"$2" ;;
  esac
  shift
done
echo "output of a build"
"""


class Ran:
    """A run of the script: its status, stdout, stderr, and the calls of docker and podman."""

    def __init__(self, done, calls):
        self.status, self.out, self.said = done.returncode, done.stdout.splitlines(), done.stderr
        self.calls = [shlex.split(line) for line in calls.splitlines()]

    def words(self, *beginning):
        """The calls that begin so, each without what it begins with."""
        size = len(beginning)
        return [one[size:] for one in self.calls if one[:size] == [*beginning]]


@pytest.fixture
def build(tmp_path):
    """A function that runs the script on a machine with these programs alone."""

    def run(*words, have=("docker",), script=ROOT / "images/build.sh", **settings):
        programs = tmp_path / "programs"
        shutil.rmtree(programs, ignore_errors=True)
        programs.mkdir()
        for name in USED:
            (programs / name).symlink_to(shutil.which(name))
        for name in have:
            (programs / name).write_text(STAND_IN)
            (programs / name).chmod(0o755)
        calls = tmp_path / "calls"
        calls.write_text("")
        blank = {"DIGEST": DIGEST, "BROKEN": "", "LIST": "", "OLD": "", "SLOW": "", "HOME": os.environ.get("HOME", "/")}
        done = subprocess.run(
            ["bash", script, *map(str, words)],
            env={"PATH": str(programs), "CALLS": str(calls)} | blank | settings,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return Ran(done, calls.read_text())

    return run


def names(registry="docker.io/library", images=IMAGES):
    """As they are called."""
    return [f"{registry}/gpushare-{one}:{VERSION}" for one in images]


def options(call, name):
    """The values of an option in a call."""
    return [value for option, value in pairwise(call) if option == name]


def test_docker_builds_every_image_by_the_manifests_names(build):
    """
    One build each, of its own target and the pinned base; names on stdout, the builder's words and the progress not.
    """
    ran = build()
    made = ran.words("docker", "buildx", "build")

    assert (0, names()) == (ran.status, ran.out)
    assert IMAGES == [options(one, "--target")[0] for one in made]
    assert names() == [options(one, "-t")[0] for one in made]
    assert all("--load" in one and "--push" not in one and "--platform" not in one for one in made)
    assert all("images/Containerfile" in options(one, "-f") and "." == one[-2] for one in made)
    assert all(f"PYTHON={BASE}" in options(one, "--build-arg") for one in made)
    assert [
        ["exporter", False],
        ["node", False],
        ["controller", True],
        ["demo", False],
    ] == [[options(one, "--target")[0], "REQUIREMENTS=controller" in options(one, "--build-arg")] for one in made]
    assert all(f"== {number} of {len(IMAGES)}: {name}" in ran.said for number, name in enumerate(names(), 1))
    assert "output of a build" in ran.said


def test_podman_builds_where_docker_is_missing_or_does_not_answer(build):
    """
    And where BUILDER says so; `docker` may be podman by another name.
    """
    assert names() == [options(one, "-t")[0] for one in build(have=["podman"]).words("podman", "build")]
    assert ["podman"] == build("--which", have=["docker", "podman"], DEAF="1").out
    assert ["podman"] == build("--which", have=["docker", "podman"], BUILDER="podman").out
    assert ["docker"] == build("--which", have=["docker", "podman"]).out
    assert len(IMAGES) == len(build(VERSION_SAYS="podman version 5.4.1").words("docker", "build"))


def test_some_images_only(build):
    """
    In the order in which they are named; the controller's packages may be those for ACK.
    """
    ran = build("demo", "controller", REQUIREMENTS="controller-ack", BUILD="--network=host --no-cache")
    [demo, controller] = ran.words("docker", "buildx", "build")

    assert names(images=["demo", "controller"]) == ran.out
    assert "REQUIREMENTS=controller-ack" in options(controller, "--build-arg")
    assert ["--network=host", "--no-cache"] == demo[:2]


@pytest.mark.parametrize("builder", ["docker", "podman"])
def test_what_is_pushed_is_named_by_digest(build, builder):
    """
    Only to a registry that was given.
    """
    ran = build("--push", have=[builder], REGISTRY=TEAM)
    pushed = {
        "docker": [options(one, "-t")[0] for one in ran.words("docker", "buildx", "build") if "--push" in one],
        "podman": [one[-2] for one in ran.words("podman", "push")],
    }
    assert names(TEAM) == pushed[builder]
    assert [f"{name}@{DIGEST}" for name in names(TEAM)] == ran.out


def test_docker_builds_for_several_platforms(build, tmp_path):
    """
    To a registry, or into archives.
    """
    pushed = build("--push", "node", REGISTRY=TEAM, PLATFORMS=BOTH).words("docker", "buildx", "build")
    kept = build("--oci", tmp_path / "made", "node", PLATFORMS=BOTH)
    [archived] = kept.words("docker", "buildx", "build")

    assert [BOTH] == options(pushed[0], "--platform") == options(archived, "--platform")
    assert [f"type=oci,dest={tmp_path}/made/gpushare-node-{VERSION}.tar"] == options(archived, "--output")
    assert "--load" not in archived
    assert (tmp_path / "made").is_dir()


def test_podman_builds_for_several_platforms(build, tmp_path):
    """
    A list of images in its store; an old list, or an image of that name, goes first.
    """
    [name] = names(TEAM, ["node"])
    ran = build("--push", "node", have=["podman"], REGISTRY=TEAM, PLATFORMS=BOTH, LIST="1")
    [made] = ran.words("podman", "build")
    [pushed] = ran.words("podman", "manifest", "push")

    assert ([BOTH], [name], []) == (options(made, "--platform"), options(made, "--manifest"), options(made, "-t"))
    assert [name] == [one[0] for one in ran.words("podman", "manifest", "rm")]
    assert "--all" in pushed
    assert [name, f"docker://{name}"] == pushed[-3:-1]
    assert [f"{name}@{DIGEST}"] == ran.out

    ran = build("--oci", tmp_path, "node", have=["podman"], REGISTRY=TEAM, PLATFORMS=BOTH, OLD="1")
    [pushed] = ran.words("podman", "manifest", "push")
    assert [[name, name]] == [one[:2] for one in ran.words("podman", "untag")]
    assert [name, f"oci-archive:{tmp_path}/gpushare-node-{VERSION}.tar:{name}"] == pushed[-3:-1]
    assert not ran.words("podman", "manifest", "rm")


def test_labels_are_those_of_the_oci_specification(build, tmp_path):
    """
    Of the commit and the base, with the commit's date; a changed tree is marked, and a password never gets in.
    """
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "images", tree / "images")
    shutil.copy(ROOT / "pyproject.toml", tree)
    git = ["git", "-C", tree, "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    when = {"GIT_COMMITTER_DATE": "2026-02-03T04:05:06+01:00"}
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "x"],
        ["remote", "add", "origin", "https://me:secret@example.org/team/gpushare.git"],
    ):
        subprocess.run([*git, *words], check=True, env=os.environ | when, timeout=PATIENCE_SECONDS)
    revision = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=60
    ).stdout

    def labels(**settings):
        ran = build("node", script=tree / "images/build.sh", **settings)
        [made] = ran.words("docker", "buildx", "build")
        return dict(one.removeprefix(LABEL).split("=", 1) for one in options(made, "--label")) | {"epoch": made[-1]}

    name, _, digest = BASE.partition("@")
    same = {"version": VERSION, "base.name": name, "base.digest": digest}
    found = {
        "revision": revision.strip(),
        "created": "2026-02-03T03:05:06Z",
        "source": "https://example.org/team/gpushare",
        "epoch": "SOURCE_DATE_EPOCH=1770087906",
    }
    assert same | found == labels()
    later = {"created": "1970-01-02T00:00:00Z", "epoch": "SOURCE_DATE_EPOCH=86400"}
    assert same | found | later == labels(SOURCE_DATE_EPOCH="86400")
    mirror = labels(BASE="mirror.example.org/python:3.11")
    assert ("mirror.example.org/python:3.11", None) == (mirror["base.name"], mirror.get("base.digest"))

    (tree / "new").touch()
    assert f"{revision.strip()}-dirty" == labels()["revision"]
    for origin, source in (("git@example.org:team/gpushare.git", found["source"]), ("/srv/git/gpushare", None)):
        subprocess.run([*git, "remote", "set-url", "origin", origin], check=True, timeout=PATIENCE_SECONDS)
        assert source == labels().get("source")
    shutil.rmtree(tree / ".git")
    assert same | {"epoch": "SOURCE_DATE_EPOCH="} == labels()


@pytest.mark.parametrize("target", IMAGES)
def test_the_other_labels_stand_in_the_file(target):
    """
    Title and description of each image, one licence for all; nothing that the script would have to keep up to date.
    """
    own = re.search(rf"^FROM runtime AS {target}$(.*?)(?=^FROM |\Z)", FILE, re.MULTILINE | re.DOTALL)[1]

    assert f"{LABEL}title=gpushare-{target} " in own
    assert re.search(rf'{re.escape(LABEL)}description="gpushare: .+"$', own, re.MULTILINE)
    assert {"title", "description", "licenses"} == set(re.findall(rf"{re.escape(LABEL)}([\w.]+)=", FILE))
    assert f"LABEL {LABEL}licenses=Apache-2.0\n" in FILE


CONTAINERD = "[[driver-type io.containerd.snapshotter.v1]]"


def test_docker_with_images_kept_by_containerd_needs_no_other_builder(build, tmp_path):
    """
    Its default builder then makes several platforms, and archives.
    """
    settings = {"PLATFORMS": BOTH, "DRIVER": "docker"}
    assert 0 == build("--oci", tmp_path, STORE=CONTAINERD, **settings).status
    assert 1 == build("--oci", tmp_path, **settings).status


@pytest.mark.parametrize(
    ("words", "settings", "says"),
    [
        (
            [],
            {"have": []},
            "docker or podman is needed: run apt-get install podman, or see https://docs.docker.com/engine",
        ),
        ([], {"DEAF": "1"}, "docker does not answer: start it (systemctl start docker)"),
        ([], {"BUILDER": "nerdctl"}, "BUILDER=nerdctl is missing: install it, or leave BUILDER out"),
        ([], {"NO_BUILDX": "1"}, "docker's buildx is missing: install package docker-buildx-plugin"),
        (["--push"], {}, f"--push needs a registry of yours: set REGISTRY={TEAM}"),
        (["--push", "--oci", "x"], {"REGISTRY": TEAM}, "--push and --oci exclude each other"),
        (["--oci"], {}, "--oci needs a folder"),
        (["nod"], {}, "there is no image nod: the images are exporter node controller demo"),
        ([], {"REGISTRY": "team"}, "REGISTRY=team is no registry: write host/path in small letters"),
        ([], {"REGISTRY": f"https://{TEAM}"}, "is no registry"),
        ([], {"REGISTRY": f"{TEAM}/"}, "is no registry"),
        ([], {"PLATFORMS": "linux/amd64,linux/riscv64"}, "'linux/riscv64' is not linux/amd64 or linux/arm64"),
        (
            [],
            {"PLATFORMS": BOTH},
            "docker keeps images of one platform only: add --push (with REGISTRY) or --oci FOLDER",
        ),
        (["--oci", "/x"], {"PLATFORMS": BOTH, "DRIVER": "docker"}, "docker buildx create --name gpushare --driver"),
        ([], {"PLATFORMS": "linux/arm64", "CAN": "linux/amd64, linux/386"}, "tonistiigi/binfmt --install arm64"),
        ([], {"REQUIREMENTS": "all"}, "there is no images/requirements/all.txt"),
        ([], {"SOURCE_DATE_EPOCH": "today-ish"}, "SOURCE_DATE_EPOCH=today-ish is no number of seconds"),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy_before_anything_is_built(build, words, settings, says):
    """
    Status 1, one sentence, no build.
    """
    ran = build(*words, **settings)
    assert (1, []) == (ran.status, ran.out)
    assert f"images: {says}" in ran.said or ("images: " in ran.said and says in ran.said)
    assert not [one for one in ran.calls if one[1:3] == ["buildx", "build"] or one[1:2] == ["build"]]


def test_a_build_that_fails_ends_the_script(build):
    """
    After the images that were built, whose names are out; with a hint where another platform was asked for.
    """
    ran = build(BROKEN="--target node")
    assert (1, names(images=["exporter"])) == (ran.status, ran.out)
    assert f"no space left\nimages: {names(images=['node'])[0]} does not build: see above\n" in ran.said
    assert "qemu-user-static" in build(BROKEN="--target node", PLATFORMS="linux/arm64").said
    assert f"log in with docker login {TEAM.partition('/')[0]}" in build("--push", BROKEN="--push", REGISTRY=TEAM).said
    assert "podman login" in build("--push", have=["podman"], BROKEN="push --digestfile", REGISTRY=TEAM).said


def test_a_build_that_hangs_is_ended(build):
    """
    After LIMIT seconds.
    """
    ran = build("node", LIMIT="1", BROKEN="--target node", SLOW="1")
    assert (1, []) == (ran.status, ran.out)
    assert "does not build: stopped after 1 s; LIMIT=2 allows more" in ran.said


def test_help_and_unknown_options(build):
    """
    Every image and setting is named by --help; an option that does not exist is an error of usage.
    """
    ran = build("--help")
    assert 0 == ran.status
    used = set(re.findall(r"\$\{([A-Z_]+):-", (ROOT / "images/build.sh").read_text())) - {"SOURCE_DATE_EPOCH"}
    assert [] == [one for one in {*IMAGES, *used, "--push", "--oci", "--which"} if one not in "\n".join(ran.out)]
    assert (2, []) == (build("--pull").status, build("--pull").calls)
    assert "unknown option --pull" in build("--pull").said
