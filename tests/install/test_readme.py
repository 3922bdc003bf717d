# SPDX-License-Identifier: Apache-2.0
"""The README, followed in a fresh clone: each of its commands as printed, but for those that need a cluster."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from e2e.manifest_installation import LOCK
from support.children import DIES_WITH_US
from support.docs_reading import readme
from support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
TRY, MACHINE, CLUSTER, FLEET = readme()
"""Its blocks. Those of a cluster are typed by tests/e2e/test_readme_cluster.py."""
INSTALL_SECONDS = 1000
"""Also for what computes for long beside other tests."""
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: nowhere
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:9"}}]
users: [{name: nobody, user: {token: none}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What a clone of this tree has: no environment, nothing built."""
    made = tmp_path_factory.mktemp("readme") / "gpushare"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, made / name)
    return made


def reader(**more):
    """The environment of somebody who has just opened a terminal."""
    ours = ("VIRTUAL_ENV", "PYTHON", "GPUSHARE", "MAKE", "MFLAGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def typed(clone, lines, seconds=PATIENCE_SECONDS, **more):
    """Lines in one shell, each of which must succeed; what they printed."""
    script = "set -e\n" + "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=clone,
        env=reader(**more),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def ports():
    """Those that the stack and the manifests both name: one test at a time has them."""
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("ports")
def test_make_up_installs_little_and_shows_the_stack_until_ctrl_c(clone, tmp_path):
    """
    The first of the two commands; the second is what runs this test, so it is compared and not typed.
    """
    first, second = TRY
    assert "make test" == second
    said = tmp_path / "said"
    with said.open("wb") as out:
        started = subprocess.Popen(
            [*DIES_WITH_US, "bash", "-c", f"exec {first}"],
            cwd=clone,
            env=reader(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + INSTALL_SECONDS
        while "OVER its promise" not in said.read_text() and started.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself: what it said is judged below
            os.killpg(started.pid, signal.SIGINT)  # Ctrl-C: to the whole group of the terminal
        started.wait(PATIENCE_SECONDS)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    text = said.read_text()
    if "in use" in text:
        pytest.skip(f"a port of `gpushare up` is in use on this machine: {text[-300:]}")
    assert "allocations beyond a promise refused; over promise: stray" in text, text[-3000:]
    size = sum(path.lstat().st_size for path in (clone / ".venv").rglob("*") if not path.is_symlink())
    assert size < 200e6


@pytest.mark.slow
def test_a_command_gets_a_share_of_a_simulated_card(clone, tmp_path):
    """
    One machine: two cards, a canary that is stopped at its promise, a command with 5 GiB that the exporter shows.
    """
    # Somebody may have followed the README on this machine before, with another version.
    lines = [line.replace("/tmp/box", str(tmp_path / "box")) for line in MACHINE]  # noqa: S108 (the page's)
    activate, create, doctor, run, exporter = lines
    assert doctor.startswith("gpushare doctor")
    assert run.endswith(" &")
    # A reader is slower than a shell: the command in the background has begun when they type the next line.
    promise = f"{tmp_path}/box.allocations/*/promise.json"
    lines = [
        activate,
        create,
        doctor,
        run,
        f"until ls {promise} > /dev/null 2>&1; do kill -0 $!; sleep 0.1; done",
        exporter,
    ]
    # On a machine with a kubelet it also looks at what a node needs, and its status says what it found.
    allowed = [f"{line} || test $? -le 3" if line == doctor else line for line in lines]
    text = typed(clone, [*allowed, "kill $!"])

    assert "ok       canary.limited" in text
    [promised] = [line for line in text.splitlines() if line.startswith("gpushare_container_memory_allocated_bytes{")]
    assert promised.endswith(" 5.36870912e+09")


@pytest.mark.slow
def test_the_commands_for_a_cluster_can_be_installed(clone, tmp_path):
    """
    The first line of a cluster's block: then these commands miss nothing but a cluster.
    """
    activate, install = MACHINE[0], CLUSTER[0]
    config = tmp_path / "config"
    config.write_text(KUBECONFIG)
    text = typed(
        clone, [activate, install, "gpushare doctor cluster || echo status $?"], INSTALL_SECONDS, KUBECONFIG=str(config)
    )

    assert "status 3" in text  # unknown: nothing answers at that address
    assert "cluster.server_version" in text


@pytest.mark.slow
def test_a_fleet_is_planned_before_there_is_one(clone):
    """
    Where a sample would be placed, and which policy packs best.
    """
    text = typed(clone, FLEET, INSTALL_SECONDS, PATH=f"{clone / '.venv/bin'}:{os.environ['PATH']}")

    assert "12 placed, 0 refused" in text
    assert "potential" in text
