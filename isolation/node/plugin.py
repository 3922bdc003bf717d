# SPDX-License-Identifier: Apache-2.0
"""
The device plugin as the kubelet hears it: gRPC in, the agent's answers out.

Decides what is said when the agent has no answer in time: GetPreferredAllocation and Allocate never fail,
because an error of either ends the pod for good and a slow answer holds up every pod of the node. Whatever
was said in such a need is checked by PreStartContainer, which may fail: the kubelet asks again. Who gets
which device is the agent's business, when to register that of `register`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc

from isolation.contract import kubelet_api as api
from isolation.node.book import are_ours, device_of
from isolation.node.world import Ask, Granted, NotYetError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from isolation.node.world import Device

    T = TypeVar("T")

log = logging.getLogger(__name__)
ANSWER_SECONDS: Final = 2.0
"""The design's bound on holding up the node."""
PRESTART_SECONDS: Final = 25.0
"""The kubelet hangs up after 30 s and then learns no reason."""
_LOOK_SECONDS: Final = 1.0
_MOST_HEARD_BYTES: Final = 16 << 20
_LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path: sun_path of unix(7), less its end."""
_LONGEST_SAID: Final = 500


class PluginError(Exception):
    """The plugin cannot be served; the message says what to change."""


class Mind(Protocol):
    """The agent."""

    def devices(self) -> Sequence[Device]:
        """Every device as it is now."""

    async def preferred(self, asks: Sequence[Ask]) -> Sequence[Sequence[str]]:
        """For each container the IDs that it should get."""

    async def allocate(self, sets: Sequence[Sequence[str]]) -> Sequence[Granted]:
        """For each container what these IDs come as."""

    async def prestart(self, ids: Sequence[str]) -> None:
        """Everything in place for the container with these IDs; NotYetError."""


class Times(Protocol):
    """Where it is noted how long answers took."""

    def took(self, method: str, seconds: float, outcome: str) -> None:
        """One answer; the outcome is ok, late, broken or refused."""


class Plugin:
    """Serves one resource from one socket."""

    def __init__(self, mind: Mind, path: Path, times: Times) -> None:
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise PluginError(f"{path}: socket path is longer than {_LONGEST_PATH} bytes: shorten --kubelet-dir")
        self._mind, self.path, self._times = mind, path, times
        self._server: Any = None
        self._news = asyncio.Event()
        self._watchers = 0
        self._stamp: tuple[int, int] | None = None

    @property
    def watched(self) -> bool:
        """Whether the kubelet listens to our devices."""
        return self._watchers > 0

    def stands(self) -> bool:
        """Whether our socket is still where we put it: a kubelet that starts clears the folder."""
        return self._server is not None and stamp_of(self.path) == self._stamp

    def changed(self) -> None:
        """Tell the kubelet of the devices again, if they differ."""
        self._news.set()

    async def start(self) -> None:
        """Serve; a socket that is in the way is a dead agent's (whoever lives holds the lock)."""
        await self.stop()
        self.path.unlink(missing_ok=True)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MOST_HEARD_BYTES),
                ("grpc.max_send_message_length", api.MOST_MESSAGE_BYTES),
            ]
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(api.PLUGIN, self._handlers()),))
        try:
            server.add_insecure_port(f"unix:{self.path}")
            await server.start()
            self.path.chmod(0o600)
        except (OSError, RuntimeError) as exc:
            await server.stop(None)
            raise PluginError(f"cannot listen on {self.path}: {exc}") from None
        self._server, self._stamp = server, stamp_of(self.path)

    async def stop(self, grace: float | None = None) -> None:
        """Calls that are under way have `grace` seconds to end; then the kubelet offers nothing of ours."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace)

    def _handlers(self) -> dict[str, Any]:
        unary: Mapping[str, tuple[Callable[[Any, Any], Awaitable[Any]], Any]] = {
            "GetDevicePluginOptions": (self._options, api.Empty),
            "GetPreferredAllocation": (self._preferred, api.PreferredAllocationRequest),
            "Allocate": (self._allocate, api.AllocateRequest),
            "PreStartContainer": (self._prestart, api.PreStartContainerRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(answer, asked.FromString, _serialize)
            for name, (answer, asked) in unary.items()
        }
        return handlers | {
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._watch, api.Empty.FromString, _serialize)
        }

    async def _options(self, _request: Any, _context: Any) -> Any:
        return options()

    async def _watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """The devices at once, and again whenever they differ."""
        told: Any = None
        self._watchers += 1
        try:
            while True:
                self._news.clear()  # before the look: what changes while a message is sent is news again
                now = tuple(self._mind.devices())
                if now != told:
                    yield message_of(now)
                    told = now
                try:
                    await asyncio.wait_for(self._news.wait(), _LOOK_SECONDS)
                except TimeoutError:
                    continue
        finally:
            self._watchers -= 1

    async def _preferred(self, request: Any, _context: Any) -> Any:
        asks = [
            Ask(tuple(one.available_deviceIDs), tuple(one.must_include_deviceIDs), one.allocation_size)
            for one in request.container_requests
        ]
        chosen = await self._answered("GetPreferredAllocation", self._mind.preferred(asks))
        if chosen is None or len(chosen) != len(asks):
            chosen = [_anything(ask) for ask in asks]
        return api.PreferredAllocationResponse(container_responses=[{"deviceIDs": ids} for ids in chosen])

    async def _allocate(self, request: Any, _context: Any) -> Any:
        sets = [tuple(one.devices_ids) for one in request.container_requests]
        if not all(map(are_ours, sets)):
            # Written into the book they would make it unreadable; nobody starts with them.
            log.error("Allocate: the kubelet sent invalid device IDs: %.200s", sets)
            granted: Sequence[Granted] | None = None
        else:
            granted = await self._answered("Allocate", self._mind.allocate(sets))
        if granted is None or len(granted) != len(sets):
            granted = [Granted(device_of(ids)) for ids in sets]
        answers = [{"cdi_devices": [{"name": one.cdi_device}]} for one in granted]
        return api.AllocateResponse(container_responses=answers)

    async def _answered(self, method: str, answer: Awaitable[T]) -> T | None:
        """The agent's answer; None where it is late or broken, which is told and noted."""
        began, outcome = time.monotonic(), "ok"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            outcome = "timeout"
            log.error("%s timed out after %.1f s: continuing without it", method, ANSWER_SECONDS)  # noqa: TRY400
        except Exception:  # whatever it is, the pod must not fail of it for good
            outcome = "error"
            log.exception("%s failed: continuing without it", method)
        finally:
            self._times.took(method, time.monotonic() - began, outcome)
        return None

    async def _prestart(self, request: Any, context: Any) -> Any:
        began, outcome, why = time.monotonic(), "ok", ""
        try:
            async with asyncio.timeout(PRESTART_SECONDS):
                await self._mind.prestart(tuple(request.devices_ids))
        except NotYetError as exc:
            outcome, why = "refused", str(exc)
        except TimeoutError:
            outcome, why = "timeout", f"not ready within {PRESTART_SECONDS:.0f} s: the kubelet will retry"
        except Exception:  # the kubelet asks again: nothing is lost by saying no
            outcome, why = "error", "the node agent failed (see its log): the kubelet will retry"
            log.exception("PreStartContainer failed")
        finally:
            self._times.took("PreStartContainer", time.monotonic() - began, outcome)
        if why:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why[:_LONGEST_SAID])
        return api.PreStartContainerResponse()


def options() -> Any:
    """What we want to be asked."""
    return api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def message_of(devices: Sequence[Device]) -> Any:
    """The devices as the kubelet is told; PluginError where it would not take them."""
    listed = [{"ID": one.id, "health": api.HEALTHY if one.healthy else api.UNHEALTHY} for one in devices]
    message = api.ListAndWatchResponse(devices=listed)
    size = message.ByteSize()
    if size >= api.MOST_MESSAGE_BYTES:
        raise PluginError(
            f"{len(devices)} devices need {size} bytes, the kubelet takes {api.MOST_MESSAGE_BYTES}: "
            "use a larger --memory-unit"
        )
    return message


def stamp_of(path: Path) -> tuple[int, int] | None:
    """What tells a socket from a later one of that name; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _anything(ask: Ask) -> list[str]:
    """As many as asked for, on one card as far as that goes; nothing better is known."""
    card = sorted(ask.available)
    return list(dict.fromkeys((*ask.must, *card)))[: ask.size]


def _serialize(message: Any) -> bytes:
    text: bytes = message.SerializeToString()
    return text
