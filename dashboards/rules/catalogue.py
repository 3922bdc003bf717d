# SPDX-License-Identifier: Apache-2.0
"""
Every rule of ours, in the order in which they are written down.
"""

from __future__ import annotations

from typing import Final

from dashboards.rules import agent, autoscaler, cards, demand, exporter, isolation, records, scheduler, slo
from dashboards.rules.rule import Alert, RecordingRule, RuleGroup

GROUPS: Final[tuple[RuleGroup, ...]] = (
    records.RECORDS,
    records.LONG,
    isolation.GROUP,
    cards.GROUP,
    exporter.GROUP,
    agent.GROUP,
    scheduler.GROUP,
    demand.GROUP,
    autoscaler.GROUP,
    slo.GROUP,
)
ALERTS: Final = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
RECORDS: Final = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, RecordingRule))
