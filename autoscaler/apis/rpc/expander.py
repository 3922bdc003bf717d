# SPDX-License-Identifier: Apache-2.0
"""
The gRPC expander for cluster-autoscaler (`--expander=grpc`): reads the options, answers with the best.

Decides what counts as readable; what is best is decided by `options`. An empty answer means that no option is
any good: cluster-autoscaler then buys nothing (from 1.32 on; before, it took an empty answer for none and went
on by itself: kubernetes/autoscaler pull request 7351). An error means no advice at all, in every version: so
nothing is an error that can be answered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from autoscaler.apis.rpc.core.options import ExpansionOption, OptionScore, score_options
from autoscaler.apis.rpc.core.wire import expander as wire
from autoscaler.apis.rpc.core.wire.core import UnreadableError, node_json, pod_json
from autoscaler.apis.rpc.handler import CallPolicy, MethodHandlers
from isolation.contract.codec.cursor import CodecError, show
from isolation.contract.codec.node import node_of
from isolation.contract.codec.request import request_of
from isolation.contract.model import Refusal, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.pools import Pool
    from isolation.contract.model import Node

log = logging.getLogger(__name__)
MOST_BYTES: Final = 64 << 20
"""Of one question: some ten thousand pods, each named again in every option that would help it."""


class ExpanderPools(Protocol):
    """What we know of the pools ourselves."""

    def pools(self) -> Mapping[str, Pool]:
        """By the name of the node group; one that is not here is judged by what cluster-autoscaler says of it."""


class Expander:
    """Answers BestOptions."""

    def __init__(self, known: ExpanderPools, manners: CallPolicy | None = None) -> None:
        self._known = known
        self._service = MethodHandlers(wire.SERVICE, wire.METHODS, manners or CallPolicy())

    def handler(self) -> Any:
        """For the server."""
        return self._service.handler({"BestOptions": self._best})

    async def finish(self, seconds: float) -> None:
        """Let what was begun come to its end."""
        await self._service.finish(seconds)

    async def _best(self, request: Any) -> Any:
        # thousands of pods are read: not on the loop that holds the Lease
        chosen, verdicts = await asyncio.to_thread(_judged, request, dict(self._known.pools()))
        for verdict in verdicts:
            if verdict.vetoed:
                log.info("expander rejected node group %s: %s", show(verdict.group), verdict.reason)
        answer = wire.METHODS["BestOptions"][1]
        return answer(options=[wire.Option(nodeGroupId=v.group, nodeCount=v.nodes, debug=v.reason) for v in chosen])


def _judged(request: Any, pools: Mapping[str, Pool]) -> tuple[tuple[OptionScore, ...], tuple[OptionScore, ...]]:
    nodes = {**request.nodeMap, **request.nodeBytesMap}
    read: dict[bytes, Request | Refusal | None] = {}
    options = []
    for one in request.options:
        pool = pools.get(one.nodeGroupId)
        asked = list(_requests(one.podBytes or one.pod, read))
        options.append(
            ExpansionOption(
                group=one.nodeGroupId,
                node=_node(nodes.get(one.nodeGroupId, b"")) if pool is None else pool.template,
                # what no fleet could serve helps nobody, wherever it is bought
                pods=tuple(each for each in asked if isinstance(each, Request)),
                unread=asked.count(None),
                refused=sum(isinstance(each, Refusal) for each in asked),
                price=1.0 if pool is None else pool.price,
            )
        )
    return score_options(options)


def _requests(pods: Iterable[bytes], read: dict[bytes, Request | Refusal | None]) -> Iterable[Request | Refusal | None]:
    """What each pod asks for; None where it cannot be read. The same pod stands in many options."""
    for raw in pods:
        if raw not in read:
            read[raw] = _request(raw)
        yield read[raw]


def _request(raw: bytes) -> Request | Refusal | None:
    try:
        pod = pod_json(raw)
        return request_of(pod.get("metadata"), pod.get("spec"))
    except (UnreadableError, CodecError):
        return None


def _node(raw: bytes) -> Node | None:
    try:
        return node_of(node_json(raw))
    except (UnreadableError, CodecError):
        return None
