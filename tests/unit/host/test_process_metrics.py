# SPDX-License-Identifier: Apache-2.0
"""What our processes tell of themselves beside the catalogue: memory, CPU, descriptors."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.kube.telemetry.metrics import Telemetry
from isolation.node.metrics import NodeMetrics
from isolation.scheduler.metrics import Metrics

NAMES = {
    "process_cpu_seconds",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
}


@pytest.mark.parametrize(
    "make_metrics", [Metrics, NodeMetrics, Telemetry], ids=["scheduler", "node-agent", "autoscaler"]
)
def test_each_process_tells_what_it_costs(make_metrics):
    """
    Under the names that every Prometheus client uses, each once, with this process's figures.
    """
    found = {family.name: family.samples for family in text_string_to_metric_families(make_metrics().page().decode())}

    assert NAMES == {name for name in found if name.startswith("process_")}
    assert all(1 == len(found[name]) for name in NAMES)
    assert 1 << 20 < found["process_resident_memory_bytes"][0].value < 1 << 36
    assert found["process_open_fds"][0].value <= found["process_max_fds"][0].value
