# SPDX-License-Identifier: Apache-2.0
"""
Rules as files: Prometheus' own, and the PrometheusRule that its operator reads.

Pure: the same book gives the same bytes. Where a runbook is published is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from dashboards.rules.catalogue import GROUPS
from dashboards.rules.rule import RUNBOOKS, Alert
from isolation.contract.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.rules.rule import RecordingRule, RuleGroup

HEADING: Final = "# Written by `gpushare rules build`; change dashboards/rules/*.py instead.\n"
PLAIN: Final = "gpushare.rules.yaml"
OPERATOR: Final = "prometheusrule.yaml"
NAME: Final = "{alert}"
"""Stands in the address of runbooks for the alert's name; without it, the address is that of a folder of .md files."""


class _Dumper(yaml.SafeDumper):
    """Queries of several lines stand as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def files(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Every file by name."""
    groups = [_group(group, runbooks.rstrip("/")) for group in GROUPS]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "gpushare",
            "namespace": SYSTEM_NAMESPACE,
            "labels": {
                "app.kubernetes.io/name": "gpushare",
                "app.kubernetes.io/component": "rules",
                "app.kubernetes.io/part-of": "gpushare",
                "prometheus": "k8s",
                "role": "alert-rules",
            },
        },
        "spec": {"groups": groups},
    }
    return {PLAIN: _dump({"groups": groups}), OPERATOR: _dump(rule)}


def _dump(value: Mapping[str, Any]) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return HEADING + text


def _group(group: RuleGroup, runbooks: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": group.name}
    if group.interval:
        made["interval"] = group.interval
    return {**made, "rules": [_rule(rule, runbooks) for rule in group.rules]}


def _rule(rule: Alert | RecordingRule, runbooks: str) -> dict[str, Any]:
    if not isinstance(rule, Alert):
        return {"record": rule.name, "expr": rule.expr}
    made: dict[str, Any] = {"alert": rule.name, "expr": rule.expr}
    if rule.patience != "0s":
        made["for"] = rule.patience
    if rule.hold:
        made["keep_firing_for"] = rule.hold
    made["labels"] = {"severity": rule.severity.value}
    made["annotations"] = {
        "summary": rule.summary,
        "description": rule.description,
        "runbook_url": runbooks.replace(NAME, rule.name) if NAME in runbooks else f"{runbooks}/{rule.name}.md",
    }
    return made
