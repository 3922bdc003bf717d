# SPDX-License-Identifier: Apache-2.0
"""Both judges, the webhook in Python and the API server's policies in CEL, say the same of the same pod."""

from __future__ import annotations

import asyncio
import json
import random

from e2e.admission_harness import policed, tried
from e2e.apiclient import connected
from support.admission_cases import GOOD, REFUSED
from support.admission_pods import admitted, capability, container, env, good, host, mount

from isolation.scheduler.admission.core.webhook import ReviewContext, review

STEPS = (
    "",
    ".",
    "..",
    "dev",
    "etc",
    "run",
    "var",
    "lib",
    "gpushare",
    "kubelet",
    "cdi",
    "ld.so.preload",
    "shm",
    "x",
    "a b",
)
NAMES = (
    "LD_",
    "NVIDIA_",
    "GPUSHARE_",
    "ALIYUN_COM_GPU_MEM_",
    "LIBRARY_PATH",
    "VISIBLE_DEVICES",
    "DEV",
    "REQUIRE_CUDA",
    "X",
    "_",
)
CAPABILITIES = ("SYS_ADMIN", "sys_admin", "CAP_SYS_ADMIN", "cap_all", "All", "SYS_PTRACE", "CAP_BPF", "NET_ADMIN", "")


def mixtures(seed: int, many: int) -> list[dict]:
    """Pods with one to three changes, some of them random spellings of what is forbidden."""
    choose = random.Random(seed)  # noqa: S311 (a draw of tests)

    def path() -> str:
        return choose.choice(("/", "")) + "/".join(choose.choices(STEPS, k=choose.randint(1, 4)))

    def spelled():
        return choose.choice(
            (
                host(path() or "/"),
                mount(path() or "/"),
                env("".join(choose.choices(NAMES, k=2))),
                container(envFrom=[{"prefix": choose.choice(NAMES), "configMapRef": {"name": "c"}}]),
                container(terminationMessagePath=path() or "/x"),
                capability(choose.choice(CAPABILITIES)),
            )
        )

    # What no policy can say, and what the webhook changes, are no disagreement.
    known = [change for _, change in GOOD] + [
        case.change for case in REFUSED if case.policy and case.name != "scheduler"
    ]
    pods = []
    for _ in range(many):
        made = good(lambda _: None)
        for _ in range(choose.randint(1, 3)):
            (spelled() if choose.random() < 0.7 else choose.choice(known))(made)
        pods.append(made)
    return pods


def by_webhook(made: dict) -> str:
    """What the webhook says; empty where it admits."""
    request = {"uid": "u", "operation": "CREATE", "resource": {"group": "", "resource": "pods"}, "object": made}
    body = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    response = json.loads(review(json.dumps(body).encode(), ReviewContext(lambda _namespace, _name: False)))["response"]
    return response.get("status", {}).get("message", "")


def test_webhook_and_policies_refuse_the_same_pods(plane):
    """
    A pod that one admits and the other refuses would be a way past one of them, or a pod that never comes.
    """
    pods = mixtures(5, 250)

    async def story():
        async with connected(plane) as client, policed(client):
            return [await tried(client, admitted(made)) for made in pods]

    said = asyncio.run(story())
    ours = [by_webhook(made) for made in pods]
    # What the API server finds wrong by itself (a volume without a name, a path with ..) is nobody's disagreement.
    judged = [(made, a, b) for made, a, b in zip(pods, ours, said, strict=True) if "is invalid" not in b]
    differ = [(made["spec"], a, b[:300]) for made, a, b in judged if bool(a) != bool(b)]
    assert [] == differ[:3]
    assert 30 < sum(not a for _, a, _ in judged) < len(judged) - 30
