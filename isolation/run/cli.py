# SPDX-License-Identifier: Apache-2.0
"""
`gpushare run`: give a command a share of this machine's cards and limit it to that share.

Joins NVML, the allocation store, placement and the supervisor. Decides only what is bad input (exit status 2), what is
a refusal (75) and what is a failure (125). Once the command runs, its exit status is ours.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isolation import options
from isolation.contract.abi import Policy
from isolation.contract.host_allocation import store_beside
from isolation.contract.model import CardChoice
from isolation.host import liveness
from isolation.host.feed import Feeder
from isolation.host.machine import MachineError, NvmlMachine
from isolation.lib import native
from isolation.run import listing, preload_check
from isolation.run.allocate import CapacityError, RunOptions, allocate, load_placement, open_console
from isolation.run.foreground import ForegroundError, block_signals, run_supervised
from isolation.run.launch import FAILED, Command, build_environment
from isolation.run.resize import resize
from isolation.run.store import FALLBACK_DIRECTORY, SYSTEM_DIRECTORY, AllocationStore, StoreError, default_directory
from isolation.run.supervisor import Supervisor

if TYPE_CHECKING:
    from isolation.host.machine import Machine
    from isolation.run.store import StoredAllocation

POLICIES: Final = tuple(policy.name.lower() for policy in Policy)
EX_TEMPFAIL: Final = 75  # EX_TEMPFAIL of sysexits.h: try again later
_NAME_CHARS: Final = 63


class CapacityRefusal(click.ClickException):
    """Not enough free capacity: try again later."""

    exit_code = EX_TEMPFAIL


class RunFailure(click.ClickException):
    """The cards, the allocation store or the library cannot be used."""

    exit_code = FAILED


@click.command(context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
@click.option(
    "--gpu-mem",
    "units",
    type=options.WholeNumber(1, 1 << 20, "GiB"),
    metavar="GIB",
    help="Total GPU memory over all cards, in GiB.",
)
@click.option(
    "--gpu-count",
    "count",
    type=options.WholeNumber(1, 16, "cards"),
    default=1,
    show_default=True,
    help="Number of cards over which memory and compute are divided evenly.",
)
@click.option(
    "--gpu-core",
    "core",
    type=options.WholeNumber(1, 1600, "percent"),
    metavar="PERCENT",
    help="Total compute over all cards, in percent of one card. Default: no compute limit.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="fixed",
    show_default=True,
    help="How compute is shared. fixed: at most --gpu-core; burst: also what other runs leave idle; weight: active "
    "runs share the card in proportion to --gpu-core; priority: runs with --online go first; none: no limits at all.",
)
@click.option(
    "--placement",
    type=click.Choice(["binpack", "spread"]),
    default="binpack",
    show_default=True,
    help="Which card to prefer. binpack: the fullest card that fits; spread: the emptiest card.",
)
@click.option("--online", is_flag=True, help="With --policy priority: go before runs without --online.")
@click.option("--wait", is_flag=True, help="Wait for free capacity instead of failing with exit status 75.")
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the run in --list. --placement spread puts runs with the same name on different cards.",
)
@click.option(
    "--simgpu",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Use the simulated cards in PATH (see gpushare simgpu) instead of real ones.",
)
@click.option(
    "state_dir",
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="GPUSHARE_STATE_DIR",
    metavar="DIR",
    help=f"Directory of the allocation store. Default: {SYSTEM_DIRECTORY} or {FALLBACK_DIRECTORY}.",
)
@click.option(
    "resized",
    "--resize",
    metavar="NAME",
    help="Give the run of this name or id (see --list) the memory of --gpu-mem while it goes on, and exit.",
)
@click.option("listing", "--list", is_flag=True, help="List the allocations on this machine and exit.")
@options.output(text="With --list: output format. json: for programs.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENTS]...")
def run(**given: Any) -> None:
    """
    Run COMMAND on a share of this machine's GPU cards and limit it to that share.

    Exit status: that of COMMAND (128 + n if signal n ended it); 75 not enough free capacity; 2 invalid
    usage; 126 COMMAND cannot be run; 127 COMMAND not found; 125 any other failure.
    """
    state_dir, simgpu = given["state_dir"], given["simgpu"]
    simulated = simgpu.resolve() if simgpu else None
    machine = NvmlMachine(simulated)
    store = _open_store(state_dir, simulated)
    try:
        if given["listing"]:
            _list(_read_allocations(store, state_dir, simulated), as_data=bool(given["output"]))
            return
        if given["resized"] is not None:
            _resize(given, machine, store)
            return
        code = run_command(_parse_options(given), machine, store)
    except CapacityError as exc:
        raise CapacityRefusal(str(exc)) from None
    except (MachineError, StoreError, OSError) as exc:
        raise RunFailure(str(exc)) from None
    except KeyboardInterrupt:
        click.echo(err=True)
        code = 128 + signal.SIGINT
    except ForegroundError as exc:
        click.echo(f"gpushare run: {exc}", err=True)
        code = exc.code
    sys.exit(code)


def _resize(given: dict[str, Any], machine: Machine, store: AllocationStore) -> None:
    others = {
        "--gpu-core": given["core"],
        "COMMAND": given["command"],
        "--wait": given["wait"],
        "--name": given["name"],
    }
    if wrong := [name for name, value in others.items() if value]:
        raise click.UsageError(f"--resize takes no {' or '.join(wrong)}")
    if not given["units"]:
        raise click.UsageError("--gpu-mem GIB is missing")
    made = resize(store, given["resized"], given["units"], machine.cards())
    click.echo(f"{made.entry.id} has {given['units']} GiB now")


def _open_store(path: Path | None, simulated: Path | None) -> AllocationStore:
    """The store of --state-dir; without it, the machine's, or that of the simulated cards, which lies next to them."""
    if path is not None:
        return AllocationStore(path.resolve())
    if simulated is not None:
        return AllocationStore(store_beside(simulated))
    home = default_directory()
    return AllocationStore(home, (FALLBACK_DIRECTORY,) if home == SYSTEM_DIRECTORY else ())


