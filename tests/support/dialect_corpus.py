# SPDX-License-Identifier: Apache-2.0
"""
What the vendors' own examples ask, re-typed, and what each becomes on nodes with cards of 80 GiB, in units of 1 GiB.

One table for all ways in: `translate`, `gpushare place`, a real API server, and a container that reads NVML. A row is
one pod of one example (a template's pod where the example is a Deployment). To add one, say where it stands.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from isolation.contract.names import (
    AVOID_MODELS,
    AVOID_UUIDS,
    CORE_LIMIT,
    ONLINE,
    TIME_SLICES,
    USE_MODELS,
    USE_UUIDS,
)

CARD_GIB = 80
Pod = dict[str, Any]


@dataclass(frozen=True)
class Share:
    """A share of each of `cards` cards, for one container."""

    cards: int
    gib: int
    percent: int = 0
    container: str = "main"
    notes: dict[str, str] = field(default_factory=dict)
    """Canonical annotations for what has no amount."""
    warns: str = ""
    """A part of a warning."""


@dataclass(frozen=True)
class Whole:
    """Whole cards; `foreign`: asked in a sharing system's words, so that there is something to translate."""

    cards: int
    foreign: bool = False


@dataclass(frozen=True)
class Refused:
    """`words` are a part of the reason."""

    words: str


@dataclass(frozen=True)
class Untouched:
    """Asks for something that is none of ours to give: it stays for whoever gives it."""

    resource: str


@dataclass(frozen=True)
class Row:
    """One pod of an example."""

    name: str
    source: str
    pod: Pod
    becomes: Share | Whole | Refused | Untouched

    @property
    def dialect(self) -> str:
        """By name; empty: it is in none."""
        named = self.name.partition("/")[0]
        return "" if isinstance(self.becomes, Untouched) or self.becomes == Whole(self._count) else named

    @property
    def _count(self) -> int:
        return getattr(self.becomes, "cards", 0)


def _pod(amounts: dict[str, Any], *, notes: dict[str, str] | None = None, requests: bool = False, **spec: Any) -> Pod:
    """A pod whose container `main` has these limits; the API server adds requests where `requests` does not."""
    main: Pod = {"name": "main", "image": "none"}
    if amounts:
        main["resources"] = {"limits": dict(amounts)} | ({"requests": dict(amounts)} if requests else {})
    metadata: Pod = {"name": "p", "namespace": "default"} | ({"annotations": notes} if notes else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [main]} | spec}


def _kai(notes: dict[str, str], *others: str, kind: str = "containers", **spec: Any) -> Pod:
    """A pod for KAI's scheduler; `others`: containers behind the first, or init containers."""
    made = _pod({}, notes=notes, schedulerName="kai-scheduler", **spec)
    made["metadata"]["labels"] = {"kai.scheduler/queue": "default-queue"}
    made["spec"].setdefault(kind, []).extend({"name": name, "image": "none"} for name in others)
    return made


_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_HAMI = "Project-HAMi/HAMi examples/nvidia/"
_KAI = "kai-scheduler/KAI-Scheduler docs/gpu-sharing/"
_FRACTIONS = "kai-scheduler/kai-gpu-fractioning README.md 0249ece"
_VOLCANO = "volcano-sh/volcano docs/user-guide/"
_TKE = "cloud.tencent.com/document/product/457/"
_KOORDINATOR = "koordinator-sh/koordinator docs/proposals/scheduling/20230803-enhance-gpu-share-api.md"
_VGPU = "coldzerofear/vgpu-manager "
_QGPU = "tke.cloud.tencent.com/qgpu-"
_CLASS = "tke.cloud.tencent.com/app-class"
_LOW = {ONLINE: "false"}


def _gpu(count: int, **amounts: int) -> dict[str, int]:
    """HAMi's amounts: `gpumem`, `gpucores`, `percentage` (of memory), `priority`."""
    short = {"percentage": "gpumem-percentage"}
    return {"nvidia.com/gpu": count} | {f"nvidia.com/{short.get(key, key)}": value for key, value in amounts.items()}


