# SPDX-License-Identifier: Apache-2.0
"""Whom a forwarded request comes from, and who may say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.apis.metrics.front_proxy import FrontProxyTrust, TrustError, parse_trust, parse_user

SAMPLES = Path(__file__).resolve().parents[4].parent / "shared" / "samples"
PEM = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
PROXY = {"subject": ((("organizationName", "x"),), (("commonName", "front-proxy-client"),))}


def config_map(**data):
    """As kube-apiserver writes it."""
    return {
        "data": {"requestheader-client-ca-file": PEM} | {key.replace("_", "-"): value for key, value in data.items()}
    }


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded payloads (../shared/samples) are not here")
def test_the_recorded_user_is_read_whole():
    """
    Several group headers, a percent-encoded key of extra, the UID; authenticated as Kubernetes' own servers add it.
    """
    name = "metrics-hpa-apis-external.metrics.k8s.io-v1beta1-namespaces-default-gpu_mem_util.json"
    user = parse_user(FrontProxyTrust(PEM), json.loads((SAMPLES / name).read_text())["headers"])
    assert "system:serviceaccount:kube-system:horizontal-pod-autoscaler" == user.name
    assert ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated") == user.groups
    assert "e1caadd0-990c-4c93-a1e1-0562c9264868" == user.uid
    assert (
        ("authentication.kubernetes.io/credential-id", ("JTI=c6f29cdd-68e3-4c39-9a7a-d15627034848",)),
    ) == user.extra


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([("X-Remote-User", "")], None),
        ([("x-remote-user", "eve")], ("eve", ("system:authenticated",))),
        ([("X-Remote-User", "system:anonymous")], ("system:anonymous", ())),
        ([("X-Remote-Group", "system:masters")], None),
        ([("X-Remote-User", "a")] + [("X-Remote-Group", f"g{i}") for i in range(600)], None),
        ([("X-Remote-User", "a")] + [(f"X-Remote-Extra-{i}", "v") for i in range(100)], None),
    ],
    ids=["nothing", "empty", "lower case", "anonymous", "group alone", "600 groups", "100 extras"],
)
def test_headers_name_a_user_or_nobody(headers, expected):
    """
    A user with more groups than can be checked is nobody: leaving some out would be another user.
    """
    user = parse_user(FrontProxyTrust(PEM), headers)
    assert expected == (user and (user.name, user.groups))


@pytest.mark.parametrize(
    ("names", "certificate", "expected"),
    [
        (("front-proxy-client",), PROXY, True),
        (("aggregator",), PROXY, False),
        ((), PROXY, True),
        ((), None, False),
        ((), {}, False),
        (("x",), PROXY, False),
        (("front-proxy-client",), {"subject": None}, False),
    ],
)
def test_a_certificate_vouches_by_its_common_name(names, certificate, expected):
    """
    Any that the authority has signed where no names are given; an organisation of that name is none.
    """
    assert expected is FrontProxyTrust(PEM, frozenset(names)).allows(certificate)


def test_the_cluster_says_whom_to_trust_and_in_which_headers():
    """
    As written; what is left out has Kubernetes' usual names.
    """
    found = parse_trust(
        config_map(requestheader_allowed_names='["a","b"]', requestheader_username_headers='["X-User"]')
    )
    assert FrontProxyTrust(PEM, frozenset(("a", "b")), user=("X-User",)) == found


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {},
        {"data": None},
        {"data": {"client-ca-file": PEM}},
        {"data": {"requestheader-client-ca-file": ["x"]}},
        config_map(requestheader_allowed_names="front-proxy-client"),
        config_map(requestheader_allowed_names='{"a":1}'),
        config_map(requestheader_allowed_names="[1]"),
        config_map(requestheader_allowed_names=7),
        config_map(requestheader_allowed_names="[" * 100_000),
        config_map(requestheader_username_headers="[null]"),
    ],
    ids=range(12),
)
def test_a_cluster_that_names_nobody_is_refused(found):
    """
    A list of names that cannot be read must not become "any name".
    """
    with pytest.raises(TrustError):
        parse_trust(found)


@given(st.lists(st.tuples(st.sampled_from(["X-Remote-User", "X-Remote-Group", "X-Remote-Extra-%zz"]), st.text())))
def test_any_headers_are_a_user_or_nobody(headers):
    """
    Whatever they say.
    """
    user = parse_user(FrontProxyTrust(PEM), headers)
    assert user is None or user.name
