# SPDX-License-Identifier: Apache-2.0
"""
docs/alerts.md, printed from the rules: `python -m dashboards.rules.reference > docs/alerts.md`.

Pure but for the printing. What an alert means and what to do stands in its runbook, which people write.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from dashboards.rules.catalogue import GROUPS
from dashboards.rules.rule import (
    AUTOSCALER_JOB,
    EXPORTER_JOB,
    NODE_JOB,
    SCHEDULER_JOB,
    SCRAPE_SECONDS,
    Alert,
    RecordingRule,
)
from dashboards.rules.slo import OBJECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.rules.rule import RuleGroup

_OBJECTIVES: Final = "\n".join(
    (
        "| objective | goal | meaning |",
        "|---|---|---|",
        *(f"| {one.name} | {one.goal:.1%} | {one.text} |" for one in OBJECTIVES),
    )
)
_HEAD: Final = f"""<!-- Printed by `python -m dashboards.rules.reference`; change dashboards/rules/*.py instead. -->
# Alerts

Look up an alert and its runbook, and install the rules.

There are recording and alert rules for Prometheus 2.42 or newer, over the [metrics](metrics.md) of gpushare. Their
queries are in `dashboards/rules/out/gpushare.rules.yaml`. Each alert has a page: meaning, impact, diagnosis,
mitigation, when to ignore it. There, `$NODE` is the label `node` of the alert, `$POD` the label `pod` and
`$NAMESPACE` the label `namespace`, unless it says otherwise.

| environment | how to install |
|---|---|
| Prometheus operator | the component `manifests/components/monitoring`, which contains `prometheusrule.yaml` |
| plain Prometheus | `dashboards/rules/out/gpushare.rules.yaml` in `rule_files` |
| runbooks elsewhere | `gpushare rules build --out rules --runbooks URL`: [monitoring](monitoring.md#runbooks) |

The scrape jobs must be named `{EXPORTER_JOB}`, `{NODE_JOB}`, `{SCHEDULER_JOB}` and `{AUTOSCALER_JOB}`, with
`honor_labels: true` and a scrape interval of {SCRAPE_SECONDS} to 30 s: [monitoring.md](monitoring.md) has such
configurations. Only the exporter is required: alerts on other components stay silent if they were never scraped. But
if you scrape node agents, scrape the scheduler too, or it is reported as absent.
**The rules are for one cluster**: run them in that cluster's own Prometheus and scrape each target once. A ruler over
several clusters mistakes the schedulers of two clusters for two leaders, and two nodes of the same name for one node.

- **critical**: act now; tenants are harmed, or nothing prevents it. **warning**: act today. **info**: act when there is
  time; never page.
- Alerts on promises that page rely on measurements of the driver. What a container's own library reports is only
  `info`.
- No alert fires on a single sample: its condition lasts for at least two scrapes, or its query covers several.
- A missing series makes its alerts silent, never false. Missing series have alerts of their own.
- A process that exceeds its promise causes an alert in Alertmanager in less than a minute.

## Objectives
Each objective is for 30 days and has two alerts. The fast one fires if the error budget is used up 14.4 times too fast
(over 1 h and 5 min) or 6 times too fast (over 6 h and 30 min). The slow one fires if the budget will not last 30 days
(over 3 days and 6 h).

{_OBJECTIVES}

The autoscaler measures placement, minute by minute. It ends with the choice of a node: pulling images and starting
containers do not count.

## Alertmanager
This example sends one message per problem: `namespace` names the affected tenant, and consequences of a worse problem
are inhibited.
```yaml
route:
  receiver: platform
  group_by: [alertname, node, namespace]
  routes:
    - {{matchers: ["severity = critical"], receiver: pager}}
    - {{matchers: ["severity = info"], receiver: mail, repeat_interval: 24h}}
inhibit_rules:
  - source_matchers: ["alertname = GpushareExportersAbsent"]
    target_matchers: ["alertname =~ GpushareExporterDown|GpushareExporterMissing"]
  - source_matchers: ["alertname = GpushareNodeAgentsAbsent"]
    target_matchers: ["alertname =~ GpushareNodeAgentDown|GpushareNodeAgentMissing"]
  - source_matchers: ["alertname = GpushareDevicePluginDown"]
    target_matchers: ["alertname =~ GpushareNodeAgentNotReady|GpushareNodeAgentUnregistered"]
    equal: [instance]
  - source_matchers: ["alertname = GpushareCardUnhealthy"]
    target_matchers: ["alertname =~ GpushareXidErrors|GpushareEccErrors"]
    equal: [uuid]
  - source_matchers: ["alertname = GpushareContainerMemoryOverLimit"]
    target_matchers: ["alertname = GpushareBreachOpen"]
    equal: [uuid]
receivers: [{{name: platform}}, {{name: pager}}, {{name: mail}}]
```
"""


def page() -> str:
    """The whole document."""
    return "\n".join((_HEAD, *(line for group in GROUPS for line in _group(group))))


def _group(group: RuleGroup) -> Iterator[str]:
    yield f"## {group.name}\n{group.text}\n"
    alerts = [rule for rule in group.rules if isinstance(rule, Alert)]
    if alerts:
        yield "| alert | severity | for | summary |\n|---|---|---|---|"
        yield from (_row(alert) for alert in alerts)
        yield ""
    records = [rule for rule in group.rules if isinstance(rule, RecordingRule)]
    if records:
        yield "| series | meaning |\n|---|---|"
        yield from (f"| `{record.name}` | {record.text} |" for record in records)
        yield ""


def _row(alert: Alert) -> str:
    after = "at once" if alert.patience == "0s" else alert.patience
    link = f"[{alert.name}](runbooks/{alert.name}.md)"
    return f"| {link} | {alert.severity.value} | {after} | {_plain(alert.summary)} |"


def _plain(text: str) -> str:
    """A template with its labels as words."""
    words = text.replace("{{ if $labels.namespace }}", "").replace("{{ end }}", "")
    return words.replace("{{ $labels.", "<").replace(" }}", ">").replace("<", "*").replace(">", "*")


if __name__ == "__main__":
    sys.stdout.write(page())
