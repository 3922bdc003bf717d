# SPDX-License-Identifier: Apache-2.0
"""
The rules of admission in CEL, for the ValidatingAdmissionPolicies: they hold also when the webhook is away.

Decides nothing new: each validation says in CEL what `pod_security`, `request_of` or `webhook` says in Python, from the
same tables. What CEL cannot say (totals over init containers, the live view of the nodes) the webhook alone checks. A
validation is an expression that must be true, with the message for people.

`dyn(...)` where containers of different lists are joined: their types have different names.

Source: Kubernetes, "Common Expression Language in Kubernetes" (optional fields, quantities).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.request import MAX_CARDS
from isolation.contract.dialects.system import CONTAINER
from isolation.contract.model import FULL_CORE, MAX_WEIGHT
from isolation.contract.names import (
    ACK,
    CGPU_DISABLE_ENV,
    COMPUTE_ANNOTATIONS,
    CORE_LIMIT,
    CORE_STEPS,
    DEFAULT_SCHEDULER,
    DIALECT,
    GROUP,
    ONLINE,
    PROMISES,
    RESIZE,
    SHARED,
    TRUST_GROUP,
    UNISOLATED,
    WEIGHT,
)
from isolation.scheduler.admission.core import pod_security
from isolation.scheduler.admission.core.pod_security import MAX_ANNOTATIONS, record_annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from isolation.contract.dialects import System
    from isolation.contract.names import Dialect

ASKS_RUNTIME: Final = "an annotation requests devices from the container runtime; remove it"
_OWN_ANNOTATIONS: Final = 16
"""So many of a pod's at most are our own processes': they come on top of what its owner may have."""
_UNCONFINED: Final = (
    "seccompProfile Unconfined lets a program mount over gpushare's files; remove it, or have an administrator label "
    f"the namespace {UNISOLATED}=true"
)
TOO_MANY_ANNOTATIONS: Final = f"with GPU shares, a pod has at most {MAX_ANNOTATIONS} annotations; remove some"

_FINE: Final = sorted(name for name, step in CORE_STEPS.items() if step == 1)
_NONE: Final = f"'{pod_security.UNCONFINED}'"
_UNISOLATED: Final = f"namespaceObject.metadata.?labels[?'{UNISOLATED}'].orValue('') == 'true'"
# A pod that is being deleted passes: refusing its last updates would keep it in Terminating.
_STAYS: Final = "!has(object.metadata.deletionTimestamp)"


@dataclass(frozen=True, slots=True)
class Validation:
    """An expression that must be true, and the message where it is not (`spec.validations` of a policy)."""

    expression: str
    message: str


def text(value: str) -> str:
    """A CEL literal; raw where a pattern would need its backslashes doubled."""
    return f"r'{value}'" if "\\" in value else f"'{value}'"


def texts(values: Iterable[str]) -> str:
    """A list of literals."""
    return f"[{', '.join(text(value) for value in values)}]"


def pattern(regex: str) -> str:
    """The argument of `matches` that must match a whole text."""
    flags, rest = ("(?s)", regex.removeprefix("(?s)")) if regex.startswith("(?s)") else ("", regex)
    return text(f"{flags}^(?:{rest})$")


def containers(pod: str) -> str:
    """All containers that can ask for resources."""
    return f"dyn({pod}.spec.containers) + dyn({pod}.spec.?initContainers.orValue([]))"


def names_any(resources: Iterable[str], container: str = "c") -> str:
    """Whether a container names one of the resources; of one without amounts not even their names are looked up."""
    listed = list(resources)
    parts = (
        f"has({container}.resources.{part}) && "
        f"({' || '.join(f'{text(name)} in {container}.resources.{part}' for name in listed)})"
        for part in ("limits", "requests")
    )
    return f"has({container}.resources) && ({' || '.join(parts)})"


def asks(pod: str, dialect: Dialect) -> str:
    """Whether a pod names one of the resources of shared cards."""
    return f"({containers(pod)}).exists(c, {names_any((dialect.memory, dialect.compute))})"


def speaks(pod: str, systems: Sequence[System], left: Iterable[tuple[str, str]] = ()) -> str:
    """
    Whether a pod has names of one of these systems, in a namespace where they are ours to serve.

    Every name is looked up: nothing walks over a pod's annotations, of which anybody may have any number.
    """
    namespaces: dict[str, list[str]] = {}
    for dialect, namespace in sorted(left):
        namespaces.setdefault(dialect, []).append(namespace)
    everywhere = [one for one in systems if one.name not in namespaces]
    found = [_speaks(pod, everywhere)] if everywhere else []
    found += [
        f"!(request.namespace in {texts(namespaces[one.name])}) && ({_speaks(pod, [one])})"
        for one in systems
        if one.name in namespaces
    ]
    return f"({' || '.join(found)})" if found else "false"


def _speaks(pod: str, systems: Sequence[System]) -> str:
    resources = [name for one in systems for name in one.resources]
    found = [f"({containers(pod)}).exists(c, {names_any(resources)})"] if resources else []
    if annotations := [name for one in systems for name in one.annotations]:
        found.append(carries(pod, "annotations", annotations))
    for one in systems:
        if one.selector:
            tied = f"{pod}.spec.?nodeSelector[?{text(one.selector)}].hasValue()"
            found.append(f"{tied} && ({containers(pod)}).exists(c, {names_any(one.selected)})")
    by_container = [name.split(CONTAINER) for one in systems for name in one.container_annotations]
    if by_container:
        keys = (f"{text(start)} + c.name + {text(end)} in {pod}.metadata.annotations" for start, end in by_container)
        found.append(f"has({pod}.metadata.annotations) && ({containers(pod)}).exists(c, {' || '.join(keys)})")
    return " || ".join(f"({one})" for one in found)


def marked(at: str, dialect: Dialect) -> str:
    """Whether an object has labels or annotations that belong to pods with shares: by name, a few steps."""
    labels = carries(at, "labels", (SHARED, dialect.card_count))
    return f"{labels} || {carries(at, 'annotations', record_annotations(dialect))}"


def carries(at: str, what: str, keys: Iterable[str]) -> str:
    """Whether an object has one of the labels or annotations."""
    return "(" + " || ".join(f"{at}.metadata.?{what}[?{text(key)}].hasValue()" for key in keys) + ")"


def same_but(new: str, old: str, free: str) -> str:
    """That two maps, or objects without their types, are the same but for the keys `k` of which `free` holds."""
    return f"{new}.all(k, {free} || (k in {old} && {new}[k] == {old}[k])) && {old}.all(k, {free} || k in {new})"


def variables(pod: str, dialect: Dialect) -> dict[str, str]:
    """Shorthands of a policy about pods."""
    return {
        "containers": containers(pod),
        "shares": f"variables.containers.filter(c, {names_any((dialect.memory, dialect.compute))})",
        "count": f"{pod}.metadata.?labels[?{text(dialect.card_count)}].orValue('1')",
        # 0 stands for a count that is none: its own claim says so, and no other divides by it.
        "step": f"{pod}.metadata.?annotations[?{text(DIALECT)}].orValue('') in {texts(_FINE)} "
        f"? 1 : {CORE_STEPS[ACK.name]}",
        "cards": "variables.count.matches('^[1-9][0-9]?$') ? int(variables.count) : 0",
    }


def amount_validations(dialect: Dialect) -> list[Validation]:
    """The containers' own amounts."""
    memory, compute = dialect.memory, dialect.compute
    found = [claim for name in (memory, compute) for claim in _extended(name)]
    size, core = (_limit(name) for name in (memory, compute))
    per_card = "(variables.cards > 0 ? variables.cards : 1)"
    return [
        *found,
        Validation(
            f"variables.cards >= 1 && variables.cards <= {MAX_CARDS}",
            f"label {dialect.card_count} must be a whole number from 1 to {MAX_CARDS} in quotes",
        ),
        Validation(
            _each(f"!({_has(memory)}) || !{size}.isInteger() || {size}.asInteger() % {per_card} == 0"),
            f"{memory} must be a multiple of the number of cards in label {dialect.card_count}",
        ),
        Validation(
            _each(
                f"!({_has(compute)}) || !{core}.isInteger() || {core}.asInteger() % (variables.step * {per_card}) == 0"
            ),
            f"{compute} must be a multiple of {CORE_STEPS[ACK.name]} on each card",
        ),
        Validation(
            _each(f"!({_has(compute)}) || !{core}.isInteger() || {core}.asInteger() <= {FULL_CORE} * {per_card}"),
            f"{compute} is more than {FULL_CORE} on each card; request less, or spread it over more cards",
        ),
        Validation(
            _each(f"!({names_any((compute,))}) || {names_any((memory,))}"),
            f"{compute} needs {memory}; request both on the same container",
        ),
        Validation(
            f"!variables.containers.exists(c, ({names_any((dialect.whole,))}) && "
            f"[c.?resources.?limits[?{text(dialect.whole)}], c.?resources.?requests[?{text(dialect.whole)}]]"
            ".exists(q, q.hasValue() && string(q.value()) != '0'))",
            f"a pod cannot request both {memory} and {dialect.whole}; request GPU shares or whole cards",
        ),
    ]


