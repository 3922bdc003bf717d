# SPDX-License-Identifier: Apache-2.0
"""
Metrics that docs, manifests and examples for other programs name: each exists, with the labels that are used.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.promql_reading import read

from dashboards import promql

ROOT = Path(__file__).resolve().parents[4]
KNOWN = promql.series()
COMPONENTS = ROOT / "manifests" / "components"
NO_METRICS = {"gpushare_abi": "the C header"}
OF_A_PROMISE = "divides by"
"""HorizontalPodAutoscaler takes NaN for no figure, so these may divide by what is never 0 for a pod with a promise."""


def problems(expr):
    """What is wrong with it, quotients by promises aside."""
    return [one for one in read(expr, KNOWN).problems if not one.startswith(OF_A_PROMISE)]


@pytest.mark.parametrize("folder", ["docs", "manifests"])
def test_names_in_words_exist(folder):
    """No page and no manifest speaks of a metric that nobody serves."""
    names = set(KNOWN) | set(promql.CATALOGUE) | set(NO_METRICS)
    unknown = {
        (str(path.relative_to(ROOT)), word)
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".yaml", ".json")
        for word in re.findall(r"(?<![:\w])gpushare_[a-z0-9_]+", path.read_text(encoding="utf-8"))
        if word not in names
    }
    assert set() == unknown


def test_keda_example_asks_for_what_exists():
    """Names and labels of the ScaledObject's queries."""
    example = yaml.safe_load((COMPONENTS / "keda-prometheus" / "scaledobject.yaml").read_text())
    queries = [trigger["metadata"]["query"] for trigger in example["spec"]["triggers"]]
    assert queries
    assert [[] for _ in queries] == [problems(query) for query in queries]


def test_adapter_configuration_asks_for_what_exists():
    """Names and labels of each rule, with the adapter's own words filled in as it does for a pod."""
    held = yaml.safe_load((COMPONENTS / "prometheus-adapter" / "rules.yaml").read_text())
    rules = yaml.safe_load(held["data"]["config.yaml"])["rules"]
    assert rules
    for rule in rules:
        name = rule["seriesQuery"].partition("{")[0]
        words = {"Series": name, "LabelMatchers": 'namespace="a",pod=~"b|c"', "GroupBy": "pod"}
        query = re.sub(r"<<\.(\w+)>>", lambda match, words=words: words[match[1]], rule["metricsQuery"])
        found = problems(rule["seriesQuery"])  # finds names, takes no values: a counter may stand there as it is
        assert [] == [one for one in found if "wants rate or increase" not in one]
        assert [] == problems(query)
        assert set(rule["resources"]["overrides"]) <= KNOWN[name].labels
