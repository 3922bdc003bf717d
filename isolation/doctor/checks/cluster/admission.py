# SPDX-License-Identifier: Apache-2.0
"""
Findings about admission: our definition, webhook and policies, and whether they truly decide.

Pure. What counts is what became of the two pods that were shown to admission; the objects only explain it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.dialects import SYSTEMS
from isolation.contract.dialects.ownership import Signs, find_living, program_of
from isolation.contract.model import Mode
from isolation.contract.names import (
    ACK,
    API_VERSION,
    EXEMPT,
    GROUP,
    RESERVATIONS,
    SCHEDULER,
    SYSTEM_NAMESPACE,
    UNISOLATED,
    WARNS_ONLY,
)
from isolation.contract.quantity import UNITS, show_bytes
from isolation.doctor.checks.cluster.facts import ClusterFacts, Probe, Unavailable, Workload
from isolation.doctor.checks.cluster.installation import OURS, our_webhooks
from isolation.doctor.checks.cluster.parse import table, tables, unit_of
from isolation.doctor.checks.finding import Finding, named, ok, problem, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.dialects import System
    from isolation.doctor.checks.cluster.facts import ClusterNode
    from isolation.doctor.checks.cluster.installation import Installation

PROBED: Final = "default"
"""Namespace of the two pods that are shown to admission."""
_ASK: Final = "use administrator credentials"
_CLASSIC: Final = frozenset({"k8s-gpushare-schd-extender", "gpushare-schd-extender", "k8s-gpushare-plugin"})
"""Images of gpushare-scheduler-extender and of its device plugin."""
_MANY: Final = 0.5
"""Part of the pods with shares from which on a smaller unit is advised."""
_NOT_REACHED: Final = re.compile(r'failed calling webhook "([^"]*)"')
_DENIED: Final = re.compile(r"""(?:admission webhook "|ValidatingAdmissionPolicy ')([^"']*)["'] .*?denied""", re.DOTALL)
"""Words of kube-apiserver 1.36, with the name of the webhook or policy."""


def check_admission(facts: ClusterFacts, installation: Installation) -> list[Finding]:
    """Everything about admission."""
    return [
        _check_definition(facts.definition, installation.apply),
        _check_webhook(facts, installation.apply),
        _check_good_probe(facts.good, installation.apply)
        if _has_decider(facts)
        else _report_bypass("cluster.admission"),
        _check_bad_probe(facts.bad, installation.apply)
        if _has_decider(facts)
        else _report_bypass("cluster.admission_denies"),
        _check_policies(facts, installation.apply),
        _check_other_webhooks(facts.webhooks),
        _check_dialects(facts),
        _check_classic(facts.workloads),
        _check_rounding(facts),
        _check_exempt(facts.exempt),
        _check_unisolated(facts.unisolated),
    ]


def _check_definition(found: Mapping[str, Any] | Unavailable | None, apply: str) -> Finding:
    check, name = "cluster.reservations", f"{RESERVATIONS}.{GROUP}"
    if isinstance(found, Unavailable):
        return unknown(check, f"cannot read {name}: {found.why}", _ASK)
    if found is None:
        return problem(check, f"CustomResourceDefinition {name} does not exist: reservations are not possible", apply)
    served = [v.get("name") for v in _items(found, "spec", "versions") if v.get("served")]
    standing = {str(c.get("type")): c.get("status") for c in _items(found, "status", "conditions")}
    if API_VERSION not in served:
        return problem(check, f"{name} serves versions {served}, gpushare needs {API_VERSION}", apply)
    if standing.get("Established") != "True":
        return problem(check, f"{name} is not established", f"run `kubectl describe crd {name}` to see why")
    return ok(check, f"{name} {API_VERSION}")


def _check_webhook(facts: ClusterFacts, apply: str) -> Finding:
    check = "cluster.webhook"
    if isinstance(facts.webhooks, Unavailable):
        return unknown(check, f"cannot list webhook configurations: {facts.webhooks.why}", _ASK)
    found = list(our_webhooks(facts.webhooks))
    if not found:
        return problem(
            check,
            "gpushare's admission webhook is missing: requests are not checked, and schedulerName is not set",
            apply,
        )
    strict = [str(one.get("name")) for one in found if one.get("failurePolicy") == "Fail"]
    if not strict:
        evidence = "gpushare's webhook has failurePolicy Ignore: while it is unavailable, requests pass unchecked"
        return problem(
            check, evidence, f"set failurePolicy: Fail, which affects only pods that request shares: {apply}"
        )
    wide = [
        str(one.get("name")) for one in found if one.get("failurePolicy") == "Fail" and not one.get("matchConditions")
    ]
    if wide:
        evidence = f"{named(wide)} has no matchConditions: while it is unavailable, no pod can be created"
        return problem(check, evidence, apply)
    return ok(check, f"{named(strict)}, only for pods that request shares")


def valid_limits(nodes: Iterable[ClusterNode]) -> dict[str, str]:
    """What a pod requests that these nodes serve: on those for memory and compute alone, compute too."""
    modes = {one.mode for one in nodes} & {Mode.SHARE, Mode.CGPU, Mode.CORE_MEM}
    return {ACK.memory: "2"} | ({ACK.compute: "5"} if modes == {Mode.CORE_MEM} else {})


def _has_decider(facts: ClusterFacts) -> bool:
    """Whether admission looks at the namespace in which the two pods were tried."""
    return isinstance(facts.exempt, Unavailable) or PROBED not in facts.exempt


def _report_bypass(check: str) -> Finding:
    return unknown(
        check, f"cannot test admission: namespace {PROBED} is exempt", f"remove label {EXEMPT} from namespace {PROBED}"
    )


def _check_good_probe(probe: Probe | Unavailable, apply: str) -> Finding:
    """A sensible pod, as a dry run."""
    check = "cluster.admission"
    if isinstance(probe, Unavailable):
        return unknown(check, f"cannot test a valid pod: {probe.why}", _ASK)
    if _mine(_NOT_REACHED, probe.refused):
        fix = f"check `kubectl -n {SYSTEM_NAMESPACE} get pods,endpointslices`"
        fix += "; on x509 errors, compare caBundle with the certificate"
        return problem(check, f"the API server cannot reach gpushare's webhook: {probe.refused}", fix)
    if _DENIED.search(probe.refused):
        return problem(check, f"a valid pod is denied: {probe.refused}", "see the message")
    if probe.refused:
        return _report_untried(check, "a valid", probe.refused)
    if not probe.shared:
        return problem(
            check, "a pod that requests shares passes admission unchanged: gpushare does not handle it", apply
        )
    if probe.scheduler not in {SCHEDULER, "default-scheduler"}:
        return warning(
            check,
            f"a pod that requests shares gets scheduler {probe.scheduler}",
            "find the webhook that sets schedulerName",
        )
    return ok(check, f"a valid pod is admitted and gets scheduler {probe.scheduler}")


def _check_bad_probe(probe: Probe | Unavailable, apply: str) -> Finding:
    """A pod whose units do not divide, as a dry run."""
    check = "cluster.admission_denies"
    if isinstance(probe, Unavailable):
        return unknown(check, f"cannot test an invalid pod: {probe.why}", _ASK)
    if not probe.refused:
        return problem(check, "a request of 3 units on 2 cards is admitted: requests are not checked", apply)
    if _mine(_NOT_REACHED, probe.refused):
        return unknown(
            check, "an invalid pod is denied only because gpushare's webhook is unavailable", "see cluster.admission"
        )
    if not _mine(_DENIED, probe.refused):
        return _report_untried(check, "an invalid", probe.refused)
    return ok(check, f"an invalid pod is denied: {probe.refused}")


def _mine(said: re.Pattern[str], words: str) -> bool:
    """Whether the server's words are about a webhook or a policy of ours."""
    found = said.search(words)
    return found is not None and (found[1].endswith(f".{GROUP}") or found[1].startswith(OURS))


