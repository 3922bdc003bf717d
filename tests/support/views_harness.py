# SPDX-License-Identifier: Apache-2.0
"""
Fleets, metrics pages and small servers for the terminal views: what a test does not name is plausible.
"""

from __future__ import annotations

import contextlib
import gc
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from click.testing import CliRunner
from support.children import at_terminal
from support.waiting import PATIENCE_SECONDS

from dashboards.terminal.cli import views
from dashboards.terminal.read.fleet import CardRequest, Fleet, FleetNode, FleetPod
from dashboards.terminal.read.usage import CardUsage, TenantUsage, Usage
from isolation.contract.codec import encode_cards
from isolation.contract.model import Card, Mode, Slice
from isolation.contract.names import ACK, ALLOCATION, CARDS, SCHEDULER, SHARED
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "from gpushare import kubectl; kubectl()"
Answers = Callable[[str, dict[str, str]], tuple[Any, ...]]
"""Path and query to status and body, and perhaps (name, value) of headers."""


# Values.


def node(name: str = "n-0", cards: int = 2, gib: int = 16, mode: Mode = Mode.CGPU, **more: Any) -> FleetNode:
    """A node whose cards are named by its agent."""
    made = tuple(Card(f"GPU-{name}-{i}", i, gib * GIB, model="T4") for i in range(cards))
    return FleetNode(name, mode, **({"cards": made} | more))


def pod(
    name: str,
    where: str = "n-0",
    gib: int = 4,
    cards: Sequence[int] = (0,),
    *,
    core: int = 0,
    namespace: str = "team",
    **more: Any,
) -> FleetPod:
    """A pod with shares; an empty node: it waits."""
    slices = tuple(Slice(f"GPU-{where}-{i}", i, gib * GIB, core) for i in cards) if where else ()
    wanted = CardRequest(len(cards), gib * GIB, core)
    return FleetPod(namespace, name, f"uid-{name}", where, wanted, slices, **more)


def tenant(one: FleetPod, used: float | None, index: int | None = None, **figures: float) -> TenantUsage:
    """What an exporter tells of a pod's container on its first card, or on another."""
    part = next(part for part in one.slices if index in (None, part.index))
    usage = {"allocated": float(part.bytes)} | ({} if used is None else {"used": used * GIB}) | figures
    uuid, at = part.uuid, part.index
    return TenantUsage(one.namespace, one.name, "main", one.node, uuid, at, exclusive=False, figures=usage)


def usage(fleet: Fleet, tenants: Sequence[TenantUsage], without: Collection[str] = ()) -> Usage:
    """What exporters tell of every card but those of some nodes."""
    cards = []
    for machine in fleet.nodes:
        for card in machine.cards if machine.name not in without else ():
            mine = [one for one in tenants if one.uuid == card.uuid]
            used = sum(one.figures.get("used", 0) for one in mine) + GIB // 4
            figures = {"total": float(card.total_bytes), "used": used, "reserved": GIB / 4, "utilisation": 0.5}
            usage: dict[str, Any] = {"model": "T4", "mode": machine.mode.value, "figures": figures}
            cards.append(CardUsage(machine.name, card.uuid, card.index, **usage))
    heard = frozenset(machine.name for machine in fleet.nodes if machine.name not in without)
    return Usage(tuple(cards), tuple(tenants), 1000.0, heard)


def fleet_of_cards(count: int) -> tuple[Fleet, Usage]:
    """So many cards, eight to a node, with a bit of everything on them."""
    nodes: list[FleetNode] = []
    pods: list[FleetPod] = []
    tenants: list[TenantUsage] = []
    for at in range(0, count, 8):
        number = at // 8
        name = f"gpu-node-{number:02}"
        mode = Mode.CORE_MEM if number % 4 == 3 else Mode.CGPU
        more: dict[str, Any] = {"cordoned": True} if number == 5 else {"ready": False} if number == 6 else {}
        nodes.append(node(name, min(8, count - at), 16, mode, **more))
        for index in range(min(8, count - at)):
            for part in range((index + number) % 4):
                core = 50 if mode is Mode.CORE_MEM else 0
                pods.append(pod(f"app-{number}-{index}-{part}", name, 2 + 2 * part, (index,), core=core))
                if number != 2:
                    tenants.append(tenant(pods[-1], (index % 3) + 1 + 3.5 * (part == 2 and index == 1)))
    pods += [pod("waits-0", "", 15), pod("waits-1", "", 8, (0, 1), namespace="other")]
    fleet = Fleet(tuple(nodes), tuple(pods), notes=() if count < 24 else ("memory in use on gpu-node-02 is unknown",))
    return fleet, usage(fleet, tenants, ("gpu-node-02",))


# The same as an exporter's page.


def page_of(usage: Usage) -> str:
    """Usage as text, for a server."""
    lines = []
    for card in usage.cards:
        labels = f'node="{card.node}",uuid="{card.uuid}",card="{card.index}"'
        lines.append(f'gpushare_card_info{{{labels},model="{card.model}",pool="",mode="{card.mode}"}} 1')
        names = {"total": "memory_total_bytes", "used": "memory_used_bytes", "reserved": "memory_reserved_bytes"}
        names |= {"utilisation": "utilisation_ratio", "offered": "memory_allocatable_bytes", "healthy": "healthy"}
        lines += [f"gpushare_card_{names[key]}{{{labels}}} {value}" for key, value in card.figures.items()]
    for one in usage.tenants:
        labels = f'namespace="{one.namespace}",pod="{one.pod}",container="{one.container}",node="{one.node}"'
        labels += f',uuid="{one.uuid}",card="{one.index}",mode="shared"'
        names = {"allocated": "memory_allocated_bytes", "used": "memory_used_bytes"}
        lines += [f"gpushare_container_{names[key]}{{{labels}}} {value}" for key, value in one.figures.items()]
    return "\n".join(lines) + "\n"


