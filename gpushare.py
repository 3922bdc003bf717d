# SPDX-License-Identifier: Apache-2.0
"""
The entry point: one `gpushare` command whose sub-commands are imported only when they are called.

The only module that may import autoscaler, exporter and dashboards together. It knows where each command is defined and
nothing of what it does. Decides the message and the exit status of a command that ends in a way it does not foresee.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from autoscaler.demo.outputs import Collector, MetricsEndpoint, Screen

COMMANDS: Final = MappingProxyType(
    {
        "autoscaler": (
            "autoscaler.kube.cli:autoscaler",
            "autoscaler",
            "Scale node pools card by card, and repack pods.",
        ),
        "breaches": (
            "dashboards.terminal.cli:breaches",
            "views",
            "List containers that exceed or bypass their promise.",
        ),
        "completion": ("isolation.completion:completion", "", "Print the completion script of a shell."),
        "dashboards": ("dashboards.cli:dashboards", "dashboards", "Build the Grafana dashboards."),
        "device-plugin": (
            "isolation.node.device_plugin.cli:device_plugin",
            "node",
            "Serve the kubelet for the node agent, also while that restarts.",
        ),
        "doctor": ("isolation.doctor.cli:doctor", "doctor", "Check whether this machine or cluster can share cards."),
        "explain": (
            "dashboards.terminal.cli:explain",
            "views",
            "Explain why a pod is pending, card by card, and what would help.",
        ),
        "exporter": (
            "exporter.cli:exporter",
            "exporter",
            "Export metrics of this machine's cards and their containers.",
        ),
        "inspect": (
            "dashboards.terminal.cli:inspect",
            "views",
            "Show allocated memory per card, as kubectl inspect gpushare does.",
        ),
        "lib": ("isolation.lib.cli:lib", "lib", "Show the path and version of the isolation library, or check it."),
        "migrate": (
            "isolation.simulator.migrate.cli:migrate",
            "place",
            "Show what pods and quotas of other systems that share GPUs become.",
        ),
        "mps": (
            "isolation.node.mps.cli:mps",
            "node",
            "Keep NVIDIA MPS daemons for the node agent, also while that restarts.",
        ),
        "node": (
            "isolation.node.cli:node",
            "node",
            "Run the node agent, which gives containers their shares of cards.",
        ),
        "place": ("isolation.simulator.place.cli:place", "place", "Show where the pods of manifests would be placed."),
        "recommend": (
            "dashboards.terminal.cli:recommend",
            "views",
            "Show what workloads should be promised, by what they have used.",
        ),
        "resize": ("isolation.resize_cli:resize", "views", "Change the GPU memory of a running pod."),
        "rules": ("dashboards.rules_cli:rules", "dashboards", "Build the Prometheus recording and alert rules."),
        "run": ("isolation.run.cli:run", "run", "Run a command on a share of this machine's cards."),
        "scheduler": (
            "isolation.scheduler.cli:scheduler",
            "scheduler",
            "Run the scheduler extender and the admission webhook.",
        ),
        "sim": ("isolation.simulator.sim.cli:sim", "sim", "Replay a workload under placement policies."),
        "simgpu": ("isolation.simgpu.cli:simgpu", "simgpu", "Create and control simulated NVIDIA cards."),
        "top": (
            "dashboards.terminal.cli:top",
            "views",
            "Show the memory of each card: allocated, used, free, and stranded (free, but of no use to usual pods).",
        ),
        "up": ("autoscaler.demo.up:up", "up", "Run the full stack on one machine, with simulated cards."),
        "version": (
            "isolation.version_cli:version",
            "",
            "Print the versions of this program, of the isolation library and of the driver.",
        ),
    }
)


INTERRUPTED: Final = 128 + signal.SIGINT
OUTPUT_CLOSED: Final = 128 + signal.SIGPIPE
"""The reader of the output has closed it, as `| head -1` does."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def load(where: str, extra: str) -> Any:
    """Import `module:attribute`; ClickException names the missing extra."""
    module, _, attribute = where.partition(":")
    try:
        with _interruptible():
            return getattr(import_module(module), attribute)
    except ModuleNotFoundError as exc:
        raise _missing(exc, extra) from exc


def _missing(exc: ModuleNotFoundError, extra: str) -> click.ClickException:
    command = load("isolation.distribution:install_command", "")(*filter(None, [extra]))
    return click.ClickException(f"Python module {exc.name} is not installed: run {command}")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """While modules are loaded Ctrl-C ends the process: some of them turn it into an error of their own."""
    known = signal.getsignal(signal.SIGINT)
    if known is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, known)


