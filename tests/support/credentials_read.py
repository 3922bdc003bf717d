# SPDX-License-Identifier: Apache-2.0
"""Credentials as they are read here and by the official client."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from isolation.kube.core.errors import CredentialsError

BROKEN = "broken"


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
