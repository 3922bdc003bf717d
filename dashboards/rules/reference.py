"""
docs/alerts.md, printed from the rules: `python -m dashboards.rules.reference > docs/alerts.md`.

Pure but for the printing. What an alert means and what to do stands in its runbook, which people write.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from dashboards.rules.book import GROUPS
from dashboards.rules.rule import AUTOSCALER_JOB, EXPORTER_JOB, NODE_JOB, SCHEDULER_JOB, SCRAPE_SECONDS, Alert, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.rules.rule import Group

_HEAD: Final = f"""<!-- Printed by `python -m dashboards.rules.reference`; change dashboards/rules/*.py instead. -->
# Alerts

Recording and alert rules for Prometheus 2.42 or newer, from the catalogue of [metrics](metrics.md). Each alert has a
page in [runbooks](runbooks): what it means, how to look, what to do, when it is no trouble.

| where | how |
|---|---|
| Prometheus operator | the component `manifests/components/monitoring`, which brings `prometheusrule.yaml` |
| plain Prometheus | `dashboards/rules/out/gpushare.rules.yaml` in `rule_files` |
| elsewhere published runbooks | `gpushare rules build --out rules --runbooks https://wiki.example.org/gpushare` |

Jobs must be called `{EXPORTER_JOB}`, `{NODE_JOB}`, `{SCHEDULER_JOB}` and `{AUTOSCALER_JOB}`, with
`honor_labels: true` and a scrape every {SCRAPE_SECONDS} to 30 s; our ServiceMonitors do so. Only exporters must be
there: alerts on other parts are silent where those were never scraped. **The rules speak of one cluster**: they run in
that cluster's own Prometheus, and each target is scraped once. Where one ruler sees several clusters, two schedulers of
two clusters would be two leaders and nodes of one name one node.

- **critical**: look now, tenants are harmed or nothing keeps them from it. **warning**: today. **info**: when there is
  time, never by a pager.
- What pages is measured by the driver. What a container's own library tells is `info`.
- No alert goes by a single sample: each lasts for two scrapes at least, or its query looks back over several.
- A series that is absent makes its alerts silent, never false; that it is absent is an alert of its own.
- From a process that takes more than its promise to an alert in Alertmanager: under a minute, tested with real ones
  (`tests/sim/test_rules_fire.py`). Each alert has unit tests for promtool (`tests/golden/rules`).

## Alertmanager
One trouble, one message: who is harmed stands in `namespace`, and what follows from something worse is held back.
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
  - source_matchers: ["alertname = GpushareCardUnhealthy"]
    target_matchers: ["alertname =~ GpushareXidErrors|GpushareEccErrors"]
    equal: [uuid]
  - source_matchers: ["alertname = GpushareMemoryOverLimit"]
    target_matchers: ["alertname = GpushareBreachOpen"]
    equal: [uuid]
receivers: [{{name: platform}}, {{name: pager}}, {{name: mail}}]
```
"""


def page() -> str:
    """The whole document."""
    return "\n".join((_HEAD, *(line for group in GROUPS for line in _group(group))))


def _group(group: Group) -> Iterator[str]:
    yield f"## {group.name}\n{group.text}\n"
    alerts = [rule for rule in group.rules if isinstance(rule, Alert)]
    if alerts:
        yield "| alert | severity | after | says |\n|---|---|---|---|"
        yield from (_row(alert) for alert in alerts)
        yield ""
    records = [rule for rule in group.rules if isinstance(rule, Record)]
    if records:
        yield "| series | meaning |\n|---|---|"
        yield from (f"| `{record.name}` | {record.text} |" for record in records)
        yield ""
    yield "```promql"
    for rule in group.rules:
        yield f"# {rule.name}\n{rule.expr}"
    yield "```\n"


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
