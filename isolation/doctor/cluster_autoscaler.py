"""
Findings about the autoscaler: who acts, whether it may, and what it doubts.

Pure. While it stands still no promise is broken, only nothing is bought, given back or moved: warnings, not problems.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from isolation.contract.metrics_autoscaler import CONFIG_REFUSED, DOUBTS, PROVIDER_UP
from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE
from isolation.doctor.cluster_facts import AutoscalerFacts, Untold
from isolation.doctor.cluster_running import standing
from isolation.doctor.finding import Finding, named, ok, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAP: Final = f"ConfigMap {SYSTEM_NAMESPACE}/{AUTOSCALER}"
_LOGS: Final = f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/{AUTOSCALER}"
_ENABLED, _DRY_RUN = "enabled", "dryRun"
_WORDS: Final = {"true": True, "false": False}
_SAMPLE: Final = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([0-9.eE+-]{1,30})$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def look(facts: AutoscalerFacts | None, now: float) -> list[Finding]:
    """Everything about it; nothing where it is not installed."""
    if facts is None:
        return []
    return [_leader(facts, now), _switch(facts.switch), *_told(facts.metrics)]


def acting(facts: AutoscalerFacts, now: float) -> str:
    """Who acts; empty: nobody, or it was not told."""
    stands = standing(facts.lease, AUTOSCALER, now)
    return "" if stands.wrong or stands.untold else stands.holder


def _leader(facts: AutoscalerFacts, now: float) -> Finding:
    check, stands = "cluster.autoscaler", standing(facts.lease, AUTOSCALER, now)
    if stands.untold:
        return unknown(check, stands.untold, "run with credentials that may read Leases")
    if stands.wrong:
        fix = f"{_LOGS}; docs/runbooks/GpushareAutoscalerLeaderless.md"
        return warning(check, f"{stands.wrong}: nothing is bought, given back or moved", fix)
    return ok(check, f"{stands.holder} leads")


def _switch(found: Mapping[str, object] | Untold | None) -> Finding:
    check = "cluster.switch"
    if isinstance(found, Untold):
        return unknown(check, f"{_MAP}: {found.why}", "run with credentials that may read it")
    if found is None:
        return ok(check, f"no {_MAP}: it does as its options say")
    said = {key: _WORDS.get(str(found[key]).strip().lower()) for key in (_ENABLED, _DRY_RUN) if key in found}
    strange = [key for key in found if key not in said and "." not in key]
    wrong = strange + [key for key, word in said.items() if word is None]
    if wrong:
        told = f"{_MAP} is not understood ({named(wrong)}): it does nothing"
        return warning(check, told, f'keys {_ENABLED} and {_DRY_RUN}, each "true" or "false"')
    if said.get(_ENABLED) is False:
        return ok(check, f'switched off: {_ENABLED} "false" in {_MAP}')
    if said.get(_DRY_RUN):
        return ok(check, f'dry run, it only says what it would do: {_DRY_RUN} "false" in {_MAP} lets it act')
    return ok(check, "it may act" if _DRY_RUN in said else "as its options say")


def _told(page: str | Untold | None) -> list[Finding]:
    """What the leader says of itself; nothing where none leads."""
    check = "cluster.doubts"
    if page is None:
        return []
    if isinstance(page, Untold):
        fix = f"needs get on pods/proxy in {SYSTEM_NAMESPACE}; or {_LOGS}"
        return [unknown(check, f"its metrics cannot be read through the API server: {page.why}", fix)]
    refused, doubts, providers = (_series(page, spec.name) for spec in (CONFIG_REFUSED, DOUBTS, PROVIDER_UP))
    silent = [labels.get("pool", "") for labels, value in providers if not value]
    withheld = [labels.get("reason", "") for labels, value in doubts if value]
    if not refused:
        return [unknown(check, "what it shows are not the autoscaler's metrics", _LOGS)]
    if any(value for _, value in refused):
        told = "its configuration cannot be used, the one before stays in force"
        return [warning(check, told, f"{_LOGS}; docs/runbooks/GpushareAutoscalerConfigRefused.md")]
    if silent:
        told = f"the provider of {named(silent)} does not answer: left as it is"
        return [warning(check, told, f"{_LOGS}; docs/runbooks/GpushareProviderFailing.md")]
    if withheld:
        told = f"something is withheld, for doubts: {named(withheld)}"
        return [warning(check, told, f"{_LOGS}; docs/runbooks/GpushareAutoscalerWithholds.md")]
    return [ok(check, "no doubts, its configuration is in force, every provider answers")]


def _series(page: str, wanted: str) -> list[tuple[dict[str, str], float]]:
    """Every sample of one name: labels and value."""
    found = [match for match in _SAMPLE.findall(page) if match[0] == wanted]
    return [(dict(_LABEL.findall(labels)), _number(value)) for _, labels, value in found]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
