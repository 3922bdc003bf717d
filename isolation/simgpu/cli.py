# SPDX-License-Identifier: Apache-2.0
"""
`gpushare simgpu`: create simulated cards, show what they count, inject faults.

A box is one file. Programs find it through GPUSHARE_SIMGPU, or as `hardware` beside the driver
libraries they load (`create --driver` puts links there).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from isolation import options
from isolation.contract.host_allocation import store_beside
from isolation.file_locks import locked
from isolation.simgpu.hardware import (
    DRIVER,
    LIBRARIES,
    LONGEST_STEP,
    SimulatorError,
    UnknownSettingError,
    create,
    install,
    open_box,
    parameters,
)
from isolation.simgpu.mig import PROFILES
from isolation.simgpu.models import MODELS
from isolation.simgpu.owner import Owner
from isolation.simgpu.report import build_document, render_lines

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD: Final = (
    *("recovery-action", "remap-pending", "remap-failed", "remapped-rows", "retired-single-bit", "retired-double-bit"),
    *(
        "pcie-replays",
        "pcie-correctable",
        "pcie-non-fatal",
        "pcie-fatal",
        "nvlink-links",
        "nvlink-errors",
        "nvlink-kib",
    ),
    *("encoder", "decoder", "memory-temperature", "tensor"),
)
"""HW_SETTINGS of driver/hw/hw.h: what NVML tells once it is set."""
FAULTS: Final = ("xid", "lost", "ecc-corrected", "ecc-uncorrected", "throttle", "temperature", *TOLD)
PATH: Final = click.argument("path", type=click.Path(path_type=Path, dir_okay=False))


def _report_errors(act: Callable[[], None]) -> None:
    """Run, and tell the simulator's own errors as one line."""
    try:
        act()
    except UnknownSettingError as exc:
        raise options.InputError(str(exc)) from exc
    except SimulatorError as exc:
        raise click.ClickException(str(exc)) from exc


