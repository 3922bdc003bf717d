"""
The rules as the API server's own policies: in force also without us, and without our webhook.

Decides which claims stand in which policy. They are asked after the webhook, about the object as
it will be stored. The node agents are pinned by the node that their token names: one that is
taken over reaches its own node's objects and no others. Our scheduler's account is held to what a
scheduler writes into a pod: the right to patch pods would let it change images and labels too.

Source: Kubernetes, "Validating Admission Policy" (1.30), "Service accounts: token claims" (the
node's name in `userInfo.extra`, 1.32).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import ACK, NODE_AGENT, ROLE, SCHEDULER, SHARED, SYSTEM_NAMESPACE, WOKEN
from isolation.scheduler.admission import cel
from isolation.scheduler.admission.cel import Claim
from isolation.scheduler.admission.matching import BINDINGS, POD_UPDATES, by_group, by_path, elsewhere, rule
from isolation.scheduler.admission.review import ACCOUNTS, BINDER, EPHEMERAL
from isolation.scheduler.admission.safety import records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.names import Dialect
    from isolation.scheduler.admission.matching import Manifest

NODE_CLAIM: Final = "authentication.kubernetes.io/node-name"
_VERSION: Final = "admissionregistration.k8s.io/v1"
_AGENT: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{NODE_AGENT}"
_EVENTS: Final = "events.events.k8s.io"
_INSTANCE: Final = 128  # characters of an Event's reportingInstance


def policies(dialect: Dialect = ACK, scheduler: str = SCHEDULER) -> list[Manifest]:
    """Every ValidatingAdmissionPolicy; another scheduler's name where an existing one asks our extender."""
    return [*_pods(dialect, scheduler), *_templates(dialect), *_running(dialect), _own(), *_agents()]


def bindings_of(made: Sequence[Manifest]) -> list[Manifest]:
    """What puts the policies in force, everywhere."""
    return [
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": one["metadata"]["name"]},
            "spec": {"policyName": one["metadata"]["name"], "validationActions": ["Deny"]},
        }
        for one in made
    ]


def _pods(dialect: Dialect, scheduler: str) -> list[Manifest]:
    """New pods: those with shares, and those that pretend to have been admitted."""
    new, asks = [rule(["pods"], "CREATE")], {"asks-for-shares": cel.asks("object", dialect)}
    marked = f"{cel.carries('object', 'annotations', records(dialect))} || {cel.carries('object', 'labels', (SHARED,))}"
    claims = cel.amounts(dialect) + cel.of_pod("object") + cel.of_containers("variables.containers", dialect)
    return [
        _policy("pods", new, asks, claims, cel.variables("object", dialect)),
        _policy("admitted", new, asks, cel.admitted("object", scheduler)),
        _policy("forgeries", new, {"is-marked": marked}, cel.made("object", dialect)),
    ]


def _templates(dialect: Dialect) -> list[Manifest]:
    """Whatever makes pods, one policy by the place where it keeps them."""
    found = []
    for path, resources in by_path().items():
        pod = ".".join(("object", *(str(step) for step in path)))
        before = pod.replace("object", "oldObject", 1)
        conditions = {
            "has-a-template": f"has({pod})",
            "asks-for-shares": cel.asks(pod, dialect),
            "is-new": f"request.operation == 'CREATE' || {pod} != {before}",
        }
        rules = [rule(one, "CREATE", "UPDATE") for one in by_group(resources)]
        claims = cel.amounts(dialect) + cel.of_pod(pod) + cel.of_containers("variables.containers", dialect)
        claims += cel.made(pod, dialect)
        name = f"templates-{resources[0].partition('.')[0]}"
        found.append(_policy(name, rules, conditions, claims, cel.variables(pod, dialect)))
    return found


def _running(dialect: Dialect) -> list[Manifest]:
    """Pods that exist: what is kept, what joins them, who binds them."""
    strangers = {"is-not-ours": f"!(request.userInfo.username in {cel.texts(sorted(ACCOUNTS))})"}
    kept = Claim(
        f"!({cel.altered(dialect)})",
        f"allocation records and labels {SHARED} and {dialect.card_count} of a pod are immutable",
    )
    many = Claim(f"!({cel.adds_annotations(dialect)})", cel.TOO_MANY_ANNOTATIONS)
    devices = Claim(f"!({cel.joins_runtime(dialect)})", cel.ASKS_RUNTIME)
    joins = {"joins-shares": cel.asks("object", dialect)}
    joining = cel.of_containers("object.spec.?ephemeralContainers.orValue([])", dialect)
    binds = {"is-not-ours": f"request.userInfo.username != {cel.text(BINDER)}"}
    labels = cel.carries("object", "labels", (SHARED, dialect.card_count))
    bound = Claim(
        f"!({cel.carries('object', 'annotations', records(dialect))} || {labels})",
        f"the binding carries allocation records, which only {SCHEDULER} writes; bind without them",
    )
    return [
        _policy("records", [rule(POD_UPDATES, "UPDATE")], strangers, [kept, many, devices]),
        _policy("ephemeral", [rule([f"pods/{EPHEMERAL}"], "UPDATE")], joins, joining),
        _policy("bindings", [rule(BINDINGS, "CREATE")], binds, [bound]),
    ]


