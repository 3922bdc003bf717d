# SPDX-License-Identifier: Apache-2.0
"""The quick start's manifests: bounds as the autoscaler prints them, a Prometheus as docs/monitoring.md has it."""

from __future__ import annotations

import re

import yaml
from e2e.manifest_build import MANIFESTS, build, named
from support.docs_reading import ROOT

from autoscaler.kube.config.reader import read_config
from autoscaler.kube.scale_bounds import POLICY, patch

FOLDER = ROOT / "hack/quickstart"
CONFIG = ("ConfigMap", "gpushare-autoscaler-config")


def built(folder):
    """The objects of a kustomization."""
    return [one for one in yaml.safe_load_all(build(str(folder))) if one]


def test_the_autoscaler_may_scale_the_pool_of_its_configuration_and_acts():
    """
    The committed patch is what `gpushare autoscaler bounds` makes of the committed pools; the switch is on.
    """
    things = built(FOLDER)
    config = read_config(named(things, *CONFIG)["data"]["config.yaml"].encode())
    bounds = patch(config.pools)[1]["value"]
    variables = named(things, "ValidatingAdmissionPolicy", POLICY)["spec"]["variables"]
    assert bounds == next(one["expression"] for one in variables if one["name"] == "bounds")
    assert {"enabled": "true", "dryRun": "false"} == named(things, "ConfigMap", "gpushare-autoscaler")["data"]


def test_the_namespace_says_whose_installation_it_is():
    """
    The mark comes with it, so an installation that was interrupted is known again.
    """
    made = named(built(FOLDER), "Namespace", "gpushare-system")
    assert "installation" == made["metadata"]["annotations"]["quickstart.gpushare.dev/made"]


def test_a_node_of_the_pool_is_expected_to_be_as_the_demos_nodes_are():
    """
    Mode, and cards of the model and number that the agent's init container makes.
    """
    things = built(FOLDER)
    [pool] = yaml.safe_load(named(things, *CONFIG)["data"]["config.yaml"])["pools"]
    cards = pool["node_template"]["cards"]["cards"]
    node = named(things, "DaemonSet", "gpushare-node")["spec"]["template"]["spec"]
    [made] = [" ".join(one["command"]) for one in node["initContainers"] if one["name"] == "cards"]
    assert f"--model t4 --cards {len(cards)} " in made
    assert {"Tesla T4"} == {card["model"] for card in cards}
    assert "core_mem" == pool["mode"]


def test_prometheus_scrapes_as_the_page_says():
    """
    The scrape configuration is the page's, word by word.
    """
    page = (ROOT / "docs/monitoring.md").read_text()
    [block] = [one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kubernetes_sd_configs" in one]
    things = [one for one in yaml.safe_load_all((FOLDER / "prometheus.yaml").read_text()) if one]
    config = yaml.safe_load(named(things, "ConfigMap", "prometheus")["data"]["prometheus.yaml"])
    assert yaml.safe_load(block)["scrape_configs"] == config["scrape_configs"]


def test_pods_of_the_quick_start_have_the_images_of_this_version():
    """
    Those that the script builds, and that every other manifest names.
    """
    version = yaml.safe_load((MANIFESTS / "images/kustomization.yaml").read_text())["images"][0]["newTag"]
    found = {
        container["image"]
        for folder in ("check", "more")
        for thing in built(FOLDER / folder)
        for container in (thing["spec"].get("template", thing)["spec"])["containers"]
    }
    assert {f"gpushare-node:{version}"} == found
