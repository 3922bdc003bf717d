# SPDX-License-Identifier: Apache-2.0
"""What a package index shows of the distribution, and the name under which pip knows it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from trove_classifiers import classifiers

from gpushare import COMMANDS
from isolation.distribution import DISTRIBUTION, install_command

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WRONG = re.compile(r"(?<![\w.-])gpushare\[[a-z{]|pip3? install (?:-\S+ )*['\"]?gpushare(?![\w-])")
"""A command that would install another project's distribution."""


def test_the_programs_know_the_name_of_the_distribution():
    """It is not that of the command: `gpushare` belongs to another project. Extras refer to it too."""
    own = [line for lines in PROJECT["optional-dependencies"].values() for line in lines if "gpushare" in line]

    assert PROJECT["name"] == DISTRIBUTION != "gpushare"
    assert own
    assert all(line.startswith(f"{DISTRIBUTION}[") for line in own)


def test_what_to_install_is_a_command_of_pip():
    assert "pip install 'gpushare-k8s'" == install_command()
    assert "pip install 'gpushare-k8s[exporter,run]'" == install_command("exporter", "run")
    assert {extra for _, extra, _ in COMMANDS.values()} - {""} <= set(PROJECT["optional-dependencies"])


def test_no_file_says_to_install_the_distribution_of_somebody_else():
    """CHANGELOG and DECISIONS tell of it; this file tests for it."""
    listed = subprocess.run(
        ["git", "grep", "-lIE", r"gpushare\[|pip3? install.*gpushare", "--", ":!CHANGELOG.md", ":!DECISIONS.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if listed.returncode > 1:
        pytest.skip("no git checkout: files of ours cannot be told from others")
    names = [name for name in listed.stdout.splitlines() if ROOT / name != Path(__file__)]

    assert names
    assert [] == [name for name in names if WRONG.search((ROOT / name).read_text())]


def test_classifiers_exist_and_name_the_pythons_that_are_tested():
    """Each Python that continuous integration runs on, and each part of the code: an index refuses unknown ones."""
    given = PROJECT["classifiers"]
    tested = yaml.safe_load((ROOT / ".github/workflows/unit.yaml").read_text())
    [versions] = [job["strategy"]["matrix"]["python"] for job in tested["jobs"].values() if "strategy" in job]

    assert [] == [line for line in given if line not in classifiers]
    assert sorted(set(given)) == given
    assert versions == re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(given), re.MULTILINE)
    assert f">={versions[0]}" == PROJECT["requires-python"]


def test_the_project_has_one_address():
    """The site and the runbooks name it too."""
    address = re.search(r"^repo_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)[1]
    urls = PROJECT["urls"]

    assert address == urls["Homepage"]
    for url in urls.values():
        assert url == address or url.startswith(f"{address}/")
        path = url.partition("/blob/main/")[2]
        assert not path or (ROOT / path).is_file()
