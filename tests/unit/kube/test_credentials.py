# SPDX-License-Identifier: Apache-2.0
"""Kubeconfigs: what is taken from them, and one line that helps where they are broken."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.credentials_read import bytes_of, coded, written

from isolation.kube import credentials
from isolation.kube.access import Access
from isolation.kube.core.errors import CredentialsError
from isolation.kube.credentials import read_credentials

ROOT = Path(__file__).resolve().parents[3]


def read(file, context=None):
    """Credentials as they are."""
    return asyncio.run(read_credentials(file, context))


def authorization(identity):
    """The header, or None."""
    return asyncio.run(identity.headers()).get("Authorization")


USERS = {
    "token": ({"token": "abc"}, "Bearer abc"),
    "token and newline": ({"token": "abc\r\n"}, "Bearer abc"),
    "token before password": ({"token": "abc", "username": "me", "password": "secret"}, "Bearer abc"),
    "token file": ({"tokenFile": "token"}, "Bearer from a file"),
    "password": ({"username": "me", "password": "secret"}, "Basic bWU6c2VjcmV0"),
    "none": ({}, None),
}


@pytest.mark.parametrize(("user", "expected"), USERS.values(), ids=USERS)
def test_a_users_authorization(tmp_path, user, expected):
    """
    As the API server wants it in the header.
    """
    (tmp_path / "token").write_text("from a file\n")
    assert expected == authorization(read(written(tmp_path, user=user)))


@pytest.mark.parametrize("inline", [True, False], ids=["data", "files"])
def test_server_and_certificates(tmp_path, inline):
    """
    Address, name, proxy; authority and client certificate by their text or by files beside the kubeconfig.
    """
    texts = {"certificate-authority": "authority", "client-certificate": "client", "client-key": "key"}
    if inline:
        named = {f"{key}-data": coded(text) for key, text in texts.items()}
    else:
        named = {key: f"{text}.pem" for key, text in texts.items()}
        for text in texts.values():
            (tmp_path / f"{text}.pem").write_text(text)
    cluster = {key: value for key, value in named.items() if "authority" in key}
    cluster |= {"tls-server-name": "inside", "proxy-url": "http://proxy:3128"}
    user = {key: value for key, value in named.items() if "client" in key}
    identity = read(written(tmp_path, "https://a:6443/", user=user, cluster=cluster))
    found = [bytes_of(part) for part in (identity.authority, identity.certificate, identity.key)]
    assert [b"authority", b"client", b"key"] == found
    assert ("https://a:6443", "inside", "http://proxy:3128") == (identity.host, identity.server_name, identity.proxy)
    assert identity.verify
    assert not read(written(tmp_path, cluster={"insecure-skip-tls-verify": True})).verify


def test_a_plugin_gives_the_token(tmp_path):
    """
    An exec plug-in is run; one that is missing or fails is an error, and nobody goes on as anonymous.
    """
    plugin, version = tmp_path / "plugin", "client.authentication.k8s.io/v1"
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "from-plugin"}}
    file = written(tmp_path, user={"exec": {"apiVersion": version, "command": str(plugin)}})
    with pytest.raises(CredentialsError, match=f"exec plugin '{plugin}' is not installed: install it"):
        read(file)
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    plugin.chmod(0o700)
    assert "Bearer from-plugin" == authorization(read(file))
    plugin.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(CredentialsError, match="gave no credentials"):
        read(file)


def test_several_files_are_merged(tmp_path, monkeypatch):
    """
    The first that names something wins; a file that does not exist is left out.
    """
    first, second = written(tmp_path), written(tmp_path, server="https://b", name="second")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(first), str(second), str(tmp_path / "none")]))
    assert "https://a:6443" == read(None).host
    monkeypatch.setenv("KUBECONFIG", str(second))
    assert "https://b" == read(None).host


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
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_broken_file_is_an_error_in_one_line(tmp_path, text):
    """
    Whatever stands in the file: its name, what is wrong and what to do.
    """
    file = tmp_path / "config"
    file.write_text(text)
    assert f"cannot load kubeconfig {file}: " in complaint(file)
    assert "select another with --kubeconfig" in complaint(file)


def complaint(file, context=None):
    """Why it cannot be used."""

    async def story():
        async with Access(file, context):
            pass

    with pytest.raises(CredentialsError) as caught:
        asyncio.run(story())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def test_a_kubeconfig_that_cannot_be_used_is_an_error_that_helps(tmp_path, monkeypatch):
    """
    Which file, what is wrong with it, and what to do.
    """
    missing = tmp_path / "none"
    assert f"kubeconfig {missing} does not exist: select another with --kubeconfig or $KUBECONFIG" == complaint(missing)
    assert f"none of the kubeconfigs {missing}:{missing} exists" in complaint(Path(f"{missing}:{missing}"))
    assert "Expected object with name y" in complaint(written(tmp_path), "y")
    assert f"cannot read {tmp_path} (Is a directory)" in complaint(tmp_path)
    unset = written(tmp_path, name="unset", **{"current-context": ""})
    assert "select another with --kubeconfig, --context or" in complaint(unset)
    gone = written(tmp_path, name="gone", cluster={"certificate-authority": "gone.crt"})
    assert f"{tmp_path}/gone.crt" in complaint(gone)
    odd = written(tmp_path, name="odd", cluster={"certificate-authority-data": "a"})
    assert f"cannot load kubeconfig {odd}: not a valid kubeconfig (Invalid base64" in complaint(odd)
    junk = written(tmp_path, name="junk", cluster={"certificate-authority-data": coded("no certificate")})
    assert "cannot use the certificates in the kubeconfig" in complaint(junk)
    monkeypatch.setenv("KUBECONFIG", "")
    assert "$KUBECONFIG is empty: set it to a file, or use --kubeconfig" == complaint(None)


def test_a_token_that_no_header_can_carry_is_refused(tmp_path):
    """
    A line's end within a token would begin another header.
    """
    with pytest.raises(CredentialsError):
        authorization(read(written(tmp_path, user={"token": "abc\r\nX-Other: 1"})))


@pytest.mark.processes
def test_a_pods_account_needs_no_official_client(tmp_path):
    """
    Its import takes 20 MiB, in each of our pods.
    """
    (tmp_path / "token").write_text("abc")
    (tmp_path / "ca.crt").write_text("authority")
    script = (
        "import asyncio, sys; from pathlib import Path; from isolation.kube import credentials\n"
        f"credentials._ACCOUNT = Path({str(tmp_path)!r})\n"
        "print(asyncio.run(credentials.read_credentials(None, None)).host)\n"
        "print([name for name in sys.modules if name.startswith('kubernetes')])"
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KUBE")}
    pod = {credentials._HOST: "10.0.0.1", credentials._PORT: "443"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=kept | pod,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "https://10.0.0.1:443\n[]\n" == done.stdout
