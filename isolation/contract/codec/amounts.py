# SPDX-License-Identifier: Apache-2.0
"""
What one container asks for, and what a pod's containers add up to.

Decides which amounts a container may ask at all and adds them as Kubernetes does, so that
what placement takes off a card is what the kubelet will hold. Knows no cards, nodes or labels.

Sources: `k8s.io/component-helpers/resource` (PodRequests: the larger of the running sum and
each init container with the sidecars before it; pod-level CPU and memory replace the sum;
overhead comes on top), KEP-753 (sidecars), KEP-2837 (pod-level resources).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from isolation.contract import quantity
from isolation.contract.codec.cursor import LARGEST, Unacceptable, show
from isolation.contract.names import MIG_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from isolation.contract.codec.cursor import At
    from isolation.contract.names import Dialect

MAX_BYTES: Final = 1 << 50
"""Card memory that no machine has: a petabyte is bytes written where units are meant."""
CPU: Final = "cpu"
MEMORY: Final = "memory"
_ZERO: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Asked:
    """One container's request in the dialect's own units, each amount whole and legal by itself."""

    name: str
    cpu: Fraction
    """Cores."""
    memory: Fraction
    """Bytes."""
    named: frozenset[str]
    """Which of CPU and memory the container says anything about."""
    units: int = 0
    core: int = 0
    whole: int = 0
    profile: str = ""
    """Of whole MIG instances; empty: whole cards."""
    init: bool = False
    """Ends before the app containers start."""
    sidecar: bool = False
    """An init container that keeps running."""
    others: tuple[str, ...] = ()
    """Resources that placement does not weigh."""

    @property
    def on_cards(self) -> bool:
        """Whether it asks anything of cards."""
        return bool(self.units or self.core or self.whole)


def amount(raw: At, what: str) -> Fraction:
    """A quantity that is neither negative nor absurd."""
    if isinstance(raw.value, dict | list):
        raise raw.wrong(f'expected an amount, not {show(raw.value)}; write a number such as 8 or "512Mi"')
    try:
        value = quantity.parse(raw.value)
    except ValueError:
        raise Unacceptable(f'{what}: {show(raw.value)} is not an amount; write a number such as 8 or "512Mi"') from None
    if value < 0:
        raise Unacceptable(f"{what}: {show(raw.value)} is negative; request a positive amount")
    if value >= LARGEST:
        raise Unacceptable(f"{what}: {show(raw.value)} is more than any machine has; request less")
    return value


def asked_of(container: At, dialect: Dialect, unit_bytes: int, *, init: bool) -> Asked:
    """One entry of `containers` or `initContainers`."""
    name = container["name"].label_name()
    sidecar = init and container["restartPolicy"].text() == "Always"
    where = f"container {show(name)}"
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    for key in (CPU, MEMORY):
        _check_order(requests[key], limits[key], f"{where}, {key}")
    units = extended(requests, limits, dialect.memory, where)
    if units is not None and units * unit_bytes >= MAX_BYTES:
        unit = quantity.show_bytes(unit_bytes)
        raise Unacceptable(
            f"{where}: {dialect.memory} {show(limits[dialect.memory].value)} is more than any machine has; "
            f"the unit is {unit}, so write 2 for {quantity.show_bytes(2 * unit_bytes)}"
        )
    core = extended(requests, limits, dialect.compute, where)
    if core is not None and units is None:
        raise Unacceptable(f"{where}: {dialect.compute} needs {dialect.memory}; request both on this container")
    whole = extended(requests, limits, dialect.whole, where, zero=True)
    stated = {key for part in (limits, requests) for key, _ in part.fields()}
    known, profile = {CPU, MEMORY, dialect.memory, dialect.compute, dialect.whole}, ""
    parts = [key for key in stated if key.startswith(MIG_PREFIX)]
    if len(parts) == 1 and not (units or whole):
        whole, profile = extended(requests, limits, parts[0], where, zero=True), parts[0].removeprefix(MIG_PREFIX)
        known.add(parts[0])
    return Asked(
        name=name,
        cpu=_request(requests[CPU], limits[CPU], f"{where}, cpu"),
        memory=_request(requests[MEMORY], limits[MEMORY], f"{where}, memory"),
        named=frozenset(key for key in (CPU, MEMORY) if requests[key] or limits[key]),
        units=units or 0,
        core=core or 0,
        whole=whole or 0,
        profile=profile if whole else "",
        init=init and not sidecar,
        sidecar=sidecar,
        others=tuple(sorted(stated - known)),
    )


def one_profile(asks: Sequence[Asked]) -> tuple[list[Asked], str]:
    """
    The asks with the MIG profile of the pod's whole instances; empty: it asks for none.

    Instances of several profiles, or beside cards, are the vendor's plugin's to give: placement does not weigh them.
    """
    profiles = {ask.profile for ask in asks if ask.profile}
    plain = any(ask.units or (ask.whole and not ask.profile) for ask in asks)
    if not profiles or (len(profiles) == 1 and not plain):
        return list(asks), next(iter(profiles), "")
    return [
        replace(ask, whole=0, profile="", others=(*ask.others, MIG_PREFIX + ask.profile)) if ask.profile else ask
        for ask in asks
    ], ""


def _request(request: At, limit: At, what: str) -> Fraction:
    chosen = request or limit
    return amount(chosen, what) if chosen else _ZERO


def _check_order(request: At, limit: At, what: str) -> None:
    if request and limit and amount(request, what) > amount(limit, what):
        raise Unacceptable(
            f"{what}: requests {show(request.value)} is more than limits {show(limit.value)}; lower requests"
        )


def extended(requests: At, limits: At, name: str, where: str, *, zero: bool = False) -> int | None:
    """A whole amount of an extended resource: stated as limit, and as request only if equal."""
    request, limit = requests[name], limits[name]
    if not limit and not request:
        return None
    if not limit:
        raise Unacceptable(f"{where}: {name} is set under requests only; set {show(request.value)} under limits too")
    value = amount(limit, f"{where}, {name}")
    if value.denominator != 1:
        raise Unacceptable(f"{where}: {name} is {show(limit.value)}, a fraction; request a whole number")
    if request and amount(request, f"{where}, {name}") != value:
        raise Unacceptable(
            f"{where}: {name} has requests {show(request.value)} and limits {show(limit.value)}; make them equal"
        )
    if value == 0 and not zero:
        raise Unacceptable(f"{where}: {name} is 0; request 1 or more, or remove it")
    return int(value)


def peak(asks: Iterable[Asked], part: Callable[[Asked], Fraction | int]) -> Fraction:
    """The effective request for one resource; `asks` in Kubernetes' order of start."""
    sidecars, most, running = _ZERO, _ZERO, _ZERO
    for ask in asks:
        if ask.sidecar:
            sidecars += part(ask)
        elif ask.init:
            most = max(most, sidecars + part(ask))
        else:
            running += part(ask)
    return max(running + sidecars, most)