def _report_untried(check: str, kind: str, words: str) -> Finding:
    """Somebody refused it who is none of ours: a right that is missing, a quota, another one's webhook."""
    fix = (
        _ASK
        if "cannot create" in words
        else f"see the message; the test pod is created (dry run) in namespace {PROBED}"
    )
    return unknown(check, f"cannot test {kind} pod: {words}", fix)


def _check_policies(facts: ClusterFacts, apply: str) -> Finding:
    check = "cluster.policies"
    for part in (facts.policies, facts.bindings):
        if isinstance(part, Unavailable):
            return unknown(check, f"cannot list ValidatingAdmissionPolicies: {part.why}", _ASK)
    assert not isinstance(facts.policies, Unavailable)  # noqa: S101 (for the type checker: said above)
    assert not isinstance(facts.bindings, Unavailable)  # noqa: S101 (for the type checker: said above)
    there = {str(table(one, "metadata").get("name")) for one in facts.policies}
    mine = {name for name in there if name.startswith(OURS)}
    bound = {
        str(table(one, "spec").get("policyName"))
        for one in facts.bindings
        if _denies(table(one, "spec").get("validationActions"))
    }
    if not mine:
        evidence = (
            "gpushare's admission policies are missing: agents may write to any node, and only the webhook checks pods"
        )
        return problem(check, evidence, apply)
    loose = {name for name in mine - bound if not name.startswith(WARNS_ONLY)}
    if loose:
        return problem(check, f"{named(loose)} has no binding with action Deny", apply)
    broken = [str(table(one, "metadata").get("name")) for one in facts.policies if _warned(one)]
    if set(broken) & mine:
        return problem(
            check, f"{named(broken)} does not compile here", "run `kubectl describe` on it; this server may be too old"
        )
    return ok(check, f"{len(mine)} policies bound")


