# SPDX-License-Identifier: Apache-2.0
"""
What translating a pod of another system costs admission.

    python -m benchmarks.dialects [ROUNDS]

prints, for each form, the median and the 99th percentile of one call in microseconds: CPU time of this thread, and by
the clock. The bar is 60 us of CPU (p99). A pod that is none of ours, with 60,000 annotations, stands in the last row.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.dialects import Offered, translate
from isolation.contract.model import Card, Mode, Node
from isolation.contract.names import CORE_STEPS
from isolation.contract.quantity import GIB
from isolation.placement.card_sizes import measure_cards

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS: Final = 20_000
BAR_MICROSECONDS: Final = 60.0


_NODES: Final = [
    Node(mode.value, (Card(mode.value, 0, 15 * GIB),), mode, labels={"pool": mode.value})
    for mode in (Mode.CGPU, Mode.CORE_MEM)
]
_ALL: Final = Offered(frozenset(CORE_STEPS), measure_cards(_NODES).of)
_TOLERATIONS: Final = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
]


def build_pod(amounts: dict[str, str], annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod as the API server sends it: defaulted, with tolerations, the same amounts under limits and requests."""
    resources = {
        "limits": {"cpu": "4", "memory": "16Gi", **amounts},
        "requests": {"cpu": "4", "memory": "16Gi", **amounts},
    }
    mounts = [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}]
    container = {"name": "main", "image": "i", "resources": resources, "volumeMounts": mounts, "env": [{"name": "A"}]}
    meta = {"name": "p", "namespace": "team", "labels": {"app": "a"}, "annotations": annotations or {}}
    base = {"containers": [container], "schedulerName": "default-scheduler", "tolerations": _TOLERATIONS}
    return {"metadata": meta, "spec": {**base, **spec}}


PODS: Final = {
    "hami": build_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"}),
    "hami, rules and scheduler": build_pod(
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3k"},
        {"nvidia.com/use-gputype": "A100,H100"},
        schedulerName="hami-scheduler",
    ),
    "hami, percent": build_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
    "volcano": build_pod(
        {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "2k", "volcano.sh/vgpu-cores": "25"}
    ),
    "gpu-manager": build_pod({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "20"}),
    "qgpu": build_pod({"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "4"}),
    "kai, fraction": build_pod({}, {"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
    "kai, container": build_pod({}, {"nvidia.com/container.main.gpu-memory.request": "4Gi"}),
    "koordinator": build_pod({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}),
    "vgpu-manager": build_pod({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-memory": "1k"}),
    "ours": build_pod({"aliyun.com/gpu-mem": "3"}),
    "nobody's, 60,000 annotations": build_pod({}, {f"a{i}": "" for i in range(60_000)}),
}


def measure(call: Callable[[], object], rounds: int, clock: Callable[[], int]) -> tuple[float, float]:
    """Median and 99th percentile of one call, in microseconds by this clock of nanoseconds."""
    taken = []
    for _ in range(rounds):
        began = clock()
        call()
        taken.append(clock() - began)
    taken.sort()
    return taken[rounds // 2] / 1000, taken[rounds * 99 // 100] / 1000


def main(rounds: int) -> int:
    """Print the table; 1 where a form takes more CPU than the bar."""
    gc.collect()
    gc.freeze()
    worst = 0.0
    print(f"{'form':32} {'CPU p50':>9} {'CPU p99':>9} {'p50':>9} {'p99':>9}   us")
    for name, pod in PODS.items():
        call = lambda pod=pod: translate(pod, _ALL, "team")  # noqa: E731 (one call, measured twice)
        half, most = measure(call, rounds, time.thread_time_ns)
        by_clock = measure(call, rounds, time.perf_counter_ns)
        worst = max(worst, most)
        print(f"{name:32} {half:9.1f} {most:9.1f} {by_clock[0]:9.1f} {by_clock[1]:9.1f}")
    return int(worst > BAR_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
