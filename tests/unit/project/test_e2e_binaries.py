# SPDX-License-Identifier: Apache-2.0
"""Where the programs of the control plane are looked for, and what is said where there are none."""

from __future__ import annotations

import subprocess

import pytest
from e2e import binaries
from e2e.manifest_build import build, operator
from support.waiting import PATIENCE_SECONDS


def programs(folder, *names):
    """Programs that do nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)


def test_assets_come_before_the_path_and_the_path_before_the_cache(tmp_path, monkeypatch):
    """
    Each program by itself: what one place lacks, the next one has.
    """
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    programs(tmp_path / "assets", "etcd")
    programs(tmp_path / "path", "etcd", "kube-apiserver")
    programs(binaries.cache(), *binaries.PROGRAMS)

    found = binaries.find()

    assert [tmp_path / "assets", tmp_path / "path"] == [found[name].parent for name in ("etcd", "kube-apiserver")]
    assert {binaries.cache()} == {found[name].parent for name in ("kube-controller-manager", "kube-scheduler")}


def test_what_is_missing_is_said_with_the_remedy(tmp_path, monkeypatch):
    """
    By name, with the command that helps.
    """
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    programs(tmp_path / "path", "etcd", "kube-apiserver", "kube-scheduler")

    missing = binaries.find()

    assert ("kube-controller-manager",) == missing.names
    assert "make controlplane" in str(missing)


@pytest.mark.parametrize(
    ("there", "expected"),
    [(("assets", "cache", "path"), "assets"), (("cache", "path"), "cache"), (("path",), "path")],
    ids=["assets-first", "then-cache", "then-path"],
)
def test_kubectl_of_the_path_is_the_last_resort(tmp_path, monkeypatch, there, expected):
    """
    It may be years older than the API server, and is run where there is no other; scripts find the same one.
    """
    places = {"assets": tmp_path / "assets", "path": tmp_path / "path"}
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(places["assets"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{places['path']}:/usr/bin:/bin")
    places["cache"] = binaries.cache()
    for place in there:
        programs(places[place], "kubectl")

    done = subprocess.run(
        ["/bin/sh", "-c", "command -v kubectl"],
        env=operator(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )

    assert places[expected] / "kubectl" == binaries.find_kubectl()
    assert str(places[expected] / "kubectl") == done.stdout.strip()


def test_without_kubectl_a_test_is_skipped_with_the_remedy(tmp_path, monkeypatch):
    """
    As without a control plane; what CI makes of a skip is another test's.
    """
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(pytest.skip.Exception, match=r"^kubectl found neither in .* run `make controlplane`$"):
        build(str(tmp_path))
