"""Credentials read here and by the official client: the same server, the same words, the same certificates."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.certificates import Authority
from kubernetes.aio import config as official_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from isolation.cluster import credentials
from isolation.cluster.access import Access
from isolation.cluster.credentials import identity_of, official_identity
from isolation.cluster.failure import CredentialsError
from isolation.cluster.kubeconfig import identity_in

ROOT = Path(__file__).resolve().parents[2]
BROKEN = "broken"
ABSENT = object()


def coded(text):
    """As a kubeconfig has it."""
    return base64.b64encode(text.encode()).decode()


def bytes_of(material):
    """What OpenSSL would read."""
    return material.read_bytes() if isinstance(material, Path) else material


async def facts(reading):
    """Everything that an identity says; `BROKEN` where it cannot be read."""
    try:
        one = await reading
    except CredentialsError:
        return BROKEN
    certificates = tuple(bytes_of(part) for part in (one.authority, one.certificate, one.key))
    return one.host, await one.headers(), certificates, one.verify, one.server_name, one.proxy


def read_both(file, context=None):
    """What we read and what the official client reads; None in ours: left to the other."""

    async def story():
        async def ours():
            return identity_in(str(file), context)

        try:
            usual = identity_in(str(file), context) is not None
        except CredentialsError:
            usual = True
        return await facts(ours()) if usual else None, await facts(official_identity(file, context))

    return asyncio.run(story())


CLUSTERS = {
    "server": ["https://a:6443/", "https://b/path/", "http://127.0.0.1:8080", "HTTPS://C", "", 7, ABSENT],
    "certificate-authority": [ABSENT, "ca.crt", "below/ca.crt", "missing.crt", ""],
    "certificate-authority-data": [ABSENT, ABSENT, coded("authority"), "", "%%", "a", None, 5],
    "insecure-skip-tls-verify": [ABSENT, ABSENT, True, False, None, "yes"],
    "tls-server-name": [ABSENT, ABSENT, "inside", "", None],
    "proxy-url": [ABSENT, ABSENT, "http://proxy:3128", "", None],
    "extensions": [ABSENT, [{"name": "x"}]],
}
USERS = {
    "token": [ABSENT, ABSENT, "abc", "abc\n", "", None, 5],
    "tokenFile": [ABSENT, ABSENT, "token", "below/../token", "missing", ""],
    "username": [ABSENT, ABSENT, "me", 5],
    "password": [ABSENT, "secret", "5"],
    "client-certificate": [ABSENT, "client.crt", "missing.crt"],
    "client-certificate-data": [ABSENT, ABSENT, coded("client"), ""],
    "client-key": [ABSENT, "client.key"],
    "client-key-data": [ABSENT, ABSENT, coded("key"), "!"],
    "as": [ABSENT, "somebody"],
}


def drawn(dice, kinds):
    """One value of each kind, mostly the first."""
    picked = {key: dice.choice([*values[:1] * 12, *values]) for key, values in kinds.items()}
    return {key: value for key, value in picked.items() if value is not ABSENT}


def made(dice):
    """A kubeconfig, usual or odd."""
    context = drawn(
        dice, {"cluster": ["c", "c", "c", "z", ABSENT], "user": ["u", "u", "u", "u", "z", "", None, ABSENT]}
    )
    users = dice.choice(
        [[{"name": "u", "user": drawn(dice, USERS)}]] * 12 + [[], None, [{"name": "u"}], [{}], {"u": 1}]
    )
    if users and dice.random() < 0.1:
        users = users * 2 if isinstance(users, list) else users
    clusters = [{"name": dice.choice(["c", "c", "c", "c", 5]), "cluster": drawn(dice, CLUSTERS)}]
    contexts = [{"name": "x", "context": context}, {"name": "y", "context": {"cluster": "c", "user": "u"}}]
    said = {"clusters": clusters, "contexts": contexts, "users": users, "current-context": "x"}
    for key in list(said):
        if dice.random() < 0.03:
            del said[key]
    return said, dice.choice([None, None, None, None, "x", "y", "z", ""])


def files_beside(folder):
    """What kubeconfigs name."""
    (folder / "below").mkdir()
    for name in ("ca.crt", "below/ca.crt", "client.crt", "client.key", "token"):
        (folder / name).write_text(f"the text of {name}\n")


@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_here_is_what_the_official_client_reads(tmp_path, seed):
    """
    A hundred kubeconfigs each, usual and odd: the same facts, or broken for both; what is odd is left to the other.
    """
    files_beside(tmp_path)
    dice, file, read = random.Random(seed), tmp_path / "config", 0  # noqa: S311 (cases, no secrets)
    for _ in range(100):
        said, context = made(dice)
        file.write_text(json.dumps(said))
        ours, theirs = read_both(file, context)
        assert ours is None or theirs == ours, (said, context)
        read += ours not in (None, BROKEN)
    assert read > 4


TEXTS = {
    "empty": "",
    "brace": "{",
    "list": "[]",
    "number": "7",
    "nothing": "null",
    "zero byte": "\x00",
    "tabs": "a:\n\t- b",
    "two documents": "a: 1\n---\nb: 2\n",
    "a python object": "!!python/object/apply:os.system [true]",
    "anchors": "a: &a [1]\nb: *a\n",
    "an alias to itself": "&a [*a]",
    "contexts only": "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]",
    "a number for a context": "current-context: 5\ncontexts: []",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_files_that_are_none_are_none_for_both(tmp_path, text):
    """
    Whatever stands in the file: an error here is an error there.
    """
    file = tmp_path / "config"
    file.write_text(text)
    ours, theirs = read_both(file)
    assert BROKEN == theirs
    assert ours in (None, BROKEN)


UNUSUAL = {
    "exec": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", "echo"]}},
    "provider": {"auth-provider": {"name": "gcp"}},
}


@pytest.mark.parametrize("user", UNUSUAL.values(), ids=UNUSUAL)
def test_plugins_and_providers_are_left_to_the_official_client(tmp_path, user):
    """
    What has to be run, or to be asked of a cloud, is not read here.
    """
    assert identity_in(str(written(tmp_path, user=user)), None) is None


def test_a_plugin_says_the_token(tmp_path):
    """
    By way of the official client.
    """
    said = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-plugin"},
    }
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    plugin.chmod(0o700)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    found = asyncio.run(facts(identity_of(written(tmp_path, user=user), None)))
    assert "Bearer from-plugin" == found[1]["Authorization"]


def written(folder, server="https://a:6443", user=None, cluster=None, **more):
    """A kubeconfig with one context."""
    file = folder / more.pop("name", "config")
    said = {
        "clusters": [{"name": "c", "cluster": {"server": server} | (cluster or {})}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "abc"} if user is None else user}],
        "current-context": "x",
    }
    file.write_text(json.dumps(said | more))
    return file


def test_several_files_are_merged_by_the_official_client(tmp_path, monkeypatch):
    """
    The first that names something wins, the last that names a context is current: as kubectl has it, almost.
    """
    first, second = written(tmp_path), written(tmp_path, server="https://b", name="second")
    script = (
        "import asyncio; from isolation.cluster.credentials import identity_of; "
        "print(asyncio.run(identity_of(None, None)).host)"
    )
    told = f"{first}{os.pathsep}{second}"
    done = run(script, KUBECONFIG=told)
    assert "https://a:6443\n" == done
    monkeypatch.setenv("KUBECONFIG", str(second))
    assert "https://b" == asyncio.run(identity_of(None, None)).host


def run(script, **environment):
    """Another interpreter's words."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KUBE")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_usual_kind_needs_no_official_client(tmp_path):
    """
    A token, a client certificate, one file: its import would take longer than the answer.
    """
    script = (
        "import asyncio, sys; from isolation.cluster.access import Access\n"
        "async def story():\n"
        "    async with Access(): pass\n"
        "asyncio.run(story()); print([name for name in sys.modules if name.startswith('kubernetes')])"
    )
    assert "[]\n" == run(script, KUBECONFIG=str(written(tmp_path)))


