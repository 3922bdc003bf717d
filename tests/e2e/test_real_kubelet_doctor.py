# SPDX-License-Identifier: Apache-2.0
"""The doctor on a real node: what a real kubelet and a real container runtime say, and what it makes of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from realkubelet.harness import play, real_node
from realkubelet.pods import container, facts, pod_of

REPOSITORY = Path(__file__).resolve().parents[2]
DOCTOR = [sys.executable, "-c", "from isolation.doctor.cli import doctor; doctor()"]


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards of 14 units."""
    with real_node(plane, tmp_path_factory.mktemp("d")) as made:
        yield made


def examined(*words):
    """Findings by check."""
    done = subprocess.run([*DOCTOR, *words, "--json"], capture_output=True, text=True, timeout=120, check=False)
    return {one["check"]: one for one in json.loads(done.stdout)["findings"]}


def test_devices_that_a_real_kubelet_gave_are_of_this_release_and_given_once(stage):
    """
    From afar, by the pod's status alone; the kubelet's version is reported, the pod has a record.
    """

    async def story(client):
        await stage.place(client, pod_of("doctor", container("main", 3)), 1)
        pod = await stage.running_pod(client, "doctor")
        config = str(stage.plane.kubeconfig)
        for _ in range(400):
            seen = await asyncio.to_thread(examined, "cluster", "--kubeconfig", config)
            if "cluster.devices" in seen:
                return seen, pod
            await asyncio.sleep(0.25)
        return seen, pod

    seen, _ = play(stage, story)
    states = {check: seen[check]["state"] for check in ("cluster.devices", "cluster.allocations", "cluster.overcommit")}
    assert {"cluster.devices": "ok", "cluster.allocations": "ok", "cluster.overcommit": "ok"} == states
    assert "ok" == seen["cluster.kubelet_versions"]["state"], seen["cluster.kubelet_versions"]
    assert "ok" == seen["cluster.agents"]["state"], seen["cluster.agents"]


def test_whoever_execs_into_a_container_is_bound_by_its_promise(stage):
    """
    A program that was not there when the container started: sees 2 GiB, and is refused what lies beyond.
    """

    async def story(client):
        await stage.place(client, pod_of("exec", container("main", 2, "100")), 0)
        pod = await stage.running_pod(client, "exec")
        box = stage.node.containers(pod["metadata"]["uid"])["main"]
        script = (
            "/bin/client 3000 > /said & until case `cat /said` in *ready*) true;; *) false;; esac; do sleep 0.1; done;"
            " kill $!; cat /said"
        )
        said = await asyncio.to_thread(stage.node.execute, box, "/bin/sh", "-c", script)
        return facts(said.splitlines())

    printed = play(stage, story)
    assert ([str(2 << 30)], ["2"]) == (printed["total"], printed["take"])


def test_a_real_node_is_read_as_its_programs_were_started(stage):
    """
    Inside the machine: containerd and kubelet are found by what runs, by their own files and sockets, and nothing is
    wrong with them; the canary sings beside the pods.
    """
    words = ["machine", "--simgpu", str(stage.file), "--canary", "--json"]
    env = {"PYTHONPATH": str(REPOSITORY), "PATH": f"{stage.node.root / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"}
    said = stage.node.machine.call(["/bin/sh", "-c", '"$@"; true', "sh", *DOCTOR, *words], env=env)
    seen = {one["check"]: one for one in json.loads(said)["findings"]}

    # What the kernel of this machine has, or has not, is not the node's.
    judged = {check: one for check, one in seen.items() if check not in {"machine.ptrace", "machine.selinux"}}
    assert [] == [one for one in judged.values() if one["state"] in {"problem", "unknown"}]
    assert "containerd 2" in seen["machine.runtime"]["evidence"]
    expected = (
        "machine.kernel",
        "machine.nri",
        "machine.nri_plugins",
        "machine.device_ids",
        "machine.feature_gates",
        "machine.kubelet_sockets",
        "machine.other_plugins",
        "canary.loaded",
        "canary.limited",
    )
    assert dict.fromkeys(expected, "ok") == {check: seen[check]["state"] for check in expected}
