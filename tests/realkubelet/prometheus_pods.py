# SPDX-License-Identifier: Apache-2.0
"""
Prometheus for a cluster, where it was built without Kubernetes' discovery, as Debian's is: pods come from a file.

Starts the program that stands in the image by the same arguments and another configuration, in which a job's
`kubernetes_sd_configs` (role pod, of named namespaces) is a `file_sd_configs`; the file has the labels that the real
discovery gives and a relabelling of docs/monitoring.md reads. Asks the API server each few seconds, as the pod's
account.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

PROGRAM = "/usr/bin/prometheus"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TARGETS = Path("/data/pods.json")
_EVERY_SECONDS, _TIMEOUT_SECONDS = 5.0, 10.0


def rewritten(config: dict[str, Any]) -> set[str]:
    """The namespaces whose pods are asked for; the configuration then has the file in their place."""
    namespaces: set[str] = set()
    for job in config["scrape_configs"]:
        for discovery in job.pop("kubernetes_sd_configs", ()):
            assert discovery["role"] == "pod"
            namespaces |= {*discovery["namespaces"]["names"]}
            job["file_sd_configs"] = [{"files": [str(_TARGETS)], "refresh_interval": "5s"}]
    return namespaces


def targets(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each port of a container, as the role `pod` has them."""
    found = []
    for pod in pods:
        address = pod["status"].get("podIP")
        labels = {
            f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value
            for name, value in pod["metadata"].get("labels", {}).items()
        }
        labels["__meta_kubernetes_pod_name"] = pod["metadata"]["name"]
        labels["__meta_kubernetes_pod_node_name"] = pod["spec"].get("nodeName", "")
        for container in pod["spec"]["containers"] if address else ():
            for port in container.get("ports", ()):
                named = labels | {"__meta_kubernetes_pod_container_port_name": port.get("name", "")}
                found.append({"targets": [f"{address}:{port['containerPort']}"], "labels": named})
    return found


def listed(namespace: str) -> list[dict[str, Any]]:
    """Its pods."""
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    request = urllib.request.Request(f"{server}/api/v1/namespaces/{namespace}/pods")  # noqa: S310
    request.add_header("Authorization", f"Bearer {(_ACCOUNT / 'token').read_text()}")
    context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=context) as answer:  # noqa: S310
        return json.load(answer)["items"]


def main() -> int:
    """Prometheus's exit status."""
    words, option = sys.argv[1:], "--config.file="
    [given] = [word for word in words if word.startswith(option)]
    config = yaml.safe_load(Path(given.removeprefix(option)).read_text())
    namespaces = rewritten(config)
    _TARGETS.write_text("[]")
    path = _TARGETS.with_name("prometheus.yaml")
    path.write_text(yaml.safe_dump(config))
    words[words.index(given)] = f"{option}{path}"
    with subprocess.Popen([PROGRAM, *words]) as program:
        while program.poll() is None:
            try:
                pods = [pod for namespace in namespaces for pod in listed(namespace)]
            except OSError as exc:
                sys.stderr.write(f"cannot list pods: {exc}\n")
            else:
                fresh = _TARGETS.with_suffix(".new")
                fresh.write_text(json.dumps(targets(pods)))
                fresh.replace(_TARGETS)
            time.sleep(_EVERY_SECONDS)
    return program.returncode


if __name__ == "__main__":
    sys.exit(main())
