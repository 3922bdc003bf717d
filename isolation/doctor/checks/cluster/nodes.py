# SPDX-License-Identifier: Apache-2.0
"""
Findings about nodes: what they serve, whether their agents live and tell the truth, whether kubelets are new enough.

Pure. Counts units by card, as the node's own agent lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.model import SHARED_MODES, ComputePolicy, Mode
from isolation.contract.names import ACK, BACKEND, COMPUTE_POLICY, NODE_AGENT, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.doctor.checks import minimum
from isolation.doctor.checks.cluster.facts import ClusterNode, Unavailable
from isolation.doctor.checks.finding import Finding, named, ok, problem, unknown, warning
from isolation.doctor.checks.machine.runtime import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHARED: Final = frozenset(mode.value for mode in SHARED_MODES)
_THEIRS: Final = frozenset({"mig", "topology"})
"""ACK's modes that others serve."""
_MAX_SKEW: Final = 3
"""Minor versions that a kubelet may be behind the API server (Kubernetes' version skew policy)."""
_READY: Final = "ready"
_LONGEST_TEXT: Final = 300


def check_nodes(nodes: tuple[ClusterNode, ...] | Unavailable, server: str, *, ours: bool = True) -> list[Finding]:
    """Everything about nodes; of agents and what they tell only where shares are `ours` to serve."""
    check = "cluster.nodes"
    if isinstance(nodes, Unavailable):
        return [unknown(check, f"cannot list nodes: {nodes.why}", "use credentials that may list nodes")]
    shared = [one for one in nodes if one.mode in _SHARED]
    if not shared:
        fix = f"kubectl label node NAME {ACK.mode_label}=cgpu (memory), =core_mem (memory and compute) or =share"
        return [
            warning(check, f"none of {len(nodes)} nodes serves shares", fix),
            _check_modes(nodes),
            _check_version_skew(nodes, (), server),
        ]
    return [
        ok(check, f"{len(shared)} of {len(nodes)} nodes serve shares, {sum(one.units for one in shared)} units"),
        _check_modes(nodes),
        _check_policies(shared),
        *((_check_backends(shared),) if ours else ()),
        _check_both_modes(nodes),
        *((_check_agents(shared), _check_units(shared), _check_cards(shared)) if ours else ()),
        _check_readable(nodes),
        _check_version_skew(nodes, shared if ours else (), server),
    ]


def _some(found: Iterable[ClusterNode]) -> str:
    return named(one.name for one in found)


def _check_modes(nodes: Iterable[ClusterNode]) -> Finding:
    check, known = "cluster.modes", {mode.value for mode in Mode} - {Mode.NONE.value}
    strange = [one for one in nodes if one.mode is not None and one.mode not in known | _THEIRS]
    if strange:
        words = ", ".join(sorted({str(one.mode) for one in strange})[:3])
        return problem(
            check,
            f"{_some(strange)}: {ACK.mode_label}={words} is not a mode, so the node serves nothing",
            f"use one of {', '.join(sorted(known))}",
        )
    lost = [one for one in nodes if one.mode is None and one.units]
    if lost:
        evidence = f"{_some(lost)} offers shares but has no mode label"
        return problem(check, evidence, f"add label {ACK.mode_label}, or remove the plugin that offers {ACK.memory}")
    return ok(check, "all mode labels are valid")


def _check_policies(shared: Iterable[ClusterNode]) -> Finding:
    check = "cluster.compute_policies"
    strange = [one for one in shared if one.policy is not None]
    if strange:
        words = ", ".join(sorted({str(one.policy) for one in strange})[:3])
        return problem(
            check,
            f"{_some(strange)}: compute policy {words} is not supported, so compute is shared as by fixed",
            f"label the node {COMPUTE_POLICY}= one of {', '.join(ComputePolicy)}",
        )
    return ok(check, "all compute policies are valid")


def _check_backends(shared: Iterable[ClusterNode]) -> Finding:
    check = "cluster.backends"
    nodes = list(shared)
    unheld = [one for one in nodes if one.backend == ""]
    if unheld:
        return problem(
            check,
            f"{_some(unheld)}: {unheld[0].backend_text}: the node takes no pods",
            f"change label {BACKEND} or {ACK.mode_label} of the node, or what the reason names",
        )
    said = {one.backend: one.backend_text for one in nodes if one.backend}
    if not said:
        return ok(check, "no node agent says what enforces promises")
    counts = ((sum(one.backend == name for one in nodes), text) for name, text in sorted(said.items()))
    return ok(check, "; ".join(f"{number} with {text}" for number, text in counts))


def _check_both_modes(nodes: Iterable[ClusterNode]) -> Finding:
    check = "cluster.mixed_resources"
    both = [one for one in nodes if one.whole and (one.units or one.mode in _SHARED)]
    if both:
        twice = [one for one in both if one.units]
        evidence = (
            f"{_some(twice)} offers shares and whole cards: a card can be allocated twice"
            if twice
            else f"{_some(both)}: another device plugin offers whole cards, so the node agent offers no shares"
        )
        return problem(
            check, evidence, "keep the vendor's device plugin off nodes that serve shares (its nodeSelector)"
        )
    return ok(check, "no node offers both shares and whole cards")


