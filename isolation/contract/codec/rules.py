# SPDX-License-Identifier: Apache-2.0
"""
Which nodes a pod may use, as Kubernetes spells it: selector, required affinity, tolerations.

Decides what the pod *said*; whether a node satisfies it is placement's business. What the pod
said that placement does not weigh is listed in plain words, never dropped in silence.

Semantics: Kubernetes, "Assigning Pods to Nodes" and `k8s.io/component-helpers`
(`scheduling/corev1/nodeaffinity`): selector AND (term OR term ...); a term without requirements
matches no node.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import At, Unacceptable, show
from isolation.contract.model import NAME_FIELD, CardRules, Mode, Requirement, Rules, Toleration, part_of_model
from isolation.contract.names import AVOID_MODELS, AVOID_UUIDS, USE_MODELS, USE_UUIDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.contract.names import Dialect

_WITH_VALUES: Final = frozenset({"In", "NotIn"})
_WITHOUT_VALUES: Final = frozenset({"Exists", "DoesNotExist"})
_ORDERED: Final = frozenset({"Gt", "Lt"})
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_EFFECTS: Final = frozenset({"", "NoSchedule", "PreferNoSchedule", "NoExecute"})
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
# Volumes that can tie a pod to a zone or a node; the others follow the pod wherever it goes.
_BOUND_VOLUMES: Final = ("persistentVolumeClaim", "ephemeral", "gcePersistentDisk", "awsElasticBlockStore", "azureDisk")
NOWHERE: Final = Requirement(NAME_FIELD, "In", ())
"""What no node satisfies."""


MAX_LISTED: Final = 64
"""Models or UUIDs in one annotation."""
CARD_RULES: Final = (USE_MODELS, AVOID_MODELS, USE_UUIDS, AVOID_UUIDS)
_NO_ANNOTATIONS: Final = At(None)
_ANY_CARD: Final = CardRules()
_ANY_NODE: Final = Rules()
_RULES: Final = frozenset({"nodeSelector", "affinity", "tolerations"})


def rules_of(spec: At, dialect: Dialect, annotations: At = _NO_ANNOTATIONS) -> Rules:
    """The hard rules of a pod; raises Unacceptable for what the API server would reject."""
    said = spec.mapping()
    if said.keys().isdisjoint(_RULES):  # as of most pods
        cards = card_rules(annotations)
        return Rules(cards=cards) if cards else _ANY_NODE
    selector: tuple[Requirement, ...] = ()
    if "nodeSelector" in said:
        labels = spec["nodeSelector"].texts()
        selector = tuple([Requirement(key, "In", (value,)) for key, value in sorted(labels.items())])
    required = spec["affinity"]["nodeAffinity"][_REQUIRED] if "affinity" in said else None
    terms = [selector + term for term in _terms(required)] if required else [selector] if selector else []
    tolerations = frozenset([_toleration(item) for item in spec["tolerations"].items()])
    if not terms:
        return Rules(tolerations=tolerations, cards=card_rules(annotations))
    under_mps = Requirement(dialect.mode_label, "In", (Mode.MPS.value,))
    return Rules(
        mps=all(under_mps in term for term in terms),
        terms=tuple(terms),
        tolerations=tolerations,
        models=_models(terms, dialect),
        cards=card_rules(annotations),
    )


def card_rules(annotations: At) -> CardRules:
    """Which cards the pod's annotations allow; looked up by name, however many annotations there are."""
    said = annotations.mapping()
    if said.keys().isdisjoint(CARD_RULES):
        return _ANY_CARD
    models, not_models, uuids, not_uuids = (_listed(annotations[key], key) for key in CARD_RULES)
    return CardRules(frozenset(map(part_of_model, models)), frozenset(map(part_of_model, not_models)), uuids, not_uuids)


def _listed(at: At, key: str) -> frozenset[str]:
    if not at:
        return frozenset()
    parts = [part.strip() for part in at.text().split(",", MAX_LISTED)]
    if len(parts) > MAX_LISTED:
        raise Unacceptable(f"annotation {key} lists more than {MAX_LISTED} names; list fewer")
    if not all(parts):
        raise Unacceptable(f"annotation {key} has an empty name; write names with commas between them, or remove it")
    return frozenset(parts)


def pinned(rules: Rules, node: str) -> Rules:
    """The same rules on one named node."""
    pin = Requirement(NAME_FIELD, "In", (node,))
    return Rules(tuple((pin, *term) for term in rules.terms or ((),)), rules.tolerations, rules.models, rules.cards)


def _terms(required: At) -> list[tuple[Requirement, ...]]:
    alternatives = required["nodeSelectorTerms"].items()
    if not alternatives:
        raise Unacceptable("required node affinity has no nodeSelectorTerms; add a term or remove the affinity")
    terms = [
        (*_requirements(a["matchExpressions"]), *_requirements(a["matchFields"], NAME_FIELD)) for a in alternatives
    ]
    return [term for term in terms if term] or [(NOWHERE,)]


