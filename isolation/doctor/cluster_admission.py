"""
Findings about admission: our definition, webhook and policies, and whether they truly decide.

Pure. What counts is what became of the two pods that were shown to admission; the objects only explain it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import ACK, API_VERSION, EXEMPT, GROUP, RESERVATIONS, SCHEDULER, SYSTEM_NAMESPACE
from isolation.doctor.cluster_facts import ClusterFacts, Probe, Untold
from isolation.doctor.cluster_read import table
from isolation.doctor.cluster_shape import OURS, ours
from isolation.doctor.finding import Finding, named, ok, problem, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.doctor.cluster_shape import Shape

PROBED: Final = "default"
"""Namespace of the two pods that are shown to admission."""
_ASK: Final = "run with credentials of an administrator"
_NOT_REACHED: Final = re.compile(r'failed calling webhook "([^"]*)"')
_DENIED: Final = re.compile(r"""(?:admission webhook "|ValidatingAdmissionPolicy ')([^"']*)["'] .*?denied""", re.DOTALL)
"""Words of kube-apiserver 1.36, with the name of the webhook or policy."""


def look(facts: ClusterFacts, shape: Shape) -> list[Finding]:
    """Everything about admission."""
    return [
        _definition(facts.definition, shape.apply),
        _webhook(facts, shape.apply),
        _good(facts.good, shape.apply) if _decides(facts) else _passed_by("cluster.admission"),
        _bad(facts.bad, shape.apply) if _decides(facts) else _passed_by("cluster.denial"),
        _policies(facts, shape.apply),
        _others(facts.webhooks),
        _exempt(facts.exempt),
    ]


def _definition(found: Mapping[str, Any] | Untold | None, apply: str) -> Finding:
    check, name = "cluster.reservations", f"{RESERVATIONS}.{GROUP}"
    if isinstance(found, Untold):
        return unknown(check, f"{name}: {found.why}", _ASK)
    if found is None:
        return problem(check, f"{name} is not defined: room cannot be kept for anybody", apply)
    served = [v.get("name") for v in _items(found, "spec", "versions") if v.get("served")]
    standing = {str(c.get("type")): c.get("status") for c in _items(found, "status", "conditions")}
    if API_VERSION not in served:
        return problem(check, f"{name} is served as {served}, we speak {API_VERSION}", apply)
    if standing.get("Established") != "True":
        return problem(check, f"{name} is not established", f"`kubectl describe crd {name}` tells why")
    return ok(check, f"{name} {API_VERSION}")


def _webhook(facts: ClusterFacts, apply: str) -> Finding:
    check = "cluster.webhook"
    if isinstance(facts.webhooks, Untold):
        return unknown(check, f"webhook configurations: {facts.webhooks.why}", _ASK)
    found = list(ours(facts.webhooks))
    if not found:
        return problem(check, "no admission webhook of ours: requests are neither checked nor sent to us", apply)
    strict = [str(one.get("name")) for one in found if one.get("failurePolicy") == "Fail"]
    if not strict:
        told = "our webhook has failurePolicy Ignore: while it is away, any request passes unchecked"
        return problem(check, told, f"failurePolicy: Fail; it concerns pods that ask for shares only. {apply}")
    wide = [
        str(one.get("name")) for one in found if one.get("failurePolicy") == "Fail" and not one.get("matchConditions")
    ]
    if wide:
        told = f"{named(wide)} has no matchConditions: while it is away, no pod at all can be made"
        return problem(check, told, apply)
    return ok(check, f"{named(strict)}, for pods that ask for shares only")


def _decides(facts: ClusterFacts) -> bool:
    """Whether admission looks at the namespace in which the two pods were tried."""
    return isinstance(facts.exempt, Untold) or PROBED not in facts.exempt


def _passed_by(check: str) -> Finding:
    return unknown(check, f"admission passes by namespace {PROBED}, where it is tried", f"take {EXEMPT} off {PROBED}")


def _good(probe: Probe | Untold, apply: str) -> Finding:
    """A sensible pod, as a dry run."""
    check = "cluster.admission"
    if isinstance(probe, Untold):
        return unknown(check, f"a sensible pod could not be tried: {probe.why}", _ASK)
    if _mine(_NOT_REACHED, probe.refused):
        fix = f"`kubectl -n {SYSTEM_NAMESPACE} get pods,endpointslices`; x509 errors: caBundle and certificate differ"
        return problem(check, f"the API server does not reach our webhook: {probe.refused}", fix)
    if _DENIED.search(probe.refused):
        return problem(check, f"a sensible pod is refused: {probe.refused}", "see the message")
    if probe.refused:
        return _untried(check, "sensible", probe.refused)
    if not probe.shared:
        return problem(check, "a pod that asks for shares passes admission untouched: nobody of ours sees it", apply)
    if probe.scheduler not in {SCHEDULER, "default-scheduler"}:
        return warning(check, f"a pod that asks for shares goes to scheduler {probe.scheduler}", "see who changes it")
    return ok(check, f"a sensible pod is admitted and goes to {probe.scheduler}")


def _bad(probe: Probe | Untold, apply: str) -> Finding:
    """A pod whose units do not divide, as a dry run."""
    check = "cluster.denial"
    if isinstance(probe, Untold):
        return unknown(check, f"a senseless pod could not be tried: {probe.why}", _ASK)
    if not probe.refused:
        return problem(check, "3 units over 2 cards are admitted: requests are not checked", apply)
    if _mine(_NOT_REACHED, probe.refused):
        return unknown(check, "a senseless pod was refused since our webhook is away", "see cluster.admission")
    if not _mine(_DENIED, probe.refused):
        return _untried(check, "senseless", probe.refused)
    return ok(check, f"a senseless pod is refused: {probe.refused}")


def _mine(said: re.Pattern[str], words: str) -> bool:
    """Whether the server's words are about a webhook or a policy of ours."""
    found = said.search(words)
    return found is not None and (found[1].endswith(f".{GROUP}") or found[1].startswith(OURS))


