# SPDX-License-Identifier: Apache-2.0
"""
The whole stack on one machine: simulated cards, tenants on them, the exporter, Prometheus, Alertmanager.

A context manager: entered, everything starts in a thread of its own and `now` tells how it stands;
left, nothing of it is left. Decides the order and what is asked how often; what the answers mean is
`told`'s decision, how processes are kept `crew`'s.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from autoscaler.demo.stack import cleanup, cuda_workload, prometheus_config, workloads
from autoscaler.demo.stack.addresses import HOST, Addresses, Ports, Tools, addresses
from autoscaler.demo.stack.reports import read_alerts, read_page
from autoscaler.demo.stack.supervisor import BARE, Crew, Job, environment
from isolation.contract.stack import PENDING, STARTING, UP, Stack, StackProcess, StackWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from isolation.contract.reading import NodeReading
    from isolation.contract.stack import Alert

ROOT: Final = Path(__file__).parents[3]
# A script's folder comes before Python's own modules: right for a checkout, not for everything that is installed.
_FRONT: Final = ("-P", "-m", "gpushare") if ROOT.name.endswith("-packages") else (str(ROOT / "gpushare.py"),)
GPUSHARE: Final = (sys.executable, *_FRONT)
"""The front door as a command, wherever the caller stands: rooms do not import each other, programs call each other."""
NEEDED: Final = {"pynvml": ("exporter", "run"), "bcrypt": ("exporter",), "yaml": ("exporter",), "numpy": ("run",)}
"""What exporter and `gpushare run` import, and the extras that bring it."""
RULES: Final = ROOT / "dashboards" / "rules" / "out" / "gpushare.rules.yaml"
"""Shipped as data beside this package; read by Prometheus, not by us."""
MEMORY: Final = Path("/dev/shm")  # noqa: S108 (a folder with a random name and mode 0700 is made there)
TICK_SECONDS: Final = 0.25
ASK_SECONDS: Final = 1.0
CREATE_SECONDS: Final = 20.0
END_SECONDS: Final = 20.0
HTTP_SECONDS: Final = 2.0
"""Deadline of one request to an endpoint of the stack."""
MOST_BYTES: Final = 4 << 20
"""Of one response."""


class StackError(Exception):
    """The stack cannot run here, or not any more; the text says why."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Of one stack: the cards in memory, everything else on disk."""

    cards: Path
    disk: Path

    @property
    def box(self) -> Path:
        """The hardware file."""
        return self.cards / "hardware"