def _settings(pairs: tuple[str, ...]) -> dict[str, int]:
    """`name=value` words as numbers."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not (value.isascii() and value.isdecimal()):
            raise click.BadParameter(f"{pair!r} is not NAME=NUMBER")
        found[name] = int(value)
    return found


def _refuse_to_replace(path: Path) -> None:
    """SimulatorError for cards that are in use, and for a file that is no hardware file."""
    if not path.exists():
        return
    try:
        with open_box(path) as box:
            box.settle()
            cards = build_document(box)["cards"]
    except SimulatorError:
        raise SimulatorError(
            f"{path} is no hardware file of this version; choose another path, or use --force"
        ) from None
    users = {one["pid"] for card in cards for one in card["processes"] if one["state"] == "live"}
    if users:
        shown = ", ".join(str(pid) for pid in sorted(users)[:5])
        raise SimulatorError(f"{path} is in use by {len(users)} processes ({shown}); stop them, or use --force")
    store = store_beside(path.resolve())
    if promised := [folder.name for folder in (store.iterdir() if store.is_dir() else ()) if locked(folder)]:
        shown = ", ".join(sorted(promised)[:5])
        raise SimulatorError(f"`gpushare run` has promised cards of {path} ({shown}); end these runs, or use --force")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def simgpu() -> None:
    """Create and control simulated NVIDIA cards, for demos and tests without a GPU."""


@simgpu.command("create", short_help="Create a hardware file with simulated cards.")
@PATH
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    help="Card model, or MODEL:PROFILE[@SLICE],... divided by MIG (see `gpushare simgpu models`). Repeat for several.",
)
@click.option(
    "--cards",
    "counts",
    multiple=True,
    type=click.IntRange(1, 16),
    show_default="1",
    help="Number of cards: once for all models, or once for each --model.",
)
@click.option("--driver-version", default=DRIVER, show_default=True, help="Driver version that NVML reports.")
@click.option(
    "--driver", "link", is_flag=True, help="Link the driver and the CUDA runtimes into the directory of PATH."
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace PATH even if programs use its cards or are promised them; they keep the old ones.",
)
@click.argument("settings", nargs=-1, metavar="[NAME=NUMBER]...")
def create_command(  # noqa: PLR0917 (click passes each option)
    path: Path,
    models: tuple[str, ...],
    counts: tuple[int, ...],
    driver_version: str,
    link: bool,  # noqa: FBT001
    force: bool,  # noqa: FBT001
    settings: tuple[str, ...],
) -> None:
    """Create the hardware file PATH with these cards and parameters (see `gpushare simgpu parameters`)."""
    if len(counts) not in {0, 1, len(models)}:
        raise click.BadParameter("give --cards once, or once for each --model")
    each = counts if len(counts) == len(models) else (counts or (1,)) * len(models)
    names = [name for name, count in zip(models, each, strict=True) for _ in range(count)]

    def act() -> None:
        if not force:
            _refuse_to_replace(path)
        create(path, names, _settings(settings), driver_version)
        if link:
            install(path.parent)
        click.echo(f"{path}: {len(names)} {'card' if len(names) == 1 else 'cards'}")
        if link and path.name == "hardware":
            alone = f"LD_LIBRARY_PATH={path.parent.absolute()}"
        else:
            alone = f"GPUSHARE_SIMGPU={path.absolute()} LD_LIBRARY_PATH={LIBRARIES}"
        click.echo(f"share them: gpushare run --simgpu {path} --gpu-mem 4 -- your-program")
        click.echo(f"without limits: {alone} your-program")

    _report_errors(act)


@simgpu.command("show", short_help="Show memory and GPU time of every process.")
@PATH
@options.output(text="Output format. json: everything, for programs.")
@click.option("--all", "everybody", is_flag=True, help="Include processes that have exited.")
def show_command(*, path: Path, output: str, everybody: bool) -> None:
    """Show memory and GPU time of every process on the cards of PATH, as the simulator counts them."""

    def act() -> None:
        with open_box(path) as box:
            box.settle()
            books = build_document(box)
        if output:
            click.echo(json.dumps(books, indent=2))
        else:
            for line in render_lines(books, everybody=everybody):
                click.echo(line)

    _report_errors(act)


@simgpu.command("set", short_help="Change parameters of a hardware file.")
@PATH
@click.argument("settings", nargs=-1, required=True, metavar="NAME=NUMBER...")
def set_command(path: Path, settings: tuple[str, ...]) -> None:
    """Change parameters of the hardware file PATH, also while programs use its cards."""

    def act() -> None:
        with open_box(path) as box:
            for name, value in _settings(settings).items():
                box.set(name, value)

    _report_errors(act)


@simgpu.command("clock", short_help="Stop, step or resume the clock of all cards.")
@PATH
@click.argument("word", type=click.Choice(("show", "stop", "step", "resume")), default="show")
@click.argument("ns", type=click.IntRange(0, LONGEST_STEP), required=False, metavar="[NANOSECONDS]")
@options.output()
def clock_command(path: Path, word: str, ns: int | None, output: str) -> None:
    """Stop the clock of the cards in PATH, step the stopped clock by NANOSECONDS, or resume it; then print it."""
    if (word == "step") is (ns is None):
        raise click.UsageError("`step` needs NANOSECONDS; show, stop and resume take no number")

    def act() -> None:
        with open_box(path) as box:
            if word == "stop":
                box.stop()
            elif word == "resume":
                box.go()
            elif ns is not None:
                box.step(ns)
            if output:
                click.echo(json.dumps({"nanoseconds": box.now, "stopped": bool(box.stands)}))
            else:
                click.echo(f"{box.now} {'stopped' if box.stands else 'running'}")

    _report_errors(act)


@simgpu.command("inject", short_help="Inject a fault: XID, lost card, ECC errors, heat.")
@PATH
@click.option("--card", type=click.IntRange(0, 63), default=0, show_default=True, help="Index of the card.")
@click.argument("what", type=click.Choice(FAULTS))
@click.argument("value", type=click.IntRange(0))
def break_command(path: Path, card: int, what: str, value: int) -> None:
    """
    Inject a fault into a card of PATH.

    VALUE is the XID to report, 1 to lose the card and 0 to bring it back, the number of ECC errors to add, the
    throttle reasons that NVML reports (a bit mask), or the temperature in degrees Celsius. For any other WHAT it is the
    value that NVML reports from then on.
    """

    def act() -> None:
        with open_box(path) as box:
            box.inject(card, what, value)

    _report_errors(act)


@simgpu.command("own", short_help="Own the cards: grant memory as a kernel driver does.")
@PATH
@click.option(
    "--cgroup",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/sys/fs/cgroup"),
    show_default=True,
    help="Mount point of cgroup version 2.",
)
def own_command(path: Path, cgroup: Path) -> None:
    """
    Own the cards of PATH until interrupted, as root.

    Programs then get memory from this process alone, through the socket PATH.owner. It identifies them as the host sees
    them and holds the memory limits of their control groups, whatever they load and whatever they write into PATH.
    """

    def act() -> None:
        with open_box(path) as box:
            owner = Owner(box, cgroup)
            click.echo(f"owning {path}")
            owner.serve()

    _report_errors(act)


@simgpu.command("parameters")
@options.output()
def parameters_command(output: str) -> None:
    """List the parameters and their defaults."""

    def act() -> None:
        known = parameters()
        click.echo(json.dumps(known, indent=2) if output else "\n".join(f"{name}={known[name]}" for name in known))

    _report_errors(act)


@simgpu.command("models")
@options.output()
def models_command(output: str) -> None:
    """List the card models."""
    if output:
        click.echo(json.dumps([{"model": name, **asdict(model)} for name, model in MODELS.items()], indent=2))
        return
    for name, model in MODELS.items():
        names = [part.profile.name for part in model.layout]
        divided = f", {', '.join(f'{names.count(each)} x {each}' for each in dict.fromkeys(names))}" if names else ""
        click.echo(f"{name:14} {model.name}, {model.memory_mib} MiB, {model.sms} SMs{divided}")
    for name, profiles in PROFILES.items():
        click.echo(f"MIG profiles of {name}: {', '.join(profiles)}")
