# SPDX-License-Identifier: Apache-2.0
"""
What a view reads: an API server with the exporters behind it, a Prometheus, or one machine's exporter.

Decides which of them is the default, and turns everything that can go wrong into one sentence and one exit status.
The API server's client is loaded only if it is used: one machine needs none of it.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dashboards.terminal.read.breaches import BreachError, BreachRow, parse_breaches
from dashboards.terminal.read.http import FetchError, fetch
from dashboards.terminal.read.processes import Processes, parse_processes
from dashboards.terminal.read.usage import FAMILIES, LIVELY, Usage, build_fleet, build_usage
from isolation.contract.exposition import ExpositionError, parse_page, parse_query_answer
from isolation.contract.text import printable
from isolation.options import CannotReadError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dashboards.terminal.read.fleet import Fleet

LOCAL: Final = "http://127.0.0.1:9445"
CANNOT_READ: Final = CannotReadError.exit_code
NOT_FOUND: Final = 4
_LONGEST_WHY: Final = 600
_REFUSED: Final = MappingProxyType(
    {
        401: "; the credentials are invalid or expired: log in again, or set --context",
        403: "; the account needs the right to list nodes and pods; for one namespace set -n",
    }
)
_ELSEWHERE: Final = "set --kubeconfig or --context"
_LOCAL: Final = "or use --local to read this machine"
_BY: Final = "__name__, node, uuid, card, namespace, pod, container, mode"
"""Whoever scraped it, and how often: a series that is there twice counts once."""


class UnreadableSourceError(CannotReadError):
    """The source does not answer, or denies access."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message)[:_LONGEST_WHY])


class NoSuchError(UnreadableSourceError):
    """No pod or node has that name."""

    exit_code = NOT_FOUND


@dataclass(frozen=True, slots=True)
class SourceSelection:
    """What the options choose: a cluster, a Prometheus or one exporter, and which objects of it."""

    kubeconfig: Path | None = None
    context: str | None = None
    local: str = ""
    prometheus: str = ""
    seconds: float = 60.0
    unit_bytes: int = 1 << 30
    impersonated: tuple[str, ...] = ()
    """A user, and its groups."""
    node_selector: str = ""
    pod_selector: str = ""

    @property
    def on_one_machine(self) -> bool:
        """Whether no API server is asked."""
        return bool(self.local) or not (self.kubeconfig or self.context or _cluster_is_known())

    @property
    def exporter(self) -> str:
        """This machine's exporter."""
        return self.local.removesuffix("/metrics") or LOCAL

    @property
    def shown(self) -> str:
        """What is read, for people; without a password."""
        if self.on_one_machine:
            scheme, _, rest = self.exporter.partition("://")
            return f"{scheme}://{rest.rpartition('@')[2]}"
        return (
            f"context {self.context}"
            if self.context
            else f"kubeconfig {self.kubeconfig}"
            if self.kubeconfig
            else "cluster"
        )


