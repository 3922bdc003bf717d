# SPDX-License-Identifier: Apache-2.0
"""Two processes and one Lease on a real API server: never both, always soon one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.apiclient import connected
from e2e.candidate import terms_of
from support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
TERMS = terms_of(6.0)
ENDLESS = 600.0
"""The longest Lease there is, and more than a test waits: whoever follows did not wait for its end."""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/tested"


@pytest.fixture
def candidates(plane, tmp_path):
    """Start a candidate by name; its lines go to one folder; the Lease is nobody's."""
    started = {}
    asyncio.run(give_back(plane))

    def start(name, duration=TERMS.duration):
        words = [str(plane.kubeconfig), name, str(tmp_path / name), str(duration)]
        command = [sys.executable, "-m", "e2e.candidate", *words]
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        started[name] = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, cwd=ROOT)
        return started[name]

    yield start
    for process in started.values():
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(10)


async def give_back(plane):
    """A Lease that was given back: who takes it may act at once, where a new one must first grow old."""
    async with connected(plane) as client:
        await client.delete(LEASE)
        spec = {"leaseDurationSeconds": 1, "leaseTransitions": 0}
        await client.create({"kind": "Lease", "metadata": {"name": LEASE.rpartition("/")[2]}, "spec": spec})


def lines(folder):
    """Everything that was claimed: (when, epoch, who), by time."""
    claims = []
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            when, epoch, name = line.split()
            claims.append((float(when), int(epoch), name))
    return sorted(claims)


def until_acting(folder, name, after=0.0):
    """When a candidate first acted after a moment."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        found = [when for when, _, who in lines(folder) if who == name and when > after]
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError(f"{name} never acted")


def until_running(folder, name):
    """A candidate has started, and had time for a look."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (folder / name).exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(2 * TERMS.retry)


def assert_never_both(folder):
    """By time, the epoch never falls, and each epoch is one candidate's."""
    claims = lines(folder)
    assert sorted(claims, key=lambda c: c[1]) == claims
    assert len({epoch for _, epoch, _ in claims}) == len({(epoch, name) for _, epoch, name in claims})


def now():
    """The candidates' clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_of_two_candidates_with_one_frozen_never_both_act(candidates, tmp_path):
    """
    The holder is stopped in mid-life, another takes over, the first wakes: its right is over before it looks.
    """
    processes = {name: candidates(name) for name in ("a", "b")}
    first_holder(tmp_path)
    for _ in range(3):
        holder = lines(tmp_path)[-1][2]
        other = "b" if holder == "a" else "a"
        frozen_at = now()
        processes[holder].send_signal(signal.SIGSTOP)
        taken_at = until_acting(tmp_path, other, after=frozen_at)
        assert TERMS.duration - TERMS.act <= taken_at - frozen_at
        processes[holder].send_signal(signal.SIGCONT)
        time.sleep(0.5)
    assert_never_both(tmp_path)
    assert [] == [c for c in lines(tmp_path) if c[2] != other and c[0] > taken_at]


def first_holder(folder):
    """Who acts first."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        claims = lines(folder)
        if claims:
            return claims[0][2]
        time.sleep(0.02)
    raise AssertionError("nobody ever acted")


def test_a_planned_stop_hands_over_without_waiting(candidates, tmp_path):
    """
    Released on exit: the other acts long before the Lease would have run out.
    """
    first = candidates("c", ENDLESS)
    until_acting(tmp_path, "c")
    candidates("d", ENDLESS)
    until_running(tmp_path, "d")
    left = now()
    first.send_signal(signal.SIGTERM)

    assert until_acting(tmp_path, "d", after=left) < left + ENDLESS
    assert_never_both(tmp_path)


def test_after_a_kill_the_other_waits_as_long_as_the_lease_says(candidates, tmp_path):
    """
    And then acts.
    """
    first = candidates("i")
    until_acting(tmp_path, "i")
    candidates("j")
    until_running(tmp_path, "j")
    killed = now()
    first.kill()

    assert until_acting(tmp_path, "j", after=killed) - killed >= TERMS.duration - TERMS.act
    assert_never_both(tmp_path)


def test_times_written_in_the_lease_are_for_people_alone(plane, candidates, tmp_path):
    """
    A holder whose clock is decades off, before and behind: it goes on, and the other waits.
    """
    candidates("g", ENDLESS)
    until_acting(tmp_path, "g")
    candidates("h", ENDLESS)
    until_running(tmp_path, "h")

    async def forge():
        async with connected(plane) as client:
            for year in ("1971", "2099", "2026"):
                await client.merge(LEASE, {"spec": {"renewTime": f"{year}-01-01T00:00:00.000000Z"}})
                await asyncio.sleep(1.0)

    asyncio.run(forge())
    forged = now()

    assert until_acting(tmp_path, "g", after=forged)
    assert {"g"} == {name for _, _, name in lines(tmp_path)}


def test_without_the_api_server_the_holder_stops_in_time(plane, candidates, tmp_path):
    """
    Frozen server: nobody can renew, so nobody acts; thawed, one acts again.
    """
    candidates("f")
    until_acting(tmp_path, "f")
    plane.freeze("kube-apiserver")
    try:
        frozen = now()
        time.sleep(TERMS.duration + 0.5)
        last = lines(tmp_path)[-1][0]
    finally:
        plane.thaw("kube-apiserver")
    again = until_acting(tmp_path, "f", after=frozen + TERMS.duration)

    assert last - frozen <= TERMS.act
    assert again
