# SPDX-License-Identifier: Apache-2.0
"""
The gRPC expander for cluster-autoscaler (`--expander=grpc`): reads the expansion options, replies with the best.

Decides what counts as readable; which option is best is decided by `core.options`. An empty reply means that no option
helps: cluster-autoscaler then adds nothing (from 1.32 on; before, it went on with a choice of its own:
kubernetes/autoscaler pull request 7351). An error means no advice at all, in every version: so whatever can be
answered is no error.
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
MAX_BYTES: Final = 64 << 20
"""Of one request: about ten thousand pods, each repeated in every option that would help it."""


class ExpanderPools(Protocol):
    """The configured pools."""

    def pools(self) -> Mapping[str, Pool]:
        """By the name of the node group; other groups are scored by what cluster-autoscaler sends."""


class Expander:
    """Answers BestOptions."""

    def __init__(self, known: ExpanderPools, policy: CallPolicy | None = None) -> None:
        self._known = known
        self._service = MethodHandlers(wire.SERVICE, wire.METHODS, policy or CallPolicy())

    def handler(self) -> Any:
        """For the server."""
        return self._service.handler({"BestOptions": self._best})

    async def finish(self, seconds: float) -> None:
        """Wait at most so long for the calls that have begun."""
        await self._service.finish(seconds)

    async def _best(self, request: Any) -> Any:
        # thousands of pods are read: not on the loop that holds the Lease
        chosen, scores = await asyncio.to_thread(_score, request, dict(self._known.pools()))
        for score in scores:
            if score.vetoed:
                log.info("reject node group %s: %s", show(score.group), score.reason)
        answer = wire.METHODS["BestOptions"][1]
        return answer(options=[wire.Option(nodeGroupId=v.group, nodeCount=v.nodes, debug=v.reason) for v in chosen])


def _score(request: Any, pools: Mapping[str, Pool]) -> tuple[tuple[OptionScore, ...], tuple[OptionScore, ...]]:
    nodes = {**request.nodeMap, **request.nodeBytesMap}
    read: dict[bytes, Request | Refusal | None] = {}
    options = []
    for option in request.options:
        pool = pools.get(option.nodeGroupId)
        asked = list(_requests(option.podBytes or option.pod, read))
        options.append(
            ExpansionOption(
                group=option.nodeGroupId,
                node=_node(nodes.get(option.nodeGroupId, b"")) if pool is None else pool.template,
                # pods that no pool can host count for no option
                pods=tuple(each for each in asked if isinstance(each, Request)),
                unread=asked.count(None),
                refused=sum(isinstance(each, Refusal) for each in asked),
                price=1.0 if pool is None else pool.price,
            )
        )
    return score_options(options)


def _requests(pods: Iterable[bytes], read: dict[bytes, Request | Refusal | None]) -> Iterable[Request | Refusal | None]:
    """Each pod's request; None where it cannot be read. The same pod is in many options: `read` caches."""
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
