# SPDX-License-Identifier: Apache-2.0
"""
The web configuration file of the Prometheus exporter-toolkit: YAML in, a checked value out.

Pure but for YAML. All mistakes are reported together, each with its place in the file; a key that is not known is a
mistake, since a misspelt `client_ca_file` would leave a door open. What the file asks for and Python's TLS
cannot do is refused, not ignored.

Source: prometheus/exporter-toolkit, docs/web-configuration.md (the format, its defaults and its names).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_CHARS: Final = 1 << 20
VERSIONS: Final = ("TLS10", "TLS11", "TLS12", "TLS13")
VERIFY: Final = {
    "NoClientCert": "none",
    "VerifyClientCertIfGiven": "optional",
    "RequireAndVerifyClientCert": "required",
}
"""Go's names of what is asked of a client's certificate; the two that take any are refused as insecure."""
CIPHERS: Final = {
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
}
"""Go's names to OpenSSL's, of TLS 1.2 and below; those of TLS 1.3 cannot be chosen in either."""
HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
"""Header fields that may be set, and their values where they are a closed set."""
_BCRYPT: Final = re.compile(r"\$2[abxy]\$(?:0[4-9]|1[0-8])\$[./A-Za-z0-9]{53}")
"""Cost 4 to 18: a higher one takes longer than a scrape may."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TLS_TEXTS: Final = ("cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type")


class WebConfigError(ValueError):
    """A file that cannot be used; the message says every mistake and its place."""


