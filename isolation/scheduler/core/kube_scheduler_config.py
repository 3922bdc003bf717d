# SPDX-License-Identifier: Apache-2.0
"""
The KubeSchedulerConfiguration of a stock kube-scheduler that calls our extender.

Two forms: the whole configuration of the kube-scheduler in the same pod (loopback, its own profile, a Lease short
enough to replace a dead leader in time), or the `extenders` section for an existing kube-scheduler, over mutual TLS.
Pure. Sources: Kubernetes, "kube-scheduler Configuration (v1)"; extender fields as in its type `Extender`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from isolation.contract.names import ACK, KUBE_LEASE, SCHEDULER, SYSTEM_NAMESPACE
from isolation.scheduler.core.extender_api import EXTENDER
from isolation.scheduler.settings import SIDECAR

SIDECAR_LEASE: Final = KUBE_LEASE
"""The Lease of the kube-scheduler in the same pod."""
LEADER_SERVICE: Final = f"{SCHEDULER}-leader"
"""The Service that selects the leader; it uses the certificate of the Service `gpushare-scheduler`."""
_TIMEOUT: Final = "15s"
"""Longer than the write of a bind (5 s) and the question where it went."""
_PROFILE_WEIGHT: Final = 10
"""Weight of our scores against those of in-tree plugins: which node's cards fit best matters most."""

_SPREADING_SCORES: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""In-tree scores (not the filter) that would spread by CPU and memory what the cards want packed."""


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """Client certificate files of an existing kube-scheduler, as paths on its machine."""

    certificate: str = "/etc/kubernetes/gpushare/tls.crt"
    key: str = "/etc/kubernetes/gpushare/tls.key"
    authority: str = "/etc/kubernetes/gpushare/ca.crt"


def extender_entry(url: str, mutual: ClientFiles | None = None) -> dict[str, Any]:
    """One entry of `extenders`; with our own profile the shortlist is enough, since no other extender filters."""
    entry: dict[str, Any] = {
        "urlPrefix": url,
        "filterVerb": "shortlist" if mutual is None else "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": _PROFILE_WEIGHT,
        "enableHTTPS": mutual is not None,
        "httpTimeout": _TIMEOUT,
        "nodeCacheCapable": True,
        "managedResources": [
            {"name": ACK.memory, "ignoredByScheduler": False},
            {"name": ACK.compute, "ignoredByScheduler": False},
        ],
        "ignorable": False,
    }
    if mutual is not None:
        host = f"{SCHEDULER}.{SYSTEM_NAMESPACE}.svc"
        entry["tlsConfig"] = {
            "serverName": host,
            "certFile": mutual.certificate,
            "keyFile": mutual.key,
            "caFile": mutual.authority,
        }
    return entry


def sidecar_config(sidecar: str = SIDECAR, kubeconfig: str = "") -> dict[str, Any]:
    """The whole configuration of the kube-scheduler in our pod."""
    client: dict[str, Any] = {"qps": 500, "burst": 1000}
    if kubeconfig:
        client["kubeconfig"] = kubeconfig
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": client,
        "leaderElection": {
            "leaderElect": True,
            "resourceName": SIDECAR_LEASE,
            "resourceNamespace": SYSTEM_NAMESPACE,
            "leaseDuration": "5s",
            "renewDeadline": "3s",
            "retryPeriod": "1s",
        },
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 5,
        "profiles": [
            {"schedulerName": SCHEDULER, "plugins": {"score": {"disabled": [{"name": n} for n in _SPREADING_SCORES]}}}
        ],
        "extenders": [extender_entry(f"http://{sidecar}{EXTENDER}")],
    }


def existing_scheduler_config(mutual: ClientFiles | None = None) -> dict[str, Any]:
    """What to add to an existing kube-scheduler's configuration; its profiles stay as they are."""
    url = f"https://{LEADER_SERVICE}.{SYSTEM_NAMESPACE}.svc{EXTENDER}"
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "extenders": [extender_entry(url, mutual or ClientFiles())],
    }
