"""
How long the first screen of `gpushare top` takes on a large cluster, from the key that is pressed on.

An HTTP server of this file's own answers lists as an API server would, page by page, from memory: what is
measured is the command (interpreter, imports, connection, decoding, adding up, drawing), not the server.
Objects have the size of real ones. The screen is a pseudo-terminal of 80 by 40. Prints the median and the
worst, and the CPU seconds: on a machine that has other work those say more.
"""

from __future__ import annotations

import argparse
import http.server
import json
import multiprocessing
import os
import pty
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # files here have the names of packages

from isolation.contract.codec import encode_cards
from isolation.contract.model import Card
from isolation.contract.names import ACK, ALLOCATION, CARDS, SHARED
from isolation.contract.quantity import GIB

FILLER_BYTES = 3000  # what nobody reads of a real object: managed fields, images, statuses
CARDS_EACH = 8
COMMAND = "from dashboards.views_cli import views; views()"


def node(i: int) -> dict[str, Any]:
    """One node of eight cards, named by its agent."""
    amounts = {ACK.memory: "632", ACK.card_count: "8", "cpu": "96", "memory": "768Gi", "pods": "250"}
    labels = {"kubernetes.io/hostname": f"node-{i:05}", ACK.mode_label: "cgpu", "zone": f"z{i % 3}"}
    named = encode_cards([Card(f"GPU-{i:08}-{k}", k, 80 * GIB, GIB, model="A100") for k in range(CARDS_EACH)])
    meta: dict[str, Any] = {"name": f"node-{i:05}", "uid": f"n-{i}", "labels": labels}
    meta |= {"annotations": {CARDS: named, "filler": "x" * FILLER_BYTES}}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": meta, "spec": {}, "status": status}


def pod(i: int, nodes: int) -> dict[str, Any]:
    """One bound pod of a Deployment of a hundred, with our record."""
    where, index = i % nodes, i // nodes % CARDS_EACH
    card = {"uuid": f"GPU-{where:08}-{index}", "bytes": 8 * GIB, "core": 0}
    cards, containers = [card | {"index": index}], [{"name": "main", "cards": [card]}]
    record = json.dumps({"version": 1, "promise": f"p-{i}", "cards": cards, "containers": containers})
    meta: dict[str, Any] = {"name": f"app-{i // 100}-{i:06d}", "namespace": f"team-{i % 40}", "uid": f"p-{i}"}
    meta |= {"labels": {"app": f"app-{i // 100}", SHARED: "true"}, "creationTimestamp": "2026-01-31T12:00:00Z"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": f"rs-{i // 100}", "controller": True}
    meta |= {"annotations": {ALLOCATION: record, "filler": "x" * FILLER_BYTES}, "ownerReferences": [owner]}
    limits = {ACK.memory: "8", "cpu": "2", "memory": "4Gi"}
    container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
    spec = {"containers": [container], "nodeName": f"node-{where:05}", "schedulerName": "gpushare-scheduler"}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def waiting() -> dict[str, Any]:
    """A pod that wants nearly a whole card, of which there is none empty."""
    made = pod(0, 1)
    made["metadata"] |= {"name": "waits", "uid": "waits", "annotations": {}, "namespace": "team-0"}
    limits = {ACK.memory: "75", "cpu": "2", "memory": "4Gi"}
    made["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    del made["spec"]["nodeName"]
    return made | {"status": {"phase": "Pending"}}


def serve(nodes: int, pods: int, ready: Any) -> None:
    """Lists by page, rendered before the first question."""
    lists = {
        "/api/v1/nodes": [json.dumps(node(i)).encode() for i in range(nodes)],
        "/api/v1/pods": [json.dumps(pod(i, nodes)).encode() for i in range(pods)] + [json.dumps(waiting()).encode()],
        "/api/v1/namespaces/team-0/events": [],
    }
    pages: dict[tuple[str, int, int], bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """One page."""
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            items = lists.get(parts.path)
            if parts.path == "/api/v1/namespaces/team-0/pods/waits":
                items, body = [], json.dumps(waiting()).encode()
            elif items is None:
                body = json.dumps({"kind": "Status", "code": 404, "reason": "NotFound"}).encode()
            else:
                limit = int(query.get("limit", [str(len(items))])[0])
                at = int(query.get("continue", ["0"])[0])
                body = pages.setdefault((parts.path, at, limit), page(items, at, limit))
            self.send_response(404 if items is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.send(server.server_address[1])
    server.serve_forever()


def page(items: list[bytes], at: int, limit: int) -> bytes:
    """So many objects from there on."""
    more = str(at + limit) if at + limit < len(items) else ""
    meta = json.dumps({"resourceVersion": "7", "continue": more}).encode()
    return b'{"metadata":' + meta + b',"items":[' + b",".join(items[at : at + limit]) + b"]}"


def run(arguments: list[str], *, terminal: bool) -> tuple[float, str]:
    """Seconds until everything was shown, and what."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    began = time.perf_counter()
    if not terminal:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return time.perf_counter() - began, done.stdout
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    process = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    if process.wait():
        sys.exit(shown.decode(errors="replace"))
    return time.perf_counter() - began, shown.decode(errors="replace")


def main() -> None:
    """Serve, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=40000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="Show the last screen too.")
    chosen = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(chosen.nodes, chosen.pods, theirs), daemon=True)
    server.start()
    port = ours.recv()
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        kubeconfig.write_text(json.dumps(config))
        given = ["--kubeconfig", str(kubeconfig)]
        views = (
            (["top", *given], True),
            (["top", *given], False),
            (["top", "-o", "json", *given], False),
            (["inspect", *given], False),
            (["explain", "team-0/waits", *given], False),
        )
        run(["top", *given], terminal=True)  # the server renders its pages
        for arguments, terminal in views:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = [run(arguments, terminal=terminal) for _ in range(chosen.runs)]
            seconds = [one for one, _ in took]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / chosen.runs
            where = "terminal" if terminal else "pipe"
            lines = took[-1][1].count("\n")
            name = " ".join(arguments[: arguments.index("--kubeconfig")])
            print(
                f"{name:20} {where:8} {chosen.nodes} nodes, {chosen.pods} pods: median "
                f"{statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s, CPU {cpu:.2f} s, {lines} lines",
                flush=True,
            )
            if chosen.show and terminal:
                print(took[-1][1])
    server.terminate()


if __name__ == "__main__":
    main()
