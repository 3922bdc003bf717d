# SPDX-License-Identifier: Apache-2.0
"""docs/monitoring.md: its configurations give a real Prometheus the jobs and instances that the alerts ask for."""

from __future__ import annotations

import re

import yaml
from e2e.manifest_build import objects, templates
from support.docs_reading import FENCE, ROOT
from support.prometheus_harness import configured, fetch, until

from dashboards.rules.rule import AUTOSCALER_JOB, EXPORTER_JOB, NODE_JOB, SCHEDULER_JOB

CLUSTER, MACHINES = [
    body
    for language, body in FENCE.findall((ROOT / "docs/monitoring.md").read_text())
    if language == "yaml" and "scrape_configs:" in body
]
META = "__meta_kubernetes_pod"


def discovered(name, template):
    """What Prometheus' discovery of pods says of each port of one pod."""
    labels = {
        f"{META}_name": f"{name}-x7k2p",
        f"{META}_node_name": "gpu-1",
        **{
            f"{META}_label_{re.sub('[^A-Za-z0-9]', '_', key)}": value
            for key, value in template["metadata"]["labels"].items()
        },
    }
    for container in template["spec"]["containers"]:
        for port in container.get("ports", ()):
            target = f"127.0.0.1:{port['containerPort']}"
            yield {"targets": [target], "labels": labels | {f"{META}_container_port_name": port["name"]}}


def scraped(text):
    """Job, instance and port of every target, as Prometheus sees them."""
    with configured(text) as prometheus:
        found = until(lambda: fetch(f"{prometheus.url}/api/v1/targets?state=active")["data"]["activeTargets"])
    return {
        (one["labels"]["job"], one["labels"]["instance"], int(one["discoveredLabels"]["__address__"].split(":")[1]))
        for one in found
    }


def test_in_a_cluster_each_process_has_its_job_and_its_instance():
    """
    Pods of the manifests as discovery tells of them: one port each, the job by component, nodes by their name.
    """
    written = yaml.safe_load(CLUSTER.replace("gpushare.rules.yaml", str(ROOT / "dashboards/rules/out/*.rules.yaml")))
    [job] = written["scrape_configs"]
    assert {"role": "pod", "namespaces": {"names": ["gpushare-system"]}} == job.pop("kubernetes_sd_configs")[0]
    job["static_configs"] = [
        one for name, template in templates(objects("self-signed")).items() for one in discovered(name, template)
    ]

    assert {
        (EXPORTER_JOB, "gpu-1", 9445),
        (NODE_JOB, "gpu-1", 9447),
        (SCHEDULER_JOB, f"{SCHEDULER_JOB}-x7k2p", 9446),
        (AUTOSCALER_JOB, f"{AUTOSCALER_JOB}-x7k2p", 9448),
    } == scraped(yaml.safe_dump(written))


def test_on_single_machines_the_exporter_has_its_job_and_the_machines_name():
    """
    As it is written.
    """
    assert {(EXPORTER_JOB, "gpu-1", 9445), (EXPORTER_JOB, "gpu-2", 9445)} == scraped(MACHINES)
