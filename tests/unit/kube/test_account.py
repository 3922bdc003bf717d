# SPDX-License-Identifier: Apache-2.0
"""A pod's own account, read here and by the official client: address, token, authority, and a token that changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kubernetes.aio import config as official_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config
from support.credentials_read import BROKEN, bytes_of, facts

from isolation.kube import credentials
from isolation.kube.credentials import read_credentials


@pytest.fixture
def account(tmp_path, monkeypatch):
    """A pod's service account, for both readers."""
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_text("authority")
    monkeypatch.setattr(credentials, "_ACCOUNT", tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


def accounts():
    """The pod's account as both read it."""

    async def story():
        found = await facts(read_credentials(None, None))
        official = Configuration()
        try:
            official_config.load_incluster_config(official)
        except official_config.ConfigException:
            return found, BROKEN
        token = await official.get_api_key_with_prefix("BearerToken")
        authority = bytes_of(Path(official.ssl_ca_cert))
        headers = {"Accept": "application/json", "Authorization": token}
        certificates = (authority, official.cert_file, official.key_file)
        return found, (official.host, headers, certificates, official.verify_ssl, "", official.proxy)

    return asyncio.run(story())


@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1", "fe80::1%eth0", "server.local", ""])
@pytest.mark.parametrize("spoilt", ["", "token", "ca.crt"])
@pytest.mark.parametrize("how", ["empty", "missing"])
def test_a_pods_account_is_read_as_the_official_client_does(account, monkeypatch, host, spoilt, how):
    """
    Address, token and authority; and broken where a part is missing.
    """
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    if spoilt and how == "empty":
        (account / spoilt).write_text("")
    elif spoilt:
        (account / spoilt).unlink()
    ours, theirs = accounts()
    assert theirs == ours
    assert (ours == BROKEN) == bool(spoilt or not host)


def test_an_accounts_token_is_read_again_after_a_minute(account, monkeypatch):
    """
    The kubelet replaces it; while it cannot be read, the old one is used on.
    """
    now = [1000.0]
    monkeypatch.setattr(credentials.time, "monotonic", lambda: now[0])

    async def said(identity):
        return (await identity.headers())["Authorization"]

    async def story():
        identity = await read_credentials(None, None)
        (account / "token").write_text("second")
        seen = [await said(identity)]
        now[0] += 60
        seen.append(await said(identity))
        (account / "token").unlink()
        now[0] += 60
        return [*seen, await said(identity)]

    assert ["bearer first", "bearer second", "bearer second"] == asyncio.run(story())