def _untried(check: str, kind: str, words: str) -> Finding:
    """Somebody refused it who is none of ours: a right that is missing, a quota, another one's webhook."""
    fix = _ASK if "cannot create" in words else f"see the message: it is tried in namespace {PROBED}"
    return unknown(check, f"a {kind} pod could not be tried: {words}", fix)


def _policies(facts: ClusterFacts, apply: str) -> Finding:
    check = "cluster.policies"
    for part in (facts.policies, facts.bindings):
        if isinstance(part, Untold):
            return unknown(check, f"ValidatingAdmissionPolicies: {part.why}", _ASK)
    assert not isinstance(facts.policies, Untold)  # noqa: S101 (for the type checker: said above)
    assert not isinstance(facts.bindings, Untold)  # noqa: S101 (for the type checker: said above)
    there = {str(table(one, "metadata").get("name")) for one in facts.policies}
    mine = {name for name in there if name.startswith(OURS)}
    bound = {
        str(table(one, "spec").get("policyName"))
        for one in facts.bindings
        if _denies(table(one, "spec").get("validationActions"))
    }
    if not mine:
        told = "no ValidatingAdmissionPolicy of ours: agents may write to every node, and rules end with the webhook"
        return problem(check, told, apply)
    loose = mine - bound
    if loose:
        return problem(check, f"{named(loose)} is bound to nothing that denies", apply)
    broken = [str(table(one, "metadata").get("name")) for one in facts.policies if _warned(one)]
    if set(broken) & mine:
        return problem(
            check, f"{named(broken)} does not compile here", "`kubectl describe` it: this server is too old?"
        )
    return ok(check, f"{len(mine)} policies bound")


def _denies(actions: object) -> bool:
    return isinstance(actions, list) and "Deny" in actions


def _warned(policy: Mapping[str, Any]) -> bool:
    return bool(table(table(policy, "status"), "typeChecking").get("expressionWarnings"))


def _others(webhooks: tuple[Mapping[str, Any], ...] | Untold) -> Finding:
    """Webhooks of others that speak of these resources."""
    check = "cluster.other_webhooks"
    if isinstance(webhooks, Untold):
        return unknown(check, f"webhook configurations: {webhooks.why}", _ASK)
    foreign = [one for one in webhooks if not str(table(one, "metadata").get("name", "")).startswith(OURS)]
    named_after = [str(table(one, "metadata").get("name")) for one in foreign if ACK.memory in str(one.get("webhooks"))]
    if named_after:
        fix = "one owner for these names: remove theirs, or use the overlay without our scheduler and agent"
        return problem(check, f"{named(named_after)} decides about {ACK.memory} as well", fix)
    return ok(check, "nobody else's webhook names these resources")


def _exempt(names: tuple[str, ...] | Untold) -> Finding:
    check = "cluster.exempt"
    if isinstance(names, Untold):
        return unknown(check, f"namespaces: {names.why}", _ASK)
    if names:
        fix = "only administrators may label namespaces; take the label off where tenants run"
        return warning(check, f"admission passes by {named(names)}: pods there may see every card", fix)
    return ok(check, "no namespace is exempt by label")


def _items(thing: Mapping[str, Any], *path: str) -> list[Mapping[str, Any]]:
    found: Any = thing
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