# What is said of a broken one.


def complaint(file, context=None):
    """Why it cannot be used."""

    async def story():
        async with Access(file, context):
            pass

    with pytest.raises(CredentialsError) as caught:
        asyncio.run(story())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_broken_kubeconfig_is_said_in_one_line_that_helps(tmp_path):
    """
    Which file, what about it, and what to do.
    """
    missing = tmp_path / "none"
    assert f"kubeconfig {missing} does not exist: name another with --kubeconfig or $KUBECONFIG" == complaint(missing)
    good = written(tmp_path)
    assert f"kubeconfig {good} has no context 'y'; it has 'x'" == complaint(good, "y")
    (tmp_path / "yaml").write_text("a: [\n")
    assert "is no YAML: line 2" in complaint(tmp_path / "yaml")
    (tmp_path / "empty").write_text("")
    assert "says nothing" in complaint(tmp_path / "empty")
    assert "is a folder" in complaint(tmp_path)
    unset = written(tmp_path, name="unset", **{"current-context": ""})
    assert f"kubeconfig {unset} has no current-context: name one with --context" == complaint(unset)
    gone = written(tmp_path, name="gone", cluster={"certificate-authority": "gone.crt"})
    assert f"{tmp_path}/gone.crt does not exist" in complaint(gone)
    assert f"none of {missing}:{missing} exists" in complaint(Path(f"{missing}:{missing}"))
    junk = written(tmp_path, name="junk", cluster={"certificate-authority-data": coded("no certificate")})
    assert "certificates in the kubeconfig cannot be used" in complaint(junk)