@dataclass(frozen=True, slots=True)
class Tls:
    """`tls_server_config`: files by path as they stand in the file, their contents, or both."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    verify: str = "none"
    """none, optional or required."""
    allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    ciphers: tuple[str, ...] = ()
    """OpenSSL's names; empty: its defaults."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of files, as they stand in the configuration."""
        return tuple(name for name in (self.cert_file, self.key_file, self.client_ca_file) if name)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The whole file."""

    tls: Tls | None = None
    users: tuple[tuple[str, str], ...] = ()
    """Names with their bcrypt hashes."""
    headers: tuple[tuple[str, str], ...] = ()
    interval: float = 0.0
    """Seconds in which one more request is allowed; 0: no limit."""
    burst: int = 0


def load(text: str) -> WebConfig:
    """The configuration of this text."""
    if len(text) > MAX_CHARS:
        raise WebConfigError(f"the file has more than {MAX_CHARS} characters")
    try:
        record = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise WebConfigError(f"invalid YAML: {' '.join(str(exc).split())[:300]}") from None
    wrong: list[str] = []
    top = _Part(record if record is not None else {}, "", wrong)
    found = WebConfig(
        tls=_tls(top.part("tls_server_config")) if top.has("tls_server_config") else None,
        users=_users(top.part("basic_auth_users")),
        headers=_headers(top.part("http_server_config")),
        interval=_interval(top.part("rate_limit")),
        burst=_burst(top.part("rate_limit")),
    )
    top.only("tls_server_config", "basic_auth_users", "http_server_config", "rate_limit")
    if wrong:
        raise WebConfigError("; ".join(wrong))
    return found


class _Part:
    """One mapping of the file, which notes what is wrong in it."""

    def __init__(self, value: Any, place: str, wrong: list[str]) -> None:
        self._place, self.wrong = place, wrong
        self.values: dict[str, Any] = {}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            self.values = value
        elif value is not None:
            wrong.append(f"{place or 'the file'} must be a mapping")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def blame(self, key: str, reason: str) -> None:
        self.wrong.append(f"{self._place}{'.' if self._place and key else ''}{key}: {reason}")

    def part(self, key: str) -> _Part:
        return _Part(self.values.get(key), key, self.wrong)

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key, default)
        if isinstance(value, str):
            return value
        if value is not None:
            self.blame(key, "must be a string")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key) or []
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        self.blame(key, "must be a list of strings")
        return ()

    def one_of(self, key: str, known: tuple[str, ...], default: str) -> str:
        value = self.text(key, default) or default
        if value in known:
            return value
        self.blame(key, f"{value!r} is not one of {', '.join(known)}")
        return default

    def only(self, *known: str) -> None:
        for key in sorted(set(self.values) - set(known)):
            self.blame(key[:60], "unknown key")


def _tls(part: _Part) -> Tls:
    given = {key: part.text(key) for key in _TLS_TEXTS}
    for name in ("cert", "key"):
        if bool(given[name]) == bool(given[f"{name}_file"]):
            part.blame(f"{name}_file", f"set exactly one of {name}_file and {name}")
    if given["client_ca"] and given["client_ca_file"]:
        part.blame("client_ca_file", "set only one of client_ca_file and client_ca")
    verify, sans = _clients(part, given["client_ca"] or given["client_ca_file"])
    lowest, highest = part.one_of("min_version", VERSIONS, "TLS12"), part.one_of("max_version", VERSIONS, "TLS13")
    if lowest > highest:
        part.blame("min_version", f"{lowest} is above max_version {highest}")
    suites = part.texts("cipher_suites")
    for suite in suites:
        if suite not in CIPHERS:
            part.blame("cipher_suites", f"{suite[:60]} is not one of {', '.join(CIPHERS)}")
    if part.has("curve_preferences"):
        part.blame("curve_preferences", "not supported: remove it")
    part.only(
        *_TLS_TEXTS,
        *("client_allowed_sans", "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites"),
        "curve_preferences",
    )
    del given["client_auth_type"]
    ciphers = tuple(CIPHERS[suite] for suite in suites if suite in CIPHERS)
    return Tls(**given, verify=verify, allowed_sans=sans, min_version=lowest, max_version=highest, ciphers=ciphers)


def _clients(part: _Part, authority: str) -> tuple[str, tuple[str, ...]]:
    """How certificates of clients are verified, and which names they must have."""
    kind = part.one_of("client_auth_type", tuple(VERIFY), "NoClientCert")
    verify, sans = VERIFY[kind], part.texts("client_allowed_sans")
    if verify != "none" and not authority:
        part.blame("client_auth_type", f"{kind} requires client_ca_file")
    if verify == "none" and authority:
        part.blame("client_ca_file", "has no effect without client_auth_type: RequireAndVerifyClientCert")
    if sans and verify != "required":
        part.blame("client_allowed_sans", "requires client_auth_type: RequireAndVerifyClientCert")
    return verify, sans


def _users(part: _Part) -> tuple[tuple[str, str], ...]:
    for name in part.values:
        secret = part.text(name)
        if not _BCRYPT.fullmatch(secret):
            part.blame(name[:60], "must be a bcrypt hash of cost 4 to 18, for example from `htpasswd -nBC 10 NAME`")
    return tuple((name, part.text(name)) for name in part.values)


def _headers(part: _Part) -> tuple[tuple[str, str], ...]:
    part.only("http2", "headers")
    if not isinstance(part.values.get("http2", True), bool):
        part.blame("http2", "must be true or false")
    headers = _Part(part.values.get("headers"), "http_server_config.headers", part.wrong)
    headers.only(*HEADERS)
    found = []
    for name, allowed in HEADERS.items():
        value = headers.text(name)
        if not value:
            continue
        if not value.isprintable() or not value.isascii():
            headers.blame(name, "must be printable ASCII")
        elif allowed and value.lower() not in allowed:
            headers.blame(name, f"{value!r} is not one of {', '.join(allowed)}")
        else:
            found.append((name, value))
    return tuple(found)


def _interval(part: _Part) -> float:
    part.only("interval", "burst")
    text = part.text("interval", "0s") or "0s"
    pieces = _DURATION.findall(text)
    if text != "0" and "".join(number + unit for number, unit in pieces) != text:
        part.blame("interval", f"{text[:40]!r} is not a duration such as 1s or 500ms")
    seconds: Callable[[tuple[str, str]], float] = lambda piece: float(piece[0]) * _SECONDS[piece[1]]  # noqa: E731
    return sum(map(seconds, pieces))


def _burst(part: _Part) -> int:
    value = part.values.get("burst", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        part.blame("burst", "must be a number of requests, 0 or more")
        return 0
    return value
