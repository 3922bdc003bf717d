# SPDX-License-Identifier: Apache-2.0
"""What a newcomer gets wrong with `gpushare autoscaler plan`, on a real control plane: said at once, and what to do."""

from __future__ import annotations

import asyncio

import pytest
from e2e.autoscaler_process import MAPS, autoscaler, config, fleet, one_pool
from e2e.sharing import our_pod

pytestmark = pytest.mark.e2e


def test_what_is_missing_is_named_with_the_remedy(plane, tmp_path):
    """
    No rights: which objects, long before it would stop waiting. No pools: how to name some. No such pool: its object.
    Nothing is written by any of it.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines):
            await client.create(our_pod("waits", 8))
            with autoscaler(plane, tmp_path, "nobody", plane.kubeconfig_for("nobody")) as nobody:
                nobody.config.write_text(config(one_pool()))
                # it would wait for longer than the command is waited for here
                denied = await nobody.plan("--timeout=600")
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config())
                without = await one.plan()
                one.config.write_text(config(one_pool("gpu-z")))
                wrong = await one.plan()
            maps = [each["metadata"]["name"] for each in (await client.get(MAPS))["items"]]
            return denied, without, wrong, await machines.replicas("gpu-a"), maps

    denied, without, wrong, replicas, maps = asyncio.run(story())
    assert 3 == denied[0]
    assert "these credentials cannot read /api/v1/nodes, /api/v1/pods, " in denied[2]
    assert "grant list and watch on these resources" in denied[2]
    assert (0, 0) == (without[0], wrong[0])
    assert "condition: no pools are configured: " in without[1]
    assert "one.yaml lists none (docs/autoscaler.md describes the file)" in without[1]
    assert 'machinedeployments.cluster.x-k8s.io "gpu-z" not found; the pool is not scaled' in wrong[1]
    assert "no pool can scale up now: gpu-z (provider state unknown)" in wrong[1]
    assert "0 to 0" not in wrong[1]
    assert 0 == replicas
    assert not [name for name in maps if name.startswith("gpushare-autoscaler")]
