# SPDX-License-Identifier: Apache-2.0
"""
Policies for gpushare's own service accounts, beyond RBAC: a stolen token allows only what its process needs.

Each node agent may write only its own node, which its token names, and there only what it publishes. The schedulers'
accounts may write only what each process writes: the right to patch pods would let them change images and labels too,
and the stock roles of kube-scheduler would let it move a volume from one claim to another, or hold every other
scheduler's Lease.
The autoscaler's policies are written by hand (manifests/base/autoscaler/policy.yaml).

Each matches by the user name alone and first: requests of others are not evaluated further.

Source: Kubernetes, "Validating Admission Policy" (1.30), "Service accounts: token claims" (the node's name in
`userInfo.extra`, 1.32); what kube-scheduler writes: pkg/scheduler/framework/plugins/volumebinding (PersistentVolume
`spec.claimRef`, PersistentVolumeClaim annotation `selected-node`) and the status of pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.names import (
    ACK,
    AGENT_ANNOTATIONS,
    AGENT_EVENTS,
    AGENT_LABELS,
    AGENT_RESOURCES,
    ALLOCATION,
    CLASSIC_CARD,
    KUBE_LEASE,
    KUBE_SCHEDULER,
    NODE_AGENT,
    RESIZE_STATUS,
    ROLE,
    SCHEDULER,
    SHARED,
    SYSTEM_NAMESPACE,
    SYSTEM_NAMESPACES,
    WOKEN,
)
from isolation.scheduler.admission.core import cel
from isolation.scheduler.admission.core.cel import Validation
from isolation.scheduler.admission.core.matching import POD_UPDATES, build_policy, resource_rule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.scheduler.admission.core.matching import Manifest

NODE_CLAIM: Final = "authentication.kubernetes.io/node-name"
_BOUND_BY: Final = "pv.kubernetes.io/bound-by-controller"
_SELECTED: Final = "volume.kubernetes.io/selected-node"
_OF_ANY_WRITE: Final = ("managedFields", "resourceVersion", "generation")
"""What the API server itself changes with every write."""
SCHEDULER_ANNOTATIONS: Final = (WOKEN, ALLOCATION, ACK.allocation_annotation, RESIZE_STATUS)
"""Of a running pod our scheduler changes these, and nothing else: it requeues and resizes."""
_ANYWHERE: Final[dict[str, Manifest]] = {"namespaceSelector": {}}


def build_policies() -> list[Manifest]:
    """Those of the schedulers and of the node agents; the agents' comes last."""
    return [*_build_for_schedulers(), *_build_for_agents()]


def _match_accounts(*accounts: str) -> dict[str, str]:
    """Asked first, and of everybody's requests: a comparison for each account."""
    return {"by-our-account": " || ".join(_is_account(account) for account in accounts)}


def _is_account(account: str) -> str:
    return f"request.userInfo.username == {cel.text(f'system:serviceaccount:{SYSTEM_NAMESPACE}:{account}')}"


def _build_for_schedulers() -> list[Manifest]:
    """Our scheduler's account, and that of the stock kube-scheduler beside it; in every namespace."""
    pods = [resource_rule(POD_UPDATES, "UPDATE")]
    home = f"object.metadata.namespace == {cel.text(SYSTEM_NAMESPACE)}"
    shared = f"object.metadata.?labels[?{cel.text(SHARED)}].orValue('') == 'true'"
    placed = cel.carries("object", "annotations", (CLASSIC_CARD, ACK.allocation_annotation))
    adopts = (
        f"{shared} && !({cel.carries('oldObject', 'labels', (SHARED,))}) && "
        f"object.spec.?nodeName.orValue('') != '' && {placed}"
    )
    ours = [
        _unchanged("spec", "?metadata.?finalizers", "?metadata.?ownerReferences", "?status"),
        _unchanged_except("labels", {ROLE: home, SHARED: adopts}),
        _unchanged_except("annotations", dict.fromkeys(SCHEDULER_ANNOTATIONS, shared)),
    ]
    runs = ("phase", "containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    kube = [
        _unchanged(
            "spec", *(f"?metadata.?{part}" for part in ("labels", "annotations", "finalizers", "ownerReferences"))
        ),
        _unchanged(*(f"?status.?{part}" for part in runs)),
    ]
    told = (
        f"{SCHEDULER} may only change label {ROLE} of its own pods and annotations "
        f"{', '.join(SCHEDULER_ANNOTATIONS)} of pods with GPU shares, "
        f"and add label {SHARED} to pods that another scheduler has placed"
    )
    kube_told = f"{KUBE_SCHEDULER} may only change conditions and nominations of pods"
    # One policy for both: it is asked about the updates of everybody's pods.
    made = [Validation(f"{_is_account(KUBE_SCHEDULER)} || {claim}", told) for claim in ours]
    made += [Validation(f"{_is_account(SCHEDULER)} || {claim}", kube_told) for claim in kube]
    evicts = f"!(request.?namespace.orValue('') in {cel.texts(sorted(SYSTEM_NAMESPACES))})"
    stays = Validation(evicts, f"{SCHEDULER} must not evict pods of {' or '.join(sorted(SYSTEM_NAMESPACES))}")
    return [
        build_policy("scheduler-pods", pods, _match_accounts(SCHEDULER, KUBE_SCHEDULER), made, **_ANYWHERE),
        _build_for_account("scheduler-evictions", SCHEDULER, [resource_rule(["pods/eviction"], "CREATE")], [stays]),
        _build_for_leases(),
        *_build_for_volumes(),
    ]


