# SPDX-License-Identifier: Apache-2.0
"""Certificate files that are renewed: which content is used, and what the log says."""

from __future__ import annotations

import logging
import shutil
import ssl

import pytest
from cryptography.hazmat.primitives import serialization
from e2e.certificates import Authority

from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, TlsError, server_context


@pytest.fixture
def pair(tmp_path):
    """Files of one server."""
    return Authority(tmp_path, "ca").issue("server", hosts=("a",))


def issue_again(folder, pair):
    """Write a new certificate and key of the same server."""
    folder.mkdir()
    fresh = Authority(folder, "ca").issue("server", hosts=("a",))
    shutil.copy(fresh.certificate, pair.certificate)
    shutil.copy(fresh.key, pair.key)


def test_files_that_stay_broken_are_logged_once_and_the_previous_pair_stays(pair, tmp_path, caplog):
    """A port refreshes every second: one line for each broken state, not one for each second."""
    reloading = ReloadingTls(CertificateFiles(pair.certificate, pair.key), server_context, "test")
    before = reloading.current, reloading.end, reloading.loaded
    pair.key.write_text("half")
    with caplog.at_level(logging.INFO):
        assert [False] * 3 == [reloading.refresh() for _ in range(3)]
        assert before == (reloading.current, reloading.end, reloading.loaded)
        pair.key.write_text("half of something else")
        assert not reloading.refresh()
        issue_again(tmp_path / "new", pair)
        assert reloading.refresh()
    assert reloading.current is not before[0]
    assert ["WARNING", "WARNING", "INFO"] == [record.levelname for record in caplog.records]
    assert "reloaded test certificate" == caplog.records[-1].getMessage()


def test_without_a_name_nothing_is_logged(pair, tmp_path, caplog):
    """A second reader of the same files leaves the log to the first."""
    reloading = ReloadingTls(CertificateFiles(pair.certificate, pair.key), server_context)
    with caplog.at_level(logging.INFO):
        pair.key.write_text("half")
        assert not reloading.refresh()
        issue_again(tmp_path / "new", pair)
        assert reloading.refresh()
    assert [] == caplog.records


def test_a_pair_that_becomes_readable_without_a_change_is_taken(pair, tmp_path):
    """Permissions mended change neither content nor time."""
    failing = [True]

    def build(files):
        if failing[0]:
            raise PermissionError("denied")
        return server_context(files)

    failing[0] = False
    reloading = ReloadingTls(CertificateFiles(pair.certificate, pair.key), build)
    failing[0] = True
    issue_again(tmp_path / "new", pair)
    assert not reloading.refresh()
    failing[0] = False
    assert reloading.refresh()


def test_what_changes_while_it_is_read_is_not_taken(pair, tmp_path):
    """The certificate and key read may be of two generations."""
    change = []

    def build(files):
        for action in change:
            action()
        return server_context(files)

    reloading = ReloadingTls(CertificateFiles(pair.certificate, pair.key), build)
    before = reloading.current
    issue_again(tmp_path / "new", pair)
    change.append(lambda: issue_again(tmp_path / "newer", pair))
    assert not reloading.refresh()
    assert reloading.current is before
    change.clear()
    assert reloading.refresh()


def test_an_encrypted_key_is_an_error_and_no_question_on_the_terminal(pair):
    """With the files' names and what to do."""
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    pair.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret),
    )
    with pytest.raises(TlsError, match=r"server\.crt.*server\.key.*unencrypted"):
        ReloadingTls(CertificateFiles(pair.certificate, pair.key), server_context)


@pytest.mark.parametrize("client_ca", [True, False])
def test_a_ca_for_clients_demands_their_certificate(pair, tmp_path, client_ca):
    """And no session can be resumed under an older CA."""
    files = CertificateFiles(pair.certificate, pair.key, tmp_path / "ca.crt" if client_ca else None)
    context = server_context(files)
    assert (ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE) == context.verify_mode
    assert 0 == context.num_tickets
    assert ssl.TLSVersion.TLSv1_3 == context.minimum_version
