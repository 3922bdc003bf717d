# SPDX-License-Identifier: Apache-2.0
"""
What becomes of a container that the runtime is about to create: left alone, closed, given its share, or refused.

Pure. The scheduler's record says what the container may have; the runtime says which pod it belongs to. A refusal's
text stands in the pod's events, so it says what to do; the kubelet tries again by itself. A container without a share
on a node that offers shares must not see a card: that one of its image's variables asks for all of them is common, as
every CUDA base image sets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.codec import CodecError, decode_allocation
from isolation.contract.model import MANY_INSTANCES, SHARED_MODES, SHARES_OF_INSTANCE, Compute, Mode
from isolation.contract.names import ACK, ALLOCATION, CGPU_DISABLE_ENV, SYSTEM_NAMESPACES
from isolation.contract.nri_api import VOID
from isolation.contract.quantity import show_bytes
from isolation.node.nri.model import NriRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.codec import Allocation
    from isolation.contract.model import Card, Slice, Trust
    from isolation.node.nri.model import Container, Sandbox

_NODE: Final = "/dev/nvidia"
_VARIABLES: Final = ("NVIDIA_", "CUDA_VERSION")
"""Variables by which NVIDIA's runtimes decide whether to add cards to a container."""
_NO_CARDS: Final = frozenset({"", "none", VOID})


@dataclass(frozen=True, slots=True)
class Given:
    """What one container has, or gets."""

    slices: tuple[Slice, ...]
    enforced: bool = True
    """False: it has its cards without limits."""
    compute: Compute = Compute()  # noqa: RUF009 (a value)
    trust: Trust | None = None
    """Beside whom it may be under MPS; None: the record does not say."""