class Stage:
    """See the module."""

    def __init__(self, ports: Ports, tools: Tools, rules: Path | None = RULES) -> None:
        self.addresses: Addresses = addresses(ports, tools)
        self._ports = ports
        self._tools = tools
        self._rules = rules if rules is not None and rules.is_file() else None
        self._mark = secrets.token_hex(16)
        self._stop = Event()
        self._seen = Stack(self._workloads({}), (), None, None)
        self._folders: Folders | None = None
        self._broken: Exception | None = None
        self._janitor: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._run, name="stack", daemon=True)

    @property
    def now(self) -> Stack:
        """How everything stands, as last looked at; what broke the looking is raised here."""
        if self._broken is not None:
            raise StackError(f"cannot watch the stack any more: {self._broken}") from self._broken
        return self._seen

    def __enter__(self) -> Self:
        """Make the cards and start; StackError says what is missing."""
        missing = sorted({extra for name, extras in NEEDED.items() if find_spec(name) is None for extra in extras})
        if missing:
            raise StackError(f"Python packages are missing: run pip install 'gpushare[{','.join(missing)}]'")
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        disk = Path(tempfile.gettempdir())
        # Two names, also where both are in the same folder.
        folders = Folders((memory or disk) / f"gpushare-up-{self._mark}", disk / f"gpushare-up-{self._mark}.d")
        self._folders = folders
        try:
            self._watch_over(folders)
            for folder in (folders.cards, folders.disk):
                folder.mkdir(mode=0o700)
            self._create(folders.box)
        except BaseException:
            self._clean()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(END_SECONDS)
        self._clean()

    def _watch_over(self, folders: Folders) -> None:
        """Somebody else who sweeps, should this process be killed: there before there is anything to sweep."""
        self._janitor = subprocess.Popen(  # noqa: S603 (our own words, no shell)
            [sys.executable, *BARE, cleanup.__file__, self._mark, str(folders.cards), str(folders.disk)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def _clean(self) -> None:
        folders = self._folders
        if folders is not None:
            cleanup.sweep(self._mark, [str(folders.cards), str(folders.disk)], grace=2.0)
            self._folders = None
        if self._janitor is not None and self._janitor.stdin is not None:
            self._janitor.stdin.close()
            self._janitor.wait(2 * END_SECONDS)
            self._janitor = None

    def _create(self, box: Path) -> None:
        words = ("simgpu", "create", str(box), "--model", workloads.MODEL, "--cards", str(workloads.CARDS))
        try:
            made = subprocess.run(  # noqa: S603 (our own words, no shell)
                [*GPUSHARE, *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=CREATE_SECONDS,
                env=environment(os.environ, self._mark, "cards"),
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise StackError(f"cannot create simulated cards: timed out after {CREATE_SECONDS:.0f} s") from None
        if made.returncode:
            told = made.stderr.strip().splitlines() or [f"status {made.returncode}"]
            raise StackError(f"cannot create simulated cards: {told[-1].removeprefix('Error: ')}")

    def _jobs(self, folders: Folders) -> Sequence[Job]:
        """In the order of their start."""
        at, have = self._ports, self._tools
        listen = f"{HOST}:{at.exporter}"
        exporter = (*GPUSHARE, "exporter", "--simgpu", str(folders.box), "--listen", listen, "--interval", "1s")
        quiet = ("--no-kubernetes", "--log-level", "warning")
        path = Path(cuda_workload.__file__)
        tenants = [
            Job(role.name, role.command(GPUSHARE, sys.executable, path, folders.box), tied=False)
            for role in workloads.ROLES
        ]
        jobs = [Job("exporter", (*exporter, *quiet), f"{self.addresses.exporter}/metrics"), *tenants]
        if have.prometheus:
            alerting = self.addresses.alertmanager is not None
            text = prometheus_config.prometheus_file(at, self._rules, alerting=alerting)
            (folders.disk / "prometheus.yml").write_text(text, encoding="utf-8")
            command = prometheus_config.prometheus_command(have.prometheus, at, folders.disk)
            jobs.insert(4, Job("prometheus", command, self.addresses.prometheus or ""))
        if have.prometheus and have.alertmanager:
            (folders.disk / "alertmanager.yml").write_text(prometheus_config.alertmanager_file(), encoding="utf-8")
            command = prometheus_config.alertmanager_command(have.alertmanager, at, folders.disk)
            jobs.append(Job("alertmanager", command, self.addresses.alertmanager or ""))
        return jobs

    def _run(self) -> None:
        """The thread: starts, looks, asks, ends. It lives as long as the processes that are tied to it."""
        folders = self._folders
        if folders is None:
            return
        crew = Crew(self._jobs(folders), folders.disk, self._mark)
        asked = 0.0
        node: NodeReading | None = None
        alerts: tuple[Alert, ...] | None = None
        try:
            while not self._stop.wait(TICK_SECONDS):
                crew.look()
                if time.monotonic() - asked >= ASK_SECONDS:
                    node, alerts = self._machine(crew), self._alerts(crew)
                    asked = time.monotonic()
                self._seen = self._told(crew, node, alerts)
        except Exception as exc:  # noqa: BLE001 (of another thread: raised again by whoever asks)
            self._broken = exc
        finally:
            crew.end()

    def _machine(self, crew: Crew) -> NodeReading | None:
        raw = get(self.addresses.exporter, "/metrics")
        node = None if raw is None else read_page(raw)
        crew.answers("exporter", yes=node is not None)
        if node is not None:
            for one in node.containers:
                if one.used_bytes:
                    crew.answers(one.pod)
        return node

    def _alerts(self, crew: Crew) -> tuple[Alert, ...] | None:
        """Firing as Alertmanager has them (Prometheus, where there is none), and those that wait for their time."""
        where = self.addresses
        if where.prometheus is None:
            return None
        raw = get(where.prometheus, "/api/v1/alerts")
        crew.answers("prometheus", yes=raw is not None)
        if raw is None:
            return None
        waiting = read_alerts(raw, PENDING)
        if where.alertmanager is not None:
            raw = get(where.alertmanager, "/api/v2/alerts?active=true&silenced=false&inhibited=false")
            crew.answers("alertmanager", yes=raw is not None)
        firing = None if raw is None else read_alerts(raw)
        return None if waiting is None or firing is None else (*firing, *waiting)

    def _told(self, crew: Crew, node: NodeReading | None, alerts: tuple[Alert, ...] | None) -> Stack:
        parts = crew.parts
        names = {role.name for role in workloads.ROLES}
        remarks = [self._tools.remark]
        if self._tools.prometheus and self._rules is None:
            remarks.append(f"no alert rules: file {RULES} is missing")
        return Stack(
            workloads=self._workloads(parts),
            parts=(
                *(part for name, part in parts.items() if name not in names),
                StackProcess("autoscaler", UP, f"{self.addresses.autoscaler}/metrics"),
            ),
            node=node,
            alerts=alerts,
            remarks=tuple(filter(None, remarks)),
            happened=tuple(crew.happened),
        )

    @staticmethod
    def _workloads(parts: dict[str, StackProcess]) -> tuple[StackWorkload, ...]:
        return tuple(
            StackWorkload(
                role.name,
                role.does,
                role.promised_bytes,
                role.promised_core_ratio,
                role.enforced,
                parts.get(role.name, StackProcess(role.name, STARTING)),
            )
            for role in workloads.ROLES
        )


def get(url: str, path: str) -> bytes | None:
    """What stands at this path; no proxy is asked, whatever the environment says."""
    at = urlsplit(url)
    connection = HTTPConnection(at.hostname or "", at.port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        page = answer.read(MOST_BYTES + 1)
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return page if answer.status == HTTPStatus.OK and len(page) <= MOST_BYTES else None
