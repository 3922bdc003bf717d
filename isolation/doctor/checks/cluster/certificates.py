# SPDX-License-Identifier: Apache-2.0
"""
Findings about certificates of our processes: until when each is good, and who renews it.

Pure. Which Secrets there must be follows from what our workloads mount.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from isolation.contract.names import AUTOSCALER, AUTOSCALER_CLIENT, KUBE_TOKEN, SCHEDULER, SYSTEM_NAMESPACE
from isolation.doctor.checks.cluster.facts import Secret, Unavailable
from isolation.doctor.checks.finding import Finding, FindingState, named, ok, problem, unknown, warning
from isolation.host.core.certificate import begins, ends

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.doctor.checks.cluster.facts import ScalerFacts
    from isolation.doctor.checks.cluster.installation import Installation

WEBHOOK: Final = f"{SCHEDULER}-tls"
PARTS: Final = {
    WEBHOOK: ("scheduler", "no pod with a share can be created"),
    f"{SCHEDULER}-clients": (
        "extender",
        "the kube-scheduler is not authenticated, so no pod with a share is scheduled",
    ),
    f"{AUTOSCALER}-metrics-tls": ("metrics-api", "HorizontalPodAutoscalers get no metrics"),
    f"{AUTOSCALER}-grpc-tls": ("grpc", "cluster-autoscaler and KEDA get no answer"),
}
"""By Secret: the word for `manifests/certificate.sh`, and what does not work once it has ended."""
_SOON: Final = 14 * 86_400.0
_LATEST: Final = 253_402_300_799
"""The last second of the year 9999."""
_WORST: Final = (FindingState.PROBLEM, FindingState.WARNING, FindingState.UNKNOWN, FindingState.OK)
_PAGE: Final = "docs/cluster-autoscaler.md"
_RENEW: Final = f"run sh manifests/certificate.sh grpc, copy the Secret and restart cluster-autoscaler ({_PAGE})"
_ASK: Final = "use credentials that may read Secrets there, or check with `openssl x509 -enddate`"


def check_certificates(
    secrets: Mapping[str, Secret | Unavailable | None], installation: Installation, now: float
) -> list[Finding]:
    """The webhook's own, where there is one; and those of all others in one finding, the worst first."""
    mounted = {name for one in (installation.installed or {}).values() for name in one.secrets}
    found = (
        []
        if installation.watches
        else [_check_secret("cluster.webhook_certificate", WEBHOOK, secrets.get(WEBHOOK), mounted, now)]
    )
    check = "cluster.certificates"
    rest = [_check_secret(check, name, secrets[name], mounted, now) for name in sorted(set(secrets) - {WEBHOOK})]
    if rest:
        rest.sort(key=lambda one: _WORST.index(one.state))
        if rest[0].state is FindingState.OK:
            rest = [ok(check, "; ".join(one.evidence for one in rest))]
        found.append(rest[0])
    return found


def check_client_certificates(facts: ScalerFacts, now: float) -> list[Finding]:
    """Whether cluster-autoscaler's certificate is good, and the one that it has read; nothing where none asks us."""
    check, source = "cluster.cluster_autoscaler_certificate", facts.shown.get(SYSTEM_NAMESPACE)
    found = []
    for namespace in sorted({one.key.partition("/")[0] for one in facts.callers}):
        secret, where = facts.shown.get(namespace), f"Secret {namespace}/{AUTOSCALER_CLIENT}"
        if isinstance(secret, Unavailable):
            found.append(unknown(check, f"cannot read {where}: {secret.why}", _ASK))
            continue
        end, begin = (_end(secret), begins(secret.certificate)) if secret is not None else (None, None)
        if secret is None or end is None or begin is None:
            found.append(warning(check, f"{where} contains no readable certificate", f"copy it again ({_PAGE})"))
            continue
        old = [one.key for one in facts.callers if one.key.startswith(f"{namespace}/") and one.begun < begin]
        if end <= now:
            evidence = f"{where} expired on {_day(end)}: cluster-autoscaler gets no answer"
            found.append(problem(check, evidence, _RENEW))
        elif end - now < _SOON:
            evidence = f"{where} expires on {_day(end)}; then cluster-autoscaler gets no answer"
            found.append(warning(check, evidence, _RENEW))
        elif isinstance(source, Secret) and source.certificate and source.certificate != secret.certificate:
            evidence = f"{where} is not what is in Secret {SYSTEM_NAMESPACE}/{AUTOSCALER_CLIENT}"
            found.append(warning(check, evidence, f"copy it again, and restart cluster-autoscaler ({_PAGE})"))
        elif old:
            evidence = (
                f"{where} was renewed on {_day(begin)}, after {named(sorted(old))} started and read the one before"
            )
            found.append(warning(check, evidence, f"restart cluster-autoscaler before that one ends ({_PAGE})"))
        else:
            found.append(ok(check, f"{where} is valid until {_day(end)}, and was read as it is"))
    return sorted(found, key=lambda one: _WORST.index(one.state))[:1]


def _day(seconds: float) -> str:
    return dt.datetime.fromtimestamp(min(max(seconds, 0), _LATEST), dt.UTC).strftime("%Y-%m-%d")


def _check_secret(check: str, name: str, found: Secret | Unavailable | None, mounted: set[str], now: float) -> Finding:
    where, (part, harm) = f"Secret {SYSTEM_NAMESPACE}/{name}", PARTS.get(name, ("", "its users do not work"))
    if isinstance(found, Unavailable):
        return unknown(check, f"cannot read {where}: {found.why}", _ASK)
    if found is None:
        if name in mounted:
            return problem(check, f"{where} does not exist: pods that mount it do not start", _renewal(part, ""))
        return unknown(
            check, f"{where} does not exist", "if it is stored elsewhere, check it with `openssl x509 -enddate`"
        )
    # Beside a token lies the cluster's own authority, which is not ours to renew.
    if name == KUBE_TOKEN or (name not in PARTS and not found.certificate and not found.authority):
        return ok(check, f"{where} exists and contains no certificate")
    end = _end(found)
    if end is None:
        return problem(check, f"{where} contains no readable certificate", _renewal(part, found.manager))
    day = _day(end)
    if end <= now:
        return problem(check, f"{where} expired on {day}: {harm}", _renewal(part, found.manager))
    if end - now < _SOON:
        return warning(check, f"{where} expires on {day}; then {harm}", _renewal(part, found.manager))
    return ok(check, f"{where} is valid until {day}")


def _end(secret: Secret) -> float | None:
    """Of what is shown, and of the youngest authority that is believed: older ones are kept beside it."""
    times: list[float | None] = []
    if secret.certificate:
        times += ends(secret.certificate)[:1] or [None]
    if secret.authority:
        authorities = [one for one in ends(secret.authority) if one is not None]
        times.append(max(authorities, default=None))
    known = [one for one in times if one is not None]
    return min(known) if known and len(known) == len(times) else None


def _renewal(part: str, manager: str) -> str:
    if manager:
        return f"`kubectl -n {SYSTEM_NAMESPACE} describe certificate {manager}` shows why cert-manager did not renew it"
    if part == "extender":
        tool = "run OUT=folder sh manifests/certificate.sh extender"
        return f"{tool}, then copy the files to your kube-scheduler (docs/install.md)"
    tool = f"run sh manifests/certificate.sh {part}" if part else "create it again under the same name"
    return f"{tool}; it is reloaded without a restart"
