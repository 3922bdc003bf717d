# SPDX-License-Identifier: Apache-2.0
"""
`gpushare exporter`: who uses what of this machine's cards, for Prometheus.

Reads flags and environment, says all that is wrong with them, and starts. A machine whose cards cannot be read
is no reason not to start: the metrics say so. What cannot be served on, or a web configuration that cannot be
used, is.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import click

from exporter import settings
from exporter.settings import ExporterSettings
from isolation import logs, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.app import NodeExporter
    from exporter.front import Front
    from exporter.http.webfile import WebFile

_log: Final = logging.getLogger(__name__)

PREFIX: Final = "GPUSHARE_EXPORTER"
_SWITCH_SECONDS: Final = 0.0005
"""How long a thread may keep the interpreter while a scrape waits for it; Python's own 5 ms would be seen in it."""
_LOOK_SECONDS: Final = 0.8
"""`--once` looks twice, so that there is something between to measure use over."""
_ONCE_SECONDS: Final = 10.0
"""An interval at least this long bounds the reads of `--once`: a driver that nobody uses takes seconds to start."""
_PATH: Final = click.Path(path_type=Path)
_CANNOT_READ: Final = 3
"""Exit status: docs/commands.md."""
_USUAL: Final = ExporterSettings(node="")
_HEALTH_DIR: Final = Path("/run/gpushare-exporter")