def _build_for_account(name: str, account: str, rules: list[Manifest], claims: list[Validation]) -> Manifest:
    """A policy about everything that an account does to some resources."""
    return build_policy(name, rules, _match_accounts(account), claims, **_ANYWHERE)


def _build_for_leases() -> Manifest:
    """
    Their own, not those by which others of the cluster choose their leader.

    The kubelets' own namespace is left out: their renewals are most of all writes, and the stock role allows nothing
    there but to make a Lease that is not there yet.
    """
    both = ("leases", "leasecandidates")
    rules = [resource_rule([f"{kind}.coordination.k8s.io"], "*") | {"apiVersions": ["*"]} for kind in both]
    mine = f"{_is_account(SCHEDULER)} ? {cel.text(SCHEDULER)} : {cel.text(KUBE_LEASE)}"
    home = f"request.?namespace.orValue('') == {cel.text(SYSTEM_NAMESPACE)}"
    claim = f"{home} && (request.resource.resource != 'leases' || object != null && object.metadata.name == ({mine}))"
    told = f"the schedulers may only write the Leases {SCHEDULER} and {KUBE_LEASE} of {SYSTEM_NAMESPACE}, each its own"
    elsewhere = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-node-lease"]}
    selector = {"matchExpressions": [elsewhere]}
    accounts = _match_accounts(SCHEDULER, KUBE_SCHEDULER)
    return build_policy("scheduler-leases", rules, accounts, [Validation(claim, told)], namespaceSelector=selector)


def _build_for_volumes() -> list[Manifest]:
    """
    Volumes for pods that wait: one that is free is given to a claim; one that has a claim stays with it.

    A volume that its maker has meant for a claim names it without its UID.
    """
    old, new = "oldObject.spec.?claimRef", "object.spec.?claimRef"
    same = " && ".join(f"{new}.?{part}.orValue('') == {old}.?{part}.orValue('')" for part in ("namespace", "name"))
    meant = f"{old}.?uid.orValue('') == '' && {new}.hasValue() && {same}"
    volume = [
        cel.same_but("dyn(object)", "dyn(oldObject)", "k in ['metadata', 'spec']"),
        cel.same_but("dyn(object.spec)", "dyn(oldObject.spec)", "k == 'claimRef'"),
        f"!{old}.hasValue() || {new} == {old} || ({meant})",
        *_only_annotations(_BOUND_BY),
    ]
    claim = [cel.same_but("dyn(object)", "dyn(oldObject)", "k == 'metadata'"), *_only_annotations(_SELECTED)]
    told = f"{KUBE_SCHEDULER} may only give a free PersistentVolume to a claim"
    claim_told = f"{KUBE_SCHEDULER} may only change annotation {_SELECTED} of a PersistentVolumeClaim"
    volumes, claims = (
        resource_rule([kind, f"{kind}/status"], "UPDATE") for kind in ("persistentvolumes", "persistentvolumeclaims")
    )
    return [
        _build_for_account(
            "kube-scheduler-volumes", KUBE_SCHEDULER, [volumes], [Validation(one, told) for one in volume]
        ),
        _build_for_account(
            "kube-scheduler-claims", KUBE_SCHEDULER, [claims], [Validation(one, claim_told) for one in claim]
        ),
    ]


