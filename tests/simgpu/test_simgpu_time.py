# SPDX-License-Identifier: Apache-2.0
"""
Time on a simulated card: slices, streams, events, graphs, and whose time it was.

The cards' clock stands while work is queued and is stepped by exact amounts: however busy this machine is, the
figures are exact.
"""

from __future__ import annotations

import threading
import time

import pytest

from isolation.simgpu.hardware import SimulatorError

MS = 1_000_000


@pytest.fixture
def still(make_box):
    """Boxes whose clock stands."""

    def make(**settings):
        box = make_box(**settings)
        box.stop()
        return box

    return make


def own_ms(box, client):
    """Milliseconds of the card that a client has had, by the records."""
    return next(book.own_ns / MS for book in box.clients(0) if book.pid == client.process.pid)


def ask(client):
    """Let it go on; what it says then."""
    client.tell()
    return client.line()


def exactly(ms):
    """That many milliseconds; events tell them as floats."""
    return pytest.approx(ms, abs=1e-3)


def test_a_kernel_alone_takes_its_time(still, run):
    """
    Ten kernels of 3 ms between two events are 30 ms, to the nanosecond; with the 80 ms before them 110 ms of own time.
    """
    box = still()
    client = run(
        box,
        """
        start(); (busy,) = functions(b"busy"); a, b = event(), event()
        launch(busy, 80_000_000); do("cuEventRecord", a, None)
        for _ in range(10): launch(busy, 3_000_000)
        do("cuEventRecord", b, None); say("queued")
        wait(); say(call("cuEventQuery", b)); wait(); say(call("cuEventQuery", b)); say(elapsed(a, b)); wait()
        """,
    )
    client.line()
    box.step(110 * MS - 1)
    early = ask(client)
    box.step(1)

    assert ["600", "0"] == [early, ask(client)]
    assert exactly(30) == float(client.line())
    assert 110 == own_ms(box, client)


def test_two_processes_share_by_slices_and_events_see_the_neighbour(still, run):
    """
    Both always have 10 ms kernels queued and slices of 1 ms: each gets half, and each kernel's event
    time is twice its own time. In how many steps the time passes makes no difference.
    """
    box = still(slice_ns=MS, switch_ns=0)
    code = """
        start(); (busy,) = functions(b"busy"); marks = [event() for _ in range(9)]
        launch(busy, 60_000_000)
        for mark in marks: do("cuEventRecord", mark, None); launch(busy, 10_000_000)
        say("queued"); wait(); do("cuCtxSynchronize")
        for pair in zip(marks, marks[1:]): say(elapsed(*pair))
        wait()
    """
    clients = [run(box, code) for _ in range(2)]
    [client.line() for client in clients]
    for _ in range(43):
        box.step(7 * MS)
    [client.tell() for client in clients]

    for client in clients:
        assert [exactly(20)] * 8 == [float(client.line()) for _ in range(8)]
        assert 150 == own_ms(box, client)


def test_switching_costs_time_that_nobody_has(still, run):
    """
    With slices of 1 ms and switches of 1 ms two backlogged processes need four times their own time.
    """
    box = still(slice_ns=MS, switch_ns=MS)
    code = """
        start(); (busy,) = functions(b"busy"); launch(busy, 60_000_000)
        a, b = event(), event(); do("cuEventRecord", a, None); launch(busy, 40_000_000); do("cuEventRecord", b, None)
        say("queued"); wait(); do("cuEventSynchronize", b); say(elapsed(a, b)); wait()
    """
    clients = [run(box, code) for _ in range(2)]
    [client.line() for client in clients]
    box.step(400 * MS)

    assert [exactly(160)] * 2 == [float(ask(client)) for client in clients]
    assert [100, 100] == [own_ms(box, client) for client in clients]


@pytest.mark.parametrize(("kernel", "wall", "own"), [("half", 20, 20), ("busy", 40, 40)])
def test_streams_overlap_where_kernels_leave_room(still, run, kernel, wall, own):
    """
    Two kernels of 20 ms in two streams: of half width they run together, of full width they share;
    own time is the union either way.
    """
    box = still()
    client = run(
        box,
        f"""
        start(); (kernel,) = functions(b"{kernel}"); one, two = stream(), stream()
        a, b, e = event(), event(), event()
        launch(kernel, 80_000_000); do("cuEventRecord", a, one)
        launch(kernel, 20_000_000, one); launch(kernel, 20_000_000, two)
        do("cuEventRecord", e, two); do("cuStreamWaitEvent", one, e, 0); do("cuEventRecord", b, one)
        say("queued"); wait(); do("cuEventSynchronize", b); say(elapsed(a, b)); wait()
        """,
    )
    client.line()
    box.step((80 + wall) * MS)

    assert exactly(wall) == float(ask(client))
    assert 80 + own == own_ms(box, client)