def _check_agents(shared: list[ClusterNode]) -> Finding:
    check = "cluster.agents"
    away = [one for one in shared if one.agent != _READY]
    if away:
        return problem(
            check,
            f"no node agent is ready on {_some(away)}: no pod is bound there",
            f"kubectl -n {SYSTEM_NAMESPACE} get pods -o wide -l app.kubernetes.io/name={NODE_AGENT}; where one runs, "
            f"its log says why: kubectl -n {SYSTEM_NAMESPACE} logs POD",
        )
    return ok(check, f"a node agent is ready on each of {len(shared)} nodes")


def _check_cards(shared: Iterable[ClusterNode]) -> Finding:
    check = "cluster.cards"
    unhealthy = [one for one in shared if one.unhealthy]
    if unhealthy:
        evidence = f"{unhealthy[0].name}: {unhealthy[0].unhealthy[:_LONGEST_TEXT]}"
        rest = f" (and cards of {len(unhealthy) - 1} more nodes)" if len(unhealthy) > 1 else ""
        fix = "drain the node if its MIG instances were changed; else see runbook GpushareNodeAgentCardsUnhealthy"
        return warning(check, f"cards get no new pods on {evidence}{rest}", fix)
    draining = [one for one in shared if one.node is not None and one.node.draining]
    if draining:
        return ok(check, f"the autoscaler empties {_some(draining)}; all other cards get new pods")
    return ok(check, "all cards get new pods")


def _check_units(shared: list[ClusterNode]) -> Finding:
    """What the kubelet offers against what the agent's own list of cards amounts to."""
    check, wrong = "cluster.units", []
    for one in shared:
        if one.node is None or not one.described or one.agent != _READY:
            continue
        cards = one.node.cards
        offered = sum(card.allocatable_bytes // card.unit_bytes for card in cards if card.healthy)
        largest = max((card.allocatable_bytes // card.unit_bytes for card in cards), default=0)
        labels = (one.card_units, one.card_count)
        if one.units != offered:
            wrong.append((one.name, f"the kubelet offers {one.units} units, but the cards have {offered}"))
        elif labels not in {("", ""), (str(largest), str(len(cards)))}:
            wrong.append((one.name, f"the labels state {labels[1]} cards of {labels[0]} units, but the cards differ"))
    kinds = {card.unit_bytes for one in shared if one.node and one.described for card in one.node.cards}
    if len(kinds) > 1:
        evidence = f"nodes use different unit sizes: {', '.join(f'{unit / GIB:g} GiB' for unit in sorted(kinds))}"
        return problem(
            check,
            evidence,
            "set the same --memory-unit for every agent and the scheduler; drain a node before you change it",
        )
    if wrong:
        name, why = wrong[0]
        rest = f" (and {len(wrong) - 1} more nodes)" if len(wrong) > 1 else ""
        fix = "check the agent's log on that node: its mode changed, or another plugin serves the same resource"
        return warning(check, f"{name}: {why}{rest}", fix)
    return ok(check, "kubelets offer the units that the cards have")


def _check_readable(nodes: Iterable[ClusterNode]) -> Finding:
    check = "cluster.node_data"
    bad = [one for one in nodes if one.why]
    if bad:
        return unknown(
            check,
            f"{bad[0].name}: {bad[0].why}",
            "correct its labels and annotations; until then its cards are not used",
        )
    return ok(check, "all nodes are readable")


def _check_version_skew(nodes: Iterable[ClusterNode], shared: Iterable[ClusterNode], server: str) -> Finding:
    check, own, oldest = "cluster.kubelet_versions", parse_version(server), minimum.dotted(minimum.KUBERNETES)
    versions = {one.name: parse_version(one.kubelet) for one in nodes}
    sharing = {one.name for one in shared}
    if own is None:
        return unknown(check, f"the server reports version {server!r}", "check `kubectl version`")
    ahead = [name for name, version in versions.items() if version and version > own]
    behind = [name for name, version in versions.items() if version and own[1] - version[1] > _MAX_SKEW]
    no_cdi = [name for name in sharing if (version := versions[name]) and version < minimum.KUBELET_CDI]
    no_get = [name for name in sharing if (version := versions[name]) and version < minimum.KUBERNETES]
    silent = [name for name in sharing if versions[name] is None]
    if no_cdi:
        why = f"is older than {minimum.dotted(minimum.KUBELET_CDI)}: it does not support CDI"
        return problem(check, f"the kubelet of {named(no_cdi)} {why}", f"upgrade it to {oldest}")
    if no_get:
        fix = f"upgrade it to {oldest}, or set featureGates: {{KubeletPodResourcesGet: true}} in its configuration"
        why = f"the kubelet of {named(no_get)} is older than {oldest}: the exporter cannot ask for single pods"
        return warning(check, why, fix)
    if ahead or behind:
        which = ("newer than the API server", ahead) if ahead else ("too old for this API server", behind)
        return warning(
            check, f"the kubelet of {named(which[1])} is {which[0]}", "follow Kubernetes' version skew policy"
        )
    if silent:
        return unknown(
            check, f"the kubelet of {named(silent)} does not report its version", "check `kubectl get nodes -o wide`"
        )
    return ok(check, "kubelets are new enough")
