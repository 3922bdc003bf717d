# SPDX-License-Identifier: Apache-2.0
"""
Findings about the autoscaler: who acts, whether it may, and why it is inhibited.

Pure. While it stands still no promise is broken, only nothing is bought, given back or moved: warnings, not problems.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from isolation.contract.metrics.autoscaler import CONFIG_RELOAD_SUCCESSFUL, INHIBITED, PROVIDER_UP
from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE
from isolation.doctor.checks.cluster.facts import AutoscalerFacts, Unavailable
from isolation.doctor.checks.cluster.processes import read_holder
from isolation.doctor.checks.finding import Finding, named, ok, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAP: Final = f"ConfigMap {SYSTEM_NAMESPACE}/{AUTOSCALER}"
_LOGS: Final = f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/{AUTOSCALER}"
_ENABLED, _DRY_RUN = "enabled", "dryRun"
_WORDS: Final = {"true": True, "false": False}
_SAMPLE: Final = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([0-9.eE+-]{1,30})$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def check_autoscaler(facts: AutoscalerFacts | None, now: float) -> list[Finding]:
    """Everything about it; nothing where it is not installed."""
    if facts is None:
        return []
    return [_check_leader(facts, now), _check_switch(facts.switch), *_check_conditions(facts.metrics)]


def leader_of(facts: AutoscalerFacts, now: float) -> str:
    """Which replica acts; empty: none, or unknown."""
    stands = read_holder(facts.lease, AUTOSCALER, now)
    return "" if stands.wrong or stands.untold else stands.holder


def _check_leader(facts: AutoscalerFacts, now: float) -> Finding:
    check, stands = "cluster.autoscaler", read_holder(facts.lease, AUTOSCALER, now)
    if stands.untold:
        return unknown(check, stands.untold, "use credentials that may read Leases")
    if stands.wrong:
        fix = f"{_LOGS}; docs/runbooks/GpushareAutoscalerNoLeader.md"
        return warning(check, f"{stands.wrong}: the autoscaler does not scale and moves no pods", fix)
    return ok(check, f"{stands.holder} is the leader")


def _check_switch(found: Mapping[str, object] | Unavailable | None) -> Finding:
    check = "cluster.autoscaler_config"
    if isinstance(found, Unavailable):
        return unknown(check, f"cannot read {_MAP}: {found.why}", "use credentials that may read it")
    if found is None:
        return ok(check, f"no {_MAP}: the autoscaler follows its options")
    said = {key: _WORDS.get(str(found[key]).strip().lower()) for key in (_ENABLED, _DRY_RUN) if key in found}
    strange = [key for key in found if key not in said and "." not in key]
    wrong = strange + [key for key, word in said.items() if word is None]
    if wrong:
        evidence = f"{_MAP} has invalid entries ({named(wrong)}): the autoscaler does nothing"
        return warning(check, evidence, f'use keys {_ENABLED} and {_DRY_RUN}, each with value "true" or "false"')
    if said.get(_ENABLED) is False:
        return ok(check, f'switched off by {_ENABLED} "false" in {_MAP}')
    if said.get(_DRY_RUN):
        return ok(
            check,
            f'dry run: the autoscaler only reports what it would do; to let it act, set {_DRY_RUN} "false" in {_MAP}',
        )
    return ok(check, "the autoscaler may act" if _DRY_RUN in said else "the autoscaler follows its options")


def _check_conditions(page: str | Unavailable | None) -> list[Finding]:
    """What the leader says of itself; nothing where none leads."""
    check = "cluster.autoscaler_inhibited"
    if page is None:
        return []
    if isinstance(page, Unavailable):
        fix = f"use credentials with get on pods/proxy in {SYSTEM_NAMESPACE}, or check {_LOGS}"
        return [unknown(check, f"cannot read the autoscaler's metrics through the API server: {page.why}", fix)]
    reloads, inhibitions, providers = (
        _series(page, spec.name) for spec in (CONFIG_RELOAD_SUCCESSFUL, INHIBITED, PROVIDER_UP)
    )
    silent = [labels.get("pool", "") for labels, value in providers if not value]
    withheld = [labels.get("reason", "") for labels, value in inhibitions if value]
    if not reloads:
        return [unknown(check, "the metrics of the pod are not the autoscaler's", _LOGS)]
    if not all(value for _, value in reloads):
        evidence = "the autoscaler refuses its configuration and keeps the previous one"
        return [warning(check, evidence, f"{_LOGS}; docs/runbooks/GpushareAutoscalerConfigReloadFailed.md")]
    if silent:
        evidence = f"the provider of pool {named(silent)} does not answer: the pool is left unchanged"
        return [warning(check, evidence, f"{_LOGS}; docs/runbooks/GpushareAutoscalerProviderFailing.md")]
    if withheld:
        evidence = f"the autoscaler is inhibited: {named(withheld)}"
        return [warning(check, evidence, f"{_LOGS}; docs/runbooks/GpushareAutoscalerInhibited.md")]
    return [ok(check, "the autoscaler is not inhibited, uses its configuration, and every provider answers")]


def _series(page: str, wanted: str) -> list[tuple[dict[str, str], float]]:
    """Every sample of one name: labels and value."""
    found = [match for match in _SAMPLE.findall(page) if match[0] == wanted]
    return [(dict(_LABEL.findall(labels)), _number(value)) for _, labels, value in found]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