def test_the_default_stream_orders_blocking_streams(still, run):
    """
    stream, default, stream: one after the other, though each kernel is of half width.
    """
    box = still()
    client = run(
        box,
        """
        start(); (half,) = functions(b"half"); s, t = stream(), stream(); a, b = event(), event()
        launch(half, 80_000_000, s); do("cuEventRecord", a, s); launch(half, 5_000_000, s); launch(half, 5_000_000)
        launch(half, 5_000_000, t); do("cuEventRecord", b, t)
        say("queued"); wait(); do("cuEventSynchronize", b); say(elapsed(a, b))
        """,
    )
    client.line()
    box.step(95 * MS)

    assert exactly(15) == float(ask(client))


def test_a_launch_blocks_when_the_queue_is_full(still, run):
    """
    With room for four launches the fifth returns when the first is done, not before, and so on.
    """
    box = still(queue_depth=4)
    client = run(
        box,
        """
        start(); (busy,) = functions(b"busy")
        for i in range(10): launch(busy, 10_000_000); say(i + 1)
        wait()
        """,
    )
    assert ["1", "2", "3", "4"] == [client.line() for _ in range(4)]
    for done in range(5, 11):
        box.step(10 * MS - 1)
        time.sleep(0.01)  # a launch that does not wait has time to show itself
        (book,) = box.clients(0)
        assert (done - 1, 4) == (book.launches, book.queued)
        box.step(1)
        assert str(done) == client.line()


def test_a_kernel_without_a_duration_takes_its_waves(still, run):
    """
    160 blocks of 1024 threads fill a V100 once: 320 blocks are two waves of 100 us.
    """
    box = still()
    client = run(
        box,
        """
        start(); busy, wave = functions(b"busy", b"wave"); a, b = event(), event()
        launch(busy, 80_000_000); do("cuEventRecord", a, None); launch(wave, 0, None, 320)
        do("cuEventRecord", b, None); say("queued"); wait(); do("cuEventSynchronize", b); say(elapsed(a, b))
        """,
    )
    client.line()
    box.step(80 * MS + 200_000)

    assert exactly(0.2) == float(ask(client))


