# SPDX-License-Identifier: Apache-2.0
"""Credentials as they are read here and by the official client."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isolation.kube.core.errors import CredentialsError

if TYPE_CHECKING:
    from collections.abc import Awaitable

BROKEN = "broken"


def coded(text: str) -> str:
    """As a kubeconfig has it."""
    return base64.b64encode(text.encode()).decode()


def bytes_of(material: Path | bytes | None) -> bytes | None:
    """What OpenSSL would read."""
    return material.read_bytes() if isinstance(material, Path) else material


async def facts(reading: Awaitable[Any]) -> Any:
    """Everything that an identity says; `BROKEN` where it cannot be read."""
    try:
        one = await reading
    except CredentialsError:
        return BROKEN
    certificates = tuple(bytes_of(part) for part in (one.authority, one.certificate, one.key))
    return one.host, await one.headers(), certificates, one.verify, one.server_name, one.proxy


def written(
    folder: Path,
    server: str = "https://a:6443",
    user: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """A kubeconfig with one context."""
    file: Path = folder / more.pop("name", "config")
    said = {
        "clusters": [{"name": "c", "cluster": {"server": server} | (cluster or {})}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "abc"} if user is None else user}],
        "current-context": "x",
    }
    file.write_text(json.dumps(said | more))
    return file