_NOTHING: Final = Usage()


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything a view needs."""

    fleet: Fleet
    usage: Usage = _NOTHING
    breaches: tuple[BreachRow, ...] = ()
    unheard: tuple[str, ...] = ()
    """Notes on exporters alone."""


def _cluster_is_known() -> bool:
    """As the official client looks: $KUBECONFIG, a pod's service account, ~/.kube/config."""
    named = any(name in os.environ for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"))
    return named or (Path.home() / ".kube" / "config").exists()


def read(
    source: SourceSelection, namespace: str = "", node: str = "", *, used: bool = True, breaches: bool = False
) -> Reading:
    """One reading; UnreadableSourceError. `used`: exporters are asked too, those of `node` alone where it is given."""
    if source.on_one_machine:
        return _read_local(source, breaches=breaches)
    gather: Any = import_module("dashboards.terminal.read.api_server")

    async def ask(access: Any) -> Reading:
        fleet: Fleet = await gather.read_fleet(
            access, source.unit_bytes, namespace, source.node_selector, source.pod_selector
        )
        if source.prometheus or not used:
            return Reading(fleet)
        nodes = [one.name for one in fleet.nodes if node in ("", one.name)]
        heard = await gather.ask_exporters(access, nodes, breaches=breaches)
        notes = tuple(heard.notes)
        return Reading(replace(fleet, notes=fleet.notes + notes), heard.usage, heard.breaches, notes)

    reading: Reading = ask_api_server(source, ask)
    if not source.prometheus or not used:
        return reading
    reading = _with_prometheus(source, reading)
    return _with_records(source, reading, gather, node) if breaches else reading


def read_processes(source: SourceSelection, node: str) -> Processes:
    """The processes on one node's cards; why not is part of the answer."""
    if source.on_one_machine:
        try:
            return parse_processes(fetch(source.exporter + "/processes", seconds=min(5.0, source.seconds)), node)
        except FetchError as exc:
            return Processes(node, why=str(exc))
    gather: Any = import_module("dashboards.terminal.read.api_server")
    try:
        found: Processes = ask_api_server(source, lambda access: gather.ask_processes(access, node))
    except UnreadableSourceError as exc:
        return Processes(node, why=exc.message)
    return found


def ask_api_server(source: SourceSelection, ask: Callable[[Any], Awaitable[Any]], *, has_local: bool = True) -> Any:
    """
    The result of `ask` with a client of the API server; UnreadableSourceError.

    `has_local`: the command can read this machine instead.
    """
    access: Any = import_module("isolation.kube.access")
    failure: Any = import_module("isolation.kube.core.errors")

    answer: list[Any] = []

    async def run() -> None:
        # Not returned: asyncio (3.11) writes the result of what it runs as text, twice, and throws that away.
        async with asyncio.timeout(source.seconds), _access(access, source) as server:
            answer.append(await ask(server))

    try:
        asyncio.run(run())
    except TimeoutError:
        raise UnreadableSourceError(f"no complete answer within {source.seconds:.0f} s: increase --timeout") from None
    except failure.CredentialsError as exc:
        raise UnreadableSourceError(f"{exc}; {_LOCAL}" if has_local else str(exc)) from None
    except failure.RefusedError as exc:
        raise UnreadableSourceError(
            f"the API server rejects the request: {exc}{_REFUSED.get(exc.status, '')}"
        ) from None
    except failure.ClusterError as exc:
        hint = f"{_ELSEWHERE}, {_LOCAL}" if has_local else _ELSEWHERE
        raise UnreadableSourceError(f"cannot read the API server: {exc}; {hint}") from None
    return answer[0]


def _access(access: Any, source: SourceSelection) -> Any:
    return access.Access(source.kubeconfig, source.context, impersonated=source.impersonated)


def _read_local(source: SourceSelection, *, breaches: bool) -> Reading:
    try:
        usage = build_usage(
            parse_page(fetch(source.exporter + "/metrics", seconds=min(10.0, source.seconds)), FAMILIES)
        )
    except (FetchError, ExpositionError) as exc:
        why = "" if source.local else "no kubeconfig was found, so this machine was read: "
        hint = "start `gpushare exporter`, or set --kubeconfig for a cluster"
        raise UnreadableSourceError(f"{why}{exc}; {hint}") from None
    found: tuple[BreachRow, ...] = ()
    notes: tuple[str, ...] = ()
    if usage.read_at is None and not usage.cards:
        raise UnreadableSourceError(
            f"{source.exporter}/metrics is not a page of gpushare's exporter: check the address"
        )
    if not usage.cards:
        notes = (f"{source.exporter} reports no cards: see why in the log of the exporter",)
    if breaches:
        node = next(iter(sorted(usage.heard)), "")
        try:
            found = parse_breaches(fetch(source.exporter + "/breaches", seconds=min(10.0, source.seconds)), node)
        except (FetchError, BreachError) as exc:
            notes += (f"cannot read breach records, start times are unknown: {exc}",)
    return Reading(replace(build_fleet(usage), notes=notes), usage, found, notes)


def _with_records(source: SourceSelection, reading: Reading, gather: Any, node: str) -> Reading:
    """What exporters noted, of those nodes alone where breaches are open by Prometheus."""
    open_on = {card.node for card in reading.usage.cards if card.figures.get("breaches")}
    asked = sorted(name for name in open_on if node in ("", name))
    heard: Any = ask_api_server(source, lambda access: gather.ask_exporters(access, asked, breaches=True))
    notes = tuple(heard.notes)
    fleet = replace(reading.fleet, notes=reading.fleet.notes + notes)
    return replace(reading, fleet=fleet, breaches=heard.breaches, unheard=reading.unheard + notes)


def _with_prometheus(source: SourceSelection, reading: Reading) -> Reading:
    """What a Prometheus knows of what is used."""
    query = f'max by ({_BY}) ({{__name__=~"{"|".join(sorted(LIVELY))}"}})'
    try:
        body = fetch(source.prometheus + "/api/v1/query", {"query": query}, seconds=source.seconds)
        usage = build_usage(parse_query_answer(body))
    except (FetchError, ExpositionError) as exc:
        note = f"memory in use is unknown: {exc}"
        return replace(reading, fleet=replace(reading.fleet, notes=(*reading.fleet.notes, note)), unheard=(note,))
    silent = sorted({node.name for node in reading.fleet.nodes} - usage.heard)
    if not silent:
        return replace(reading, usage=usage)
    note = f"Prometheus has no data for {len(silent):,} nodes, such as {silent[0]}"
    fleet = replace(reading.fleet, notes=(*reading.fleet.notes, note))
    return replace(reading, usage=usage, fleet=fleet, unheard=(note,))