def test_graphs_take_their_critical_path_as_one_launch(still, run):
    """
    Captured from two streams, 3 ms before 5 ms beside 4 ms: a launch of the graph takes 8 ms.
    """
    box = still()
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
        do("cuEventRecord", b, s); say("queued"); wait(); do("cuStreamSynchronize", s); say(elapsed(a, b)); wait()
        """,
    )
    assert ["3", "queued"] == [client.line(), client.line()]
    box.step(104 * MS)

    assert exactly(24) == float(ask(client))
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


def test_host_functions_run_in_stream_order(still, run):
    """
    A host function runs after the kernel before it, and the stream waits for it, however long it takes.
    """
    box = still()
    client = run(
        box,
        """
        import threading
        start(); (busy,) = functions(b"busy"); a, b = event(), event()
        seen, over = threading.Event(), threading.Event()
        fn = c.CFUNCTYPE(None, c_void_p)(lambda _: (seen.set(), over.wait()))
        launch(busy, 20_000_000); do("cuEventRecord", a, None); do("cuLaunchHostFunc", None, fn, None)
        launch(busy, 10_000_000); do("cuEventRecord", b, None); say("queued")
        wait(); say(call("cuEventQuery", a), seen.wait(0.02)); wait(); say(seen.wait(60), call("cuEventQuery", a))
        wait(); say(call("cuEventQuery", b)); over.set(); wait()
        do("cuEventSynchronize", b); say(elapsed(a, b)); wait()
        """,
    )
    client.line()
    box.step(20 * MS - 1)
    before = ask(client)
    box.step(1)
    during = ask(client)
    box.step(1000 * MS)
    after = ask(client)
    client.tell()
    while box.clients(0)[0].queued > 2:  # the last kernel and its mark: the function has returned
        time.sleep(0.001)
        box.step(0)
    box.step(10 * MS)

    assert ["600 False", "True 0", "600"] == [before, during, after]
    assert exactly(1010) == float(client.line())


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


def test_a_killed_process_stops_computing(still, run):
    """
    A second of queued work ends with its process; the neighbour has the card to itself then.
    """
    box = still()
    dead = run(box, "start(); (busy,) = functions(b'busy'); launch(busy, 1_000_000_000); say('up'); wait()")
    dead.line()
    box.step(10 * MS)
    dead.kill()
    box.settle()
    live = run(
        box,
        """
        start(); (busy,) = functions(b"busy"); launch(busy, 20_000_000); say("queued"); wait()
        say(call("cuCtxSynchronize")); wait()
        """,
    )
    live.line()
    box.step(20 * MS)

    assert "0" == ask(live)
    assert (10, 20) == (own_ms(box, dead), own_ms(box, live))


def test_copies_keep_contents_and_take_bus_time(make_box, run):
    """
    What was copied in and filled comes out again, and 12 MB over PCIe 3 take 1 ms.
    """
    box = make_box()
    client = run(
        box,
        """
        start(); p = alloc(12_000_000); data, back = c.create_string_buffer(b"seed", 8), c.create_string_buffer(8)
        do("cuMemsetD32_v2", p, 0x01010101, c_size_t(3_000_000)); do("cuMemcpyHtoD_v2", p, data, c_size_t(4))
        do("cuMemcpyDtoH_v2", back, p, c_size_t(8)); say(back.raw)
        host = c_void_p(); do("cuMemHostAlloc", byref(host), c_size_t(12_000_000), 0)
        a, b, s = event(), event(), stream(1)
        (busy,) = functions(b"busy"); wait(); launch(busy, 200_000_000, s)
        do("cuEventRecord", a, s); do("cuMemcpyDtoHAsync_v2", host, p, c_size_t(12_000_000), s)
        do("cuEventRecord", b, s); say("queued"); wait()
        do("cuStreamSynchronize", s); say(elapsed(a, b))
        say(call("cuMemcpyDtoH_v2", back, c_uint64(p.value + 12_000_000), c_size_t(1)))
        """,
    )

    assert "b'seed\\x01\\x01\\x01\\x01'" == client.line()
    box.stop()
    assert "queued" == ask(client)
    box.step(210 * MS)
    assert 1 == pytest.approx(float(ask(client)), abs=0.1)
    assert "1" == client.end()


def test_time_that_passes_while_the_clock_stands_never_comes_back(make_box, run):
    """
    Stopped and let go again and again, a card with work computes for exactly as long as its clock went on.
    """
    box = make_box()
    client = run(box, "start(); (busy,) = functions(b'busy'); launch(busy, 100_000_000_000); say('up'); wait()")
    client.line()
    began, had = box.stop(), box.clients(0)[0].own_ns
    for _ in range(5):
        time.sleep(0.05)
        box.settle()
        assert (True, began, had) == (box.stands, box.now, box.clients(0)[0].own_ns)
        let_go = time.monotonic_ns()
        box.go()
        assert not box.stands
        time.sleep(0.005)
        ended, now = box.stop(), box.clients(0)[0].own_ns
        assert 5 * MS <= ended - began == now - had
        assert ended - began <= time.monotonic_ns() - let_go
        began, had = ended, now


def test_stopping_is_exact_however_many_look(make_box, run):
    """
    Processes that ask without a pause bring no card further than where the clock stands.
    """
    box = make_box()
    code = "start(); (busy,) = functions(b'busy'); launch(busy, 100_000_000_000); say('up')\nwhile True: info()"
    for _ in range(2):
        run(box, code).line()
    for _ in range(50):
        stands = box.stop()
        time.sleep(0.0005)
        assert {(stands, stands)} == {(box.now, card.clock_ns) for card in box.cards()}
        box.go()


def test_who_waits_while_the_clock_stands_is_there_when_it_moves(still, run):
    """
    A process waits for its work through two steps and is released by the second, or by the clock let go.
    """
    box = still()
    client = run(
        box,
        """
        start(); (busy,) = functions(b"busy"); launch(busy, 20_000_000); say("queued")
        do("cuCtxSynchronize"); say("done"); wait()
        launch(busy, 20_000_000); say("queued"); do("cuCtxSynchronize"); say("done"); wait()
        """,
    )
    said = []
    reader = threading.Thread(target=lambda: [said.append(client.line()) for _ in range(2)])
    reader.start()
    while not said:
        time.sleep(0.001)
    box.step(20 * MS - 1)
    time.sleep(0.02)
    assert ["queued"] == said
    box.step(1)
    reader.join(60)

    assert ["queued", "done"] == said
    assert "queued" == ask(client)
    box.go()
    assert "done" == client.line()


def test_memory_of_the_dead_is_not_waited_for_while_the_clock_stands(still, run):
    """
    Whoever needs it has it at once: nobody could step the clock past a wait under the card's lock.
    """
    box = still(teardown_ns=500 * MS)
    dead = run(box, "start(); alloc(12 << 30); say('up'); wait()")
    dead.line()
    dead.kill()

    assert "up" == run(box, "start(); alloc(12 << 30); say('up'); wait()").line()


def test_a_clock_that_runs_is_not_stepped(make_box):
    """
    It would not be exact; and no step goes back.
    """
    box = make_box()
    with pytest.raises(SimulatorError, match="is running; stop it first"):
        box.step(1)
    box.stop()
    with pytest.raises(SimulatorError, match="-1 ns"):
        box.step(-1)
