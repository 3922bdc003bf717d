"""Where the programs of the control plane are looked for, and what is said where there are none."""

from __future__ import annotations

from e2e import binaries


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
