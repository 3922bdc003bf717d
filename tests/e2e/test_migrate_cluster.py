# SPDX-License-Identifier: Apache-2.0
"""`gpushare migrate quota` without a file, on a real API server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import yaml
from e2e.apiclient import connected
from e2e.sharing import card_node

from isolation.options import CannotReadError

PATH = "/api/v1/namespaces/default/resourcequotas"
NODE = "migrated"


def quota(name, **hard):
    """A ResourceQuota."""
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard}}


def asked(*words):
    """Exit status and output of the command, as a process."""
    command = [sys.executable, "gpushare.py", "migrate", "quota", *words]
    made = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"KUBECONFIG": ""}
    )
    return made.returncode, made.stdout, made.stderr


def test_the_quotas_of_a_cluster_are_read_with_its_nodes(plane):
    """
    MiB become units and a percentage is of the cards that are there; other quotas are passed over; without a cluster
    the command says what to write.
    """

    async def story():
        async with connected(plane) as client:
            await client.create(card_node(NODE, 2, 15))
            await client.call("POST", PATH, quota("theirs", **{"requests.nvidia.com/gpumem": "9000"}))
            await client.call("POST", PATH, quota("part", **{"requests.koordinator.sh/gpu-memory-ratio": "200"}))
            await client.call("POST", PATH, quota("plain", pods="5"))
            try:
                return await asyncio.to_thread(asked, "--kubeconfig", str(plane.kubeconfig), "-o", "yaml")
            finally:
                for name in ("theirs", "part", "plain"):
                    await client.delete(f"{PATH}/{name}")
                await client.delete(f"/api/v1/nodes/{NODE}")

    status, text, _ = asyncio.run(story())
    made = {one["metadata"]["name"]: one["spec"]["hard"] for one in yaml.safe_load_all(text)}
    assert 0 == status
    assert {"theirs-gpushare", "part-gpushare"} == made.keys()
    assert {"requests.aliyun.com/gpu-mem": "9"} == made["theirs-gpushare"]
    assert {"requests.aliyun.com/gpu-mem": "30"} == made["part-gpushare"]


def test_a_cluster_that_cannot_be_read_is_said(plane, tmp_path):
    """With the status that all commands have for it, and what to check."""
    wrong = yaml.safe_load(plane.kubeconfig.read_text())
    wrong["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(wrong))
    status, _, text = asked("--kubeconfig", str(path))
    assert CannotReadError.exit_code == status
    assert "cannot read the cluster" in text