def _denies(actions: object) -> bool:
    return isinstance(actions, list) and "Deny" in actions


def _warned(policy: Mapping[str, Any]) -> bool:
    return bool(table(table(policy, "status"), "typeChecking").get("expressionWarnings"))


def _check_other_webhooks(webhooks: tuple[Mapping[str, Any], ...] | Unavailable) -> Finding:
    """Webhooks of others that speak of these resources."""
    check = "cluster.other_webhooks"
    if isinstance(webhooks, Unavailable):
        return unknown(check, f"cannot list webhook configurations: {webhooks.why}", _ASK)
    foreign = [one for one in webhooks if not str(table(one, "metadata").get("name", "")).startswith(OURS)]
    named_after = [str(table(one, "metadata").get("name")) for one in foreign if ACK.memory in str(one.get("webhooks"))]
    if named_after:
        fix = "only one owner may serve it: remove the other, or use the overlay without gpushare's scheduler and agent"
        return problem(check, f"{named(named_after)} also handles {ACK.memory}", fix)
    return ok(check, "no other webhook handles these resources")


def _check_dialects(facts: ClusterFacts) -> Finding:
    """Which dialects our webhook is sent, and whether one of them still has its own system here."""
    check, webhooks = "cluster.dialects", facts.webhooks
    if isinstance(webhooks, Unavailable):
        return unknown(check, f"cannot list webhook configurations: {webhooks.why}", _ASK)
    conditions = "".join(str(one.get("matchConditions")) for one in our_webhooks(webhooks))
    on = [one for one in SYSTEMS.values() if any(f"'{name}'" in conditions for name in _marks(one))]
    if not on:
        return ok(check, f"pods ask in ACK's words alone ({ACK.memory})")
    living = find_living(on, _signs(facts))
    evidence = f"pods of {named([one.title for one in on])} are translated"
    if living:
        shown = named([f"{SYSTEMS[name].title} ({sign})" for name, sign in living.items()])
        fix = "remove that system, or name the namespaces that are left to it: gpushare scheduler --leave-to"
        return warning(check, f"{evidence}, and {shown} runs in this cluster too", fix)
    return ok(check, evidence)