def _own() -> Manifest:
    """What the scheduler's account may change in a pod that exists, by whichever of its rights; in every namespace."""
    ours = {"is-our-scheduler": f"request.userInfo.username == {cel.text(BINDER)}"}
    home = f"object.metadata.namespace == {cel.text(SYSTEM_NAMESPACE)}"
    shared = f"object.metadata.?labels[?{cel.text(SHARED)}].orValue('') == 'true'"
    told = f"{SCHEDULER} may only change label {ROLE} of its own pods and annotation {WOKEN} of pods with GPU shares"
    runs = ("phase", "containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    claims = [
        _kept("spec", "?metadata.?finalizers", "?metadata.?ownerReferences"),
        _kept_but("labels", ROLE, home),
        _kept_but("annotations", WOKEN, shared),
        _kept(*(f"?status.?{part}" for part in runs)),
    ]
    rules, made = [rule(POD_UPDATES, "UPDATE")], [Claim(claim, told) for claim in claims]
    return _policy("scheduler-pods", rules, ours, made, everywhere=True)


def _kept(*parts: str) -> str:
    """That an update leaves these parts as they were."""
    return " && ".join(f"object.{part} == oldObject.{part}" for part in parts)


def _kept_but(what: str, key: str, where: str) -> str:
    """That an update leaves labels or annotations as they were; one of them may change, but only where it belongs."""
    new, old = (f"{at}.metadata.?{what}.orValue({{}})" for at in ("object", "oldObject"))
    free = f"(k == {cel.text(key)} && {where})"
    same = f"{new}.all(k, {free} || (k in {old} && {new}[k] == {old}[k]))"
    return f"{same} && {old}.all(k, {free} || k in {new})"


def _agents() -> list[Manifest]:
    """Each node agent keeps to its own node."""
    mine = {"is-a-node-agent": f"request.userInfo.username == {cel.text(_AGENT)}"}
    node = {"node": f"request.userInfo.?extra[?{cel.text(NODE_CLAIM)}].orValue([''])[0]"}
    told = "a node agent may only act on its own node, which is named in its service account token"
    # As its Events are signed, cut to what the API server takes.
    signs = f"'{NODE_AGENT}/' + variables.node"
    whole = f"object.reportingInstance == {signs}"
    cut = f"size({signs}) > {_INSTANCE} && object.reportingInstance == ({signs}).substring(0, {_INSTANCE})"
    claims = {
        "agent-nodes": (rule(["nodes", "nodes/status"], "*"), "request.name == variables.node"),
        "agent-pods": (
            rule(["pods", "pods/status", "pods/eviction"], "UPDATE", "DELETE"),
            "oldObject.spec.?nodeName.orValue('') == variables.node",
        ),
        "agent-events": (rule([_EVENTS], "*"), f"object != null && ({whole} || {cut})"),
    }
    return [
        _policy(name, [where], mine, [Claim(f"variables.node != '' && {claim}", told)], node, everywhere=True)
        for name, (where, claim) in claims.items()
    ]


def _policy(
    name: str,
    rules: Sequence[Manifest],
    conditions: Mapping[str, str],
    claims: Sequence[Claim],
    variables: Mapping[str, str] | None = None,
    *,
    everywhere: bool = False,
) -> Manifest:
    constraints: dict[str, Any] = {"matchPolicy": "Equivalent", "resourceRules": list(rules)}
    if not everywhere:
        constraints["namespaceSelector"] = elsewhere()
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": constraints,
        "matchConditions": [{"name": key, "expression": value} for key, value in conditions.items()],
        "variables": [{"name": key, "expression": value} for key, value in (variables or {}).items()],
        "validations": [
            {"expression": claim.expression, "message": claim.message, "reason": "Forbidden"} for claim in claims
        ],
    }
    return {
        "apiVersion": _VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": f"gpushare-{name}"},
        "spec": {key: value for key, value in spec.items() if value},
    }