class Parsed(click.ParamType[Any]):
    """A text that one of the settings' functions understands."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Its value, or the function's own words."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


@dataclass(frozen=True, slots=True)
class _How:
    """What is to be done with the readings."""

    once: bool
    as_data: bool
    web_config: Path | None


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX, "max_content_width": 110}
)
@click.option(
    "--listen",
    "--metrics-listen",
    type=Parsed("address", settings.address),
    default=f"0.0.0.0:{settings.PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address and port to listen on; port 0 picks a free port.",
)
@click.option(
    "--interval",
    "period",
    type=Parsed("duration", settings.cycle_seconds),
    default="2s",
    show_default=True,
    metavar="TIME",
    envvar=f"{PREFIX}_INTERVAL",
    help="Interval between two readings of all sources.",
)
@click.option("--once", is_flag=True, help="Print one reading and exit: a table on a terminal, otherwise the metrics.")
@options.output(text="With --once: output format. json: the reading, for programs.")
@click.option(
    "--compat-metrics", type=click.Choice(["ack"]), multiple=True, help="Also expose metrics under ACK's names."
)
@click.option(
    "--collect",
    type=Parsed("groups", settings.groups),
    default="",
    metavar="GROUP,...",
    help=f"Further card metrics: {', '.join(settings.GROUPS)}, or all.",
)
@click.option(
    "--web-config",
    type=_PATH,
    metavar="FILE",
    help="Web configuration file of the Prometheus exporter-toolkit (TLS, basic auth); reloaded when it changes.",
)
@click.option(
    "--node",
    type=Parsed("name", settings.node_name),
    envvar=[f"{PREFIX}_NODE", "NODE_NAME"],
    metavar="NAME",
    help="Name of this node. Default: $NODE_NAME, then the host name.",
)
@click.option(
    "--pool", default="", metavar="NAME", help="Node pool of this node, for the pool label of gpushare_card_info."
)
@click.option(
    "--mode",
    type=click.Choice(["", *settings.MODES]),
    default="",
    metavar="MODE",
    help="What this node serves: share, cgpu, core_mem, mps or default (whole cards).",
)
@click.option(
    "--isolation",
    type=click.Choice(["", *settings.ISOLATIONS]),
    default="",
    metavar="WHAT",
    help="What enforces promises on this node: none, library, mps or kernel. Default: derived from --mode.",
)
@click.option("--simgpu", type=_PATH, metavar="FILE", help="Read simulated cards from this file (see gpushare simgpu).")
@click.option(
    "--state-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),  # a typo would read as "nothing is allocated"
    metavar="DIR",
    help="Directory in which `gpushare run` stores allocations. Default: the same as for `gpushare run`.",
)
@click.option(
    "--agent-state-dir",
    type=_PATH,
    default=_USUAL.agent_state_dir,
    show_default=True,
    metavar="DIR",
    help="State directory of the node agent.",
)
@click.option(
    "--health-dir",
    type=_PATH,
    metavar="DIR",
    help="Directory that keeps the health of cards across restarts, until the next boot. Default: "
    f"{_HEALTH_DIR}; with --simgpu, beside that file.",
)
@click.option(
    "--proc", type=_PATH, default=_USUAL.proc, show_default=True, metavar="DIR", help="Mount point of the host's /proc."
)
@click.option(
    "--cgroup",
    type=_PATH,
    default=_USUAL.cgroup,
    show_default=True,
    metavar="DIR",
    help="Mount point of the host's control groups.",
)
@click.option(
    "--kubernetes/--no-kubernetes",
    default=None,
    help="Whether to query the kubelet. Default: if the directory of --kubelet-socket exists.",
)
@click.option(
    "--kubelet-socket",
    type=_PATH,
    default=_USUAL.kubelet_socket,
    show_default=True,
    metavar="FILE",
    help="Socket of the kubelet's pod-resources API.",
)
@click.option(
    "--pods-socket",
    type=_PATH,
    default=_USUAL.pods_socket,
    show_default=True,
    metavar="FILE",
    help="Socket of the kubelet's Pods API.",
)
@click.option(
    "--log-dir",
    type=_PATH,
    default=_USUAL.log_dir,
    show_default=True,
    metavar="DIR",
    help="Directory of the kubelet's container log links, for container names if the kubelet has no Pods API.",
)
@logs.options
def exporter(**given: Any) -> None:
    """
    Serve Prometheus metrics of this machine's cards and of what each container uses of them.

    Works without Kubernetes. On a Kubernetes node it does not use the API server. Every option can also be set by an
    environment variable: GPUSHARE_EXPORTER_ and the name of the option, for example GPUSHARE_EXPORTER_INTERVAL=5s.
    """
    if given["output"] and not given["once"]:
        raise click.UsageError("-o json requires --once")
    form, level = given.pop("log_format"), given.pop("log_level")
    # One reading prints the causes of failures itself.
    logs.set_up(form, "error" if given["once"] and level != "debug" else level)
    how = _How(given.pop("once"), bool(given.pop("output")), given.pop("web_config"))
    chosen = _settings(given)
    sys.setswitchinterval(_SWITCH_SECONDS)
    if how.once:
        _once(chosen, as_data=how.as_data)
    else:
        _serve(chosen, how.web_config)


def _settings(given: dict[str, Any]) -> ExporterSettings:
    host, port = given.pop("listen")
    node = given.pop("node") or settings.node_name(socket.gethostname() or "localhost")
    simulated = given.pop("simgpu")
    return ExporterSettings(
        node=node,
        host=host,
        port=port,
        compat_metrics=frozenset(given.pop("compat_metrics")),
        simgpu=simulated.resolve() if simulated else None,
        health_dir=given.pop("health_dir") or _health_dir(simulated),
        **given,
    )


def _health_dir(simulated: Path | None) -> Path:
    return _HEALTH_DIR if simulated is None else simulated.resolve().with_name(f"{simulated.name}.exporter")


def _once(chosen: ExporterSettings, *, as_data: bool) -> None:
    """Two looks, one print; status 3 where the cards cannot be read."""
    from exporter import show  # noqa: PLC0415 (a server shows nothing)
    from exporter.app import NodeExporter  # noqa: PLC0415 (help is asked for without gRPC)

    patient = replace(chosen, health_dir=None, period=max(chosen.period, _ONCE_SECONDS))
    with NodeExporter(patient) as node:
        result = node.cycle.run_once()
        if result.snapshot.machine.ok:
            threading.Event().wait(min(chosen.period, _LOOK_SECONDS))
            result = node.cycle.run_once()
        if as_data:
            click.echo(show.as_json(result))
        elif sys.stdout.isatty():
            click.echo(show.table(result))
        else:
            click.echo(node.page(), nl=False)
    errors = show.errors(result)
    for error in errors:
        click.echo(f"gpushare exporter: {error}", err=True)
    if not result.snapshot.machine.ok:
        sys.exit(_CANNOT_READ)


def _serve(chosen: ExporterSettings, web_config: Path | None) -> None:
    """Until a signal; the socket is taken first, so that a port in use is reported before a card is touched."""
    from exporter.front import Front  # noqa: PLC0415 (not for a single look)
    from exporter.http.listen import ListenError, listen, url  # noqa: PLC0415 (as above)
    from isolation.host.drop_privileges import ConfineError, give_up_network  # noqa: PLC0415 (as above)

    web = _web(web_config)
    try:
        listener = listen(chosen.host, chosen.port)
        address = url(listener, secure=web is not None and web.config.tls is not None)
        gc.freeze()  # what is loaded processes, for both processes: looking through it again would copy every page
        front = Front.fork(listener, web, chosen.stale_seconds)
        give_up_network()
    except (ListenError, ConfineError) as exc:
        raise click.ClickException(exc.strerror or str(exc)) from None
    from exporter.app import NodeExporter  # noqa: PLC0415 (gRPC has threads, which do not outlive a fork)

    with NodeExporter(chosen, front) as node:
        _log.info("serving metrics of node %s at %s", chosen.node, address)
        gc.freeze()
        status = _wait_for_end(node, front)
        front.close()
        # A source may hang in a driver for as long as it likes: nobody waits for it, the kernel lets go what is left.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)


def _web(path: Path | None) -> WebFile | None:
    if path is None:
        return None
    from exporter.http.webconfig import WebConfigError  # noqa: PLC0415 (TLS and YAML only for those who want them)
    from exporter.http.webfile import WebFile  # noqa: PLC0415 (as above)

    try:
        return WebFile(path)
    except WebConfigError as exc:
        raise click.ClickException(str(exc)) from None


def _wait_for_end(node: NodeExporter, front: Front) -> int:
    """Exit status: 1 where the process that serves has gone, which needs a restart of both."""
    stop = threading.Event()
    signals: SimpleQueue[int] = SimpleQueue()  # an Event's own lock would be taken twice by a handler amid its wait
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: signals.put(number))
    front.start(node.pages, lambda: signals.put(0))
    worker = threading.Thread(target=node.cycle.run, args=(stop,), name="cycle", daemon=True)
    worker.start()
    ended = not signals.get()
    stop.set()
    if not ended:
        _log.info("shutting down: received a signal")
        return 0
    _log.error("shutting down: the HTTP process has ended")
    return 1
