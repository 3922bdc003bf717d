# SPDX-License-Identifier: Apache-2.0
"""
A real Prometheus scrapes the exporter as a ServiceMonitor makes it do, with `honor_labels` and without.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest
from support.ports import free_port
from support.waiting import PATIENCE_SECONDS, until

pytest.importorskip("pynvml")
pytest.importorskip("grpc")
from support.node_harness import GIB, exporter_node, served

BROKEN = "no Prometheus: apt-get install prometheus"
# What the Prometheus operator makes of a ServiceMonitor: the target's own pod and node become labels of the target.
CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
"""
JOB = """
  - job_name: %(name)s
    honor_labels: %(honor)s
    static_configs:
      - targets: ["%(target)s"]
        labels:
          namespace: gpushare-system
          pod: gpushare-exporter-x7k2p
          container: exporter
          node: n
          endpoint: metrics
          service: gpushare-exporter
          job: %(name)s
%(more)s
"""
RELABELLED = """
    metric_relabel_configs:
      - {action: labeldrop, regex: "(pod|namespace|container)"}
      - {action: labelmap, regex: "exported_(pod|namespace|container|node)"}
      - {action: labeldrop, regex: "exported_.*"}
"""


@pytest.fixture
def prometheus(tmp_path):
    """Starts one with jobs, and asks it; gone afterwards."""
    tool = shutil.which("prometheus")
    if tool is None:
        pytest.fail(BROKEN) if os.environ.get("CI") == "true" else pytest.skip(BROKEN)
    running = []

    def start(text):
        (tmp_path / "prometheus.yml").write_text(text)
        port = free_port()
        words = [tool, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        with (tmp_path / "log").open("w") as log:
            running.append(subprocess.Popen(words, stderr=log, stdout=log))

        def ask(path, **fields):
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
            try:
                with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                    return json.load(answer)["data"]
            except (urllib.error.URLError, ConnectionError):
                return None

        return ask

    yield start
    for process in running:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)


def series(ask, query, at=None):
    """[(labels, value)], now or at that time: a later scrape may have been late."""
    answer = ask("query", query=query, **({} if at is None else {"time": at}))
    return [(one["metric"], float(one["value"][1])) for one in answer["result"]] if answer else []


def moment(ask, query, number=1):
    """The time of the first answer with so many series."""

    def answered():
        found = (ask("query", query=query) or {}).get("result", ())
        return len(found) == number and found[0]["value"][0]

    return until(answered)


def test_scraped_with_and_without_honor_labels(prometheus):
    """
    With honor_labels a series says whose memory it is by pod, namespace and container. Without, the target's own
    names stand there and ours become exported_*, as for any exporter that speaks of other pods; two rules give them
    back. Series of cards carry no names of pods, so that they are the same in all three but for `node`.
    """
    with exporter_node("t4") as world:
        pod = world.pod("bert", {"main": {0: 5}})
        program = world.process(pod, "main", gib=2)
        world.run_once()
        booked = world.driver_bytes(0)[program.pid]
        with served(world) as url:
            target = url.removeprefix("http://")
            jobs = (("honoured", "true", ""), ("plain", "false", ""), ("relabelled", "false", RELABELLED))
            parts = [JOB % {"name": name, "honor": honor, "target": target, "more": more} for name, honor, more in jobs]
            ask = prometheus(CONFIG + "".join(parts))
            at = moment(ask, "gpushare_container_memory_used_bytes", 3)
            used = series(ask, "gpushare_container_memory_used_bytes", at)
            by_job = {labels["job"]: (labels, value) for labels, value in used}

            assert {booked} == {value for _, value in by_job.values()}
            names = ("namespace", "pod", "container", "node")
            ours = ("ml", "bert", "main", "n")
            assert ours == tuple(by_job["honoured"][0][name] for name in names)
            assert not [label for label in by_job["honoured"][0] if label.startswith("exported_")]
            assert ours == tuple(by_job["plain"][0][f"exported_{name}"] for name in names)
            assert "gpushare-exporter-x7k2p" == by_job["plain"][0]["pod"]
            assert ours == tuple(by_job["relabelled"][0][name] for name in names)
            assert not [label for label in by_job["relabelled"][0] if label.startswith("exported_")]

            joined = series(
                ask,
                'gpushare_container_memory_used_bytes{job="honoured"}'
                ' / gpushare_container_memory_allocated_bytes{job="honoured"}',
                at,
            )
            assert [booked / (5 * GIB)] == [value for _, value in joined]
            cards = series(ask, 'sum by (card) (gpushare_card_memory_used_bytes{job="honoured"})', at)
            assert [({"card": "0"}, booked + world.run_once().reading.cards[0].reserved_bytes)] == cards
            of, card = '{job="honoured"}', "on(node, uuid, card)"
            parts = (
                f"gpushare_card_memory_reserved_bytes{of}",
                f"gpushare_card_memory_unattributed_bytes{of}",
                f"sum by (node, uuid, card) (gpushare_container_memory_used_bytes{of})",
            )
            whole = f"gpushare_card_memory_used_bytes{of} - {card} ({f' + {card} '.join(parts)})"
            assert [0.0] == [value for _, value in series(ask, whole, at)]


def test_prometheus_takes_every_sample_and_knows_the_types(prometheus):
    """Scraped as OpenMetrics: every target is up, nothing is dropped, and metadata has types and units."""
    with exporter_node("t4") as world:
        world.process(world.pod("bert", {"main": {0: 5}}), "main", gib=2)
        world.run_once()
        with served(world) as url:
            job = {"name": "gpushare", "honor": "true", "target": url.removeprefix("http://"), "more": ""}
            ask = prometheus(CONFIG + JOB % job)
            at = moment(ask, "up == 1")
            scraped = series(ask, "scrape_samples_scraped", at)[0][1]
            kept = series(ask, "scrape_samples_post_metric_relabeling", at)[0][1]
            ((_, stored),) = series(ask, 'count({__name__=~"gpushare_.+|process_.+"})', at)
            shown = sum(len(samples) for samples in world.samples().values())
            assert shown == scraped == kept == stored
            about = ask("metadata")
            assert "gauge" == about["gpushare_container_memory_used_bytes"][0]["type"]
            assert "bytes" == about["gpushare_container_memory_used_bytes"][0]["unit"]
            kinds = {name: metadata[0]["type"] for name, metadata in about.items()}
            assert "counter" in {
                kinds.get("gpushare_card_energy_joules"),
                kinds.get("gpushare_card_energy_joules_total"),
            }
            assert "info" in {kinds.get("gpushare_container"), kinds.get("gpushare_container_info")}


def test_a_pod_that_ends_is_stale_at_the_next_scrape(prometheus):
    """No five minutes of a pod that is gone: its series ends with its hold."""
    with exporter_node("t4") as world:
        pod = world.pod("short", {"main": {0: 5}})
        program = world.process(pod, "main", gib=2)
        world.run_once()
        with served(world) as url:
            job = {"name": "gpushare", "honor": "true", "target": url.removeprefix("http://"), "more": ""}
            ask = prometheus(CONFIG + JOB % job)
            assert until(lambda: series(ask, 'gpushare_container_memory_used_bytes{pod="short"}'))
            world.kill(program)
            world.end(pod)
            world.run_once()
            # not because a scrape came too late: then the card's would have ended as well
            assert until(
                lambda: (
                    not series(ask, 'gpushare_container_memory_used_bytes{pod="short"}')
                    and series(ask, "gpushare_card_memory_used_bytes")
                )
            )
