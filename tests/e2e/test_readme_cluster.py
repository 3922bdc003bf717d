# SPDX-License-Identifier: Apache-2.0
"""The README's commands for a cluster, typed as printed on a control plane; and every sample, admitted and placed."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import subprocess
import sys

import pytest
from e2e.apiclient import connected
from e2e.kubelets import Kubelets, shared_node
from e2e.manifest_build import operator
from e2e.manifest_harness import scheduling, standing
from e2e.manifest_installation import Installation
from e2e.sharing import card_node, clear, untainted
from support.docs_reading import ROOT, links, readme
from support.waiting import PATIENCE_SECONDS

from isolation.contract.codec import decode_allocation
from isolation.contract.names import ACK, ALLOCATION, SCHEDULER
from isolation.contract.quantity import GIB

_, _, (INSTALL, *CLUSTER), _ = readme()
"""The first line installs commands: tests/install/test_readme.py types it."""
SAMPLES = sorted((ROOT / "docs/samples").glob("*.yaml"))
PROMISED_GIB = {"notebook": [4], "pytorch": [8], "services": [1] * 12, "triton": [6], "vllm": [14]}
PODS = "/api/v1/namespaces/default/pods"
NODE, CARDS, CARD_GIB = "gpu-1", 4, 15
_MAIN = "import sys, gpushare; sys.argv[0] = '{name}'; gpushare.{entry}()"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own, at the ports that the manifests name."""
    with standing(tmp_path_factory.mktemp("readme")) as started:
        yield started


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """`gpushare` and `kubectl-gpushare` of this tree, in a folder for the path."""
    folder = tmp_path_factory.mktemp("bin")
    for name, entry in (("gpushare", "run"), ("kubectl-gpushare", "kubectl")):
        words = shlex.join([sys.executable, "-c", _MAIN.format(name=name, entry=entry)])
        (folder / name).write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def typed(plane, programs, line, *allowed):
    """One line, in the clone, by somebody with a kubeconfig; what it printed."""
    env = operator(KUBECONFIG=plane.kubeconfig)
    env["PATH"] = f"{programs}:{env['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode in {0, *allowed}, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextlib.asynccontextmanager
async def cluster(client):
    """A node as the README's `gpu-1`, which its agent has described, and one for the pods of gpushare itself."""
    node = card_node(NODE, CARDS, CARD_GIB, "cgpu", **{"kubernetes.io/os": "linux"})
    del node["metadata"]["labels"][ACK.mode_label]  # the README's first line sets it
    plain = shared_node("plain", cards=0, **{"kubernetes.io/os": "linux"})
    async with Kubelets(client, [node, plain]).alive():
        await untainted(client)
        yield


def promised(pods):
    """GiB of each pod's container, where all of them have been bound to the node; else nothing."""
    records = [one["metadata"].get("annotations", {}).get(ALLOCATION) for one in pods["items"]]
    slices = [decode_allocation(record).slices for record in records if record]
    return [part.bytes // GIB for parts in slices for part in parts]


def test_the_readmes_commands_install_gpushare_and_place_its_samples(plane, programs, tmp_path):
    """
    Each line succeeds and does what the README says; then every other sample is admitted and gets what it requests.
    """

    async def story():
        said = {}

        async def type_in(line, *allowed):
            said[line] = await asyncio.to_thread(typed, plane, programs, line, *allowed)

        async with connected(plane) as client, cluster(client):
            label, apply, certificate, rollout, doctor, sample, *views = CLUSTER
            for line in (label, apply, certificate, rollout):
                await type_in(line)
            installation = Installation(plane, client, tmp_path)
            async with scheduling(installation):
                await type_in(doctor, 1, 3)  # stand-in kubelets: no agent runs on the node
                await type_in(sample)
                await client.until(lambda pods: [4] == promised(pods), PODS)
                for line in views:
                    await type_in(line)
                placed = {}
                for path in SAMPLES:
                    await clear(client)
                    await type_in(f"kubectl delete -f {sample.rpartition(' ')[2]} --ignore-not-found")
                    await type_in(f"kubectl apply -f {path}")
                    wanted = PROMISED_GIB[path.stem]
                    found = await client.until(lambda pods, wanted=wanted: wanted == promised(pods), PODS)
                    placed[path.stem] = {one["spec"]["schedulerName"] for one in found["items"]}
                    await type_in(f"kubectl delete -f {path}")
                await clear(client)
            return said, placed

    said, placed = asyncio.run(story())
    label, apply, _, rollout, doctor, _, explain, top = CLUSTER
    assert f"node/{NODE} labeled" in said[label]
    assert "deployment.apps/gpushare-scheduler created" in said[apply]
    assert "successfully rolled out" in said[rollout]
    assert "cluster.admission" in said[doctor]
    assert f"bound to {NODE}" in said[explain] or NODE in said[explain]
    assert NODE in said[top]
    assert {path.stem: {SCHEDULER} for path in SAMPLES} == placed


def test_the_first_line_installs_commands_and_nothing_else():
    """All others are typed above."""
    assert INSTALL.startswith("pip install ")


def test_there_is_a_sample_for_each_kind_of_workload():
    """The five that the README names; a new one needs its amount here."""
    assert {path.stem for path in SAMPLES} == set(PROMISED_GIB)
    assert {f"docs/samples/{path.name}" for path in SAMPLES} <= set(links((ROOT / "README.md").read_text()))
