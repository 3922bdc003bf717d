# SPDX-License-Identifier: Apache-2.0
"""
The canary: whether the library is truly loaded into a program, and truly limits it, on this machine.

A promise far smaller than the card is written for one small program. It must see the promise as its card,
get what lies inside, and be refused what lies beyond; the refusal must stand in the breach ring, so that it
was the library's and not the driver's. Takes some hundred MiB of one card for a second, and leaves nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isolation.contract import abi
from isolation.contract.names import ACK, IN_CONTAINER
from isolation.contract.quantity import GIB, MIB
from isolation.doctor.checks.finding import Finding, ok, problem, unknown
from isolation.host.core.context_memory import context_bytes
from isolation.host.feed import uuid_of
from isolation.host.machine import MachineError
from isolation.lib import files, native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.model import Card
    from isolation.host.machine import Machine

PROMISE: Final = GIB
SECONDS: Final = 60.0
"""A card that wakes up takes some."""
_PROGRAM: Final = Path(__file__).with_name("canary_program.py")
_LOADED, _LIMITED = "canary.loaded", "canary.limited"
_OUT_OF_MEMORY: Final = 2
_MAX_SAID: Final = 4096
_REINSTALL: Final = "run `gpushare lib` to check the library; this Python must be dynamically linked with glibc"
_RETRY: Final = "try again when more memory of the card is free"


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """What the canary said, and how often it was refused by the library."""

    said: Mapping[str, Any]
    denied: int


def run_canary(machine: Machine) -> list[Finding]:
    """Promise, run, judge."""
    if (Path(IN_CONTAINER) / "limits" / "limits").exists():
        what = "this process already runs under a promise, so the canary cannot set its own"
        return [
            unknown(_LOADED, what, "in a pod, run `gpushare doctor inside`; otherwise run it outside of the container")
        ]
    try:
        cards = [card for card in machine.cards() if card.healthy and card.total_bytes > PROMISE]
        if not cards:
            return [unknown(_LOADED, "there is no healthy card with more than 1 GiB", "see the finding machine.cards")]
        card, around = cards[0], machine.environment()
        machine.close()
        song = _under_a_promise(card, around)
    except (MachineError, OSError, subprocess.SubprocessError, abi.AbiError) as exc:
        return [unknown(_LOADED, f"the canary could not be run: {exc}", _REINSTALL)]
    return check_result(song, PROMISE)


def run_canary_inside(environment: Mapping[str, str]) -> list[Finding]:
    """The same in a container that has a promise already, against what its environment tells of it."""
    granted = environment.get(ACK.env_container_memory, "")
    if not granted.isascii() or not granted.isdigit() or len(granted) > 6:  # noqa: PLR2004 (a million GiB)
        what = f"environment variable {ACK.env_container_memory} is not set: this container has no share of a card"
        return [unknown(_LOADED, what, f"request {ACK.memory} in the pod's limits")]
    try:
        said = _said({**os.environ, **environment})
    except (OSError, subprocess.SubprocessError) as exc:
        return [unknown(_LOADED, f"the canary could not be run: {exc}", _REINSTALL)]
    try:
        denied = _denied(Path(IN_CONTAINER) / "region" / "region")
    except (OSError, abi.AbiError) as exc:
        return [
            problem(
                _LOADED, f"cannot read the ledger of this container: {exc}", "check the Events of this pod and its node"
            )
        ]
    return check_result(CanaryResult(said, denied), int(granted) * GIB)


def check_result(song: CanaryResult, promise: int) -> list[Finding]:
    """What the song says about the library."""
    said = song.said
    if "missing" in said:
        return [problem(_LOADED, f"{said['missing']}", "install the driver's CUDA library (libcuda.so.1)")]
    if "total" not in said:
        step = next((name for name in ("context", "device", "init") if name in said), "start")
        what = f"CUDA does not start (failed step {step}: {said.get(step, 'no answer')})"
        return [
            unknown(_LOADED, what, "check `nvidia-smi`: the card may be full, or its compute mode may not be Default")
        ]
    if said["total"] != promise:
        shown = f"the program sees {said['total'] // MIB} MiB, but {promise // MIB} MiB are promised"
        return [problem(_LOADED, f"{shown}: the isolation library is not loaded", _REINSTALL)]
    loaded = ok(_LOADED, f"the program sees a card of {promise // MIB} MiB, as promised")
    if said["inside"] != 0:
        what = (
            f"an allocation of {said['free'] // 2 // MIB} MiB within the promise failed: CUDA result {said['inside']}"
        )
        return [loaded, unknown(_LIMITED, what, _RETRY)]
    if said["over"] != _OUT_OF_MEMORY:
        what = f"an allocation beyond the promise was not denied: CUDA result {said['over']}"
        return [loaded, problem(_LIMITED, what, _REINSTALL)]
    if not song.denied:
        what = "an allocation beyond the promise was denied, but not by the isolation library"
        return [loaded, problem(_LIMITED, what, _REINSTALL)]
    return [
        loaded,
        ok(_LIMITED, "the isolation library denied an allocation beyond the promise and allowed one within it"),
    ]


def _under_a_promise(card: Card, around: Mapping[str, str]) -> CanaryResult:
    library = native.library_path()
    with tempfile.TemporaryDirectory(prefix="gpushare-canary-") as folder:
        limits, feed, region = (Path(folder) / name for name in ("limits", "feed", "region"))
        promised = abi.CardLimit(uuid_of(card.uuid), PROMISE, context_bytes(card.model), policy=abi.Policy.NONE)
        files.write_limits(limits, abi.Limits(1, "canary", (promised,)))
        files.write_feed(feed, [abi.CardFeed(0, 0)], now_ns=1)
        files.create_region(region, "canary")
        env = {key: value for key, value in os.environ.items() if key not in {"LD_PRELOAD", "CUDA_VISIBLE_DEVICES"}}
        paths = around.get("LD_LIBRARY_PATH", "")
        if paths and env.get("LD_LIBRARY_PATH"):
            paths = f"{paths}:{env['LD_LIBRARY_PATH']}"
        env |= {**around, **({"LD_LIBRARY_PATH": paths} if paths else {})}
        env |= {"CUDA_VISIBLE_DEVICES": card.uuid, "LD_PRELOAD": str(library)}
        env |= {"GPUSHARE_LIMITS": str(limits), "GPUSHARE_FEED": str(feed), "GPUSHARE_REGION": str(region)}
        return CanaryResult(_said(env), _denied(region))


def _denied(region: Path) -> int:
    _, _, records = files.read_breaches(region)
    return sum(record.kind == abi.Breach.DENIED for record in records)


def _said(env: Mapping[str, str]) -> Mapping[str, Any]:
    """The program's one line; empty where it said nothing that makes sense."""
    done = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-I", str(_PROGRAM)],
        env=dict(env),
        capture_output=True,
        timeout=SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    try:
        said = json.loads(done.stdout[:_MAX_SAID])
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
