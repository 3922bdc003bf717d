# SPDX-License-Identifier: Apache-2.0
"""
TLS, certificates and passwords as a scraper meets them, and a file that changes while we run.
"""

from __future__ import annotations

import base64
import http.client
import shutil
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import bcrypt
import pytest
from support.waiting import PATIENCE_SECONDS, until

from exporter.http import passwords
from exporter.http.authenticator import Authenticator
from exporter.http.pages import MetricsPage
from exporter.http.server import MetricsServer
from exporter.http.webconfig import WebConfigError
from exporter.http.webfile import WebFile
from isolation.host.bounded_connections import ConnectionLimits

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt-get install openssl")
RIGHT = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


class Pages:
    """One line."""

    def page(self, _form=None):
        """Always the same."""
        return MetricsPage(b"x 1\n", "text/plain")

    made = page


def openssl(*words):
    """Run it."""
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=PATIENCE_SECONDS)


def certificate(folder, name, san, authority=None):
    """A key and a certificate for a name, signed by an authority or by itself."""
    key, request, made = folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.crt"
    subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName={san}")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key)
    if authority is None:
        openssl("req", "-x509", *curve, "-days", 2, *subject, "-out", made)
        return made
    openssl("req", "-new", *curve, *subject, "-out", request)
    signed = ("-CA", folder / f"{authority}.crt", "-CAkey", folder / f"{authority}.key", "-CAcreateserial")
    openssl("x509", "-req", "-in", request, *signed, "-copy_extensions", "copy", "-days", 2, "-out", made)
    return made


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A certificate of the server and one of an authority with two clients."""
    folder = tmp_path_factory.mktemp("keys")
    certificate(folder, "server", "IP:127.0.0.1")
    certificate(folder, "other", "IP:127.0.0.1")
    certificate(folder, "authority", "DNS:authority")
    certificate(folder, "prometheus", "DNS:prometheus.monitoring", "authority")
    certificate(folder, "stranger", "DNS:stranger", "authority")
    return folder


def configured(folder, text):
    """A authenticator by a file with this text."""
    path = folder / "web.yml"
    path.write_text(text)
    file = WebFile(path)
    return Authenticator(file.config, file.changed)


def get(port, path="/metrics", *, context=None, word=None, user="alice"):
    """Status, body and fields; over TLS where a context is given."""
    maker = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    client = maker("127.0.0.1", port, timeout=PATIENCE_SECONDS, **({} if context is None else {"context": context}))
    fields = {}
    if word is not None:
        fields["Authorization"] = "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()
    try:
        client.request("GET", path, headers=fields)
        answer = client.getresponse()
        return answer.status, answer.read(), dict(answer.headers)
    finally:
        client.close()


def trusting(keys, name="server", client=None):
    """A client's context that trusts one certificate and may have its own."""
    context = ssl.create_default_context(cafile=str(keys / f"{name}.crt"))
    if client:
        context.load_cert_chain(keys / f"{client}.crt", keys / f"{client}.key")
    return context


def server_keys(keys, *more):
    """The TLS part of a file."""
    lines = (f"cert_file: {keys}/server.crt", f"key_file: {keys}/server.key", *more)
    return "tls_server_config:\n" + "".join(f"  {line}\n" for line in lines)


def test_tls(tmp_path, keys):
    """Scraped over TLS 1.2 and 1.3; older versions and plain text are not answered; fields are added."""
    headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    authenticator = configured(tmp_path, server_keys(keys) + headers)
    with MetricsServer(Pages(), 0, authenticator=authenticator) as served:
        assert served.url.startswith("https://127.0.0.1:")
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = trusting(keys)
            context.minimum_version = context.maximum_version = version
            status, body, fields = get(served.port, context=context)
            assert (200, b"x 1\n", "deny") == (status, body, fields["X-Frame-Options"])
        with pytest.raises((OSError, http.client.HTTPException)):
            get(served.port)


def test_min_version(tmp_path, keys):
    """TLS 1.2 is not spoken where 1.3 is asked for."""
    with MetricsServer(
        Pages(), 0, authenticator=configured(tmp_path, server_keys(keys, "min_version: TLS13"))
    ) as served:
        context = trusting(keys)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            get(served.port, context=context)
        assert 200 == get(served.port, context=trusting(keys))[0]