def _requirements(listed: At, only_key: str = "") -> Iterator[Requirement]:
    for item in listed.items():
        key, op = item["key"].text(), item["operator"].text()
        values = tuple(value.text() for value in item["values"].items())
        if only_key and (key != only_key or op not in _WITH_VALUES or len(values) != 1):
            raise Unacceptable(f"matchFields supports only {only_key} In [one name] or NotIn [one name]")
        yield _requirement(key, op, values)


def _requirement(key: str, op: str, values: tuple[str, ...]) -> Requirement:
    where = f"node affinity on {show(key)}"
    if not key:
        raise Unacceptable("node affinity has no key; set the key of a node label")
    if op not in _WITH_VALUES | _WITHOUT_VALUES | _ORDERED:
        raise Unacceptable(f"{where}: {show(op)} is not an operator; use In, NotIn, Exists, DoesNotExist, Gt or Lt")
    if op in _WITH_VALUES and not values:
        raise Unacceptable(f"{where}: {op} needs values; list at least one")
    if op in _WITHOUT_VALUES and values:
        raise Unacceptable(f"{where}: {op} takes no values; remove them")
    if op in _ORDERED and (len(values) != 1 or not _INTEGER.fullmatch(values[0])):
        raise Unacceptable(f"{where}: {op} needs exactly one whole number in quotes")
    return Requirement(key, op, values)


def _toleration(item: At) -> Toleration:
    said = item.mapping()
    key, value = said.get("key", ""), said.get("value", "")
    op, effect = said.get("operator", ""), said.get("effect", "")
    # Nearly all are texts: only one that is not needs a cursor that can say where it stands.
    if not (isinstance(key, str) and isinstance(value, str) and isinstance(op, str) and isinstance(effect, str)):
        key, value, op, effect = (item[name].text() for name in ("key", "value", "operator", "effect"))
    op = op or "Equal"
    if op not in ("Equal", "Exists"):
        raise Unacceptable(f"toleration of {show(key)}: operator {show(op)} is not supported; use Equal or Exists")
    if effect not in _EFFECTS:
        raise Unacceptable(f"toleration of {show(key)}: {show(effect)} is not an effect; use NoSchedule or NoExecute")
    if op == "Exists" and value:
        raise Unacceptable(f"toleration of {show(key)}: Exists takes no value; remove it or use Equal")
    if op == "Equal" and not key:
        raise Unacceptable("a toleration without a key tolerates everything; set operator: Exists")
    return Toleration(key, value, effect, op == "Exists")


def _models(terms: list[tuple[Requirement, ...]], dialect: Dialect) -> frozenset[str]:
    """
    Card models that the rules allow, where every alternative names some; empty: cannot tell.

    Only the first model label counts: it is the one that names `Card.model` wherever a node
    has it, so the answer cannot contradict the requirement itself, which stays in the terms.
    """
    allowed: set[str] = set()
    for term in terms:
        named = [frozenset(r.values) for r in term if r.key == dialect.model_labels[0] and r.op == "In"]
        if not named:
            return frozenset()
        allowed |= frozenset.intersection(*named)
    return frozenset(allowed)


def unmodelled(spec: At) -> list[str]:
    """Constraints of the pod that placement does not weigh, as short phrases."""
    affinity = spec["affinity"]
    phrases = {
        "preferred node affinity": affinity["nodeAffinity"][_PREFERRED].items(),
        "pod affinity": [*affinity["podAffinity"][_REQUIRED].items(), *affinity["podAffinity"][_PREFERRED].items()],
        "pod anti-affinity": [
            *affinity["podAntiAffinity"][_REQUIRED].items(),
            *affinity["podAntiAffinity"][_PREFERRED].items(),
        ],
        "topology spread constraints": spec["topologySpreadConstraints"].items(),
        "scheduling gates": spec["schedulingGates"].items(),
        "resource claims (DRA)": spec["resourceClaims"].items(),
        "a pod group": spec["workloadRef"] or spec["schedulingGroup"],
        "host ports": list(_host_ports(spec)),
    }
    found = [phrase for phrase, present in phrases.items() if present]
    if runtime := spec["runtimeClassName"].text():
        found.append(f"runtime class {show(runtime)}")
    for volume in spec["volumes"].items():
        found += [f"volume {show(volume['name'].text())} ({kind})" for kind in _BOUND_VOLUMES if volume[kind]]
    return found


def _host_ports(spec: At) -> Iterator[At]:
    on_host = spec["hostNetwork"].flag()
    for container in [*spec["containers"].items(), *spec["initContainers"].items()]:
        yield from (port for port in container["ports"].items() if on_host or port["hostPort"])
