# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of gpushare itself: exporter, scheduler, node agent and autoscaler, whether they live and keep up.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.expressions import most
from dashboards.boards.frame import Board
from dashboards.boards.grid import Section, even, wide
from dashboards.boards.internals_control import AGENT, LOOP, SCHEDULER, SCOPE, TARGETS, TASKS, target
from dashboards.boards.panel import (
    GREEN,
    ORANGE,
    RED,
    TROUBLE,
    YES_NO,
    Column,
    Query,
    Step,
    Word,
    bars,
    lines,
    stat,
    states,
    table,
)
from dashboards.promql import (
    PROCESS_CPU,
    PROCESS_MEMORY,
    SCRAPE_SECONDS,
    SCRAPED,
    UP,
    rate,
    total,
)
from isolation.contract import metrics as m
from isolation.contract.metrics import node as n
from isolation.contract.metrics import scheduler as s

_ALIVE: Final = Section(
    "Availability",
    (
        even(
            4,
            stat(
                "Processes up",
                "Scrape targets that are up: the last scrape succeeded.",
                total(SCOPE(UP)),
                steps=(Step(RED), Step(GREEN, 1)),
            ),
            stat(
                "Processes down",
                "Scrape targets that are down: the last scrape failed.",
                total(f"{SCOPE(UP)} == bool 0"),
                steps=TROUBLE,
            ),
            stat(
                "Oldest metrics",
                "Age of the oldest metrics that an exporter serves.",
                f"max(time() - {SCOPE(m.SAMPLE_TIME)})",
                "s",
                steps=(Step(GREEN), Step(ORANGE, 30), Step(RED, 60)),
                decimals=0,
            ),
            stat(
                "Failed collectors",
                "Collectors of exporters that failed in their last reading. Their series are absent.",
                total(f"{SCOPE(m.COLLECTOR_SUCCESS)} == bool 0"),
                steps=TROUBLE,
            ),
            stat(
                "Scheduler leader",
                "Whether a scheduler replica is the leader. Without one, no pod with shared cards is bound.",
                f"max({SCOPE(s.LEADS)})",
                words=YES_NO,
                spark=False,
            ),
            stat(
                "Nodes not ready",
                "Node agents that are not ready. No pod is bound to their nodes.",
                total(f"{SCOPE(n.READY)} == bool 0"),
                steps=TROUBLE,
            ),
        ),
        wide(
            8,
            (
                14,
                table(
                    "Processes",
                    "Each scrape target with its cost.",
                    TARGETS,
                    (
                        Column("Up", target(SCOPE(UP), "min"), "short", words=YES_NO, width=70),
                        Column("Scrape", target(SCOPE(SCRAPE_SECONDS)), "s"),
                        Column("Samples", target(SCOPE(SCRAPED)), "short"),
                        Column("CPU", target(rate(SCOPE(PROCESS_CPU))), "percentunit"),
                        Column("Memory", target(SCOPE(PROCESS_MEMORY)), "bytes"),
                    ),
                    sort="Memory",
                ),
            ),
            (
                10,
                states(
                    "Up",
                    "Whether the scrapes of each target succeed.",
                    (Query(target(SCOPE(UP), "min"), "{{job}} {{instance}}"),),
                    (Word(0, "down", RED), Word(1, "up", GREEN)),
                ),
            ),
        ),
    ),
)

_EXPORTER: Final = Section(
    "Exporter",
    (
        even(
            8,
            lines(
                "Age of the metrics",
                "Time since each exporter took the readings that it serves, top ten.",
                (Query(most(f"time() - {SCOPE(m.SAMPLE_TIME)}"), "{{instance}}"),),
                "s",
                steps=(Step(GREEN), Step(RED, 60)),
            ),
            lines(
                "Collector duration",
                "Duration in the slowest exporter, by collector.",
                (Query(f"max by (collector) ({SCOPE(m.COLLECTOR_DURATION)})", "{{collector}}"),),
                "s",
            ),
            states(
                "Collectors",
                "Whether each collector succeeds on all nodes. If it fails, its series are absent.",
                (Query(f"min by (collector) ({SCOPE(m.COLLECTOR_SUCCESS)})", "{{collector}}"),),
                (Word(0, "failed", RED), Word(1, "ok", GREEN)),
            ),
            bars(
                "Versions",
                "Number of exporters by gpushare version.",
                (Query(f"count by (version) ({SCOPE(m.BUILD_INFO)})", "{{version}}"),),
                "short",
            ),
        ),
    ),
)

BOARD: Final = Board(
    "gpushare-internals",
    "gpushare / Internals",
    "Exporter, scheduler, node agent and autoscaler: availability, latency and errors.",
    ("cluster", "job", "instance"),
    (_ALIVE, _EXPORTER, SCHEDULER, AGENT, LOOP, TASKS),
    start="now-1h",
)