@dataclass(frozen=True, slots=True)
class InForce:
    """Memory of a card that another container may use now."""

    uuid: str
    bytes: int
    trust: Trust | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of this node."""

    mode: Mode
    whole: bool
    """Whether somebody offers whole cards here."""
    cards: Mapping[str, Card]
    exempt: frozenset[str] | None
    """Namespaces of system software that may see every card; None: not known yet."""
    unisolated: frozenset[str] = frozenset()
    """Namespaces whose containers may switch their isolation off."""

    @property
    def shares(self) -> bool:
        """Whether this node offers shares."""
        return offers_shares(self.mode, whole=self.whole)


def offers_shares(mode: Mode, *, whole: bool) -> bool:
    """Whether a node of that mode offers shares; `whole`: somebody offers whole cards there."""
    return mode in SHARED_MODES and not whole


def is_exempt(namespace: str, exempt: frozenset[str] | None) -> bool | None:
    """Whether it is of system software, by the exempt namespaces; None: cannot be told yet."""
    if namespace in SYSTEM_NAMESPACES:
        return True
    return None if exempt is None else namespace in exempt


def record_of(sandbox: Sandbox) -> Allocation | None:
    """The pod's record as it was when its sandbox was made, if it can be read and is this very pod's."""
    text = sandbox.annotations.get(ALLOCATION)
    try:
        record = decode_allocation(text) if text is not None else None
    except CodecError:
        return None
    return record if record is not None and record.promise == sandbox.uid else None


def share_of(container: Container, record: Allocation | None) -> tuple[Slice, ...] | None:
    """What the record gives that container; None: nothing."""
    parts = record.parts if record is not None else ()
    return next((part.slices for part in parts if part.container == container.name), None)


def check_share(
    container: Container,
    record: Allocation | None,
    node: NodeFacts,
    before: Given | None,
    in_force: Sequence[InForce],
) -> Given:
    """
    What a container with a share gets; RefusedError.

    `before`: what a container of that name of this very pod had in this boot; `in_force`: all but its own.
    """
    key = container.key
    if record is None or record.promise != container.sandbox.uid:
        raise NriRefusedError(
            f"{key}: the pod has no valid allocation annotation: only the gpushare scheduler may bind pods that "
            f"request {ACK.memory}; delete the pod and let it be scheduled again"
        )
    slices = share_of(container, record)
    if not slices:
        raise NriRefusedError(f"{key}: the pod's allocation annotation has no entry for container {container.name}")
    if before is None and not node.shares:
        why = "whole cards are offered here too" if node.whole else f"its label {ACK.mode_label} is {node.mode}"
        raise NriRefusedError(f"{key}: this node offers no shares: {why}")
    check_room(key, slices, node.cards, in_force)
    if node.mode is Mode.MPS:
        _check_trust(key, slices, record.trust, in_force)
    namespace = container.sandbox.namespace
    free = node.mode is Mode.SHARE or bool(is_exempt(namespace, node.exempt))
    free = free or (container.env.get(CGPU_DISABLE_ENV) == "true" and namespace in node.unisolated)
    # On the way from cgpu to share, limits stay while the pod lives.
    return Given(slices, (before is not None and before.enforced) or not free, record.compute, record.trust)


def check_room(key: str, slices: Sequence[Slice], cards: Mapping[str, Card], in_force: Sequence[InForce]) -> None:
    """Never more on a card than it has, beside what others may use now; RefusedError."""
    unknown = [part.uuid for part in slices if part.uuid not in cards]
    if unknown:
        changed = " (its MIG instances were changed; delete the pod)" if unknown[0].startswith("MIG-") else ""
        raise NriRefusedError(
            f"{key}: the pod was placed on card {', '.join(unknown)}, which this node does not have{changed}"
        )
    parts = [part for part in slices if cards[part.uuid].instance is not None]
    if parts and (len(slices) > 1 or parts[0].core):
        raise NriRefusedError(f"{key}: {MANY_INSTANCES if len(slices) > 1 else SHARES_OF_INSTANCE}")
    for part in slices:
        _fits(key, part, cards[part.uuid], in_force)


def _check_trust(key: str, slices: Sequence[Slice], trust: Trust | None, in_force: Sequence[InForce]) -> None:
    """Under MPS nobody of another group or user on the card; RefusedError. Nothing of whose it is."""
    if trust is None:
        raise NriRefusedError(f"{key}: set securityContext.runAsUser: pods of one user alone share an MPS server")
    uuids = {part.uuid for part in slices}
    if any(one.uuid in uuids and one.trust != trust for one in in_force):
        raise NriRefusedError(
            f"{key}: the card is still in use by pods of another group or user, who cannot share its MPS server; the "
            "kubelet will retry"
        )


def _fits(key: str, part: Slice, card: Card, in_force: Sequence[InForce]) -> None:
    used = sum(one.bytes for one in in_force if one.uuid == part.uuid)
    if used + part.bytes > card.allocatable_bytes:
        # Nothing of whose it is: the pod's owner reads this.
        raise NriRefusedError(
            f"{key}: {show_bytes(part.bytes)} of card {part.uuid} are not free yet: {show_bytes(used)} of "
            f"{show_bytes(card.allocatable_bytes)} are in use by containers of this node; the kubelet will retry"
        )


def may_see_cards(container: Container) -> bool:
    """Whether a container has device nodes of cards, or asks NVIDIA's runtimes for some."""
    return bool(_nodes(container)) or _asks(container)


def _nodes(container: Container) -> list[str]:
    return [path for path in container.devices if path.startswith(_NODE)]


def _asks(container: Container) -> bool:
    return container.env.get(ACK.env_visible, "") not in _NO_CARDS


def check_other(container: Container, exempt: frozenset[str] | None) -> bool:
    """
    Whether a container without a share must be closed to NVIDIA's runtimes, on a node that offers shares.

    RefusedError. `exempt`: as of `is_exempt`.
    """
    nodes, asks = _nodes(container), _asks(container)
    if not (nodes or asks or any(name.startswith(_VARIABLES) for name in container.env)):
        return False
    free = is_exempt(container.sandbox.namespace, exempt)
    if free:
        return False
    if free is None and (nodes or asks):
        raise NriRefusedError(
            f"{container.key}: it is not known yet whether namespace {container.sandbox.namespace} is exempt: the "
            "node agent has not reached the API server since it started; the kubelet will retry"
        )
    if nodes:
        raise NriRefusedError(
            f"{container.key}: the container asks for {nodes[0]} by a CDI device, but the cards of this node are "
            f"shared: request {ACK.memory} instead, or label the namespace gpushare.dev/exempt=true if it is system "
            "software"
        )
    return container.env.get(ACK.env_visible) != VOID
