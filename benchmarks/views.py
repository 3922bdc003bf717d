# SPDX-License-Identifier: Apache-2.0
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
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.views_harness import kubeconfig, node_json, on_terminal, piped, pod_json

FILLER_BYTES = 3000  # what nobody reads of a real object: managed fields, images, statuses
CARDS_EACH = 8


def node(i: int) -> dict[str, Any]:
    """One node of eight cards, named by its agent."""
    name = f"node-{i:05}"
    made = node_json(name, CARDS_EACH)
    made["metadata"]["labels"] |= {"kubernetes.io/hostname": name, "zone": f"z{i % 3}"}
    made["metadata"]["annotations"]["filler"] = "x" * FILLER_BYTES
    return made


def pod(i: int, nodes: int) -> dict[str, Any]:
    """One bound pod of a Deployment of a hundred, with our record."""
    name, where = f"app-{i // 100}-{i:06d}", f"node-{i % nodes:05}"
    made = pod_json(name, where, cards=(i // nodes % CARDS_EACH,), namespace=f"team-{i % 40}")
    meta = made["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": f"rs-{i // 100}", "controller": True}
    meta |= {"ownerReferences": [owner]}
    meta["labels"]["app"] = f"app-{i // 100}"
    meta["annotations"]["filler"] = "x" * FILLER_BYTES
    return made


def waiting() -> dict[str, Any]:
    """A pod that wants nearly a whole card, of which there is none empty."""
    return pod_json("waits", units=75, namespace="team-0")


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
    began = time.perf_counter()
    if terminal:
        status, shown = on_terminal(*arguments)
    else:
        done = piped(*arguments)
        status, shown = done.returncode, done.stdout or done.stderr
    seconds = time.perf_counter() - began
    if status:
        sys.exit(shown)
    return seconds, shown


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
        given = ["--kubeconfig", str(kubeconfig(f"http://127.0.0.1:{port}", Path(folder)))]
        views = (
            (["top", "--once", *given], True),
            (["top", *given], False),
            (["top", "-o", "json", *given], False),
            (["inspect", *given], False),
            (["explain", "team-0/waits", *given], False),
        )
        run(["top", "--once", *given], terminal=True)  # the server renders its pages
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
