"""
HTTP as far as a scrape needs it, and no further: what is understood, and with which words the rest is refused.
"""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.message import MOST_HEAD_BYTES, Answer, BadRequest, Request, split, write

GET = b"GET /metrics?name=x HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\naccept: */*;q=0.1\r\n\r\n"


def test_a_request():
    """Method, path without its query, fields by lower-case name with repeated ones joined."""
    request, taken = split(GET + b"GET")

    assert len(GET) == taken
    assert ("GET", "/metrics", True) == (request.method, request.path, request.keeps)
    assert {"host": "a", "accept": "text/plain, */*;q=0.1"} == dict(request.fields)


@given(st.integers(0, len(GET) - 1))
def test_an_unfinished_request_is_waited_for(cut):
    """Wherever it is cut."""
    assert split(GET[:cut]) is None


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n", False),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_who_keeps_the_connection(head, keeps):
    """HTTP/1.1 does unless told otherwise, 1.0 the other way round."""
    assert keeps is split(head + b"\r\n")[0].keeps


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"G\0T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: yes\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /" + b"a" * 5000, 414),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 70 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * MOST_HEAD_BYTES, 431),
    ],
)
def test_refused(raw, status):
    """Whatever is malformed, ambiguous, larger than needed, or has a body, by the status that says so."""
    with pytest.raises(BadRequest) as caught:
        split(raw)

    assert status == caught.value.status


def test_forms_of_a_target():
    """A proxy's whole address, percent signs, empty lines before the request."""
    head = b" HTTP/1.1\r\nHost: a\r\n\r\n"

    assert ["/metrics", "/metrics", "/"] == [
        split(raw + head)[0].path for raw in (b"GET http://a:1/metrics?x", b"\r\n\r\nGET /%6detrics#x", b"GET /")
    ]


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: GET[:-4] + tail + b"\r\n\r\n"))
def test_any_bytes_have_an_answer(raw):
    """A request, a refusal, or not whole yet; nothing else."""
    try:
        found = split(raw)
    except BadRequest:
        return
    assert found is None or (isinstance(found[0], Request) and 0 < found[1] <= len(raw))


def test_an_answer():
    """Length and type always; the body but for HEAD; fields as given; the end of the connection where it ends."""
    answer = Answer(HTTPStatus.OK, b"x 1\n", "text/plain", (("Vary", "Accept"),))

    (whole,) = write(answer)
    assert b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nVary: Accept\r\n\r\nx 1\n" == whole
    assert (whole[:-4],) == write(answer, body=False)
    assert b"\r\nConnection: close\r\n" in write(answer, keeps=False)[0]


def test_a_large_body_is_not_copied():
    """It is the very page that others get, too."""
    body = b"x" * 100_000
    head, sent = write(Answer(HTTPStatus.OK, body))

    assert body is sent
    assert head.endswith(b"\r\nContent-Length: 100000\r\n\r\n")