class LoadedOutputs:
    """What `gpushare up` needs of dashboards and exporter, imported on first use: `autoscaler.demo.outputs.Outputs`."""

    def screen(self, stream: TextIO, clock: Callable[[], float]) -> Screen:
        """The terminal view, or plain lines where the stream is no terminal."""
        screen: Screen = load("dashboards.terminal.up.live:screen_for", "up")(stream, clock)
        return screen

    def metrics(self, port: int, more: Mapping[str, Collector]) -> MetricsEndpoint:
        """The metrics endpoint of a whole fleet."""
        endpoint: MetricsEndpoint = load("exporter.fleet:FleetMetrics", "up")(port, more)
        return endpoint


class LazyCommands(click.Group):
    """Imports a command's package only when the command is called."""

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, which looks for similar names only among commands that are loaded."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            import difflib  # noqa: PLC0415 (for a mistake only)

            if args[0] in COMMANDS or not (similar := difflib.get_close_matches(args[0], COMMANDS, n=1)):
                raise
            raise click.UsageError(f"{exc.message} Did you mean {similar[0]!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Help without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in sorted(COMMANDS)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completion without importing any command: click's own would import all of them."""
        found = [CompletionItem(name, help=COMMANDS[name][2]) for name in COMMANDS if name.startswith(incomplete)]
        return found if incomplete[:1] != "-" else click.Command.shell_complete(self, ctx, incomplete)


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 (click's signature)
    if value and not ctx.resilient_parsing:
        click.echo(f"{_NAME}, version {load('isolation.distribution:release', '')()}")
        ctx.exit()


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Share GPU cards between pods on Kubernetes: placement, isolation, metrics and autoscaling."""
    ctx.ensure_object(LoadedOutputs)


def run() -> None:
    """The command as installed."""
    _end(lambda: main, _NAME)


def kubectl() -> None:
    """`top`, `inspect`, `explain`, `breaches` and `recommend` as a plug-in of kubectl."""
    _end(_views, "kubectl gpushare")


def kubectl_complete() -> None:
    """What kubectl runs to complete words after `kubectl gpushare`."""
    with contextlib.suppress(click.ClickException):
        sys.stdout.write("\n".join(load("isolation.completion:for_kubectl", "")(_views(), sys.argv[1:])) + "\n")


def _views() -> click.Command:
    views: click.Group = load("dashboards.terminal.cli:views", "views")
    views.add_command(load("isolation.version_cli:version", ""))
    return views


_NAME: Final = "gpushare"
_COMPLETE: Final = "_GPUSHARE_COMPLETE"
"""Set by a shell that asks click what may come next."""
_OWN: Final = frozenset({"autoscaler", "dashboards", "exporter", "gpushare", "isolation"})


def _end(command: Callable[[], click.Command], name: str) -> None:
    """Run it and exit: with the command's own status, or one message and status for what it did not foresee."""
    try:
        _open_streams()
        status = _status(command, name)
        sys.stdout.flush()
    except OSError as exc:
        # What is still in the buffer cannot be written either.
        os._exit(_unwritten(exc))
    except KeyboardInterrupt:  # before the command has begun, or after its end
        status = INTERRUPTED
    sys.exit(status)


def _open_streams() -> None:
    """Standard streams that the caller has closed lead nowhere: else the next file that is opened takes their place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115 (for good)


def _status(command: Callable[[], click.Command], name: str) -> int | str | None:
    """Run, and tell what went wrong."""
    try:
        return _run(command(), name)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except SystemExit as exc:
        return exc.code
    except click.ClickException as exc:
        problem = exc
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("\n")
        return INTERRUPTED
    except ModuleNotFoundError as exc:
        if not exc.name or exc.name.partition(".")[0] in _OWN:
            raise
        problem = _missing(exc, next((COMMANDS[word][1] for word in sys.argv[1:] if word in COMMANDS), ""))
    except OSError as exc:
        return _unwritten(exc)
    problem.show()
    return problem.exit_code


def _run(command: click.Command, name: str) -> int:
    """As click's own `main` does, which would hide a reader that has gone behind status 1."""
    if _COMPLETE in os.environ:
        with contextlib.suppress(click.ClickException):  # a package that is missing: nothing to complete
            command(prog_name=name, complete_var=_COMPLETE)
        return 0
    with command.make_context(name, sys.argv[1:]) as context:
        command.invoke(context)
    return 0


def _unwritten(exc: OSError) -> int:
    """The status; a reader that has gone needs no message."""
    if exc.errno == errno.EPIPE:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OUTPUT_CLOSED
    where = f"{exc.filename}: " if exc.filename else ""
    what = "cannot write the output: " if exc.errno in {*_FULL, errno.EIO} else ""
    hint = "; free some disk space or write elsewhere" if exc.errno in _FULL else ""
    sys.stderr.write(f"Error: {what}{where}{exc.strerror or exc}{hint}\n")
    return os.EX_IOERR


if __name__ == "__main__":
    run()
