# SPDX-License-Identifier: Apache-2.0
"""What the API server is told to let the autoscaler scale."""

from __future__ import annotations

import json

import yaml
from click.testing import CliRunner
from e2e.manifest_build import MANIFESTS

from autoscaler.kube.cli import autoscaler
from autoscaler.kube.config.reader import read_config
from autoscaler.kube.scale_bounds import POLICY, patch, text

POOLS = """
version: 1
pools:
  - {name: a, provider: scale, settings: {name: gpu-a}, min_nodes: 1, max_nodes: 5}
  - {name: b, provider: scale, settings: {name: b.c, namespace: machines, resource: sets, apiVersion: x.org/v1}}
  - {name: o, provider: externalgrpc, settings: {provider: scale, settings: {name: gpu-o}}, max_nodes: 4}
  - {name: c, provider: ack, settings: {region: r, cluster: c, nodePool: n}}
"""


def test_every_pool_with_a_scale_is_named_with_its_bounds_and_no_other():
    """
    By resource, group, namespace and name; also where cluster-autoscaler is in between.
    """
    [_, replaced] = patch(read_config(POOLS.encode()).pools)

    assert {
        "machinedeployments.cluster.x-k8s.io/default/gpu-a": [1, 5],
        "sets.x.org/machines/b.c": [0, 10],
        "machinedeployments.cluster.x-k8s.io/default/gpu-o": [0, 4],
    } == json.loads(replaced["value"])


def test_the_patch_fits_the_policy_that_is_shipped():
    """
    Which lets nothing be scaled before.
    """
    shipped = yaml.safe_load_all((MANIFESTS / "base/autoscaler/policy.yaml").read_text())
    first = next(one["spec"]["variables"][0] for one in shipped if one["metadata"]["name"] == POLICY)
    checked, replaced = yaml.safe_load(text(()))

    assert ("/spec/variables/0/name", first["name"]) == (checked["path"], checked["value"])
    assert ("/spec/variables/0/expression", first["expression"]) == (replaced["path"], replaced["value"])


def test_the_command_prints_it_for_a_file_and_says_what_is_wrong_with_one(tmp_path):
    """
    Without asking a cluster.
    """
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    done = CliRunner().invoke(autoscaler, ["bounds", "--config", str(file)])
    assert (0, text(read_config(POOLS.encode()).pools)) == (done.exit_code, done.output)
    file.write_text(POOLS.replace("name: gpu-a", "nome: gpu-a"))
    assert 2 == CliRunner().invoke(autoscaler, ["bounds", "--config", str(file)]).exit_code
    assert 2 == CliRunner().invoke(autoscaler, ["bounds"]).exit_code
