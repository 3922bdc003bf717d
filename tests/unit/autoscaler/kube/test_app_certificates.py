# SPDX-License-Identifier: Apache-2.0
"""Until when the autoscaler's certificates are valid, as its metrics tell: of the pair that a port would take."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from cryptography import x509
from e2e.certificates import Authority

from autoscaler.kube.options import Address, Grpc, MetricsApi, Options
from autoscaler.kube.telemetry.process import Certificates
from isolation.contract.metrics.autoscaler import CERTIFICATE_EXPIRY
from isolation.host.reloading_tls import CertificateFiles

HERE = Address("127.0.0.1", 0)


def page_of(certificates):
    """By port."""
    return {door: end for (door,), end in certificates()[CERTIFICATE_EXPIRY].items()}


def end_of(path):
    """Of the first certificate of a file, as somebody else reads it."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()


def write(path, text):
    """With a time that differs."""
    path.write_bytes(text)
    os.utime(path, ns=(time.time_ns(), time.time_ns()))


def test_the_end_is_that_of_the_pair_in_force(tmp_path):
    """
    Half a pair changes nothing, a whole one does; a port whose files were never a pair tells nothing.
    """
    one, two = (Authority(tmp_path, name).issue(f"{name}-server", hosts=("a",)) for name in ("x", "y"))
    of = Certificates(
        {
            "grpc": CertificateFiles(one.certificate, one.key),
            "metrics_api": CertificateFiles(tmp_path / "none", one.key),
        }
    )
    first = end_of(one.certificate)
    assert {"grpc": first} == page_of(of)

    whole = one.certificate.read_bytes()
    write(one.certificate, two.certificate.read_bytes())
    assert {"grpc": first} == page_of(of)
    one.certificate.unlink()
    assert {"grpc": first} == page_of(of)

    authority = tmp_path / "x.crt"
    write(one.certificate, whole + authority.read_bytes())
    assert {"grpc": min(first, end_of(authority))} == page_of(of)


FILES = (Path("c"), Path("k"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(), set()),
        (Options(grpc=Grpc(listen=HERE)), set()),
        (Options(grpc=Grpc(None, None, *FILES)), set()),
        (Options(grpc=Grpc(HERE, None, *FILES)), {"grpc"}),
        (Options(grpc=Grpc(None, HERE, *FILES)), {"grpc"}),
        (Options(metrics_api=MetricsApi((), HERE, *FILES)), set()),
        (Options(metrics_api=MetricsApi(("custom",), HERE, *FILES)), {"metrics_api"}),
    ],
    ids=["none", "grpc without TLS", "nothing listens", "grpc", "expander", "no group", "metrics API"],
)
def test_only_ports_that_are_served_are_told_of(options, expected):
    """
    By the options.
    """
    assert expected == set(options.certificates())
