# SPDX-License-Identifier: Apache-2.0
"""The views on real sources: our own exporter over simulated cards, and a real Prometheus that scrapes it twice."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request

import pytest
from support.ports import free_port
from support.prometheus_harness import stand, until
from support.views_harness import (
    ROOT,
    api,
    exporter,
    fleet_of_cards,
    inside,
    kubeconfig,
    node_json,
    page_of,
    pod_json,
    serving,
)
from support.waiting import PATIENCE_SECONDS

from isolation.contract.metrics import DENIED_ALLOCATIONS
from isolation.simgpu.hardware import create

GIB = 1 << 30
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
TENANT = """
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
cu.cuInit(0)
cu.cuDeviceGet(ctypes.byref(device), 0)
cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cu.cuCtxSetCurrent(context)
assert cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
sys.stdin.readline()  # until somebody looks: what was denied before is nobody's breach
assert cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 30)) != 0
sys.stdin.read()
"""


def test_a_prometheus_that_scrapes_everything_twice_counts_it_once(tmp_path):
    """
    What is used by card and by pod is what the exporter told, whoever scraped it and how often.
    """
    fleet, usage = fleet_of_cards(8)
    (machine,) = fleet.nodes
    nodes = [node_json(machine.name, 8, 16)]
    pods = [
        pod_json(one.name, machine.name, one.wanted.bytes // GIB, tuple(part.index for part in one.slices))
        for one in fleet.pods
        if one.node
    ]
    answers = exporter(page_of(usage))
    with serving(answers) as (first, _), serving(answers) as (second, _):
        targets = [url.removeprefix("http://") for url in (first, second)]
        with (
            stand({"gpushare-exporter": targets}) as prometheus,
            serving(api({"/api/v1/nodes": nodes, "/api/v1/pods": pods})) as (url, asked),
        ):
            assert 2 == prometheus.until(lambda: prometheus.value("sum(up) == 2"))
            words = ["--kubeconfig", kubeconfig(url, tmp_path), "--prometheus", prometheus.url, "-o", "json"]
            cards = json.loads(inside("top", *words).stdout)
            found = json.loads(inside("top", "--by", "pod", *words).stdout)
            over = json.loads(inside("breaches", *words).stdout)
    assert [] == cards["notes"]
    assert [card.bytes("used") for card in usage.cards] == [item["used_bytes"] for item in cards["items"]]
    expected = {one.pod: one.bytes("used") for one in usage.tenants}
    assert expected == {item["pod"]: item["used_bytes"] for item in found["items"]}
    assert {"app-0-2-0", "app-0-5-0"} == {item["pod"] for item in over["items"]}
    assert [] == [path for path, _ in asked if "proxy" in path]


def test_one_machine_from_the_command_to_the_screen(tmp_path):
    """
    Simulated cards, a real command under the real library, the real exporter, and `gpushare top` and `breaches`.
    """
    pytest.importorskip("pynvml")
    box, port = tmp_path / "box", free_port()
    create(box, ["t4"] * 2)
    front = [sys.executable, "-c", FRONT]
    run = [*front, "run", "--simgpu", box, "--gpu-mem", "5", "--name", "train", "--", sys.executable, "-c", TENANT]
    watch = [*front, "exporter", "--simgpu", box, "--listen", f"127.0.0.1:{port}", "--interval", "200ms"]
    with (tmp_path / "log").open("wb") as log, contextlib.ExitStack() as stack:
        running = []
        for command in (run, watch):
            running.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log))
            stack.callback(finished, running[-1])
        url = f"http://127.0.0.1:{port}"
        found = until(lambda: used_by(url, "train"), 40)
        cards = until(lambda: both_cards(url))
        assert until(lambda: counted(url), 20)
        running[0].stdin.write(b"now\n")
        running[0].stdin.flush()
        over = until(lambda: json.loads(inside("breaches", "--local", url, "-o", "json").stdout)["items"], 20)
    assert [(5 * GIB, True)] == [(pod["allocated_bytes"], pod["used_bytes"] >= GIB) for pod in found]
    assert [0, 5 * GIB] == sorted(card["allocated_bytes"] for card in cards)
    assert {(None, "train", "denied", "library", True)} == {
        (one["namespace"], one["pod"], one["kind"], one["source"], one["open"]) for one in over
    }


def both_cards(url):
    """As soon as a reading has them: one of 200 ms may have been late with the promise, or with the driver."""
    found = json.loads(inside("top", "--local", url, "-o", "json").stdout)["items"]
    return found if len(found) == 2 and any(card["allocated_bytes"] for card in found) else None


def used_by(url, name):
    """The pods of this name that use something; none while nobody answers yet."""
    done = inside("top", "--by", "pod", "--local", url, "-o", "json")
    pods = json.loads(done.stdout)["items"] if done.returncode == 0 else []
    return [one for one in pods if one["pod"] == name and one["used_bytes"]]


def counted(url):
    """Whether the exporter knows how often a tenant was denied: only what comes after is a breach."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (loopback)
        return any(line.startswith(f"{DENIED_ALLOCATIONS.name}{{") for line in answer.read().decode().splitlines())


def finished(process):
    """Told to end, and waited for."""
    process.stdin.close()
    process.terminate()
    process.wait(PATIENCE_SECONDS)
