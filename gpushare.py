"""
The front door: one `gpushare` command whose sub-commands load lazily from the rooms.

The only module that may join rooms. It knows where a command lives and nothing of what it does.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.sim.surfaces import Collector, Exposition, Screen

COMMANDS: Final = MappingProxyType(
    {
        "autoscaler": (
            "autoscaler.kube.cli:autoscaler",
            "autoscaler",
            "Scale node pools card by card, and repack pods.",
        ),
        "breaches": ("dashboards.views_cli:breaches", "views", "List containers that exceed or bypass their promise."),
        "dashboards": ("dashboards.cli:dashboards", "dashboards", "Build the Grafana dashboards."),
        "doctor": ("isolation.doctor.cli:doctor", "doctor", "Check whether this machine or cluster can share cards."),
        "explain": (
            "dashboards.views_cli:explain",
            "views",
            "Explain why a pod is pending, card by card, and what would help.",
        ),
        "exporter": (
            "exporter.cli:exporter",
            "exporter",
            "Export metrics of this machine's cards and their containers.",
        ),
        "inspect": (
            "dashboards.views_cli:inspect",
            "views",
            "Show allocated memory per card, as kubectl inspect gpushare does.",
        ),
        "lib": ("isolation.lib.cli:lib", "lib", "Show the path and version of the isolation library, or check it."),
        "node": (
            "isolation.node.cli:node",
            "node",
            "Run the node agent, which gives containers their shares of cards.",
        ),
        "place": ("isolation.offline.cli:place", "place", "Show where the pods of manifests would be placed."),
        "rules": ("dashboards.rules.cli:rules", "dashboards", "Build the Prometheus recording and alert rules."),
        "run": ("isolation.run.cli:run", "run", "Run a command on a share of this machine's cards."),
        "scheduler": (
            "isolation.scheduler.cli:scheduler",
            "scheduler",
            "Run the scheduler extender and the admission webhook.",
        ),
        "sim": ("autoscaler.sim.cli:sim", "sim", "Replay a workload under placement policies."),
        "simgpu": ("isolation.simgpu.cli:simgpu", "simgpu", "Create and control simulated NVIDIA cards."),
        "top": ("dashboards.views_cli:top", "views", "Show the memory of each card: allocated, used, free, stranded."),
        "up": ("autoscaler.sim.up:up", "up", "Run the full stack on one machine, with simulated cards."),
    }
)


def load(where: str, extra: str) -> Any:
    """What stands at `module:attribute`, or a clear error that names the missing extra."""
    module, _, attribute = where.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as exc:
        raise click.ClickException(
            f"Python module {exc.name} is not installed: run pip install '.[{extra}]' in gpushare's source tree"
        ) from exc


class Surfaces:
    """What a room may show itself on and may not import: made by other rooms, loaded when asked for."""

    def screen(self, stream: TextIO, clock: Callable[[], float]) -> Screen:
        """The terminal view, or plain lines where the stream is no terminal."""
        made: Screen = load("dashboards.terminal.live:screen_for", "up")(stream, clock)
        return made

    def metrics(self, port: int, more: Mapping[str, Collector]) -> Exposition:
        """The metrics endpoint of a whole fleet."""
        made: Exposition = load("exporter.fleet:FleetMetrics", "up")(port, more)
        return made


class Rooms(click.Group):
    """Imports a room only when its command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Every command, whether or not its extra is installed."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, or a clear error that names the missing extra."""
        if cmd_name not in COMMANDS:
            return None
        where, extra, _help = COMMANDS[cmd_name]
        command: click.Command = load(where, extra)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Help without importing a single room."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in sorted(COMMANDS)])


@click.group(cls=Rooms, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpushare")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Share GPU cards between pods on Kubernetes: placement, isolation, metrics and autoscaling."""
    ctx.ensure_object(Surfaces)


def run() -> None:
    """The command as installed: a disk that is full is said in one line, with a status of its own."""
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except OSError as exc:
        sys.stderr.write(
            f"Error: cannot write the output: {exc.strerror or exc}; free some disk space or write elsewhere\n"
        )
        # What is still in the buffer cannot be written either.
        os._exit(os.EX_IOERR)


if __name__ == "__main__":
    run()
