# SPDX-License-Identifier: Apache-2.0
"""
`gpushare recommend`: what workloads are promised, use and should be promised, and what would come back.

Pure but for `read_recommendations`. Decides the order (what frees most comes first), what a price makes of it, and
which workloads a patch can change: those whose template may be changed, and only amounts that differ.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import yaml

from dashboards.terminal.table import DIM, WARN, Column, sentence, table
from dashboards.terminal.text_format import clock, count, gib
from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.recommendations import KEY, Recommendations, decode_recommendations
from isolation.contract.names import ACK, RIGHT_SIZING, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.kube.core.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.terminal.table import Cell, TextOutput
    from isolation.contract.codec.recommendations import ProgramRecommendation

FORMAT: Final = 1
_TEMPLATES: Final = {
    "Deployment": ("apps/v1", ("template",)),
    "StatefulSet": ("apps/v1", ("template",)),
    "DaemonSet": ("apps/v1", ("template",)),
    "CronJob": ("batch/v1", ("jobTemplate", "spec", "template")),
}
"""Kinds whose pod template can be changed, and where under `spec` it is."""
_OLD_SECONDS: Final = 600.0


async def read_recommendations(access: Any, namespace: str = SYSTEM_NAMESPACE) -> Recommendations | str:
    """What the autoscaler has published; a sentence where that cannot be used. Raises ClusterError."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{RIGHT_SIZING}"
    try:
        body = await access.send("GET", path)
    except NotFoundError:
        return (
            f"there is no ConfigMap {namespace}/{RIGHT_SIZING}: start the autoscaler, which publishes recommendations"
        )
    try:
        text = json.loads(body)["data"][KEY]
        return decode_recommendations(text)
    except (ValueError, KeyError, TypeError, CodecError) as exc:
        return f"ConfigMap {namespace}/{RIGHT_SIZING} cannot be used: {exc}"


def select(programs: Sequence[ProgramRecommendation], namespace: str, owner: str) -> tuple[ProgramRecommendation, ...]:
    """Running ones of a namespace (empty: all) and a workload (NAME or KIND/NAME in any case; empty: all)."""
    wanted = owner.lower()
    found = (
        one
        for one in programs
        if one.replicas
        and namespace in ("", one.namespace)
        and wanted in ("", one.owner.lower(), one.owner.lower().partition("/")[2])
    )
    return tuple(sorted(found, key=lambda one: (-one.freed_bytes, one.namespace, one.owner, one.container)))


def recommend_lines(
    programs: Sequence[ProgramRecommendation], age: float, output: TextOutput, price: float = 0.0, *, wide: bool = False
) -> list[str]:
    """The table, with what would come back; `price`: of a GiB for a month, 0: not given."""
    if not programs:
        return sentence(output, "no workload with shared cards has been measured yet") if output.headers else []
    columns = [Column("NAMESPACE", cut=True), Column("WORKLOAD", cut=True), Column("CONTAINER", cut=True)]
    columns += [Column("CARD", cut=True)] if wide else []
    columns += [Column(title, right=True) for title in ("PODS", "PROMISED", "PEAK", "RECOMMENDED", "FREES GiB")]
    columns += (
        [Column("COMPUTE", right=True), Column("PER MONTH", right=True)] if price else [Column("COMPUTE", right=True)]
    )
    columns += [Column("WHY", cut=True)]
    lines = table(output, columns, [_row(one, price, wide=wide) for one in programs])
    if not output.headers:
        return lines
    freed = sum(one.freed_bytes for one in programs)
    promised = sum(one.replicas * one.promised_bytes for one in programs)
    ratio = freed / promised if promised else 0.0
    money = f", {freed / GIB * price:,.2f} per month" if price else ""
    lines += [
        "",
        *sentence(
            output,
            f"{count(len(programs), 'workload')}: {gib(freed)} GiB would come back "
            f"({ratio:.0%} of what is promised{money})",
        ),
    ]
    if age > _OLD_SECONDS:
        lines += sentence(output, f"note: published {clock(age)} ago; is the autoscaler running?", WARN)
    lines += sentence(output, "GiB of one card. Apply with -o patch, or annotation gpushare.dev/right-size.", DIM)
    return lines


def _row(one: ProgramRecommendation, price: float, *, wide: bool) -> list[Cell]:
    cells: list[Cell] = [one.namespace, one.owner, one.container]
    cells += [one.model] if wide else []
    cells += [str(one.replicas), gib(one.promised_bytes), gib(one.peak_bytes)]
    cells += (
        [(gib(one.memory_bytes), "green") if one.freed_bytes else gib(one.memory_bytes)] if one.memory_bytes else ["-"]
    )
    cells += [gib(one.freed_bytes) if one.memory_bytes else "-", f"{one.core}%" if one.core else "-"]
    cells += [f"{one.freed_bytes / GIB * price:,.2f}" if one.memory_bytes else "-"] if price else []
    return [*cells, one.reason]


def recommend_document(recommendations: Recommendations, programs: Sequence[ProgramRecommendation]) -> dict[str, Any]:
    """For programs; what is unknown is null."""
    return {
        "format": FORMAT,
        "published_at": recommendations.at,
        "applied": recommendations.applied,
        "workloads": [
            {
                "namespace": one.namespace,
                "owner": one.owner,
                "container": one.container,
                "model": one.model or None,
                "revision": one.revision or None,
                "pods": one.replicas,
                "cards_per_pod": one.cards,
                "promised_bytes": one.promised_bytes,
                "used_bytes": one.used_bytes,
                "peak_bytes": one.peak_bytes,
                "recommended_bytes": one.memory_bytes or None,
                "recommended_core_percent": one.core or None,
                "freed_bytes": one.freed_bytes if one.memory_bytes else None,
                "abstained": one.abstained or None,
                "reason": one.reason,
            }
            for one in programs
        ],
    }


def patch_documents(programs: Sequence[ProgramRecommendation], unit_bytes: int) -> tuple[str, list[str]]:
    """Objects for `kubectl apply --server-side --force-conflicts -f -`, and notes on workloads that are left out."""
    documents: dict[tuple[str, str], dict[str, Any]] = {}
    largest: dict[tuple[str, str, str], ProgramRecommendation] = {}
    notes = []
    for one in programs:
        if not one.memory_bytes or one.memory_bytes == one.promised_bytes:
            continue
        kind = one.owner.partition("/")[0]
        if kind not in _TEMPLATES:
            notes.append(
                f"{one.namespace}/{one.owner}: its template cannot be changed; set the amount where it is made"
            )
            continue
        # on several card models, or in several revisions, the largest fits all
        key = (one.namespace, one.owner, one.container)
        if key not in largest or one.memory_bytes > largest[key].memory_bytes:
            largest[key] = one
    for (namespace, owner, container), one in sorted(largest.items()):
        kind, _, name = owner.partition("/")
        version, path = _TEMPLATES[kind]
        units = -(-one.memory_bytes // unit_bytes) * max(1, one.cards)
        document = documents.setdefault((namespace, owner), _empty(version, kind, namespace, name))
        at = document["spec"]
        for step in path:
            at = at.setdefault(step, {})
        amounts = {ACK.memory: str(units)}
        at.setdefault("spec", {}).setdefault("containers", []).append(
            {"name": container, "resources": {"limits": amounts, "requests": dict(amounts)}}
        )
    return yaml.safe_dump_all(documents.values(), sort_keys=False), notes


def _empty(version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": {}}
