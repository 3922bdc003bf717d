# SPDX-License-Identifier: Apache-2.0
"""
The real cert-manager and the real Prometheus operator beside what we install for them, by kustomize and by helm.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from e2e.binaries import Missing, find_operator
from e2e.chart_build import CHART, LOADER
from e2e.chart_harness import authorities, prepared
from e2e.kubelets import share_pod
from e2e.manifest_answers import answers
from e2e.manifest_build import MANIFESTS
from e2e.manifest_harness import standing
from e2e.manifest_installation import ADDRESS, INSIDE, running
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import AUTOSCALER, EXPORTER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CERTIFICATES = f"/apis/cert-manager.io/v1/namespaces/{SYSTEM_NAMESPACE}/certificates"
ISSUED = {
    "gpushare-authority": "gpushare-authority",
    "gpushare-scheduler": "gpushare-scheduler-tls",
    "gpushare-autoscaler-grpc": "gpushare-autoscaler-grpc-tls",
    "gpushare-cluster-autoscaler": "gpushare-cluster-autoscaler",
    "gpushare-keda": "gpushare-keda",
}
"""Secrets by their Certificates."""
RULES = (MANIFESTS.parent / "dashboards/rules/out/gpushare.rules.yaml").read_text()
PROMETHEUSES = "/apis/monitoring.coreos.com/v1/namespaces/default/prometheuses"
PROMETHEUS = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "k8s"},
    "spec": {
        "replicas": 1,
        "serviceAccountName": "default",
        **{f"{what}{which}Selector": {} for what in ("serviceMonitor", "rule") for which in ("", "Namespace")},
    },
}
BY = pytest.mark.parametrize("by", ["kustomize", "helm"])


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own."""
    with standing(tmp_path_factory.mktemp("operators")) as started:
        yield started


def program(name):
    """One that was built; without it a skip with the remedy, under CI a failure."""
    found = find_operator(name)
    if isinstance(found, Missing):
        pytest.skip(str(found))
    return found


def kinds(group):
    """The definitions of an operator's kinds, as it brings them."""
    return [str(file) for file in sorted((program("certmanager").parent / "kinds").glob(f"{group}_*.yaml"))]


def established(kind):
    """The API server serves it."""
    conditions = kind.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


@contextlib.asynccontextmanager
async def installed(plane, folder, by, *, group, sets, built):
    """What we install, beside the real definitions of a group; all of it gone at the end."""
    files = [word for file in kinds(group) for word in ("-f", file)]
    async with prepared(plane, folder, ()) as chart:
        await asyncio.to_thread(chart.run, "kubectl", "apply", "--server-side", *files)
        for file in kinds(group):
            # `kubectl wait` fails at once where a new kind has no condition at all yet (kubernetes/kubernetes#66439)
            await chart.client.until(established, f"{DEFINITIONS}/{Path(file).stem.partition('_')[2]}.{group}")
        if by == "helm":
            await asyncio.to_thread(chart.put, "install", CHART, sets, "--create-namespace")
        else:
            await asyncio.to_thread(chart.apply, *built)
        try:
            yield chart
        finally:
            folder = str(chart.folder / "kustomization")
            undo = ("kubectl", "delete", "-k", folder, "--ignore-not-found", "--wait=false")
            await asyncio.to_thread(*((chart.helm, "uninstall", "gpushare") if by == "helm" else (chart.run, *undo)))
            await chart.client.delete(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}")
            await chart.client.until(
                lambda spaces: SYSTEM_NAMESPACE not in {one["metadata"]["name"] for one in spaces["items"]},
                "/api/v1/namespaces",
            )


def is_ready(one):
    """The certificate is issued and good."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in one.get("status", {}).get("conditions", ()))


async def pair(client, secret):
    """A certificate and its authority's, as cert-manager stored them."""
    data = (await client.get(f"{INSIDE}/secrets/{secret}"))["data"]
    return [x509.load_pem_x509_certificate(base64.b64decode(data[key])) for key in ("tls.crt", "ca.crt")]


def served():
    """The number of the certificate with which the webhook answers."""
    with socket.create_connection((ADDRESS, 8443), timeout=10) as plain:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as encrypted:
            return x509.load_der_x509_certificate(encrypted.getpeercert(binary_form=True)).serial_number