def test_certificates_of_clients(tmp_path, keys):
    """Only who shows a certificate of the authority with an allowed name."""
    more = (
        "client_auth_type: RequireAndVerifyClientCert",
        f"client_ca_file: {keys}/authority.crt",
        "client_allowed_sans: [prometheus.monitoring]",
    )
    with MetricsServer(Pages(), 0, authenticator=configured(tmp_path, server_keys(keys, *more))) as served:
        assert 200 == get(served.port, context=trusting(keys, client="prometheus"))[0]
        for client in (None, "server", "stranger"):
            with pytest.raises((OSError, http.client.HTTPException)):
                get(served.port, context=trusting(keys, client=client))
        assert 200 == get(served.port, context=trusting(keys, client="prometheus"))[0]


def test_keys_inside_the_file(tmp_path, keys):
    """Certificate and key may stand in the file itself."""

    def block(name):
        return "".join(f"    {line}\n" for line in (keys / name).read_text().splitlines())

    text = "tls_server_config:\n  cert: |\n" + block("server.crt") + "  key: |\n" + block("server.key")
    with MetricsServer(Pages(), 0, authenticator=configured(tmp_path, text)) as served:
        assert 200 == get(served.port, context=trusting(keys))[0]


def test_a_silent_handshake_keeps_nobody_waiting(tmp_path, keys):
    """Clients that connect and never begin, or begin with noise, do not hold up a scrape."""
    authenticator, limits = configured(tmp_path, server_keys(keys)), ConnectionLimits(request_seconds=3600.0)
    with MetricsServer(Pages(), 0, authenticator=authenticator, limits=limits) as served:
        silent = [http.client.HTTPConnection("127.0.0.1", served.port) for _ in range(20)]
        for one in silent:
            one.connect()
            one.sock.sendall(b"\x16\x03")
        assert 200 == get(served.port, context=trusting(keys))[0]
        assert served.connections >= 20
        for one in silent:
            one.close()


def test_a_renewed_certificate_is_taken_without_a_restart(tmp_path, keys):
    """Renewed in place, or behind a link as a mounted Secret is."""
    for name in ("crt", "key"):
        (tmp_path / f"tls.{name}").symlink_to(keys / f"server.{name}")
    text = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"
    with MetricsServer(Pages(), 0, authenticator=configured(tmp_path, text)) as served:
        assert 200 == get(served.port, context=trusting(keys))[0]
        for name in ("crt", "key"):
            (tmp_path / f"next.{name}").symlink_to(keys / f"other.{name}")
            (tmp_path / f"next.{name}").replace(tmp_path / f"tls.{name}")

        def renewed():
            try:
                return get(served.port, context=trusting(keys, "other"))[0] == 200
            except ssl.SSLError:
                return False

        assert until(renewed)


def test_a_broken_file_leaves_the_last_good_one_in_force(tmp_path, keys, caplog):
    """Half a certificate on its way to the disk ends no scrape, is told once, and the next whole one is taken."""
    for name in ("crt", "key"):
        shutil.copy(keys / f"server.{name}", tmp_path / f"tls.{name}")
    authenticator = configured(tmp_path, "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n")
    with MetricsServer(Pages(), 0, authenticator=authenticator) as served:
        (tmp_path / "tls.crt").write_text("half")
        context = trusting(keys)
        assert until(lambda: get(served.port, context=context)[0] == 200 and "keeping the previous one" in caplog.text)
        time.sleep(1.2)
        assert 200 == get(served.port, context=context)[0]
        assert 1 == caplog.text.count("keeping the previous one")
        assert "tls.crt" in caplog.text


def test_passwords(tmp_path):
    """401 without and with a wrong one, with the right one in; whether the process lives anybody may ask."""
    authenticator = configured(tmp_path, f"basic_auth_users:\n  alice: {RIGHT}\n")
    with MetricsServer(Pages(), 0, authenticator=authenticator) as served:
        status, _, fields = get(served.port)
        assert (401, 'Basic realm="gpushare"') == (status, fields["WWW-Authenticate"])
        assert 401 == get(served.port, word="wrong")[0]
        assert 401 == get(served.port, word="secret", user="bob")[0]
        assert 401 == get(served.port, word="secret", user="")[0]
        assert 401 == get(served.port, word="s" * 100)[0]
        assert 401 == get(served.port, word="secret\0")[0]
        assert 200 == get(served.port, word="secret")[0]
        assert 401 == get(served.port, "/breaches")[0]
        assert [200, 200] == [get(served.port, path)[0] for path in ("/healthz", "/readyz")]


