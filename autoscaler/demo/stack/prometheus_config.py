# SPDX-License-Identifier: Apache-2.0
"""
Configuration files and command lines of Prometheus and Alertmanager for the demo stack.

Pure. The jobs are those that the ServiceMonitors make on Kubernetes: metrics of cards and containers come from
exporters, all others from the autoscaler. The embedded cluster's page has both kinds, so it is scraped once for each,
and of the autoscaler's kind only what the autoscaler's own page lacks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from autoscaler.demo.stack.addresses import HOST
from isolation.contract import metrics

if TYPE_CHECKING:
    from pathlib import Path

    from autoscaler.demo.stack.addresses import Ports

EXPORTER_JOB: Final = "gpushare-exporter"
AUTOSCALER_JOB: Final = "gpushare-autoscaler"
MEASURED: Final = "gpushare_(card|container|node|isolation|exporter)_.*"
"""Of the embedded cluster's page: what exporters tell on Kubernetes."""
OF_THE_FLEET: Final = f"{metrics.AUTOSCALER_EVENTS.name}|{metrics.SIMULATED_CLOCK.name}"
"""Of the same page: what the embedded cluster itself knows best."""
NOT_ITS_OWN: Final = metrics.AUTOSCALER_EVENTS.name
"""Of the autoscaler's own page: scraped from the cluster's page already."""
SCRAPE: Final = "2s"
RETENTION: Final = "6h"


def prometheus_file(at: Ports, rules: Path | None, *, alerting: bool) -> str:
    """JSON, which is YAML."""
    document: dict[str, Any] = {
        "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
        "scrape_configs": [
            _job(EXPORTER_JOB, at.exporter),
            _job(EXPORTER_JOB, at.cluster, "cluster", ("keep", MEASURED)),
            _job(AUTOSCALER_JOB, at.cluster, "cluster", ("keep", OF_THE_FLEET)),
            _job(AUTOSCALER_JOB, at.autoscaler, "autoscaler", ("drop", NOT_ITS_OWN)),
        ],
    }
    for number, job in enumerate(document["scrape_configs"]):
        job["job_name"] = f"{job['job_name']}-{number}"
    if rules is not None:
        document["rule_files"] = [str(rules)]
    if alerting:
        document["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [f"{HOST}:{at.alertmanager}"]}]}]}
    return json.dumps(document, indent=1)


def _job(name: str, port: int, instance: str = "machine", names: tuple[str, str] | None = None) -> dict[str, Any]:
    """One target under the job label that it has on Kubernetes."""
    labels = {"job": name, "instance": instance}
    job: dict[str, Any] = {
        "job_name": name,
        "honor_labels": True,
        "static_configs": [{"targets": [f"{HOST}:{port}"], "labels": labels}],
    }
    if names is not None:
        action, regex = names
        job["metric_relabel_configs"] = [{"action": action, "source_labels": ["__name__"], "regex": regex}]
    return job


def alertmanager_file() -> str:
    """One group per alert, sent to no receiver: the screen polls the API."""
    route = {"receiver": "screen", "group_by": ["..."], "group_wait": "1s", "group_interval": "2s"}
    return json.dumps({"route": {**route, "repeat_interval": "1h"}, "receivers": [{"name": "screen"}]}, indent=1)


def prometheus_command(program: str, at: Ports, folder: Path) -> tuple[str, ...]:
    """Flags of 2.42 and later."""
    return (
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--storage.tsdb.retention.time={RETENTION}",
        f"--web.listen-address={HOST}:{at.prometheus}",
        "--rules.alert.resend-delay=10s",
        "--log.level=warn",
    )


def alertmanager_command(program: str, at: Ports, folder: Path) -> tuple[str, ...]:
    """Flags of 0.25 and later; alone, without the gossip of several."""
    return (
        program,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={HOST}:{at.alertmanager}",
        "--cluster.listen-address=",
        "--log.level=warn",
    )
