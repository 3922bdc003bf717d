# SPDX-License-Identifier: Apache-2.0
"""Kubeconfigs read here and by the official client: the same server, the same words, or left to the other."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.credentials_read import BROKEN, coded, facts, written

from isolation.kube.core.errors import CredentialsError
from isolation.kube.credentials import identity_of, official_identity
from isolation.kube.kubeconfig import identity_in

ROOT = Path(__file__).resolve().parents[3]
ABSENT = object()


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


@pytest.mark.processes
def test_several_files_are_merged_by_the_official_client(tmp_path, monkeypatch):
    """
    The first that names something wins, the last that names a context is current: as kubectl has it, almost.
    """
    first, second = written(tmp_path), written(tmp_path, server="https://b", name="second")
    script = (
        "import asyncio; from isolation.kube.credentials import identity_of; "
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
        "import asyncio, sys; from isolation.kube.access import Access\n"
        "async def story():\n"
        "    async with Access(): pass\n"
        "asyncio.run(story()); print([name for name in sys.modules if name.startswith('kubernetes')])"
    )
    assert "[]\n" == run(script, KUBECONFIG=str(written(tmp_path)))
