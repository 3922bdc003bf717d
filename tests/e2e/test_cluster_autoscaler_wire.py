# SPDX-License-Identifier: Apache-2.0
"""
What cluster-autoscaler would ask, asked by a Go program with Kubernetes' own types, over TLS as it does it.

The program (`clusterautoscaler/main.go`) is not cluster-autoscaler itself: see docs/cluster-autoscaler.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from e2e.certificates import Authority
from support.builders import node
from support.rpc_harness import Pools

from autoscaler.apis.rpc.core.node_groups import NodeGroup
from autoscaler.apis.rpc.ports import GrpcSettings, serve_ports
from isolation.contract.names import ACK, CARD_UNITS
from isolation.host.reloading_tls import CertificateFiles

pytestmark = pytest.mark.e2e
MODULE = Path(__file__).parent / "clusterautoscaler"


def _missing(what):
    """A skip; under CI a failure."""
    pytest.fail(what) if os.environ.get("CI") == "true" else pytest.skip(what)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The Go program, built; a minute the first time."""
    go = shutil.which("go", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/go/bin")))
    if go is None:
        _missing("Go is not installed")
    fetch = [go, "mod", "download"]
    fetched = subprocess.run(fetch, cwd=MODULE, check=False, capture_output=True, text=True, timeout=300)
    if fetched.returncode:
        _missing(f"the Go modules cannot be had: {fetched.stderr[-300:]}")
    built = tmp_path_factory.mktemp("go") / "clusterautoscaler"
    env = os.environ | {"CGO_ENABLED": "0"}
    subprocess.run([go, "build", "-mod=readonly", "-o", built, "."], cwd=MODULE, env=env, check=True, timeout=600)
    return built


class Unknown:
    """Nothing of the pools is known: cluster-autoscaler's own node is judged."""

    def pools(self):
        """None."""
        return {}


def test_one_loop_over_mutual_tls(program, tmp_path):
    """
    A commanded group is raised to its smallest size; Go reads the same node from either generation's field, and the
    expander vetoes the pod that fits on 2 x 16 GiB in sum and on no card.
    """
    authority = Authority(tmp_path, "ca")
    server = authority.issue("server", hosts=("localhost", "127.0.0.1"))
    authority.issue("cluster-autoscaler")
    files = CertificateFiles(server.certificate, server.key, authority.certificate)
    settings = GrpcSettings(
        number=0, expander_number=0, files=files, anyone_asks=True
    )  # as CA's own client shows nothing
    pools = Pools(NodeGroup("shared", 1, 5, target=1, commanded=3, template=node("t", 2, 16, cpu_milli=3500)))

    async def run():
        async with serve_ports(settings, state=pools, known=Unknown()) as opened:
            asked = [program, tmp_path, str(opened.number), str(opened.expander_number), "12", "20"]
            process = await asyncio.create_subprocess_exec(*asked, stdout=asyncio.subprocess.PIPE)
            said, _ = await asyncio.wait_for(process.communicate(), 60)
            return process.returncode, json.loads(said)

    code, output = asyncio.run(run())

    assert (0, {"shared": [3, 5]}, 1, 3) == (code, output["Groups"], output["Before"], output["After"])
    assert [("refresh",), ("grow", "shared", 2)] == pools.asked
    assert {"12": ["shared"], "20": []} == output["Expanders"]
    assert {"Unimplemented"} == set(output["Codes"].values())
    older, newer = output["Nodes"]["nodeInfo"], output["Nodes"]["nodeBytes"]
    assert older == newer
    assert ("32", "2", "3500m") == tuple(newer["status"]["allocatable"][n] for n in (ACK.memory, ACK.card_count, "cpu"))
    assert "16" == newer["metadata"]["labels"][CARD_UNITS]
