"""Time on a simulated card: slices, streams, events, graphs, and whose time it was."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.clock

MS = 1_000_000


def own_ms(box, client):
    """Milliseconds of the card that a client has had, by the books."""
    box.settle()
    return next(book.own_ns / MS for book in box.clients(0) if book.pid == client.process.pid)


def test_a_kernel_alone_takes_its_time(make_box, run):
    """
    Ten kernels of 3 ms between two events are 30 ms; with the 80 ms before them 110 ms of own time.
    """
    box = make_box()
    client = run(
        box,
        """
        start(); (busy,) = functions(b"busy"); a, b = event(), event()
        launch(busy, 80_000_000); do("cuEventRecord", a, None)
        for _ in range(10): launch(busy, 3_000_000)
        do("cuEventRecord", b, None); say(call("cuEventQuery", b)); do("cuEventSynchronize", b)
        say(round(elapsed(a, b), 2)); wait()
        """,
    )

    assert ["600", "30.0"] == [client.line(), client.line()]
    assert 110 == pytest.approx(own_ms(box, client), abs=0.1)


def test_two_processes_share_by_slices_and_events_see_the_neighbour(make_box, run):
    """
    Both always have 10 ms kernels queued and slices of 1 ms: each gets half, and each kernel's event
    time is about twice its own time.
    """
    box = make_box(slice_ns=MS, switch_ns=0)
    code = """
        start(); (busy,) = functions(b"busy"); say("up"); wait(); times, marks = [], [event() for _ in range(9)]
        launch(busy, 60_000_000)
        for mark in marks: do("cuEventRecord", mark, None); launch(busy, 10_000_000)
        do("cuCtxSynchronize"); times = [elapsed(*pair) for pair in zip(marks, marks[1:])]
        say(sorted(times)[len(times) // 2]); wait()
    """
    clients = [run(box, code) for _ in range(2)]
    [client.line() for client in clients]
    [client.tell() for client in clients]

    for client in clients:
        assert 20 == pytest.approx(float(client.line()), abs=2.1)
        assert 150 == pytest.approx(own_ms(box, client), abs=0.1)


def test_switching_costs_time_that_nobody_has(make_box, run):
    """
    With slices of 1 ms and switches of 1 ms two backlogged processes need twice their own time.
    """
    box = make_box(slice_ns=MS, switch_ns=MS)
    code = """
        import time
        start(); (busy,) = functions(b"busy"); say("up"); wait(); launch(busy, 60_000_000)
        a, b = event(), event(); do("cuEventRecord", a, None); launch(busy, 40_000_000); do("cuEventRecord", b, None)
        do("cuEventSynchronize", b); say(elapsed(a, b)); wait()
    """
    clients = [run(box, code) for _ in range(2)]
    [client.line() for client in clients]
    [client.tell() for client in clients]
    times = [float(client.line()) for client in clients]

    assert 160 == pytest.approx(min(times), rel=0.15)
    assert [100, 100] == pytest.approx([own_ms(box, client) for client in clients], abs=0.2)


@pytest.mark.parametrize(("kernel", "wall", "own"), [("half", 20, 20), ("busy", 40, 40)])
def test_streams_overlap_where_kernels_leave_room(make_box, run, kernel, wall, own):
    """
    Two kernels of 20 ms in two streams: of half width they run together, of full width they share;
    own time is the union either way. The 80 ms before them hide how slowly the host may queue.
    """
    box = make_box()
    client = run(
        box,
        f"""
        start(); (kernel,) = functions(b"{kernel}"); one, two = stream(), stream()
        a, b, e = event(), event(), event()
        launch(kernel, 80_000_000); do("cuEventRecord", a, one)
        launch(kernel, 20_000_000, one); launch(kernel, 20_000_000, two)
        do("cuEventRecord", e, two); do("cuStreamWaitEvent", one, e, 0); do("cuEventRecord", b, one)
        do("cuEventSynchronize", b); say(elapsed(a, b)); wait()
        """,
    )

    assert wall == pytest.approx(float(client.line()), abs=1)
    assert 80 + own == pytest.approx(own_ms(box, client), abs=1)


def test_the_default_stream_orders_blocking_streams(make_box, run):
    """
    stream, default, stream: one after the other, though each kernel is of half width.
    """
    client = run(
        make_box(),
        """
        start(); (half,) = functions(b"half"); s, t = stream(), stream(); a, b = event(), event()
        launch(half, 80_000_000, s); do("cuEventRecord", a, s); launch(half, 5_000_000, s); launch(half, 5_000_000)
        launch(half, 5_000_000, t)
        do("cuEventRecord", b, t); do("cuEventSynchronize", b); say(round(elapsed(a, b)))
        """,
    )

    assert "15" == client.end()


def test_a_launch_blocks_when_the_queue_is_full(make_box, run):
    """
    With room for four launches the tenth returns when the sixth is done, not before.
    """
    client = run(
        make_box(queue_depth=4),
        """
        import time
        start(); (busy,) = functions(b"busy"); begin = time.monotonic()
        for _ in range(10): launch(busy, 10_000_000)
        say(time.monotonic() - begin >= 0.06); do("cuCtxSynchronize"); say(time.monotonic() - begin >= 0.1)
        """,
    )

    assert "True\nTrue" == client.end()


def test_a_kernel_without_a_duration_takes_its_waves(make_box, run):
    """
    160 blocks of 1024 threads fill a V100 once: 320 blocks are two waves of 100 us.
    """
    client = run(
        make_box(),
        """
        start(); busy, wave = functions(b"busy", b"wave"); a, b = event(), event()
        launch(busy, 80_000_000); do("cuEventRecord", a, None); launch(wave, 0, None, 320)
        do("cuEventRecord", b, None); do("cuEventSynchronize", b); say(round(elapsed(a, b), 3))
        """,
    )

    assert "0.2" == client.end()


def test_graphs_take_their_critical_path_as_one_launch(make_box, run):
    """
    Captured from two streams, 3 ms before 5 ms beside 4 ms: a launch of the graph takes 8 ms.
    """
    box = make_box()
    client = run(
        box,
        """
        start(); (half,) = functions(b"half"); s, t = stream(1), stream(1)
        fork, join, graph, run = event(), event(), c_void_p(), c_void_p()
        do("cuStreamBeginCapture_v2", s, 0); launch(half, 3_000_000, s); do("cuEventRecord", fork, s)
        do("cuStreamWaitEvent", t, fork, 0); launch(half, 4_000_000, t); launch(half, 5_000_000, s)
        do("cuEventRecord", join, t); do("cuStreamWaitEvent", s, join, 0); do("cuStreamEndCapture", s, byref(graph))
        count = c_size_t(); do("cuGraphGetNodes", graph, None, byref(count)); say(count.value)
        do("cuGraphInstantiateWithFlags", byref(run), graph, c_uint64(0)); a, b = event(), event()
        launch(half, 80_000_000, s); do("cuEventRecord", a, s)
        for _ in range(3): do("cuGraphLaunch", run, s)
        do("cuEventRecord", b, s); do("cuStreamSynchronize", s); say(round(elapsed(a, b))); wait()
        """,
    )

    assert ["3", "24"] == [client.line(), client.line()]
    box.settle()
    assert 4 == box.clients(0)[0].launches


def test_graph_memory_is_taken_at_launch_and_given_back_by_trim(make_box, run):
    """
    A captured allocation and free: nothing before the launch, a granule after it, nothing after the trim.
    """
    box = make_box()
    client = run(
        box,
        """
        start(); s = stream(1); graph, run, p = c_void_p(), c_void_p(), c_uint64()
        do("cuStreamBeginCapture_v2", s, 0); do("cuMemAllocAsync", byref(p), c_size_t(MIB), s)
        do("cuMemFreeAsync", p, s)
        do("cuStreamEndCapture", s, byref(graph)); do("cuGraphInstantiateWithFlags", byref(run), graph, c_uint64(0))
        say("made"); wait(); do("cuGraphLaunch", run, s); do("cuStreamSynchronize", s); say("launched"); wait()
        do("cuDeviceGraphMemTrim", 0); say("trimmed"); wait()
        """,
    )
    seen = []
    for _ in range(3):
        word = client.line()
        seen.append((word, box.clients(0)[0].bytes[4] >> 20))
        client.tell()

    assert [("made", 0), ("launched", 32), ("trimmed", 0)] == seen


def test_host_functions_run_in_stream_order(make_box, run):
    """
    A host function runs after the kernel before it, and the stream waits for it.
    """
    client = run(
        make_box(),
        """
        import time
        start(); (busy,) = functions(b"busy"); seen, begin = [], time.monotonic()
        fn = c.CFUNCTYPE(None, c_void_p)(lambda _: (seen.append(time.monotonic() - begin), time.sleep(0.03)))
        launch(busy, 20_000_000); do("cuLaunchHostFunc", None, fn, None); do("cuCtxSynchronize")
        say(0.02 <= seen[0] < 0.06, time.monotonic() - begin >= 0.05)
        """,
    )

    assert "True True" == client.end()


def test_a_fault_stays_with_its_process(make_box, run):
    """
    After an illegal address everything in the process fails with it, an XID is reported, and the
    neighbour computes on.
    """
    box = make_box()
    bad = run(box, "start(); (bad,) = functions(b'bad'); launch(bad, 0); say(call('cuCtxSynchronize'), "
              "call('cuMemAlloc_v2', byref(c_uint64()), c_size_t(1)))")  # fmt: skip
    good = run(
        box,
        "start(); (busy,) = functions(b'busy'); say('up'); wait(); launch(busy, MIB); say(call('cuCtxSynchronize'))",
    )
    good.line()

    assert "700 700" == bad.end()
    good.tell()
    assert "0" == good.line()
    assert (1, 31) == (box.cards()[0].xids, box.cards()[0].last_xid)


def test_a_killed_process_stops_computing(make_box, run):
    """
    A second of queued work ends with its process; the neighbour has the card to itself then.
    """
    box = make_box()
    dead = run(box, "start(); (busy,) = functions(b'busy'); launch(busy, 1_000_000_000); say('up'); wait()")
    dead.line()
    dead.kill()
    box.settle()
    box.settle()
    live = run(
        box,
        """
        start(); (busy,) = functions(b"busy"); a, b = event(), event(); launch(busy, 80_000_000)
        do("cuEventRecord", a, None); launch(busy, 20_000_000); do("cuEventRecord", b, None)
        do("cuEventSynchronize", b)
        say(round(elapsed(a, b)))
        """,
    )

    assert "20" == live.end()


def test_copies_keep_contents_and_take_bus_time(make_box, run):
    """
    What was copied in and filled comes out again, and 12 MB over PCIe 3 take 1 ms.
    """
    client = run(
        make_box(),
        """
        start(); p = alloc(12_000_000); data, back = c.create_string_buffer(b"seed", 8), c.create_string_buffer(8)
        do("cuMemsetD32_v2", p, 0x01010101, c_size_t(3_000_000)); do("cuMemcpyHtoD_v2", p, data, c_size_t(4))
        do("cuMemcpyDtoH_v2", back, p, c_size_t(8)); say(back.raw)
        host = c_void_p(); do("cuMemHostAlloc", byref(host), c_size_t(12_000_000), 0)
        a, b, s = event(), event(), stream(1)
        (busy,) = functions(b"busy"); launch(busy, 200_000_000, s)
        do("cuEventRecord", a, s); do("cuMemcpyDtoHAsync_v2", host, p, c_size_t(12_000_000), s)
        do("cuEventRecord", b, s)
        do("cuStreamSynchronize", s); say(round(elapsed(a, b)))
        say(call("cuMemcpyDtoH_v2", back, c_uint64(p.value + 12_000_000), c_size_t(1)))
        """,
    )

    assert "b'seed\\x01\\x01\\x01\\x01'\n1\n1" == client.end()