def compute_validations(pod: str, dialect: Dialect) -> list[Validation]:
    """What a pod says of its compute beside the amount."""

    def said(key: str, otherwise: str) -> str:
        return f"{pod}.metadata.?annotations[?{text(key)}].orValue('{otherwise}')"

    def number(key: str, most: int) -> Validation:
        at = said(key, "1")
        return Validation(
            f"{at}.matches('^[1-9][0-9]{{0,2}}$') && int({at}) <= {most}",
            f"annotation {key} must be a whole number from 1 to {most} in quotes",
        )

    offline = f"{said(ONLINE, 'true')} == 'false'"
    return [
        Validation(f"{said(ONLINE, 'true')} in ['true', 'false']", f'annotation {ONLINE} must be "true" or "false"'),
        Validation(
            f"!({offline}) || !variables.containers.exists(c, {names_any((dialect.compute,))})",
            f'annotation {ONLINE} is "false", so no compute is guaranteed to the pod; remove {dialect.compute}',
        ),
        number(WEIGHT, MAX_WEIGHT),
        number(CORE_LIMIT, FULL_CORE),
    ]


def _has(name: str) -> str:
    return f"c.?resources.?limits[?{text(name)}].hasValue()"


def _limit(name: str) -> str:
    return f"quantity(string(c.resources.limits[{text(name)}]))"