@BY
def test_cert_manager_issues_and_renews_what_the_processes_serve(plane, tmp_path, by):
    """
    Every Certificate is issued by the authority that is its own, and the webhooks are told of that. The API server
    calls the scheduler with it. Once a certificate is due, another one is issued and served, without a restart and
    without a change of what the API server believes.
    """
    sets = {"certificates.source": "cert-manager", "autoscaler.grpc": True}
    ours = "cert-manager", "grpc", "grpc-cert-manager"
    log = tmp_path / "certmanager.log"
    log.touch()

    async def story():
        async with installed(plane, tmp_path, by, group="cert-manager.io", sets=sets, built=ours) as chart:
            client = chart.client
            with running(log, [str(program("certmanager")), str(plane.kubeconfig)]):
                for name in ISSUED:
                    await client.until(is_ready, f"{CERTIFICATES}/{name}")
                made = {name: await pair(client, secret) for name, secret in ISSUED.items()}
                for _ in range(600):
                    believed = await authorities(client)
                    if None not in believed:
                        break
                    await asyncio.sleep(0.1)
                async with chart.process(SCHEDULER) as process:
                    await chart.served(SCHEDULER)
                    await answers(f"http://{ADDRESS}:9446/readyz")
                    pod = await client.create(share_pod(f"admitted-by-{by}", 2))
                    await client.delete(f"/api/v1/namespaces/default/pods/admitted-by-{by}", force=True)
                    first = await asyncio.to_thread(served)
                    due = {"spec": {"duration": "1h", "renewBefore": "59m50s"}}
                    await client.merge(f"{CERTIFICATES}/gpushare-scheduler", due)
                    revisions = await client.until(
                        lambda one: is_ready(one) and one["status"]["revision"] >= 3,
                        f"{CERTIFICATES}/gpushare-scheduler",
                    )
                    later = first
                    for _ in range(600):
                        await chart._files({"name": "tls", "secret": {"secretName": "gpushare-scheduler-tls"}})
                        later = await asyncio.to_thread(served)
                        if later != first:
                            break
                        await asyncio.sleep(0.5)
                    return made, believed, await authorities(client), pod, (first, later), process.poll(), revisions

    try:
        made, believed, after, pod, (first, later), ended, _ = asyncio.run(story())
    except BaseException:
        print(log.read_text()[-4000:])  # noqa: T201 (shown with the failure)
        raise
    for certificate, authority in made.values():
        certificate.verify_directly_issued_by(authority)
    [bundle] = believed
    names = made["gpushare-scheduler"][0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert made["gpushare-scheduler"][1] == x509.load_pem_x509_certificate(base64.b64decode(bundle))
    assert f"{SCHEDULER}.{SYSTEM_NAMESPACE}.svc" in names.get_values_for_type(x509.DNSName)
    assert SCHEDULER == pod["spec"]["schedulerName"]
    assert believed == after
    assert first != later
    assert ended is None


@BY
def test_the_prometheus_operator_takes_over_monitors_and_rules(plane, tmp_path, by):
    """
    It writes the configuration of a Prometheus that selects everything: a job for each of our Services, with honoured
    labels and the intended `instance`, and every group of our rules, which promtool accepts.
    """
    pair_of = plane.pair_for("admin")
    log = tmp_path / "operator.log"
    log.touch()
    command = [str(program("prometheus-operator")), f"--apiserver={plane.url}", f"--ca-file={plane.ca}"]
    command += [f"--cert-file={pair_of.certificate}", f"--key-file={pair_of.key}", "--web.listen-address=127.0.0.1:0"]

    async def story():
        group = "monitoring.coreos.com"
        sets, ours = {"monitoring.enabled": True}, ("self-signed", "monitoring")
        async with installed(plane, tmp_path, by, group=group, sets=sets, built=ours) as chart:
            client = chart.client
            with running(log, command):
                await client.call("POST", PROMETHEUSES, PROMETHEUS)
                try:
                    where = "/api/v1/namespaces/default"
                    stored = await client.until(
                        lambda one: len(configured(one).get("scrape_configs", ())) == 4,
                        f"{where}/secrets/prometheus-k8s",
                    )
                    rules = await client.until(
                        lambda one: one.get("data"), f"{where}/configmaps/prometheus-k8s-rulefiles-0"
                    )
                    return configured(stored), rules["data"]
                finally:
                    await client.delete(f"{PROMETHEUSES}/k8s")

    try:
        config, rules = asyncio.run(story())
    except BaseException:
        print(log.read_text()[-4000:])  # noqa: T201 (shown with the failure)
        raise
    jobs = {one["job_name"]: one for one in config["scrape_configs"]}
    names = (EXPORTER, NODE_AGENT, SCHEDULER, AUTOSCALER)
    assert {f"serviceMonitor/{SYSTEM_NAMESPACE}/{name}/0" for name in names} == set(jobs)
    assert {True} == {one["honor_labels"] for one in jobs.values()}
    for name in names:
        targets = {
            one["target_label"]: one["source_labels"]
            for one in jobs[f"serviceMonitor/{SYSTEM_NAMESPACE}/{name}/0"]["relabel_configs"]
            if "target_label" in one and "source_labels" in one
        }
        who = "node" if name in (EXPORTER, NODE_AGENT) else ""
        assert [f"__meta_kubernetes_pod_{who}{'_' if who else ''}name"] == targets["instance"]
        assert ["__meta_kubernetes_service_label_app_kubernetes_io_name"] == targets["job"]
    [text] = rules.values()
    expected = {group["name"]: len(group["rules"]) for group in yaml.load(RULES, LOADER)["groups"]}  # noqa: S506
    found = yaml.load(text, LOADER)["groups"]  # noqa: S506
    assert expected == {group["name"]: len(group["rules"]) for group in found}
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    checked = subprocess.run(
        ["promtool", "check", "rules", str(file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert 0 == checked.returncode, checked.stdout + checked.stderr


def configured(secret):
    """The configuration that the operator has written so far."""
    packed = secret.get("data", {}).get("prometheus.yaml.gz")
    return yaml.load(gzip.decompress(base64.b64decode(packed)), LOADER) if packed else {}  # noqa: S506 (a safe one)