def _read_allocations(
    store: AllocationStore, named: Path | None, simulated: Path | None
) -> tuple[StoredAllocation, ...]:
    """The living allocations; cards or a store that were named and do not exist are an error, not an empty list."""
    if simulated is not None and not simulated.is_file():
        raise MachineError(f"{simulated} is not a file: create it with gpushare simgpu create {simulated} --model t4")
    return store.read(expected=named is not None)


def _parse_options(given: dict[str, Any]) -> RunOptions:
    """Check what can be checked without a card."""
    placement = load_placement()
    name, policy, core = given["name"] or "", given["policy"], given["core"] or 0
    if given["output"]:
        raise click.UsageError("-o json requires --list")
    if not given["units"]:
        raise click.UsageError("--gpu-mem GIB is missing")
    if not given["command"] or not given["command"][0]:
        raise click.UsageError("COMMAND is missing: gpushare run --gpu-mem GIB -- COMMAND")
    if policy in {"burst", "weight", "priority"} and not core:
        raise click.UsageError(f"--policy {policy} requires --gpu-core PERCENT")
    if given["online"] and policy != "priority":
        raise click.UsageError("--online requires --policy priority")
    if len(name) > _NAME_CHARS or not name.isprintable():
        raise click.UsageError(f"--name must be at most {_NAME_CHARS} printable characters")
    if liveness.MARK in os.environ:
        raise click.UsageError(
            f"already running inside allocation {os.environ[liveness.MARK][:40]}: gpushare run cannot be nested"
        )
    request = placement.RunRequest(given["units"], given["count"], core, name)
    try:
        request.to_placement()
    except placement.RunRequestError as exc:
        raise click.UsageError(str(exc)) from None
    return RunOptions(
        request,
        tuple(given["command"]),
        policy,
        CardChoice(given["placement"]),
        given["wait"],
        name,
        given["online"],
    )


def run_command(options: RunOptions, machine: Machine, store: AllocationStore) -> int:
    """Allocate, start, wait: the exit status."""
    library = native.library_path() if options.policy != "none" else None
    if library is not None and set(" :") & set(str(library)):
        raise RunFailure(f"{library}: the loader accepts no path with a space or colon: install gpushare elsewhere")
    _open_standard_streams()
    cards = machine.cards()
    started = dict(os.environ)
    held, lock = allocate(options, machine, store, cards)
    if library is not None and (problem := preload_check.find_warning(options.command, started)):
        click.echo(f"note: {problem}", err=True)
    mask = block_signals()
    made = build_environment(
        started,
        machine.environment(),
        (held.entry.id, held.entry.slices, {card.uuid: card for card in cards}),
        library,
        held.folder,
    )
    listen, report_fd = os.pipe()
    machine.close()
    policy = Policy[options.policy.upper()]
    return run_supervised(
        Supervisor(
            store,
            held,
            Command(options.command, made, mask, lock, held.entry.cgroup),
            functools.partial(Feeder, held.entry, held.folder, machine, policy) if library is not None else None,
            native.reap if library is not None else None,
            report_fd,
        ),
        listen,
    )


def _open_standard_streams() -> None:
    """Started with standard streams closed, we would make our pipes in their place; closed again for the command."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def _list(found: tuple[StoredAllocation, ...], *, as_data: bool) -> None:
    held = [stored.entry for stored in found]
    if as_data:
        click.echo(json.dumps(listing.as_json(held), indent=2))
    else:
        click.echo(listing.render_table(held, time.time(), open_console(stderr=False)) or "no allocations")