def _each(claim: str) -> str:
    return f"variables.shares.all(c, {claim})"


def _extended(name: str) -> list[Validation]:
    """Stated as limit, whole, more than nothing, and equal where it is requested too."""
    request = f"c.?resources.?requests[?{text(name)}].hasValue()"
    return [
        Validation(
            _each(f"!({request}) || {_has(name)}"), f"{name} is set under requests only; set it under limits too"
        ),
        Validation(
            _each(f"!({_has(name)}) || ({_limit(name)}.isInteger() && {_limit(name)}.isGreaterThan(quantity('0')))"),
            f"{name} must be a whole number of 1 or more",
        ),
        Validation(
            _each(
                f"!({request}) || !({_has(name)}) || "
                f"quantity(string(c.resources.requests[{text(name)}])).compareTo({_limit(name)}) == 0"
            ),
            f"{name} differs between requests and limits; make them equal",
        ),
    ]


def pod_validations(pod: str) -> list[Validation]:
    """What a pod with shares may not contain."""
    path = "v.?hostPath.?path.orValue('')"
    unplain, harmless = pattern(pod_security.UNPLAIN), pattern(pod_security.HOST_PATHS_HARMLESS)
    return [
        Validation(
            f"{pod}.spec.?nodeName.orValue('') == ''", "nodeName is set; remove it: the scheduler chooses node and card"
        ),
        Validation(f"!{pod}.spec.?hostPID.orValue(false)", "hostPID exposes the processes of all tenants; remove it"),
        Validation(f"{_annotations(pod)} <= {MAX_ANNOTATIONS}", TOO_MANY_ANNOTATIONS),
        # More than that are refused above, without walking over them.
        Validation(
            f"{_annotations(pod)} > {MAX_ANNOTATIONS} || "
            f"!{pod}.metadata.?annotations.orValue({{}}).exists(k, {_asks_runtime()})",
            ASKS_RUNTIME,
        ),
        Validation(
            f"{pod}.spec.?volumes.orValue([]).all(v, !has(v.hostPath) || (!{path}.matches({unplain}) && "
            f"(!{path}.matches({pattern(pod_security.HOST_PATHS)}) || {path}.matches({harmless}))))",
            "a hostPath exposes devices, the container runtime or files of the host system, or contains //, . or ..; "
            "mount another directory with a plain path",
        ),
        Validation(f"{_seccomp(f'{pod}.spec')} != {_NONE} || {_UNISOLATED}", _UNCONFINED),
    ]


