# SPDX-License-Identifier: Apache-2.0
"""`gpushare autoscaler` on the command line: every mistake at once, and a status that programs can read."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoscaler.kube.cli import autoscaler
from autoscaler.kube.options import Grpc, MetricsApi, Options
from isolation.kube.options import Address, parse_address

NOBODY = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "t", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "t", "user": {"token": "x"}}],
    "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
    "current-context": "t",
}


def asked(*given):
    """Status and everything that was said."""
    found = CliRunner().invoke(autoscaler, given)
    return found.exit_code, found.output


@pytest.fixture(autouse=True)
def _quiet():
    """What a command sets up of logging does not outlive it."""
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.1:9448", Address("192.0.2.1", 9448)),
        ("[::1]:1", Address("::1", 1)),
        ("none", None),
    ],
    ids=["v4", "v6", "none"],
)
def test_addresses(text, expected):
    """
    As they are written, and back.
    """
    assert expected == parse_address(text)
    assert expected is None or text == str(expected)


@pytest.mark.parametrize("text", ["9448", ":9448", "a:b", "a:99999", "a:-1", ""], ids=range(6))
def test_what_is_no_address_is_said(text):
    """
    With one that is.
    """
    with pytest.raises(ValueError, match=r"use 0\.0\.0\.0:9448"):
        parse_address(text)


def test_every_mistake_is_said_at_once():
    """
    A gRPC port on the network without a certificate, an API without where to listen, a Lease that is no name.
    """
    status, said = asked(
        "--lease-name=Not A Name",
        "--grpc-listen=192.0.2.1:8086",
        "--expander-listen=127.0.0.1:8087",
        "--metrics-api=custom",
    )

    assert 2 == status
    for part in (
        "--lease-name 'Not A Name' is not a valid Kubernetes name",
        "--grpc-listen: 192.0.2.1:8086 would serve the network without TLS",
        "must have the same host",
        "--metrics-api needs --metrics-api-listen",
        "set --metrics-api-cert and --metrics-api-key",
    ):
        assert part in said


def test_over_the_network_nobody_changes_pools_without_an_authority_for_clients():
    """
    The port is served for figures; the cloud provider is not.
    """
    cert, ca = Path("tls.crt"), Path("ca.crt")
    everywhere = Address("192.0.2.1", 8086)

    assert Grpc(Address("127.0.0.1", 8086)).changing
    assert not Grpc(everywhere, certificate=cert, key=cert).changing
    assert Grpc(everywhere, certificate=cert, key=cert, client_ca=ca).changing
    assert not Grpc(expander=Address("127.0.0.1", 8087)).changing


def test_the_metrics_apis_and_the_scaler_are_as_old_as_the_figures_may_be():
    """
    Three scrapes, by the configuration; without a group nothing is served.
    """
    cert = Path("tls.crt")
    given = MetricsApi(("custom", "external"), Address("192.0.2.1", 8444), cert, cert)
    made = given.settings()

    assert 8444 == made.port
    assert 90.0 == Grpc(Address("127.0.0.1", 8086)).settings(90.0).fresh_seconds
    assert {"custom.metrics.k8s.io", "external.metrics.k8s.io"} == made.groups
    assert None is MetricsApi().settings()
    assert [] == list(Options(metrics_api=given).problems())


@pytest.mark.parametrize("command", [[], ["plan"]], ids=["run", "plan"])
def test_a_configuration_that_cannot_be_used_is_status_2(tmp_path, command):
    """
    Before anything is asked of a cluster.
    """
    path = tmp_path / "c.yaml"
    path.write_text("pools: [{name: a, provider: nobody, settings: {}}]\n")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(NOBODY))

    status, said = asked("--metrics-listen=none", *command, f"--config={path}", f"--kubeconfig={kubeconfig}")

    assert 2 == status
    assert 'pool a: unknown provider "nobody"; providers: ack, aws, scale, externalgrpc' in said
    assert "Traceback" not in said


def test_a_cluster_that_does_not_answer_is_status_3(tmp_path):
    """
    At once, with why and what to look at, and no trace of a program.
    """
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(NOBODY))

    status, said = asked(f"--kubeconfig={kubeconfig}", "plan", "--timeout=30")

    assert 3 == status
    assert "cannot reach the API server: " in said
    assert "connection refused: nothing listens there" in said
    assert "check --kubeconfig and --context" in said
    assert "Traceback" not in said


def test_no_credentials_are_status_3(tmp_path):
    """
    One line.
    """
    status, said = asked(f"--kubeconfig={tmp_path / 'none'}", "plan", "--timeout=1")

    assert 3 == status
    assert "none does not exist: select another with --kubeconfig or $KUBECONFIG" in said


def test_a_time_that_is_no_number_is_status_2():
    """
    Before anything is asked of a cluster.
    """
    status, said = asked("plan", "--timeout=nan")

    assert 2 == status
    assert "nan is not a number; write for example 60" in said


def test_pools_of_cluster_autoscaler_need_a_port(tmp_path):
    """
    Nobody would hear the orders.
    """
    path = tmp_path / "c.yaml"
    path.write_text("pools: [{name: a, provider: externalgrpc, settings: {provider: scale, settings: {name: a}}}]\n")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(NOBODY))

    status, said = asked(f"--config={path}", f"--kubeconfig={kubeconfig}", "--metrics-listen=none")

    assert 2 == status
    assert "pool a: no gRPC endpoint for cluster-autoscaler; set --grpc-listen" in said