def test_a_password_is_checked_once(tmp_path, monkeypatch):
    """The second scrape does not pay for the hash; nor does a wrong one that is repeated."""
    check, checked = bcrypt.checkpw, []
    monkeypatch.setattr(bcrypt, "checkpw", lambda word, hashed: checked.append(word) or check(word, hashed))
    authenticator = configured(tmp_path, f"basic_auth_users:\n  alice: {RIGHT}\n")
    with MetricsServer(Pages(), 0, authenticator=authenticator) as served:
        for word, status in (("secret", 200), ("wrong", 401)):
            assert [status] * 5 == [get(served.port, word=word)[0] for _ in range(5)]

    assert [b"secret", b"wrong"] == checked


def test_guesses_do_not_disturb_a_scraper(tmp_path, monkeypatch):
    """
    One address checks one password at a time, so that guesses are refused at once while one is checked; a
    scraper whose password is known goes on as if nothing were the matter, and is not forgotten.
    """
    monkeypatch.setattr(passwords, "MAX_KNOWN", 4)
    check, hold = bcrypt.checkpw, threading.Event()
    authenticator = configured(tmp_path, f"basic_auth_users:\n  alice: {RIGHT}\n")
    with MetricsServer(Pages(), 0, authenticator=authenticator) as served:
        assert 200 == get(served.port, word="secret")[0]
        monkeypatch.setattr(bcrypt, "checkpw", lambda word, hashed: hold.wait() and check(word, hashed))
        with ThreadPoolExecutor(16) as pool:
            guesses = [pool.submit(get, served.port, word=f"guess-{n}") for n in range(64)]
            until(lambda: sum(guess.done() for guess in guesses) == 63)
            during = [get(served.port, word="secret")[0] for _ in range(20)]
            hold.set()
            found = [guess.result()[0] for guess in guesses]
        assert [401] * 8 == [get(served.port, word=f"later-{n}")[0] for n in range(8)]
        monkeypatch.undo()
        assert 200 == get(served.port, word="secret")[0]

    assert [200] * 20 == during
    assert (1, 63) == (found.count(401), found.count(429))


def test_a_password_that_was_taken_away(tmp_path):
    """A changed file is in force within seconds, also for passwords that were known to be right."""
    authenticator = configured(tmp_path, f"basic_auth_users:\n  alice: {RIGHT}\n")
    with MetricsServer(Pages(), 0, authenticator=authenticator) as served:
        assert 200 == get(served.port, word="secret")[0]
        other = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
        (tmp_path / "web.yml").write_text(f"basic_auth_users:\n  alice: {other}\n")
        assert until(lambda: get(served.port, word="secret")[0] == 401)
        assert 200 == get(served.port, word="other")[0]


def test_rate(tmp_path):
    """Past the burst 429, and as many as the interval allows."""
    with MetricsServer(
        Pages(), 0, authenticator=configured(tmp_path, "rate_limit:\n  interval: 1h\n  burst: 3\n")
    ) as served:
        assert [200, 200, 200, 429, 429] == [get(served.port)[0] for _ in range(5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_server_config: {cert_file: none.crt, key_file: none.key}", "No such file"),
        ("tls_server_config: {cert_file: web.yml, key_file: web.yml}", "cannot load"),
        ("unknown: 1", "unknown: unknown key"),
    ],
)
def test_a_file_that_cannot_be_used_at_the_start(tmp_path, text, message):
    """Its name and the reason, in one line."""
    with pytest.raises(WebConfigError, match=message) as caught:
        configured(tmp_path, text)

    assert str(tmp_path / "web.yml") in str(caught.value)


def test_a_key_that_belongs_to_another_certificate(tmp_path, keys):
    """Refused before it is served with."""
    text = f"tls_server_config:\n  cert_file: {keys}/server.crt\n  key_file: {keys}/other.key\n"
    with pytest.raises(WebConfigError, match="cannot load"):
        configured(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path):
    """Said by its path."""
    with pytest.raises(WebConfigError, match=r"gone\.yml: cannot read file: No such file"):
        WebFile(tmp_path / "gone.yml")