def _seccomp(at: str) -> str:
    """The type of the seccomp profile that a pod's specification or a container names; empty: none."""
    return f"{at}.?securityContext.?seccompProfile.?type.orValue('')"


def _annotations(at: str) -> str:
    """How many an object has: one step, however many there are."""
    return f"size({at}.metadata.?annotations.orValue({{}}))"


def _asks_runtime() -> str:
    return " || ".join(f"k.startsWith({text(prefix)})" for prefix in pod_security.ANNOTATION_PREFIXES)


def container_validations(listed: str, dialect: Dialect) -> list[Validation]:
    """What no container of such a pod may contain."""
    capabilities, promised = texts(pod_security.CAPABILITIES), texts(pod_security.promise_env(dialect))
    prefixes = " || ".join(f"e.name.startsWith({text(prefix)})" for prefix in pod_security.ENV_PREFIXES)
    filled = " || ".join(f"e.?prefix.orValue('').startsWith({text(prefix)})" for prefix in pod_security.ENV_PREFIXES)
    paths = (
        "(c.?volumeMounts.orValue([]).map(m, m.mountPath) + c.?volumeDevices.orValue([]).map(d, d.devicePath) + "
        "(c.?terminationMessagePath.orValue('') == '' ? [] : [c.terminationMessagePath]))"
    )
    return [
        Validation(
            f"{listed}.all(c, !c.?securityContext.?privileged.orValue(false))",
            "a privileged container can access every card of the node; remove privileged",
        ),
        Validation(
            f"{listed}.all(c, c.?securityContext.?capabilities.?add.orValue([])"
            f".all(a, a.matches({pattern(pod_security.CAPABILITY)}) && "
            f"!(a.upperAscii().replace('CAP_', '') in {capabilities})))",
            f"capabilities {', '.join(pod_security.CAPABILITIES)} give access to other tenants' cards; remove them",
        ),
        Validation(
            f"{listed}.all(c, c.?env.orValue([]).all(e, !({prefixes} || e.name in {promised}) "
            f"|| e.name in {texts(pod_security.ENV_HARMLESS)}))",
            "an environment variable (GPUSHARE_*, LD_*, NVIDIA_*) would select cards or libraries; remove it",
        ),
        Validation(
            f"{listed}.all(c, c.?envFrom.orValue([]).all(e, !({filled})))",
            "envFrom sets environment variables that would select cards or libraries; change the prefix",
        ),
        Validation(
            f"{listed}.all(c, {paths}.all(p, !p.matches({pattern(pod_security.UNPLAIN)}) "
            f"&& !p.matches({pattern(pod_security.OWN_PATHS)})))",
            "a mount, a device or terminationMessagePath covers files of gpushare, or its path contains //, . or ..; "
            "use another plain path, such as /run/app",
        ),
        Validation(f"{listed}.all(c, {_seccomp('c')} != {_NONE}) || {_UNISOLATED}", _UNCONFINED),
        Validation(
            f"{listed}.all(c, c.?env.orValue([]).all(e, e.name != {text(CGPU_DISABLE_ENV)} || "
            f"(!has(e.valueFrom) && e.?value.orValue('') in ['', 'false']))) || {_UNISOLATED}",
            f"{CGPU_DISABLE_ENV} switches the isolation of a container off; remove it, or have an administrator label "
            f"the namespace {UNISOLATED}=true",
        ),
    ]


