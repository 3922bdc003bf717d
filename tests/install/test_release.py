# SPDX-License-Identifier: Apache-2.0
"""hack/release.sh in a fresh clone: what it makes of a tagged commit, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from e2e.chart_build import helm

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME, VERSION = PROJECT["name"], PROJECT["version"]
OLDEST_GLIBC = (2, 17)


def git(clone, *words):
    """A command of git, which must succeed; what it prints."""
    own = (
        "-c",
        "user.name=n",
        "-c",
        "user.email=n@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    )
    command = ["git", "-C", str(clone), *own, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.fixture
def clone(tmp_path):
    """The last commit and what has changed since, committed as a release and tagged."""
    git(ROOT, "clone", "-q", "--no-tags", str(ROOT), str(tmp_path / "clone"))
    patch = git(ROOT, "diff", "--binary", "HEAD")
    subprocess.run(
        ["git", "apply", "--index", "--allow-empty"],
        input=patch,
        cwd=tmp_path / "clone",
        text=True,
        check=True,
        timeout=300,
    )
    subprocess.run(
        ["make", "-C", tmp_path / "clone", "set-version", f"V={VERSION}"], check=True, timeout=300, capture_output=True
    )
    git(tmp_path / "clone", "commit", "-qam", f"release: {VERSION}", "--allow-empty")
    git(tmp_path / "clone", "tag", f"v{VERSION}")
    return tmp_path / "clone"


def release(clone, *words, **environment):
    """The script, with the packages that the tests have."""
    return subprocess.run(
        ["bash", "hack/release.sh", *map(str, words)],
        cwd=clone,
        env=os.environ | {"PYTHON": sys.executable, "HELM": helm()} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def glibc_of(library):
    """Versions of symbols that an object needs."""
    seen = subprocess.run(["readelf", "-W", "-V", str(library)], capture_output=True, text=True, check=True, timeout=60)
    return {tuple(map(int, each.split("."))) for each in re.findall(r"Name: GLIBC_([\d.]+)", seen.stdout)}


def test_a_tagged_commit_makes_the_same_files_twice_and_each_is_whole(clone, tmp_path):
    """Sdist, wheel, chart, SBOM and checksums; the wheel claims no platform that auditwheel did not find."""
    made = tmp_path / "made"
    first = release(clone, "--local", made)
    assert 0 == first.returncode, first.stdout + first.stderr
    again = release(clone, "--local", tmp_path / "again")
    assert 0 == again.returncode, again.stdout + again.stderr
    files = {str(path.relative_to(made)): path for path in made.rglob("*") if path.is_file()}
    sums = dict(reversed(line.split("  ")) for line in files.pop("SHA256SUMS").read_text().splitlines())
    plain = NAME.replace("-", "_")
    [wheel] = made.glob("*.whl")
    tagged = f"manylinux_2_28_{platform.machine()}" if "keeps its linux tag" not in first.stdout else "linux_"
    whole = {f"{plain}-{VERSION}.tar.gz", wheel.name, f"{NAME}-{VERSION}.cdx.json", f"chart/gpushare-{VERSION}.tgz"}

    assert whole == {*files}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == sums
    assert (made / "SHA256SUMS").read_text() == (tmp_path / "again" / "SHA256SUMS").read_text()
    assert wheel.name.startswith(f"{plain}-{VERSION}-py3-none-{tagged}")

    with tarfile.open(made / f"{plain}-{VERSION}.tar.gz") as archive:
        packed = {one.name.partition("/")[2] for one in archive if one.isfile()}
        times = {one.mtime for one in archive.getmembers()}
    assert set(git(clone, "ls-files", "-z").rstrip("\0").split("\0")) <= packed
    assert {int(git(clone, "log", "-1", "--format=%ct"))} == times
    with tarfile.open(made / f"chart/gpushare-{VERSION}.tgz") as archive:
        assert {"gpushare/Chart.yaml", "gpushare/values.schema.json"} <= set(archive.getnames())
    bill = json.loads((made / f"{NAME}-{VERSION}.cdx.json").read_text())
    component = bill["metadata"]["component"]
    assert ("library", NAME, VERSION) == (component["type"], component["name"], component["version"])
    assert {NAME, "click", "grpcio", "kubernetes"} <= {part["name"] for part in bill["components"]}

    for library in ("libgpushare.so", "libgpushare-strict.so"):
        with zipfile.ZipFile(wheel) as archive:
            versions = glibc_of(archive.extract(f"isolation/lib/{library}", tmp_path))
        assert versions
        assert all(each[:2] <= OLDEST_GLIBC for each in versions)


def test_the_wheel_is_called_portable_only_where_it_is(clone, tmp_path):
    """A tool that finds a newer glibc ends the release, and says where to build; an older one gives the tag."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python").write_text(
        f"""#!/bin/sh
if [ "$2" = auditwheel ]; then
  echo "x.whl is consistent with the"; echo "following platform tag: \\"manylinux_2_${{MINOR}}_$(uname -m)\\"."
  exit
fi
[ "$2" != twine ] || {{ echo "$@" >&2; exit 1; }} # far enough: its files have the name that counts
exec {sys.executable} "$@"
"""
    )
    (tools / "python").chmod(0o755)
    newer = release(clone, tmp_path / "made", PYTHON=str(tools / "python"), MINOR="34")
    older = release(clone, tmp_path / "made", PYTHON=str(tools / "python"), MINOR="17")

    assert (1, 1) == (newer.returncode, older.returncode)
    assert "manylinux_2_34" in newer.stderr
    assert "build where glibc is 2.28 or older" in newer.stderr
    assert f"-py3-none-manylinux_2_28_{platform.machine()}.whl" in older.stderr
    assert not (tmp_path / "made").exists()


def test_what_is_not_a_release_is_refused_before_anything_is_built(clone, tmp_path):
    """A dirty tree, no tag, another tag, no notes, a folder that exists: each with what to do."""
    out = tmp_path / "made"

    def refused():
        done = release(clone, "--local", out)
        assert 1 == done.returncode
        assert "== checks\n" == done.stdout
        return done.stderr

    (clone / "stray.txt").write_text("")
    assert "not clean: commit or remove these" in (said := refused())
    assert "stray.txt" in said
    (clone / "stray.txt").unlink()

    git(clone, "tag", "-d", f"v{VERSION}")
    assert f"run git tag -a v{VERSION}" in refused()
    git(clone, "tag", "v9.9.9")
    assert f"tag v9.9.9 is not the version {VERSION} of pyproject.toml: run make set-version V=9.9.9" in refused()
    git(clone, "tag", f"v{VERSION}")

    out.mkdir()
    assert f"{out} exists: remove it" in refused()
    out.rmdir()

    notes = clone / "CHANGELOG.md"
    notes.write_text(re.sub(rf"(?m)^(## \[{re.escape(VERSION)}\] - ).*$", r"\1unreleased", notes.read_text()))
    git(clone, "commit", "-qam", "notes")
    git(clone, "tag", "-f", f"v{VERSION}")
    assert f"no dated section [{VERSION}]: run make set-version V={VERSION}" in refused()
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    git(clone, "tag", "-f", f"v{VERSION}")
    assert "helm is missing: run bash tests/e2e/get_helm.sh" in release(clone, out, HELM="/nowhere").stderr