# Kubernetes' JSON.


def node_json(name: str, cards: int = 8, gib: int = 80, mode: str = "cgpu", **labels: str) -> dict[str, Any]:
    """A node of a list."""
    offered = str(cards * gib)
    amounts = {ACK.memory: offered, ACK.card_count: str(cards), "cpu": "96", "memory": "768Gi", "pods": "250"}
    named = encode_cards([Card(f"GPU-{name}-{i}", i, gib * GIB, model="A100") for i in range(cards)])
    meta = {"name": name, "uid": name, "labels": {ACK.mode_label: mode} | labels, "annotations": {CARDS: named}}
    addresses = [{"type": "InternalIP", "address": "192.0.2.7"}]
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "addresses": addresses}
    return {"metadata": meta, "spec": {}, "status": status}


def pod_json(
    name: str,
    where: str = "",
    units: int = 8,
    cards: Sequence[int] = (0,),
    namespace: str = "team",
    **spec: Any,
) -> dict[str, Any]:
    """A pod of a list, with our record where it is bound."""
    uid, each = f"uid-{name}", units // len(cards) * GIB
    meta: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "labels": {SHARED: "true"},
        "annotations": {},
    }
    if len(cards) > 1:
        meta["labels"][ACK.card_count] = str(len(cards))
    if where:
        parts = [{"uuid": f"GPU-{where}-{i}", "bytes": each, "core": 0} for i in cards]
        listed = [one | {"index": i} for one, i in zip(parts, cards, strict=True)]
        record = {
            "version": 1,
            "promise": uid,
            "cards": listed,
            "containers": [{"name": "main", "cards": parts}],
        }
        meta["annotations"][ALLOCATION] = json.dumps(record)
    limits = {ACK.memory: str(units), "cpu": "1", "memory": "1Gi"}
    made: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
    } | spec
    made |= {"schedulerName": SCHEDULER} | ({"nodeName": where} if where else {}) | spec
    meta["creationTimestamp"] = "2026-01-31T12:00:00Z"
    return {"metadata": meta, "spec": made, "status": {"phase": "Running" if where else "Pending"}}


# Servers.


@contextlib.contextmanager
def serving(
    answers: Answers, host: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """An HTTP server on loopback; `answers(path, query)` gives status and body. Yields its URL and what was asked."""
    asked: list[tuple[str, dict[str, str]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked.append((self.path, dict(self.headers)))
            found = answers(parts.path, {key: value[0] for key, value in parse_qs(parts.query).items()})
            status, body = found[:2]
            self.send_response(status)
            for name, value in found[2] if len(found) > 2 else ():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def exporter(page: str, breaches: object = None) -> Answers:
    """Answers of one machine's exporter."""

    def answers(path: str, _query: dict[str, str]) -> tuple[int, bytes]:
        if path == "/metrics":
            return 200, page.encode()
        if path == "/breaches" and breaches is not None:
            return 200, json.dumps(breaches).encode()
        return 404, b""

    return answers


def api(objects: Mapping[str, Any]) -> Answers:
    """Answers of an API server: lists by path, in pages; single objects by path."""

    def answers(path: str, query: dict[str, str]) -> tuple[Any, ...]:
        found = objects.get(path)
        if isinstance(found, list):
            limit, at = int(query.get("limit", 1 << 30)), int(query.get("continue", 0))
            more = str(at + limit) if at + limit < len(found) else ""
            meta = {"resourceVersion": "7", "continue": more}
            return 200, json.dumps({"metadata": meta, "items": found[at : at + limit]}).encode()
        if isinstance(found, tuple):
            return found
        if found is not None:
            return 200, json.dumps(found).encode()
        return 404, json.dumps({"kind": "Status", "code": 404, "reason": "NotFound"}).encode()

    return answers


def kubeconfig(url: str, folder: Path, namespace: str = "") -> Path:
    """A kubeconfig without credentials for this server."""
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    config: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": context}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return file


# The command.


_ELSEWHERE = frozenset({"KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"})


def environment(**more: str) -> dict[str, str]:
    """Without anything that says where a cluster is, or how large somebody else's window."""
    clean = {k: v for k, v in os.environ.items() if k not in _ELSEWHERE}
    return clean | {"HOME": "/nonexistent", "TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | more


def piped(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in a pipe."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        cwd=ROOT,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@dataclass(frozen=True)
class Done:
    """What came of a command within this process."""

    returncode: int
    stdout: str
    stderr: str


def inside(*arguments: object) -> Done:
    """The command within this process, quicker than `piped`; its output is no terminal."""
    names = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NO_COLOR")
    env: dict[str, str | None] = dict.fromkeys(names) | {"HOME": "/nonexistent"}
    try:
        made = CliRunner().invoke(views, list(map(str, arguments)), env=env, prog_name="kubectl gpushare")
    finally:
        gc.enable()
    if made.exception is not None and not isinstance(made.exception, SystemExit):
        raise made.exception
    return Done(made.exit_code, made.stdout, made.stderr)


def on_terminal(*arguments: str, columns: int = 80, lines: int = 40, **more: str) -> tuple[int, str]:
    """The command on a pseudo-terminal: its exit status, and what a terminal was sent."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    process, ours = at_terminal(*command, rows=lines, columns=columns, cwd=ROOT, env=environment(**more))
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
    return process.wait(PATIENCE_SECONDS), shown.decode().replace("\r\n", "\n")
