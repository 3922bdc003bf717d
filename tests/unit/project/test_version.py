# SPDX-License-Identifier: Apache-2.0
"""One version: pyproject.toml has it, everything else is built from it, or written with it by `make set-version`."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from support.waiting import PATIENCE_SECONDS

from isolation.distribution import release
from isolation.lib import native

ROOT = Path(__file__).resolve().parents[3]
WRITTEN = ("pyproject.toml", "manifests/images/kustomization.yaml", "charts/gpushare/Chart.yaml", "CHANGELOG.md")
"""The files that `make set-version` changes."""
IMAGES = {"gpushare-controller", "gpushare-exporter", "gpushare-node"}
SOURCES = ("*.py", "*.[chS]", "*.sh", "*.yaml", "*.md", "*Containerfile", "Makefile")
FIXED = re.compile(
    r"""gpushare-(?:controller|demo|exporter|node):v?\d+\.\d|define \w*VERSION "\d|__version__ = ["']\d"""
)
"""A version of ours, written where it would be forgotten."""


def source(root=ROOT):
    """The version in pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def tags(root=ROOT):
    """Those of the manifests, by image."""
    images = yaml.safe_load((root / "manifests/images/kustomization.yaml").read_text())["images"]
    return {one["name"]: one["newTag"] for one in images}


def chart(root=ROOT):
    """That of the Helm chart, and of the images that it names."""
    made = yaml.safe_load((root / "charts/gpushare/Chart.yaml").read_text())
    return {made["version"], made["appVersion"]}


def semver(version):
    """As a chart has to write it, which is another way only for what comes before a release."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


def headings(root=ROOT):
    """What the changelog has sections for, the newest first, and what stands after each name."""
    return re.findall(r"^## \[(.+?)\](?: - (\S+))?$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)


def made(root, version):
    """`make set-version` in a tree."""
    command = ["make", "-C", root, "set-version", f"V={version}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


@pytest.fixture
def tree(tmp_path):
    """The files that a release changes, and the Makefile, in a folder of their own."""
    for name in (*WRITTEN, "Makefile"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_manifests_and_changelog_have_the_version_of_the_project():
    """If not: `make set-version V=...` writes all of them."""
    assert tags() == dict.fromkeys(IMAGES, source())
    assert {source(), semver(source())} == chart()
    assert [("Unreleased", ""), source()] == [headings()[0], headings()[1][0]]


def test_what_is_installed_and_built_is_of_this_version():
    """If not: any target of make (`make unit`) installs the packages and builds the library again."""
    assert source() == release()
    assert source() == native.version()


def test_no_other_file_has_a_version_of_ours():
    """Not of an image, the library or a package; tests may make some up."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *SOURCES, ":!tests", ":!CHANGELOG.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("no git checkout: files of ours cannot be told from others")
    found = {
        name for name in listed.stdout.split() if (ROOT / name).exists() and FIXED.search((ROOT / name).read_text())
    }

    assert set() == found


def test_a_release_writes_every_place(tree):
    """The section that waits gets its date; after it, the notes of [Unreleased] become the section of the next one."""
    changelog = tree / "CHANGELOG.md"
    before = headings(tree)
    assert 0 == made(tree, "9.8.7").returncode
    assert ("9.8.7", dict.fromkeys(IMAGES, "9.8.7"), {"9.8.7"}) == (source(tree), tags(tree), chart(tree))
    assert [before[0], "9.8.7", *before[1:]] == [headings(tree)[0], headings(tree)[1][0], *headings(tree)[2:]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", headings(tree)[1][1])

    changelog.write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [9.9.0] - unreleased\n\n- Faster.\n\n## [9.8.7] - 2001-01-01\n"
    )
    assert [0, 0] == [made(tree, "9.9.0").returncode, made(tree, "9.9.0").returncode]
    assert ["Unreleased", "9.9.0", "9.8.7"] == [name for name, _ in headings(tree)]
    assert "unreleased" != headings(tree)[1][1]
    assert "2001-01-01" == headings(tree)[2][1]

    assert 0 == made(tree, "9.9.1rc2").returncode
    assert ("9.9.1rc2", {"9.9.1rc2", "9.9.1-rc.2"}) == (source(tree), chart(tree))


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3+local", "1.2.3-rc.1", "1.2.3 "])
def test_what_is_no_version_is_refused_and_changes_nothing(tree, version):
    """Of the forms that PEP 440, an image tag and a heading write alike."""
    before = {name: (tree / name).read_text() for name in WRITTEN}

    assert 2 == made(tree, version).returncode
    assert before == {name: (tree / name).read_text() for name in WRITTEN}
