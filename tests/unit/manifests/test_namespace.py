# SPDX-License-Identifier: Apache-2.0
"""Another namespace than gpushare-system: in the chart, in a copy of the kustomize tree, and for our programs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from e2e.chart_build import LOADER, combined, keyed, rendered, sets_of
from e2e.manifest_build import MANIFESTS, OPTIONS, OVERLAYS, build, objects, write
from support.waiting import PATIENCE_SECONDS

from charts.values import SWITCHES
from isolation.contract.names import SYSTEM_NAMESPACE

pytestmark = pytest.mark.processes
OTHER = "gpu-sharing"


def renamed(things):
    """With the other name wherever ours stands, also within words."""
    return keyed(json.loads(json.dumps(list(things)).replace(SYSTEM_NAMESPACE, OTHER)))


def copied(folder, name=OTHER):
    """`sh manifests/namespace.sh`."""
    return subprocess.run(
        ["sh", str(MANIFESTS / "namespace.sh"), name, str(folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("sets", [{}, {"namespaceOverride": OTHER}], ids=["of-the-release", "given"])
@pytest.mark.parametrize("name", ["", "cert-manager", "existing-scheduler", "demo", "ack"])
def test_the_chart_follows_the_namespace_everywhere(sets, name):
    """
    With all that can be added; whether it is the release's, or another one is given.
    """
    names = [name] if name else []
    more = [one for one in SWITCHES if SWITCHES[one].overlay == "self-signed"]
    where = "default" if sets else OTHER

    assert renamed(combined(*names, *more).values()) == rendered(sets_of(*names, *more) | sets, namespace=where)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_copy_of_the_manifests_has_the_other_name_everywhere(overlay, tmp_path, monkeypatch):
    """
    And builds as the tree itself.
    """
    assert 0 == copied(tmp_path / "copy").returncode
    monkeypatch.setattr("e2e.manifest_build.MANIFESTS", tmp_path / "copy" / "manifests")
    folder = tmp_path / "kustomization"
    folder.mkdir()
    write(folder, f"overlays/{overlay}", tuple(f"components/{name}" for name in OPTIONS))

    assert renamed(objects(overlay, OPTIONS)) == keyed(yaml.load_all(build(str(folder)), LOADER))


@pytest.mark.parametrize("name", ["", "-a", "A", "a/b", "a" * 64])
def test_what_is_no_name_is_refused_and_nothing_is_copied(name, tmp_path):
    """
    It would be put into a program of sed.
    """
    assert (2, False) == (copied(tmp_path / "copy", name).returncode, (tmp_path / "copy").exists())


def test_a_copy_is_not_written_over_another(tmp_path):
    """
    Half of it would be of another version.
    """
    assert [0, 2] == [copied(tmp_path).returncode, copied(tmp_path).returncode]


def test_our_programs_follow_the_environment():
    """
    GPUSHARE_NAMESPACE, which the manifests give them: what admission prints is the same but for the name.
    """
    command = [sys.executable, "-m", "isolation.scheduler.admission.objects", "policies.yaml"]
    texts = [
        subprocess.run(
            command,
            cwd=MANIFESTS.parent,
            env={"GPUSHARE_NAMESPACE": name},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        ).stdout
        for name in ("", OTHER)
    ]
    plain, other = (list(yaml.load_all(text, LOADER)) for text in texts)

    assert SYSTEM_NAMESPACE in texts[0]
    assert renamed(plain) == keyed(other)
