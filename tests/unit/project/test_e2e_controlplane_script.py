# SPDX-License-Identifier: Apache-2.0
"""What `make controlplane` fetches or builds: that which is missing, and nothing else."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from e2e import binaries
from support.waiting import PATIENCE_SECONDS

SCRIPT = Path(binaries.__file__).parent / "get_controlplane.sh"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
GO = """#!/bin/sh
[ "$1" = env ] && { echo GOVERSION; exit; }
for last in "$@"; do :; done
echo "build ${last##*/}" >>LOG
while [ "$1" != -o ]; do shift; done
STATUS && printf '#!/bin/sh\n' >"$2" && chmod 755 "$2"
"""
CURL = """#!/bin/sh
for last in "$@"; do :; done
case "$last" in *.sha256) echo SUM; exit ;; esac
echo "fetch ${last##*/}" >>LOG
while [ "$1" != -o ]; do shift; done
echo program >"$2"
"""
SUM = hashlib.sha256(b"program\n").hexdigest()


def program(file, text="#!/bin/sh\n"):
    """One that can be run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A cache of its own, with stand-ins for go and curl that write down what they were asked for."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for name in ("etcd", *KUBERNETES):
        program(binaries.cache() / name)
    return tmp_path


def ran(machine, *, version="go1.26.8", status="true", checksum=SUM, **env):
    """The script's status, and who was asked for what."""
    log = machine / "log"
    log.write_text("")
    program(machine / "bin" / "go", GO.replace("GOVERSION", version).replace("STATUS", status).replace("LOG", str(log)))
    program(machine / "bin" / "curl", CURL.replace("SUM", checksum).replace("LOG", str(log)))
    path = f"{machine / 'bin'}:{only(machine)}"
    done = subprocess.run(
        ["/bin/bash", SCRIPT],
        env={**os.environ, "PATH": path, **env},
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.returncode, log.read_text().split("\n")[:-1]


def only(machine):
    """A folder of what the script itself runs; no kubectl, whatever this machine has."""
    tools = (
        "bash",
        "sh",
        "uname",
        "dirname",
        "mkdir",
        "flock",
        "id",
        "sort",
        "head",
        "printf",
        "mv",
        "ln",
        "chmod",
        "sha256sum",
    )
    folder = machine / "tools"
    folder.mkdir(exist_ok=True)
    for name in tools:
        found = next(place / name for place in (Path("/usr/bin"), Path("/bin")) if (place / name).exists())
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(found)
    return folder


def test_a_cache_that_lacks_kubectl_alone_gets_kubectl_alone(machine):
    """
    A cache of an earlier day is completed, not recreated; then there is nothing left to do.
    """
    assert (0, ["build kubectl"]) == ran(machine)
    assert binaries.cache() / "kubectl" == binaries.find_kubectl()
    assert (0, []) == ran(machine)


def test_without_a_go_that_will_do_it_is_fetched_by_its_checksum(machine):
    """
    The release's own; what does not match its checksum is not kept.
    """
    code, asked = ran(machine, version="go1.20", checksum="0" * 64)
    assert (1, ["fetch kubectl"], False) == (code, asked, (binaries.cache() / "kubectl").exists())

    assert (0, ["fetch kubectl"]) == ran(machine, version="go1.20")
    assert b"program\n" == (binaries.cache() / "kubectl").read_bytes()


def test_kubectl_in_the_folder_of_assets_is_enough(machine):
    """
    Whoever names programs is taken at his word.
    """
    program(machine / "assets" / "kubectl")

    assert (0, []) == ran(machine, KUBEBUILDER_ASSETS=str(machine / "assets"))


@pytest.mark.parametrize(("there", "status"), [(True, 0), (False, 1)], ids=["on-the-path", "nowhere"])
def test_where_none_can_be_made_the_one_on_the_path_will_do(machine, there, status):
    """
    Without a network, say: the tests have one all the same, or the script fails.
    """
    if there:
        program(machine / "bin" / "kubectl")

    assert (status, ["build kubectl"]) == ran(machine, status="false")


def test_what_cannot_be_built_does_not_keep_kubectl_away(machine):
    """
    The control plane is missing and cannot be built; kubectl is asked for nevertheless, and the script fails.
    """
    for name in KUBERNETES:
        (binaries.cache() / name).unlink()

    assert (1, ["build .", "build kubectl"]) == ran(machine, status="false")
