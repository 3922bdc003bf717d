# SPDX-License-Identifier: Apache-2.0
"""
The web configuration file of the exporter-toolkit: what it may say, and how its mistakes are reported.
"""

from __future__ import annotations

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.http.webconfig import Tls, WebConfig, WebConfigError, load

SALT = b"$2b$04$abcdefghijklmnopqrstuu"
HASH = bcrypt.hashpw(b"secret", SALT).decode()
"""Always the same one: it stands in the names of tests, which every worker must see alike."""


def test_an_empty_file_asks_for_nothing():
    """Neither TLS nor passwords."""
    assert WebConfig() == load("")


def test_everything_that_it_can_say():
    """The whole format, as its documentation spells it."""
    found = load(f"""
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  client_allowed_sans: [prometheus.monitoring]
  min_version: TLS13
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: true
http_server_config:
  http2: true
  headers:
    X-Frame-Options: deny
    Strict-Transport-Security: max-age=31536000
basic_auth_users:
  alice: {HASH}
rate_limit:
  interval: 1m500ms
  burst: 20
""")

    tls = Tls(
        cert_file="server.crt",
        key_file="server.key",
        client_ca_file="ca.crt",
        verify="required",
        allowed_sans=("prometheus.monitoring",),
        min_version="TLS13",
        max_version="TLS13",
        ciphers=("ECDHE-RSA-AES128-GCM-SHA256",),
    )
    headers = (("X-Frame-Options", "deny"), ("Strict-Transport-Security", "max-age=31536000"))
    assert WebConfig(tls, (("alice", HASH),), headers, 60.5, 20) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "invalid YAML"),
        ("[]", "the file must be a mapping"),
        ("tls: {}", "tls: unknown key"),
        ("tls_server_config: 3", "tls_server_config must be a mapping"),
        ("tls_server_config: {key_file: k}", "set exactly one of cert_file and cert"),
        ("tls_server_config: {cert_file: c, cert: x, key_file: k}", "set exactly one of cert_file and cert"),
        ("tls_server_config: {cert_file: c, key_file: 3}", "key_file: must be a string"),
        ("tls_server_config: {cert_file: c, key_file: k, client_ca: a}", "has no effect without"),
        (
            "tls_server_config: {cert_file: c, key_file: k, client_auth_type: RequireAnyClientCert}",
            "is not one of NoClient",
        ),
        (
            "tls_server_config: {cert_file: c, key_file: k, client_auth_type: RequireAndVerifyClientCert}",
            "requires client_ca_file",
        ),
        ("tls_server_config: {cert_file: c, key_file: k, client_allowed_sans: [a]}", "requires client_auth_type"),
        ("tls_server_config: {cert_file: c, key_file: k, min_version: TLS14}", "'TLS14' is not one of TLS10"),
        ("tls_server_config: {cert_file: c, key_file: k, min_version: TLS13, max_version: TLS12}", "is above"),
        ("tls_server_config: {cert_file: c, key_file: k, cipher_suites: [RC4]}", "RC4 is not one of"),
        ("tls_server_config: {cert_file: c, key_file: k, curve_preferences: [X25519]}", "not supported"),
        ("tls_server_config: {cert_file: c, key_file: k, clientca: x}", "clientca: unknown key"),
        ("basic_auth_users: {alice: secret}", "alice: must be a bcrypt hash"),
        ("basic_auth_users: {alice: 3}", "alice: must be a"),
        (f"basic_auth_users: {{alice: {HASH.replace('$04$', '$31$')}}}", "cost 4 to 18"),
        ("http_server_config: {headers: {X-Other: a}}", "X-Other: unknown key"),
        ("http_server_config: {headers: {X-Frame-Options: always}}", "'always' is not one of deny, sameorigin"),
        ('http_server_config: {headers: {Content-Security-Policy: "a\\r\\nSet-Cookie: b"}}', "must be printable ASCII"),
        ("http_server_config: {http2: 3}", "http2: must be true or false"),
        ("rate_limit: {interval: soon}", "'soon' is not a duration"),
        ("rate_limit: {interval: 1s, burst: -1}", "burst: must be a number"),
        ("x" * (1 << 21), "more than 1048576 characters"),
    ],
)
def test_mistakes(text, message):
    """Each by its place and in its own words."""
    with pytest.raises(WebConfigError) as caught:
        load(text)

    assert message in str(caught.value)


def test_every_mistake_at_once():
    """Nobody wants to be told one per restart."""
    with pytest.raises(WebConfigError, match=r"cert_file.*key_file.*alice.*bad"):
        load("{tls_server_config: {min_version: TLS12}, basic_auth_users: {alice: x}, bad: 1}")


@given(st.text(max_size=100) | st.text(alphabet="tls_server_config: {}[]&*!#\n -", max_size=60))
def test_any_text_is_a_configuration_or_a_clear_mistake(text):
    """Whatever stands in the file."""
    try:
        found = load(text)
    except WebConfigError:
        return
    assert isinstance(found, WebConfig)
