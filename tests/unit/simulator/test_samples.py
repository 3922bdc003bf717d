# SPDX-License-Identifier: Apache-2.0
"""docs/samples: manifests that Kubernetes reads, and that fit a node of one card."""

from __future__ import annotations

import json

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from support.docs_reading import ROOT

from gpushare import main

SAMPLES = sorted((ROOT / "docs/samples").glob("*.yaml"))
VERSION = "1.36"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_valid_and_placed_on_one_card_of_16_gb(path):
    """
    By the strict schema, and by `gpushare place`: each pod gets its memory of card 0.
    """
    objects = list(yaml.safe_load_all(path.read_text()))
    for one in objects:
        kubernetes_validate.validate(one, VERSION, strict=True)
    done = CliRunner().invoke(
        main, ["place", "-f", str(path), "--node", "name=n,cards=1,gib=15,mode=cgpu", "-o", "json"]
    )

    assert 0 == done.exit_code, done.output
    placed = json.loads(done.stdout)["placements"]
    wanted = sum(one["spec"].get("replicas", 1) for one in objects if "template" in one["spec"])
    assert wanted == len(placed)
    assert {0} == {card["index"] for pod in placed for card in pod["cards"]}
