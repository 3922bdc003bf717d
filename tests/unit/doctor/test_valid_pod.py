# SPDX-License-Identifier: Apache-2.0
"""The pod that doctor shows to admission as a valid one: of a kind that the cluster's nodes serve."""

from __future__ import annotations

import pytest

from isolation.contract.names import ACK
from isolation.doctor.checks.cluster.admission import valid_limits
from isolation.doctor.checks.cluster.facts import ClusterNode


@pytest.mark.parametrize(
    ("modes", "compute"),
    [
        ((), False),
        ((None,), False),
        (("core_mem",), True),
        (("core_mem", None, "default"), True),
        (("core_mem", "cgpu"), False),
        (("share",), False),
    ],
)
def test_compute_is_requested_where_nodes_serve_nothing_else(modes, compute):
    """
    Memory alone is what every other node with shares takes; a node without shares does not count.
    """
    limits = valid_limits(ClusterNode(f"node-{at}", None, mode=mode) for at, mode in enumerate(modes))
    assert (limits.keys() - {ACK.memory} == {ACK.compute}) is compute
    assert "2" == limits[ACK.memory]
