# SPDX-License-Identifier: Apache-2.0
"""
The certificates of a control plane for tests: one authority for servers and users, one for the front proxy.

Keys are elliptic curves, made in milliseconds; nothing here outlives the tests.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


def new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A key that only we can read."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return key


class Authority:
    """Signs for one day."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.certificate = folder / f"{name}.crt"
        self._key = new_key(folder / f"{name}.key")
        self._name = _subject(name, ())
        basic = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(self._name, self._name, self._key).add_extension(basic, critical=True)
        builder = builder.add_extension(usage, critical=True)
        _write(builder.sign(self._key, hashes.SHA256()), self.certificate)

    def issue(self, name: str, *, groups: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> Pair:
        """A certificate for a user in groups, or for a server with these names."""
        file = "-".join((name, *groups)).replace(":", "-").replace("/", "-")
        pair = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        key = new_key(pair.key)
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _builder(_subject(name, groups), self._name, key, self._key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(h) for h in hosts]), critical=False)
        _write(builder.sign(self._key, hashes.SHA256()), pair.certificate)
        return pair


def _builder(subject, issuer, key, authority=None):
    now = dt.datetime.now(dt.UTC)
    public, signer = key.public_key(), (authority or key).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _subject(name: str, groups: tuple[str, ...]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(certificate: x509.Certificate, path: Path) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