def machine_amounts(spec: At, asks: Sequence[Asked], dialect: Dialect) -> tuple[int, int]:
    """The pod's CPU in milli-cores and memory in bytes, rounded up as the scheduler does."""
    cpu = _pod_level(spec, CPU, asks, peak(asks, lambda a: a.cpu))
    memory = _pod_level(spec, MEMORY, asks, peak(asks, lambda a: a.memory))
    for level, name in ((spec["resources"]["limits"], "limits"), (spec["resources"]["requests"], "requests")):
        for key in (dialect.memory, dialect.compute, dialect.whole):
            if level[key]:
                raise Unacceptable(f"{key} is set under pod-level resources.{name}; move it to a container")
    cpu += _request(spec["overhead"][CPU], spec["overhead"][CPU], "overhead, cpu")
    memory += _request(spec["overhead"][MEMORY], spec["overhead"][MEMORY], "overhead, memory")
    milli, size = -int(-cpu * 1000 // 1), -int(-memory // 1)
    if max(milli, size) >= LARGEST:
        raise Unacceptable("the containers together request more CPU or memory than any machine has; request less")
    return milli, size


def _pod_level(spec: At, key: str, asks: Iterable[Asked], total: Fraction) -> Fraction:
    request, limit = spec["resources"]["requests"][key], spec["resources"]["limits"][key]
    _check_order(request, limit, f"pod resources, {key}")
    if request:
        return amount(request, f"pod resources, {key}")
    # The API server defaults a pod-level request to what containers say, else to the pod-level limit.
    if limit and not any(key in ask.named for ask in asks):
        return amount(limit, f"pod resources, {key}")
    return total


def other_resources(spec: At, asks: Iterable[Asked]) -> list[str]:
    """Resources asked for that placement does not weigh, by name."""
    own = {key for part in ("limits", "requests") for key, _ in spec["resources"][part].fields()}
    names = own.union(*(ask.others for ask in asks)) - {CPU, MEMORY}
    return [f"resource {show(name)}" for name in sorted(names)]