def test_a_token_that_no_header_can_carry_is_refused(tmp_path):
    """
    A line's end at its end is cut off; within it, it would be another header.
    """
    fine = identity_in(str(written(tmp_path, user={"token": "abc\r\n"})), None)
    assert "Bearer abc" == asyncio.run(fine.headers())["Authorization"]
    bad = identity_in(str(written(tmp_path, user={"token": "abc\r\nX-Other: 1"})), None)
    with pytest.raises(CredentialsError):
        asyncio.run(bad.headers())


# A pod's own account.


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
        found = await facts(identity_of(None, None))
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
        identity = await identity_of(None, None)
        (account / "token").write_text("second")
        seen = [await said(identity)]
        now[0] += 60
        seen.append(await said(identity))
        (account / "token").unlink()
        now[0] += 60
        return [*seen, await said(identity)]

    assert ["bearer first", "bearer second", "bearer second"] == asyncio.run(story())


# On the wire.


@pytest.mark.parametrize("inline", [True, False], ids=["data", "files"])
def test_certificates_reach_the_server(tmp_path, inline):
    """
    A server that wants a client's certificate gets it, by another name than its address; nothing is left in the
    temporary folder.
    """
    authority = Authority(tmp_path, "authority")
    server, client = authority.issue("inside", hosts=("inside",)), authority.issue("me")
    cluster = {"tls-server-name": "inside", "certificate-authority": str(authority.certificate)}
    user = {"client-certificate": str(client.certificate), "client-key": str(client.key)}
    if inline:
        cluster = {"tls-server-name": "inside", "certificate-authority-data": coded(authority.certificate.read_text())}
        user = {
            "client-certificate-data": coded(client.certificate.read_text()),
            "client-key-data": coded(client.key.read_text()),
        }
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.load_cert_chain(server.certificate, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    subjects = []

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        subjects.append(dict(part[0] for part in writer.get_extra_info("peercert")["subject"])["commonName"])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def story():
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            async with Access(written(tmp_path, url, user=user, cluster=cluster)) as access:
                return await access.send("GET", "/x")
        finally:
            listening.close()

    assert b"{}" == asyncio.run(story())
    assert ["me"] == subjects
