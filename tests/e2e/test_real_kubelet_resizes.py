# SPDX-License-Identifier: Apache-2.0
"""Random resizes on a real node, under our scheduler, while pods come and go and everything is killed in turn."""

from __future__ import annotations

import pytest
from e2e.sharing import sharing
from realkubelet.resizes import ResizeChurn
from realkubelet.stage import play, real_stage

ACCOUNT = "system:serviceaccount:gpushare-system:gpushare-scheduler"


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards of 14 units."""
    with real_stage(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


def test_whatever_is_resized_and_killed_no_card_has_more_than_it_can_give(stage, tmp_path, budget):
    """
    0 overcommitted, in records and limits; in the end all of them say the same. 0 pods are refused by the kubelet, but
    for those that it admits before the device plugin has found it again.
    """

    async def story(client):
        account = stage.plane.kubeconfig_for(ACCOUNT, ("system:masters",))
        async with sharing(stage.plane, tmp_path, kubeconfig=account) as (_, scheduler):
            return await ResizeChurn(stage, client, scheduler, seed=7).run(60 * budget, every=10)

    found = play(stage, story)
    assert ([], {}, []) == (found.overcommitted, dict(found.rejected), found.differs), found
    assert found.asked >= 60 * budget
    assert found.in_force > 0
