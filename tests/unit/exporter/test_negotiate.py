# SPDX-License-Identifier: Apache-2.0
"""
What a scraper can take, as RFC 9110 and real scrapers say it.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.http import negotiate

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;"
    "version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
CLASSIC = "text/plain;version=0.0.4;q=1,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/*", False),
        ("application/json", False),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        (CLASSIC, False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; Version=1.0.0", True),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.5", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0,*/*", False),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.8", False),
        ("text/plain,application/openmetrics-text", False),
        ("application/openmetrics-text,text/plain", True),
        ("application/*;q=0.9,text/plain;q=0.1", True),
        ("application/openmetrics-text;q=high,text/plain;q=0.1", False),
        ("application/openmetrics-text;q=1.5", False),
        ("text/plain;q=0,*/*;q=0.5", True),
        (";;,,=,q", False),
    ],
)
def test_format(accept, expected):
    """The highest weight wins, the most specific range says the weight, q=0 excludes."""
    assert expected == negotiate.openmetrics(accept)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("gzip, deflate, br", True),
        ("deflate", False),
        ("*", True),
        ("*;q=0", None),
        ("gzip;q=0,*", False),
        ("identity;q=1,gzip;q=0.5", False),
        ("identity;q=0.5,gzip;q=1", True),
        ("identity,gzip", True),
        ("identity;q=0", None),
        ("identity;q=0,gzip;q=0.1", True),
        ("identity;q=0,*;q=0.3", True),
        ("*;q=0,gzip", True),
        ("*;q=0,identity;q=0.1", False),
        ("gzip;q=nan", False),
    ],
)
def test_compression(accept, expected):
    """Gzip where it is wanted as much as identity; None where a scraper leaves us no way at all."""
    assert expected is negotiate.gzip(accept)


@given(st.text(alphabet='gziptex/plan*;q=0.15, \t"\\é', max_size=80))
def test_any_header_has_an_answer(header):
    """Nonsense is passed over."""
    assert negotiate.openmetrics(header) in {True, False}
    assert negotiate.gzip(header) in {True, False, None}