def _vgpu(domain: str, **amounts: int) -> dict[str, int]:
    return {f"{domain}/vgpu-{key}": value for key, value in amounts.items()}


def _koord(**amounts: int | str) -> dict[str, int | str]:
    names = {"shared": "gpu.shared", "core": "gpu-core", "memory": "gpu-memory", "ratio": "gpu-memory-ratio"}
    return {f"koordinator.sh/{names.get(key, key)}": value for key, value in amounts.items()}


CORPUS: tuple[Row, ...] = (
    # HAMi: every file of examples/nvidia.
    Row("hami/default_use", _HAMI + "default_use.yaml", _pod(_gpu(2, gpumem=3000, gpucores=30)), Share(2, 3, 30)),
    Row("hami/default_use_legacy", _HAMI + "default_use_legacy.yaml", _pod(_gpu(2)), Whole(2)),
    Row(
        "hami/dynamic_mig",
        _HAMI + "dynamic_mig_example.yaml",
        _pod(_gpu(2, gpumem=8000), notes={"nvidia.com/vgpu-mode": "mig", "hami.io/gpu-scheduler-policy": "binpack"}),
        Refused("nvidia.com/vgpu-mode"),
    ),
    Row(
        "hami/dynamic_mig_profile",
        _HAMI + "dynamic_mig_profile_preference.yaml",
        _pod(_gpu(1, gpumem=20000), notes={"nvidia.com/vgpu-mode": "mig", "nvidia.com/mig-profile-preference": "4g"}),
        Refused("nvidia.com/vgpu-mode"),
    ),
    Row(
        "hami/example",
        _HAMI + "example.yaml",
        _pod(_gpu(1, gpumem=3000), schedulerName="default-scheduler", tolerations=[_TOLERATION]),
        Share(1, 3),
    ),
    Row(
        "hami/example_with_priority",
        _HAMI + "example.yaml, its comments: cores, and priority 1, which is the default",
        _pod(_gpu(1, gpumem=3000, gpucores=10, priority=1)),
        Share(1, 3, 10),
    ),
    Row(
        "hami/example_high_priority",
        _HAMI + "example.yaml, its comments: priority 0 is high",
        _pod(_gpu(1, gpumem=3000, gpucores=10, priority=0)),
        Share(1, 3, 10, notes={ONLINE: "true"}),
    ),
    Row(
        "hami/mig",
        _HAMI + "mig_example.yaml",
        _pod({"nvidia.com/mig-3g.20gb": 1}),
        Untouched("nvidia.com/mig-3g.20gb"),
    ),
    Row(
        "hami/sglang",
        _HAMI + "sglang_gpu_sharing.yaml",
        _pod(_gpu(1, gpumem=12000, gpucores=30), volumes=[{"name": "dshm", "emptyDir": {"medium": "Memory"}}]),
        Share(1, 12, 30),
    ),
    Row(
        "hami/type_not_use",
        _HAMI + "specify_card_type_not_use.yaml",
        _pod(_gpu(2), notes={"nvidia.com/nouse-gputype": "1080,2080"}),
        Whole(2),
    ),
    Row(
        "hami/type_to_use",
        _HAMI + "specify_card_type_to_use.yaml",
        _pod(_gpu(2), notes={"nvidia.com/use-gputype": "A100,V100"}),
        Whole(2),
    ),
    Row(
        "hami/type_to_use_shared",
        _HAMI + "specify_card_type_to_use.yaml, with memory as in default_use.yaml",
        _pod(_gpu(2, gpumem=3000), notes={"nvidia.com/use-gputype": "A100,V100"}),
        Share(2, 3, notes={USE_MODELS: "A100,V100"}),
    ),
    Row(
        "hami/type_not_use_shared",
        _HAMI + "specify_card_type_not_use.yaml, with memory as in default_use.yaml",
        _pod(_gpu(2, gpumem=3000), notes={"nvidia.com/nouse-gputype": "1080,2080"}),
        Share(2, 3, notes={AVOID_MODELS: "1080,2080"}),
    ),
    Row(
        "hami/index_not_use",
        _HAMI + "specify_index_not_use.yaml",
        _pod(_gpu(2), notes={"nvidia.com/nouse-gpuindexes": "0"}),
        Whole(2),
    ),
    Row(
        "hami/index_to_use",
        _HAMI + "specify_index_to_use.yaml",
        _pod(_gpu(1), notes={"nvidia.com/use-gpuindexes": "0,1"}),
        Whole(1),
    ),
    Row(
        "hami/index_to_use_shared",
        _HAMI + "specify_index_to_use.yaml, with memory as in default_use.yaml",
        _pod(_gpu(1, gpumem=3000), notes={"nvidia.com/use-gpuindexes": "0,1"}),
        Refused("nvidia.com/use-gpuuuid"),
    ),
    Row(
        "hami/scheduling_policy",
        _HAMI + "specify_scheduling_policy.yaml",
        _pod(_gpu(1), notes={"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"}),
        Whole(1),
    ),
    Row(
        "hami/scheduling_policy_shared",
        _HAMI + "specify_scheduling_policy.yaml, with memory as in default_use.yaml",
        _pod(_gpu(1, gpumem=3000), notes={"hami.io/gpu-scheduler-policy": "binpack"}),
        Share(1, 3, warns="hami.io/gpu-scheduler-policy has no effect"),
    ),
    Row(
        "hami/uuid_not_use",
        _HAMI + "specify_uuid_not_use.yaml",
        _pod(_gpu(2), notes={"nvidia.com/nouse-gpuuuid": "GPU-123456"}),
        Whole(2),
    ),
    Row(
        "hami/uuid_not_use_shared",
        _HAMI + "specify_uuid_not_use.yaml, with memory as in default_use.yaml",
        _pod(_gpu(2, gpumem=3000), notes={"nvidia.com/nouse-gpuuuid": "GPU-123456"}),
        Share(2, 3, notes={AVOID_UUIDS: "GPU-123456"}),
    ),
    Row(
        "hami/uuid_to_use",
        _HAMI + "specify_uuid_to_use.yaml",
        _pod(_gpu(1), notes={"nvidia.com/use-gpuuuid": "GPU-123456"}),
        Whole(1),
    ),
    Row(
        "hami/uuid_to_use_shared",
        _HAMI + "specify_uuid_to_use.yaml, with memory as in default_use.yaml",
        _pod(_gpu(1, gpumem=3000), notes={"nvidia.com/use-gpuuuid": "GPU-123456"}),
        Share(1, 3, notes={USE_UUIDS: "GPU-123456"}),
    ),
    Row("hami/use_as_normal", _HAMI + "use_as_normal.yaml", _pod(_gpu(2)), Whole(2)),
    Row(
        "hami/use_exclusive_card",
        _HAMI + "use_exclusive_card.yaml",
        _pod(_gpu(2, percentage=100, gpucores=100)),
        Share(2, 80, 100),
    ),
    Row(
        "hami/use_memory_fraction",
        _HAMI + "use_memory_fraction.yaml",
        _pod(_gpu(2, percentage=50, gpucores=30)),
        Share(2, 40, 30),
    ),
    Row(
        "hami/use_sharing_card_1",
        _HAMI + "use_sharing_card.yaml, gpu-pod1",
        _pod(_gpu(1, percentage=40, gpucores=60)),
        Share(1, 32, 60),
    ),
    Row(
        "hami/use_sharing_card_2",
        _HAMI + "use_sharing_card.yaml, gpu-pod2",
        _pod(_gpu(1, percentage=60, gpucores=40)),
        Share(1, 48, 40),
    ),
    Row(
        "hami/vllm_cross_vgpu",
        _HAMI + "vllm_cross_vgpu.yaml",
        _pod(
            _gpu(2, percentage=30, gpucores=30),
            requests=True,
            schedulerName="default-scheduler",
            tolerations=[_TOLERATION],
        ),
        Share(2, 24, 30),
    ),
    Row(
        "hami/vulkan",
        _HAMI + "vulkan_example.yaml",
        _pod(
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024", "nvidia.com/gpucores": "30"},
            notes={"hami.io/vulkan": "true"},
        ),
        Share(1, 1, 30, warns="hami.io/vulkan has no effect"),
    ),
    # Volcano: both vGPU guides, and the older sharing.
    Row(
        "volcano/hami_core",
        _VOLCANO + "how_to_use_volcano_vgpu.md, HAMI-core Usage",
        _pod(
            _vgpu("volcano.sh", number=1, cores=50, memory=3000),
            notes={"volcano.sh/vgpu-mode": "hami-core"},
            schedulerName="volcano",
        ),
        Share(1, 3, 50),
    ),
    Row(
        "volcano/mig",
        _VOLCANO + "how_to_use_volcano_vgpu.md, Dynamic MIG Usage",
        _pod(
            _vgpu("volcano.sh", number=1, memory=3000),
            notes={"volcano.sh/vgpu-mode": "mig"},
            schedulerName="volcano",
        ),
        Refused("volcano.sh/vgpu-mode"),
    ),
    Row(
        "volcano/4pd_vgpu",
        _VOLCANO + "how_to_use_4pd_vgpu.md",
        _pod(_vgpu("volcano.sh", number=2, memory=1024), schedulerName="volcano"),
        Share(2, 1),
    ),
    Row(
        "volcano/gpu_memory",
        _VOLCANO + "how_to_use_gpu_sharing.md",
        _pod({"volcano.sh/gpu-memory": 1024}, schedulerName="volcano"),
        Share(1, 1),
    ),
    Row(
        "volcano/gpu_number",
        _VOLCANO + "how_to_use_gpu_number.md",
        _pod({"volcano.sh/gpu-number": 1}),
        Whole(1, foreign=True),
    ),
    # gpu-manager.
    Row(
        "gpu-manager/share",
        "tkestack/gpu-manager README.md, 30 x 256 MiB",
        _pod(
            {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30},
            notes={"tencent.com/vcuda-core-limit": "50"},
            requests=True,
            hostNetwork=True,
            restartPolicy="Never",
        ),
        Share(1, 8, 50, notes={CORE_LIMIT: "50"}),
    ),
    Row(
        "gpu-manager/two_cards",
        "tkestack/gpu-manager README.md",
        _pod(
            {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 60},
            requests=True,
            hostNetwork=True,
            restartPolicy="Never",
        ),
        Whole(2, foreign=True),
    ),
    Row(
        "gpu-manager/150",
        "tkestack/gpu-manager README.md: 150 is invalid",
        _pod({"tencent.com/vcuda-core": 150, "tencent.com/vcuda-memory": 60}),
        Refused("request 100 or 200"),
    ),
    # qGPU of TKE.
    Row("qgpu/share", _TKE + "65734", _pod({f"{_QGPU}core": 30, f"{_QGPU}memory": 4}), Share(1, 4, 30)),
    Row("qgpu/whole", _TKE + "59103: N * 100", _pod({f"{_QGPU}core": 200}), Whole(2, foreign=True)),
    Row(
        "qgpu/offline",
        _TKE + "81034",
        _pod({f"{_QGPU}core-greedy": 10, f"{_QGPU}memory": 5}, notes={_CLASS: "offline"}, requests=True),
        Share(1, 5, notes=_LOW),
    ),
    Row(
        "qgpu/online",
        _TKE + "81034",
        _pod({f"{_QGPU}memory": 5}, notes={_CLASS: "online"}, requests=True),
        Share(1, 5, notes={ONLINE: "true"}),
    ),
    Row(
        "qgpu/two_cards",
        _TKE + "127667: 160 is two cards of 80",
        _pod({f"{_QGPU}core": "160", f"{_QGPU}memory": "60"}),
        Share(2, 30, 80),
    ),
    Row(
        "qgpu/two_cards_rounded",
        _TKE + "127667: 121 and 31 are two cards of 60 and 15",
        _pod({f"{_QGPU}core": 121, f"{_QGPU}memory": 31}),
        Share(2, 15, 60),
    ),
    # KAI: the four forms of docs/gpu-sharing, and container memory annotations.
    Row("kai/fraction", _KAI + "gpu-sharing.yaml", _kai({"gpu-fraction": "0.5"}), Share(1, 40, warns="queue")),
    Row("kai/memory", _KAI + "gpu-memory.yaml", _kai({"gpu-memory": "2000"}), Share(1, 2)),
    Row(
        "kai/init_container",
        _KAI + "gpu-sharing-init-container.yaml",
        _kai({"gpu-fraction": "0.5", "gpu-fraction-container-name": "gpu-init"}, "gpu-init", kind="initContainers"),
        Share(1, 40, container="gpu-init"),
    ),
    Row(
        "kai/non_default_container",
        _KAI + "gpu-sharing-non-default-container.yaml",
        _kai({"gpu-fraction": "0.5", "gpu-fraction-container-name": "gpu-workload"}, "gpu-workload", "sidecar"),
        Share(1, 40, container="gpu-workload"),
    ),
    Row(
        "kai/devices",
        _KAI + "README.md: several devices",
        _kai({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
        Share(2, 40),
    ),
    Row(
        "kai/mps",
        _KAI + "mps/gpu-sharing-with-mps.yaml",
        _kai(
            {"gpu-fraction": "0.5"},
            volumes=[{"name": "mps", "hostPath": {"path": "/tmp/nvidia-mps", "type": "DirectoryOrCreate"}}],  # noqa: S108 (KAI's)
        ),
        Share(1, 40),
    ),
    Row(
        "kai/request_and_limit",
        _FRACTIONS,
        _kai(
            {
                "nvidia.com/container.main.gpu-memory.request": "8Gi",
                "nvidia.com/container.main.gpu-memory.limit": "16Gi",
            }
        ),
        Share(1, 8, warns="gets its memory request as its limit"),
    ),
    Row(
        "kai/request",
        _FRACTIONS + ": a limit that is left out is the request",
        _kai({"nvidia.com/container.main.gpu-memory.request": "8Gi"}),
        Share(1, 8),
    ),
    Row(
        "kai/limit",
        _FRACTIONS + ": a request that is left out is the limit",
        _kai({"nvidia.com/container.main.gpu-memory.limit": "16Gi"}),
        Share(1, 16),
    ),
    Row(
        "kai/sm_sharing",
        _FRACTIONS + ", Selecting a compute-sharing mode",
        _kai(
            {
                "nvidia.com/container.main.gpu-memory.request": "8Gi",
                "nvidia.com/container.main.gpu-compute.mode": "sm-sharing",
            },
            securityContext={"runAsUser": 1000},  # mode mps needs it
        ),
        Share(1, 8),
    ),
    # Koordinator.
    Row(
        "koordinator/half",
        "koordinator-sh/website docs/user-manuals/device-scheduling-gpu-share-with-hami.md",
        _pod(_koord(shared=1, core=50, ratio=50), requests=True, schedulerName="koord-scheduler"),
        Share(1, 40, 50),
    ),
    Row(
        "koordinator/two_cards",
        _KOORDINATOR + ": 4Gi and 100 over two devices are 2Gi and 50 of each",
        _pod(_koord(shared=2, core=100, memory="4Gi")),
        Share(2, 2, 50),
    ),
    Row("koordinator/gpu", _KOORDINATOR + ": gpu is core and ratio", _pod(_koord(gpu=100)), Whole(1, foreign=True)),
    Row(
        "koordinator/ratio_200",
        _KOORDINATOR + ": a ratio of 200 is two devices",
        _pod(_koord(core=200, ratio=200)),
        Whole(2, foreign=True),
    ),
    Row(
        "koordinator/core_alone",
        _KOORDINATOR + ": not allowed",
        _pod(_koord(core=50)),
        Refused("memory is missing"),
    ),
    Row(
        "koordinator/memory_and_ratio",
        _KOORDINATOR + ": not allowed",
        _pod(_koord(shared=1, memory="4Gi", ratio=50)),
        Refused("keep one"),
    ),
    Row(
        "koordinator/before_1_0",
        "koordinator-sh/website docs/user-manuals/fine-grained-device-scheduling.md",
        _pod({"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}),
        Untouched("kubernetes.io/gpu-core"),
    ),
    # vgpu-manager.
    Row(
        "vgpu-manager/readme",
        _VGPU + "README.md, Example of use (the resource is vgpu-cores since pkg/util/consts.go 00123f5)",
        _pod(_vgpu("nvidia.com", number=1, cores=10, memory=1024), schedulerName="vgpu-scheduler"),
        Share(1, 1, 10),
    ),
    Row(
        "vgpu-manager/kueue",
        _VGPU + "example/kueue/sample.yaml",
        _pod({f"nvidia.com/vgpu-{key}": text for key, text in (("number", "2"), ("cores", "30"), ("memory", "1024"))}),
        Share(2, 1, 30),
    ),
    Row(
        "vgpu-manager/quota",
        _VGPU + "docs/how_to_use_vgpu_resource_quota.md",
        _pod(_vgpu("nvidia.com", number=1), schedulerName="vgpu-scheduler"),
        Share(1, 80),
    ),
    Row(
        "vgpu-manager/no_number",
        _VGPU + "pkg/webhook/pod/mutate (needVGPUNumber): memory or cores without a number are of one",
        _pod(_vgpu("nvidia.com", cores=10, memory=1024)),
        Share(1, 1, 10),
    ),
    Row(
        "vgpu-manager/policies",
        _VGPU + "README.md, Scheduling strategy",
        _pod(
            _vgpu("nvidia.com", number=1, memory=1024),
            notes={
                "nvidia.com/node-scheduler-policy": "spread",
                "nvidia.com/device-scheduler-policy": "binpack",
            },
        ),
        Share(1, 1, warns="nvidia.com/node-scheduler-policy has no effect"),
    ),
    Row(
        "vgpu-manager/devices",
        _VGPU + "README.md, Select devices",
        _pod(
            _vgpu("nvidia.com", number=1, memory=1024),
            notes={"nvidia.com/include-gpu-type": "A10", "nvidia.com/exclude-gpu-type": "A100"},
        ),
        Share(1, 1, notes={USE_MODELS: "A10", AVOID_MODELS: "A100"}),
    ),
    # Time slices.
    Row(
        "time-slices/one_of_ten",
        "NVIDIA/k8s-device-plugin README.md, With CUDA Time-Slicing: ten replicas of a card",
        _pod({"nvidia.com/gpu": 1}, nodeSelector={TIME_SLICES: "10"}),
        Share(1, 8, warns="not enforced"),
    ),
    Row("time-slices/elsewhere", "the same pod, not tied to such nodes", _pod({"nvidia.com/gpu": 1}), Whole(1)),
)


def as_stored(pod: Pod) -> Pod:
    """As the API server shows it: amounts as text, and under requests too."""
    made = copy.deepcopy(pod)
    for container in (*made["spec"].get("initContainers", ()), *made["spec"]["containers"]):
        if resources := container.get("resources"):
            resources["limits"] = {name: str(amount) for name, amount in resources["limits"].items()}
            resources["requests"] = dict(resources["limits"])
    return made
