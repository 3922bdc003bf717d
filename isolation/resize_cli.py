# SPDX-License-Identifier: Apache-2.0
"""
`gpushare resize`: ask for another amount of GPU memory, or compute, for a pod that runs; wait until it is in force.

Writes one annotation, by the rights of whoever calls; what becomes of it the scheduler says in another one. Decides
only the exit status. A pod that has the amount already needs nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isolation import options
from isolation.contract.codec import CodecError, pod_of
from isolation.contract.codec.resize import ResizeReason, ResizeStatus, decode_status, encode_wanted, target_of
from isolation.contract.model import Refusal, parts_of
from isolation.contract.names import ACK, GROUP, PROMISES, RESIZE
from isolation.contract.quantity import UNITS
from isolation.kube.access import Access
from isolation.kube.core.errors import ClusterError, CredentialsError, ForbiddenError, NotFoundError, RefusedError
from isolation.kube.writes import PodRef, decode_object

if TYPE_CHECKING:
    from isolation.contract.model import Part, Pod

INFEASIBLE, NOT_FOUND, PENDING = 1, 4, 75
"""Exit statuses; 75 is EX_TEMPFAIL of sysexits.h, as of `gpushare run`."""
_LOOK_SECONDS: Final = 0.5


class ResizeFailure(click.ClickException):
    """The pod cannot be resized."""

    exit_code = INFEASIBLE


class NoSuchPodFailure(click.ClickException):
    """There is no pod of that name."""

    exit_code = NOT_FOUND


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 asked for, with --wait in force; 75 still pending after --timeout; 1 not possible; "
    "2 invalid usage; 3 the cluster cannot be read; 4 there is no such pod.",
)
@click.argument("pod")
@click.option(
    "--gpu-mem",
    "units",
    type=options.WholeNumber(1, 1 << 20, "units"),
    metavar="UNITS",
    help="Total GPU memory over all cards.",
)
@click.option(
    "--gpu-core",
    "core",
    type=options.WholeNumber(1, 6400, "percent"),
    metavar="PERCENT",
    help="Total compute over all cards, in percent of one card.",
)
@click.option("-c", "--container", default="", metavar="NAME", help="Container. Default: the only one with GPU memory.")
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Namespace of the pod.")
@click.option("--wait", is_flag=True, help="Wait until the amount is in force.")
@click.option(
    "--timeout", type=click.FloatRange(1, 86400), default=60.0, show_default=True, help="With --wait: seconds."
)
@options.memory_unit("Card memory of one unit of aliyun.com/gpu-mem. Must be the same in the whole cluster.")
@click.option("--kubeconfig", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Kubeconfig file.")
@click.option("--context", metavar="NAME", help="Kubeconfig context. Default: current-context.")
def resize(**given: Any) -> None:
    """
    Change the GPU memory, or compute, of a running pod.

    The scheduler books growth on the pod's own cards if there is room; a pod shrinks once it uses no more than the new
    amount. Requires the right to resize promises.gpushare.dev in the namespace.
    """
    if not given["units"] and not given["core"]:
        raise click.UsageError("--gpu-mem UNITS or --gpu-core PERCENT is missing")
    try:
        sys.exit(asyncio.run(_resize(given)))
    except CredentialsError as exc:
        raise options.CannotReadError(f"{exc}: set --kubeconfig") from None
    except NotFoundError:
        raise NoSuchPodFailure(f"pod {given['namespace']}/{given['pod']} does not exist") from None
    except ForbiddenError as exc:
        right = f"the right to resize {PROMISES}.{GROUP}, and to patch pods, in namespace {given['namespace']}"
        raise ResizeFailure(f"{exc.message or exc.reason}: this needs {right}") from None
    except RefusedError as exc:
        raise ResizeFailure(exc.message or exc.reason) from None
    except (ClusterError, CodecError) as exc:
        raise options.CannotReadError(str(exc)) from None


async def _resize(given: dict[str, Any]) -> int:
    async with Access(given["kubeconfig"], given["context"]) as access:
        path = PodRef(given["namespace"], given["pod"], "").path
        unit = UNITS[given["unit"]]
        pod = await _read(access, path, unit)
        wanted = _wanted(pod, given, unit)
        body = {"metadata": {"uid": pod.uid, "annotations": {RESIZE: wanted}}}
        await access.send("PATCH", path, body, "merge-patch")
        if not given["wait"]:
            click.echo(f"asked for {wanted} for {pod.key}")
            return 0
        return await _wait(access, path, wanted, unit, time.monotonic() + given["timeout"])


async def _read(access: Access, path: str, unit: int) -> Pod:
    pod = pod_of(decode_object(await access.send("GET", path)), unit_bytes=unit)
    if isinstance(pod, Refusal):
        raise ResizeFailure(pod.reason)
    if pod.placement is None or not pod.placement.slices or not pod.request.shared:
        raise ResizeFailure(f"{pod.key} has no GPU shares, or is not bound to a node yet")
    return pod


def _wanted(pod: Pod, given: dict[str, Any], unit: int) -> str:
    """The annotation, checked as the scheduler will check it."""
    names = [ask.container for ask in pod.request.asks]
    container = given["container"] or (names[0] if len(names) == 1 else "")
    if container not in names:
        raise click.UsageError(f"--container must be one of {', '.join(names)}")
    amounts = {ACK.memory: given["units"], ACK.compute: given["core"]}
    wanted = encode_wanted({container: {name: amount for name, amount in amounts.items() if amount}})
    target = target_of(wanted, pod.request, _parts(pod), unit_bytes=unit)
    if isinstance(target, Refusal):
        raise click.UsageError(target.reason)
    return wanted


async def _wait(access: Access, path: str, wanted: str, unit: int, end: float) -> int:
    """Until the record has it and nothing is pending."""
    while True:
        pod = await _read(access, path, unit)
        status = _status(pod)
        if status is None and _has(pod, wanted, unit):
            click.echo(f"{wanted} is in force for {pod.key}")
            return 0
        about = status is not None and json.loads(status.wanted) == json.loads(wanted)
        if about and status is not None and status.reason is ResizeReason.INFEASIBLE:
            click.echo(f"gpushare resize: {status.message}", err=True)
            return INFEASIBLE
        if time.monotonic() > end:
            word = (
                f"{status.condition} {status.reason} {status.message}".strip() if status else "no scheduler has seen it"
            )
            click.echo(f"gpushare resize: still pending: {word}", err=True)
            return PENDING
        await asyncio.sleep(_LOOK_SECONDS)


def _has(pod: Pod, wanted: str, unit: int) -> bool:
    """Whether the record gives the containers what is wanted."""
    target = target_of(wanted, pod.request, _parts(pod), unit_bytes=unit)
    if isinstance(target, Refusal) or pod.placement is None:
        return False
    return target.parts(pod.placement.slices) == _parts(pod)


def _parts(pod: Pod) -> tuple[Part, ...]:
    if pod.resize is not None:
        return pod.resize.parts
    return parts_of(pod.request, pod.placement) if pod.placement is not None else ()


def _status(pod: Pod) -> ResizeStatus | None:
    try:
        return decode_status(pod.resize_status) if pod.resize_status else None
    except CodecError:
        return None
