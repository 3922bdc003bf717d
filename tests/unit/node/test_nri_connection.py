# SPDX-License-Identifier: Apache-2.0
"""The connection with the container runtime, byte by byte: cut anywhere, mixed, hostile, and never too large."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract import nri_api as api
from isolation.node.nri.connection import Answer, Call, ClosedError, RuntimeConnection

MUX, HEAD = struct.Struct(">II"), struct.Struct(">IIBB")
REQUEST, RESPONSE = 1, 2


@contextmanager
def pair():
    """A connection, and the runtime's end of its socket."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    with ours, theirs:
        yield RuntimeConnection(ours), theirs


def frame(stream, data):
    """Of the multiplexer."""
    return MUX.pack(stream, len(data)) + data


def ttrpc(number, kind, message):
    """One message."""
    payload = message.SerializeToString()
    return HEAD.pack(len(payload), number, kind, 0) + payload


def call(number, method, payload=b""):
    """The runtime asks."""
    return ttrpc(number, REQUEST, api.Request(service=api.PLUGIN, method=method, payload=payload))


class Sent(bytearray):
    """A socket to which everything can be written at once."""

    sendall = bytearray.extend


def framed(data):
    """The payload of each frame with its stream."""
    found = []
    while data:
        stream, length = MUX.unpack_from(data)
        found.append((stream, data[MUX.size : MUX.size + length]))
        data = data[MUX.size + length :]
    return found


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), min_size=1, max_size=6), st.randoms())
def test_messages_cut_and_mixed_anywhere_arrive_whole_and_in_order(messages, random):
    """Two streams on one socket, each cut into frames of any size, the bytes cut again by the socket."""
    queues, expected = {1: b"", 2: b""}, {1: [], 2: []}
    for number, (size, ours) in enumerate(messages):
        if ours:
            queues[2] += ttrpc(number, RESPONSE, api.Response(status={"code": 2, "message": "x" * size}))
            expected[2].append(Answer(2, "x" * size))
        else:
            queues[1] += call(number, "Configure", b"y" * size)
            expected[1].append(Call(number, "Configure", b"y" * size))
    raw = b""
    while any(queues.values()):
        stream = random.choice([one for one in queues if queues[one]])
        size = random.randint(1, 2000)
        raw += frame(stream, queues[stream][:size])
        queues[stream] = queues[stream][size:]
    found = {1: [], 2: []}
    pieces = []
    while raw:
        size = random.randint(1, 3000)
        pieces.append(raw[:size])
        raw = raw[size:]
    with pair() as (connection, theirs), ThreadPoolExecutor(1) as sender:  # a socket holds few small pieces
        sender.submit(lambda: [theirs.sendall(piece) for piece in pieces])
        for _ in messages:
            one = connection.receive()
            found[1 if isinstance(one, Call) else 2].append(one)
    assert expected == found


@pytest.mark.parametrize("size", [0, 1, 4000, 4078, 4079, 4088, 4089, 200_000, 1_000_000])
def test_what_is_written_is_in_frames_of_at_most_4096_bytes_and_whole(size):
    """A larger frame makes the runtime drop the plugin, and start containers as they are."""
    sent = Sent()
    RuntimeConnection(sent).refuse(Call(7, "CreateContainer", b""), "e" * size)
    frames = framed(bytes(sent))
    assert {1} == {stream for stream, _ in frames}
    assert max(len(data) for _, data in frames) + MUX.size <= 4096
    data = b"".join(data for _, data in frames)
    length, number, kind, flags = HEAD.unpack_from(data)
    assert (len(data) - HEAD.size, 7, RESPONSE, 0) == (length, number, kind, flags)
    answer = api.Response.FromString(data[HEAD.size :])
    assert (9, "e" * size) == (answer.status.code, answer.status.message)


def test_a_question_of_ours_is_a_request_on_the_runtimes_stream():
    with pair() as (connection, theirs):
        connection.ask("RegisterPlugin", api.RegisterPluginRequest(plugin_name="n", plugin_idx="90"))
        [(stream, data)] = framed(theirs.recv(1 << 16))
        assert (2, 1, REQUEST) == (stream, *HEAD.unpack_from(data)[1:3])
        request = api.Request.FromString(data[HEAD.size :])
        assert ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin") == (request.service, request.method)
        assert "90" == api.RegisterPluginRequest.FromString(request.payload).plugin_idx

        theirs.sendall(frame(2, ttrpc(1, RESPONSE, api.Response())))
        assert Answer(0, "") == connection.receive()


def test_an_answer_that_is_fine_has_no_status_and_goes_to_its_call():
    with pair() as (connection, theirs):
        connection.answer(Call(4711, "Synchronize", b""), api.SynchronizeResponse(more=True))
        [(stream, data)] = framed(theirs.recv(1 << 16))
    answer = api.Response.FromString(data[HEAD.size :])
    assert (1, 4711, False) == (stream, HEAD.unpack_from(data)[1], answer.HasField("status"))
    assert api.SynchronizeResponse.FromString(answer.payload).more


def test_silence_is_a_timeout_after_which_the_rest_of_a_message_counts():
    whole = frame(1, call(3, "StateChange"))
    with pair() as (connection, theirs):
        connection._socket.settimeout(0.02)
        theirs.sendall(whole[:9])
        with pytest.raises(TimeoutError):
            connection.receive()
        theirs.sendall(whole[9:])
        assert Call(3, "StateChange", b"") == connection.receive()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (frame(3, b"x"), "does not speak NRI"),
        (frame(0, b""), "does not speak NRI"),
        (b"HTTP/1.1 400 Bad Request", "does not speak NRI"),
        (MUX.pack(1, (4 << 20) + HEAD.size + 1), "does not speak NRI"),
        (frame(1, HEAD.pack((4 << 20) + 1, 1, REQUEST, 0)), "a message of 4194305 bytes"),
        (frame(1, HEAD.pack(2, 1, REQUEST, 0) + b"\x0a\xff"), "not ttrpc"),
        (frame(2, HEAD.pack(2, 1, RESPONSE, 0) + b"\x0a\xff"), "not ttrpc"),
    ],
)
def test_garbage_ends_the_connection_with_a_word_about_it(raw, said):
    with pair() as (connection, theirs):
        theirs.sendall(raw)
        with pytest.raises(ClosedError, match=said):
            connection.receive()


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_the_end(data):
    """Nothing else comes of them: whoever reads is the only reader, and must not die of what it reads."""
    with pair() as (connection, theirs):
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ClosedError):
            list(iter(connection.receive, None))


def test_an_unknown_kind_of_message_is_passed_over():
    """Streams of ttrpc (kind 3) are not used by NRI; a later runtime's are not ours to answer."""
    with pair() as (connection, theirs):
        theirs.sendall(frame(1, HEAD.pack(3, 1, 3, 0) + b"abc" + call(5, "Shutdown")))
        assert Call(5, "Shutdown", b"") == connection.receive()


def test_a_runtime_that_went_is_the_end_for_readers_and_writers():
    with pair() as (connection, theirs):
        theirs.sendall(frame(1, call(3, "Configure"))[:-1])
        theirs.close()
        with pytest.raises(ClosedError, match="closed the connection"):
            connection.receive()
        with pytest.raises(ClosedError, match="Broken pipe"):
            connection.answer(Call(3, "Configure", b""), api.Empty())