def _only_annotations(*keys: str) -> list[str]:
    """That of an object's metadata only these annotations change."""
    free = cel.texts(("annotations", *_OF_ANY_WRITE))
    return [
        cel.same_but("dyn(object.metadata)", "dyn(oldObject.metadata)", f"k in {free}"),
        cel.same_but(*_maps("annotations"), f"k in {cel.texts(keys)}"),
    ]


def _maps(what: str) -> tuple[str, str]:
    """Labels or annotations as they will be, and as they are."""
    return f"object.metadata.?{what}.orValue({{}})", f"oldObject.metadata.?{what}.orValue({{}})"


def _unchanged(*parts: str) -> str:
    """That an update leaves these parts as they were."""
    return " && ".join(f"object.{part} == oldObject.{part}" for part in parts)


def _unchanged_except(what: str, free: Mapping[str, str]) -> str:
    """That an update leaves labels or annotations as they were; these may change, each only where it belongs."""
    listed = " || ".join(f"k == {cel.text(key)} && {where}" for key, where in free.items())
    return cel.same_but(*_maps(what), f"({listed})")


def _build_for_agents() -> list[Manifest]:
    """Each node agent keeps to its own node, and there to what it states."""
    mine = _match_accounts(NODE_AGENT)
    node = {"node": f"request.userInfo.?extra[?{cel.text(NODE_CLAIM)}].orValue([''])[0]"}
    told = "a node agent may only write its own node, which is named in its service account token"
    own = Validation("variables.node != '' && request.name == variables.node", told)
    where = [resource_rule(["nodes", "nodes/status"], "*")]
    return [
        build_policy(
            "agent-events",
            [resource_rule(["events.events.k8s.io"], "CREATE", "UPDATE")],
            mine,
            [_limit_agent_events()],
            node,
            **_ANYWHERE,
        ),
        build_policy("agent-nodes", where, mine, [own, *_limit_agent_writes()], node, **_ANYWHERE),
    ]


def _limit_agent_events() -> Validation:
    """Only about pods and in its own name: whether such a pod is on its node a policy cannot know."""
    claims = (
        "variables.node != ''",
        f"object.?reportingInstance.orValue('') == {cel.text(f'{NODE_AGENT}/')} + variables.node",
        f"object.?reason.orValue('') in {cel.texts(AGENT_EVENTS)}",
        "object.?regarding.?kind.orValue('') == 'Pod'",
    )
    message = f"a node agent may only create Events {', '.join(AGENT_EVENTS)} of pods, in the name of its node"
    return Validation(" && ".join(claims), message)


def _limit_agent_writes() -> list[Validation]:
    """
    What a node agent states of its node, and nothing beside it.

    Closed: whatever part of a node is not named here stays as it was, also one that Kubernetes adds some day. The
    kubelet's own credential may not do more either (NodeRestriction): no taints, no labels that select or restrict.
    """
    labels, annotations, amounts = (cel.texts(names) for names in (AGENT_LABELS, AGENT_ANNOTATIONS, AGENT_RESOURCES))
    metadata = cel.texts(("labels", "annotations", *_OF_ANY_WRITE))
    stated = [
        (f"dyn(object.status).?{part}.orValue({{}})", f"dyn(oldObject.status).?{part}.orValue({{}})", f"k in {amounts}")
        for part in ("capacity", "allocatable")
    ]
    parts = [
        ("dyn(object)", "dyn(oldObject)", "k in ['metadata', 'status']"),
        ("dyn(object.metadata)", "dyn(oldObject.metadata)", f"k in {metadata}"),
        (*_maps("labels"), f"k in {labels}"),
        (*_maps("annotations"), f"k in {annotations}"),
        ("dyn(object.status)", "dyn(oldObject.status)", "k in ['capacity', 'allocatable']"),
        *stated,
    ]
    told = (
        f"a node agent may change only labels {', '.join(AGENT_LABELS)}, annotations "
        f"{', '.join(AGENT_ANNOTATIONS)} and amounts of {', '.join(AGENT_RESOURCES)} of its node"
    )
    return [Validation(f"request.operation == 'UPDATE' && {cel.same_but(*part)}", told) for part in parts]