def _signs(facts: ClusterFacts) -> Signs:
    """What may show that another system lives here."""
    hooks = () if isinstance(facts.webhooks, Unavailable) else facts.webhooks
    nodes = () if isinstance(facts.nodes, Unavailable) else facts.nodes
    workloads = () if isinstance(facts.workloads, Unavailable) else facts.workloads
    return Signs(
        tuple(str(hook.get("name")) for one in hooks for hook in tables(one, "webhooks")),
        {one.name: one.offered for one in nodes},
        {f"{one.kind} {one.key}": (*one.images, one.key) for one in workloads},
    )


def _check_classic(workloads: tuple[Workload, ...] | Unavailable) -> Finding:
    """The scheduler extender that has our resource's name: it has no dialect, and no webhook either."""
    check = "cluster.classic_scheduler"
    if isinstance(workloads, Unavailable):
        return unknown(check, f"cannot list workloads: {workloads.why}", "use credentials that may list workloads")
    found = [f"{one.kind} {one.key}" for one in workloads if _CLASSIC & {program_of(image) for image in one.images}]
    if found:
        fix = "remove it: gpushare holds the cards of its running pods, but it does not see those of gpushare's"
        return warning(check, f"{named(found)} of gpushare-scheduler-extender places pods with {ACK.memory} too", fix)
    return ok(check, "gpushare-scheduler-extender does not run here")


def _check_rounding(facts: ClusterFacts) -> Finding:
    """Whether most pods ask for amounts that are finer than the unit of memory, and are rounded up."""
    check = "cluster.memory_unit"
    if isinstance(facts.pods, Unavailable):
        return unknown(check, f"cannot list pods: {facts.pods.why}", _ASK)
    unit = unit_of(() if isinstance(facts.nodes, Unavailable) else facts.nodes)
    asking = [one for one in facts.pods if one.asks and not one.done]
    systems = [SYSTEMS[one.dialect] for one in asking if one.dialect in SYSTEMS]
    finer = [one for one in systems if unit > min(UNITS.values()) and one.words.unit < unit]
    if not finer or len(finer) < _MANY * len(asking):
        return ok(check, f"one unit of {ACK.memory} is {show_bytes(unit)}")
    evidence = (
        f"{100 * len(finer) // len(asking)} % of the pods with shares ask in the words of "
        f"{named(sorted({one.title for one in finer}))}, which count less than {show_bytes(unit)}: they are rounded up"
    )
    fix = "gpushare scheduler, node and autoscaler with --memory-unit 256MiB: for the whole cluster, when no share runs"
    return warning(check, evidence, fix)


def _marks(system: System) -> tuple[str, ...]:
    """Names that stand in the match conditions of our webhook where the dialect is on."""
    return tuple(name for name in (*system.resources, *system.annotations, system.selector) if name)


def _check_exempt(names: tuple[str, ...] | Unavailable) -> Finding:
    check = "cluster.exempt_namespaces"
    if isinstance(names, Unavailable):
        return unknown(check, f"cannot list namespaces: {names.why}", _ASK)
    if names:
        fix = "let only administrators label namespaces; remove the label from namespaces of tenants"
        return warning(check, f"exempt from admission: {named(names)}; their pods may see every card", fix)
    return ok(check, "no namespace is exempt by label")


def _check_unisolated(names: tuple[str, ...] | Unavailable) -> Finding:
    check = "cluster.unisolated_namespaces"
    if isinstance(names, Unavailable):
        return unknown(check, f"cannot list namespaces: {names.why}", _ASK)
    if names:
        fix = f"remove label {UNISOLATED} from namespaces whose programs are not trusted"
        return warning(check, f"pods may be Unconfined in {named(names)}: their programs can leave their limits", fix)
    return ok(check, "no namespace allows Unconfined pods with shares")


def _items(thing: Mapping[str, Any], *path: str) -> list[Mapping[str, Any]]:
    found: Any = thing
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
