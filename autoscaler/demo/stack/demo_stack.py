# SPDX-License-Identifier: Apache-2.0
"""
The whole stack on one machine: simulated cards, tenants on them, the exporter, Prometheus, Alertmanager.

A context manager: entering starts everything in a thread of its own, and `status` says how it runs; leaving removes
everything. Decides the order of the processes and how often each endpoint is read; responses are parsed in `reports`,
processes are kept running by `supervisor`.
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
from autoscaler.demo.stack.addresses import HOST, Addresses, Ports, Tools, build_addresses
from autoscaler.demo.stack.reports import read_alerts, read_page
from autoscaler.demo.stack.supervisor import ISOLATED_PYTHON, ManagedCommand, StackSupervisor, build_environment
from isolation.contract.stack import PENDING, STARTING, UP, StackProcess, StackStatus, TenantStatus
from isolation.distribution import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from isolation.contract.reading import NodeReading
    from isolation.contract.stack import StackAlert

ROOT: Final = Path(__file__).parents[3]
# A script's folder comes before Python's own modules: right for a checkout, not for everything that is installed.
_ENTRY_POINT: Final = ("-P", "-m", "gpushare") if ROOT.name.endswith("-packages") else (str(ROOT / "gpushare.py"),)
GPUSHARE: Final = (sys.executable, *_ENTRY_POINT)
"""`gpushare` as a command, from any working directory: packages do not import each other, programs call each other."""
NEEDED: Final = {"pynvml": ("exporter", "run"), "bcrypt": ("exporter",), "yaml": ("exporter",), "numpy": ("run",)}
"""What exporter and `gpushare run` import, and the extras that bring it."""
RULES: Final = ROOT / "dashboards" / "rules" / "out" / "gpushare.rules.yaml"
"""Shipped as data beside this package; read by Prometheus, not by us."""
MEMORY: Final = Path("/dev/shm")  # noqa: S108 (a folder with a random name and mode 0700 is made there)
TICK_SECONDS: Final = 0.25
POLL_SECONDS: Final = 1.0
CREATE_SECONDS: Final = 20.0
END_SECONDS: Final = 20.0
HTTP_SECONDS: Final = 5.0
"""Deadline of one request to an endpoint of the stack."""
MAX_BYTES: Final = 4 << 20
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


class DemoStack:
    """See the module."""

    def __init__(self, ports: Ports, tools: Tools, rules: Path | None = RULES) -> None:
        self.addresses: Addresses = build_addresses(ports, tools)
        self._ports = ports
        self._tools = tools
        self._rules = rules if rules is not None and rules.is_file() else None
        self._mark = secrets.token_hex(16)
        self._stop = Event()
        self._status = StackStatus(self._tenant_statuses({}), (), None, None)
        self._folders: Folders | None = None
        self._failure: Exception | None = None
        self._cleaner: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._run, name="stack", daemon=True)

    @property
    def status(self) -> StackStatus:
        """The last known state; StackError if the thread has failed."""
        if self._failure is not None:
            raise StackError(f"cannot watch the stack any more: {self._failure}") from self._failure
        return self._status

    def __enter__(self) -> Self:
        """Make the cards and start; StackError says what is missing."""
        missing = sorted({extra for name, extras in NEEDED.items() if find_spec(name) is None for extra in extras})
        if missing:
            raise StackError(f"Python packages are missing: run {install_command(*missing)}")
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        disk = Path(tempfile.gettempdir())
        # Two names, also where both are in the same folder.
        folders = Folders((memory or disk) / f"gpushare-up-{self._mark}", disk / f"gpushare-up-{self._mark}.d")
        self._folders = folders
        try:
            self._start_cleaner(folders)
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

    def _start_cleaner(self, folders: Folders) -> None:
        """Start the process that cleans up if this one is killed, before there is anything to clean up."""
        self._cleaner = subprocess.Popen(  # noqa: S603 (our own command, no shell)
            [sys.executable, *ISOLATED_PYTHON, cleanup.__file__, self._mark, str(folders.cards), str(folders.disk)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def _clean(self) -> None:
        folders = self._folders
        if folders is not None:
            cleanup.clean_up(self._mark, [str(folders.cards), str(folders.disk)], grace=2.0)
            self._folders = None
        if self._cleaner is not None and self._cleaner.stdin is not None:
            self._cleaner.stdin.close()
            self._cleaner.wait(2 * END_SECONDS)
            self._cleaner = None

    def _create(self, box: Path) -> None:
        words = ("simgpu", "create", str(box), "--model", workloads.MODEL, "--cards", str(workloads.CARDS))
        try:
            made = subprocess.run(  # noqa: S603 (our own command, no shell)
                [*GPUSHARE, *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=CREATE_SECONDS,
                env=build_environment(os.environ, self._mark, "cards"),
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise StackError(f"cannot create simulated cards: timed out after {CREATE_SECONDS:.0f} s") from None
        if made.returncode:
            messages = made.stderr.strip().splitlines() or [f"status {made.returncode}"]
            raise StackError(f"cannot create simulated cards: {messages[-1].removeprefix('Error: ')}")

    def _commands(self, folders: Folders) -> Sequence[ManagedCommand]:
        """In the order of their start."""
        at, have = self._ports, self._tools
        listen = f"{HOST}:{at.exporter}"
        exporter = (*GPUSHARE, "exporter", "--simgpu", str(folders.box), "--listen", listen, "--interval", "1s")
        quiet = ("--no-kubernetes", "--log-level", "warning")
        path = Path(cuda_workload.__file__)
        tenants = [
            ManagedCommand(
                tenant.name, tenant.command(GPUSHARE, sys.executable, path, folders.box), dies_with_parent=False
            )
            for tenant in workloads.TENANTS
        ]
        commands = [ManagedCommand("exporter", (*exporter, *quiet), f"{self.addresses.exporter}/metrics"), *tenants]
        if have.prometheus:
            alerting = self.addresses.alertmanager is not None
            text = prometheus_config.prometheus_file(at, self._rules, alerting=alerting)
            (folders.disk / "prometheus.yml").write_text(text, encoding="utf-8")
            command = prometheus_config.prometheus_command(have.prometheus, at, folders.disk)
            commands.insert(4, ManagedCommand("prometheus", command, self.addresses.prometheus or ""))
        if have.prometheus and have.alertmanager:
            (folders.disk / "alertmanager.yml").write_text(prometheus_config.alertmanager_file(), encoding="utf-8")
            command = prometheus_config.alertmanager_command(have.alertmanager, at, folders.disk)
            commands.append(ManagedCommand("alertmanager", command, self.addresses.alertmanager or ""))
        return commands

    def _run(self) -> None:
        """The thread, which must outlive its child processes: the parent-death signal is tied to it."""
        folders = self._folders
        if folders is None:
            return
        supervisor = StackSupervisor(self._commands(folders), folders.disk, self._mark)
        polled_at = 0.0
        node: NodeReading | None = None
        alerts: tuple[StackAlert, ...] | None = None
        try:
            while not self._stop.wait(TICK_SECONDS):
                supervisor.start_due()
                if time.monotonic() - polled_at >= POLL_SECONDS:
                    node, alerts = self._read_exporter(supervisor), self._read_alerts(supervisor)
                    polled_at = time.monotonic()
                self._status = self._build_status(supervisor, node, alerts)
        except Exception as exc:  # noqa: BLE001 (of another thread: raised again by `status`)
            self._failure = exc
        finally:
            supervisor.stop()

    def _read_exporter(self, supervisor: StackSupervisor) -> NodeReading | None:
        raw = http_get(self.addresses.exporter, "/metrics")
        node = None if raw is None else read_page(raw)
        supervisor.set_responding("exporter", responding=node is not None)
        if node is not None:
            for one in node.containers:
                if one.used_bytes:
                    supervisor.set_responding(one.pod)
        return node

    def _read_alerts(self, supervisor: StackSupervisor) -> tuple[StackAlert, ...] | None:
        """Firing as Alertmanager has them (Prometheus, where there is none), and those that wait for their time."""
        where = self.addresses
        if where.prometheus is None:
            return None
        raw = http_get(where.prometheus, "/api/v1/alerts")
        supervisor.set_responding("prometheus", responding=raw is not None)
        if raw is None:
            return None
        waiting = read_alerts(raw, PENDING)
        if where.alertmanager is not None:
            raw = http_get(where.alertmanager, "/api/v2/alerts?active=true&silenced=false&inhibited=false")
            supervisor.set_responding("alertmanager", responding=raw is not None)
        firing = None if raw is None else read_alerts(raw)
        return None if waiting is None or firing is None else (*firing, *waiting)

    def _build_status(
        self, supervisor: StackSupervisor, node: NodeReading | None, alerts: tuple[StackAlert, ...] | None
    ) -> StackStatus:
        processes = supervisor.statuses
        names = {tenant.name for tenant in workloads.TENANTS}
        remarks = [self._tools.remark]
        if self._tools.prometheus and self._rules is None:
            remarks.append(f"no alert rules: file {RULES} is missing")
        return StackStatus(
            tenants=self._tenant_statuses(processes),
            processes=(
                *(part for name, part in processes.items() if name not in names),
                StackProcess("autoscaler", UP, f"{self.addresses.autoscaler}/metrics"),
            ),
            node=node,
            alerts=alerts,
            remarks=tuple(filter(None, remarks)),
            events=tuple(supervisor.events),
        )

    @staticmethod
    def _tenant_statuses(processes: dict[str, StackProcess]) -> tuple[TenantStatus, ...]:
        return tuple(
            TenantStatus(
                tenant.name,
                tenant.description,
                tenant.promised_bytes,
                tenant.promised_core_ratio,
                tenant.enforced,
                processes.get(tenant.name, StackProcess(tenant.name, STARTING)),
            )
            for tenant in workloads.TENANTS
        )


def http_get(url: str, path: str) -> bytes | None:
    """What stands at this path; no proxy is polled_at, whatever the environment says."""
    at = urlsplit(url)
    connection = HTTPConnection(at.hostname or "", at.port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        page = answer.read(MAX_BYTES + 1)
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return page if answer.status == HTTPStatus.OK and len(page) <= MAX_BYTES else None