def not_forged(pod: str, dialect: Dialect) -> list[Validation]:
    """What only gpushare writes: not in a new pod or template."""
    return [
        Validation(
            f"!{carries(pod, 'annotations', record_annotations(dialect))}",
            "an annotation is an allocation record, which only the scheduler writes; remove it",
        ),
        Validation(
            f"!{carries(pod, 'annotations', (RESIZE,))}",
            f"annotation {RESIZE} is for running pods; remove it, and request the amount",
        ),
        Validation(
            f"!{carries(pod, 'labels', (SHARED,))} || {asks(pod, dialect)} && "
            f"{pod}.metadata.labels[{text(SHARED)}] == 'true'",
            f"label {SHARED} is set by admission on pods that request {dialect.memory}; remove it",
        ),
    ]


def translated(pod: str, systems: Sequence[System], left: Iterable[tuple[str, str]]) -> Validation:
    """That the webhook has left nothing of another system's words in a pod."""
    return Validation(
        f"!{speaks(pod, systems, left)}",
        f"the pod asks for GPUs in the words of {' or '.join(one.title for one in systems)}, and the admission "
        "webhook, which translates them, was not called; check that the webhook configuration is installed for the "
        "same dialects",
    )


def admitted_validations(pod: str, scheduler: str) -> list[Validation]:
    """What the webhook adds, and the policies check after it: a pod without it did not pass the webhook."""
    return [
        Validation(
            f"{pod}.metadata.?labels[?{text(SHARED)}].orValue('') == 'true'",
            f"a pod that requests GPU shares has no label {SHARED}: the admission webhook was not called; "
            "check that the webhook configuration is installed",
        ),
        Validation(
            f"{pod}.spec.?schedulerName.orValue({text(DEFAULT_SCHEDULER)}) == {text(scheduler)}",
            f"pods that request GPU shares are scheduled by {scheduler}; remove schedulerName",
        ),
        Validation(
            f"{_seccomp(f'{pod}.spec')} != '' || ({containers(pod)}).all(c, {_seccomp('c')} != '')",
            "a container of a pod that requests GPU shares has no seccompProfile: the admission webhook was not "
            "called; check that the webhook configuration is installed",
        ),
    ]


def altered(dialect: Dialect) -> str:
    """Whether an update touches records or the labels that count."""
    kept = [("annotations", key) for key in (*record_annotations(dialect), *COMPUTE_ANNOTATIONS)] + [
        ("labels", SHARED),
        ("labels", dialect.card_count),
        ("annotations", DIALECT),
        ("annotations", TRUST_GROUP),
    ]
    return " || ".join(
        f"object.metadata.?{what}[?{text(key)}] != oldObject.metadata.?{what}[?{text(key)}]" for what, key in kept
    )


def may_resize() -> Validation:
    """That whoever asks for another amount of a running pod has the right to; Kubernetes' own `authorizer` says so."""
    key = f"metadata.?annotations[?{text(RESIZE)}]"
    right = f"authorizer.group({text(GROUP)}).resource({text(PROMISES)}).namespace(request.namespace)"
    return Validation(
        f"object.{key} == oldObject.{key} || {right}.name(request.name).check('resize').allowed()",
        f"annotation {RESIZE} needs the right to resize {PROMISES}.{GROUP} in this namespace (docs/resize.md)",
    )


def adds_runtime_annotations() -> str:
    """Whether an update brings annotations that ask the container runtime for devices."""
    changed = "object.metadata.?annotations[?k] != oldObject.metadata.?annotations[?k]"
    found = f"object.metadata.?annotations.orValue({{}}).exists(k, ({_asks_runtime()}) && {changed})"
    return f"{_STAYS} && {_annotations('object')} <= {MAX_ANNOTATIONS + _OWN_ANNOTATIONS} && {found}"


def adds_annotations() -> str:
    """Whether an update leaves a pod with more annotations than one with shares may have, and than it had."""
    new, old = _annotations("object"), _annotations("oldObject")
    return f"{_STAYS} && {new} > {MAX_ANNOTATIONS} && {new} > {old}"
