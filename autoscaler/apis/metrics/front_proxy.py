# SPDX-License-Identifier: Apache-2.0
"""
The authenticated user: the headers of a request that kube-apiserver's front proxy has forwarded.

Pure. Decides which client certificate is the front proxy's and what the headers mean; without such a certificate the
headers are ignored. Authorization is decided in `authorizer`.

Source: Kubernetes documentation, "Configure the Aggregation Layer"; the ConfigMap
kube-system/extension-apiserver-authentication.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAMESPACE: Final = "kube-system"
CONFIG_MAP: Final = "extension-apiserver-authentication"
AUTHENTICATED: Final = "system:authenticated"
ANONYMOUS: Final = "system:anonymous"
_PEM: Final = "-----BEGIN CERTIFICATE-----"
_MAX_PEM: Final = 1 << 20
_MAX_NAMES: Final = 256
MAX_GROUPS: Final = 512
_MAX_EXTRA: Final = 64


class TrustError(ValueError):
    """The ConfigMap names no usable CA of a front proxy."""


@dataclass(frozen=True, slots=True)
class FrontProxyTrust:
    """The CA and names of the front proxy, and its headers."""

    authority: str
    """PEM."""
    names: frozenset[str] = frozenset()
    """Common names allowed; empty: any that the authority has signed."""
    user: tuple[str, ...] = ("X-Remote-User",)
    uid: tuple[str, ...] = ("X-Remote-Uid",)
    group: tuple[str, ...] = ("X-Remote-Group",)
    extra: tuple[str, ...] = ("X-Remote-Extra-",)
    """Prefixes."""

    def allows(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a verified certificate (in `ssl`'s form) is the front proxy's."""
        if not certificate:
            return False
        if not self.names:
            return True
        subject = certificate.get("subject") or ()
        return any(key == "commonName" and value in self.names for part in subject for key, value in part)


@dataclass(frozen=True, slots=True)
class User:
    """A user, as kube-apiserver authenticated it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


def parse_trust(config_map: object) -> FrontProxyTrust:
    """From the ConfigMap's JSON; raises TrustError."""
    data = config_map.get("data") if isinstance(config_map, dict) else None
    if not isinstance(data, dict):
        raise TrustError(f"{NAMESPACE}/{CONFIG_MAP} has no data")
    authority = data.get("requestheader-client-ca-file")
    if not isinstance(authority, str) or _PEM not in authority or len(authority) > _MAX_PEM:
        raise TrustError(
            f"{NAMESPACE}/{CONFIG_MAP} has no requestheader-client-ca-file: the aggregation layer is off; "
            "start kube-apiserver with --requestheader-client-ca-file and --proxy-client-cert-file"
        )
    plain = FrontProxyTrust(authority)
    return FrontProxyTrust(
        authority,
        frozenset(_names(data, "requestheader-allowed-names", ())),
        _names(data, "requestheader-username-headers", plain.user),
        _names(data, "requestheader-uid-headers", plain.uid),
        _names(data, "requestheader-group-headers", plain.group),
        _names(data, "requestheader-extra-headers-prefix", plain.extra),
    )


def parse_user(trust: FrontProxyTrust, headers: Iterable[tuple[str, str]]) -> User | None:
    """The user in the headers; None: no user, or too many headers."""
    given: dict[str, list[str]] = {}
    for key, value in headers:
        given.setdefault(key.lower(), []).append(value)
    name, uid = _first(given, trust.user), _first(given, trust.uid)
    if not name:
        return None
    groups = [value for header in trust.group for value in given.get(header.lower(), ())]
    if name != ANONYMOUS and AUTHENTICATED not in groups:
        groups.append(AUTHENTICATED)  # as Kubernetes' own servers do
    extra = _extra(given, trust.extra)
    if len(groups) > MAX_GROUPS or len(extra) > _MAX_EXTRA:
        return None
    return User(name, uid, tuple(groups), tuple(sorted(extra.items())))


def _extra(given: Mapping[str, list[str]], prefixes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """By decoded key: header names cannot hold all that keys can."""
    found: dict[str, tuple[str, ...]] = {}
    for prefix in prefixes:
        for key, values in given.items():
            if key.startswith(prefix.lower()) and len(key) > len(prefix):
                name = unquote(key[len(prefix) :]).lower()
                found[name] = (*found.get(name, ()), *values)
    return found


def _first(given: Mapping[str, list[str]], headers: Iterable[str]) -> str:
    return next((values[0] for header in headers if (values := given.get(header.lower())) and values[0]), "")


def _names(data: Mapping[str, object], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """A JSON list of texts; absent: the default. One that cannot be read must not widen what is trusted."""
    text = data.get(key)
    if text is None or text == "":
        return default
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or len(found) > _MAX_NAMES or not all(isinstance(each, str) for each in found):
        raise TrustError(f"{key} of {NAMESPACE}/{CONFIG_MAP} is not a JSON list of names")
    return tuple(found) or default
