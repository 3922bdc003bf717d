# SPDX-License-Identifier: Apache-2.0
"""
The values of the chart: what each means, what it may be, and which places of the manifests it fills in.

A default that is not given here is what the manifests have at the first of these places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from charts.emitting import Block, Raw
from charts.merging import Branch
from isolation.contract.dialects import SYSTEMS
from isolation.contract.names import ACK
from isolation.placement.policy import POLICIES

FROM_MANIFESTS: Final = object()

SCHEDULER: Final = "Deployment gpushare-scheduler"
AUTOSCALER: Final = "Deployment gpushare-autoscaler"
NODE: Final = "DaemonSet gpushare-node"
EXPORTER: Final = "DaemonSet gpushare-exporter"
POD: Final = "spec/template/spec"
_GPUSHARE: Final = f"{POD}/containers/name gpushare"
_KUBE: Final = f"{POD}/containers/name kube-scheduler"
_AGENT: Final = f"{POD}/containers/name agent"
_PLUGIN: Final = f"{POD}/initContainers/name device-plugin"
_EXPORTER: Final = f"{POD}/containers/name exporter"
_AUTOSCALER: Final = f"{POD}/containers/name autoscaler"
COMPATIBLE: Final = f'{_EXPORTER}/args/"--compat-metrics=ack"'


@dataclass(frozen=True)
class Value:
    """One value."""

    path: str
    about: str
    schema: dict[str, Any]
    default: Any = FROM_MANIFESTS
    at: tuple[str, ...] = ()
    """Objects and places that it replaces: `KIND NAME place`."""


@dataclass(frozen=True)
class Switch:
    """An overlay or components, and the condition on values under which the chart has the same."""

    condition: str
    sets: dict[str, Any]
    """The values that make the condition true, for who wants exactly that."""
    overlay: str = "self-signed"
    components: tuple[str, ...] = ()


SWITCHES: Final = {
    "ack": Switch(".Values.ack.enabled", {"ack.enabled": True}, overlay="ack"),
    "cert-manager": Switch(
        'eq .Values.certificates.source "cert-manager"', {"certificates.source": "cert-manager"}, overlay="cert-manager"
    ),
    "demo": Switch(".Values.demo.enabled", {"demo.enabled": True}, overlay="demo"),
    "existing-scheduler": Switch(
        ".Values.scheduler.existing", {"scheduler.existing": True}, overlay="existing-scheduler"
    ),
    "custom-metrics": Switch(
        ".Values.autoscaler.metricsApis.custom",
        {"autoscaler.metricsApis.custom": True},
        components=("metrics-api", "custom-metrics"),
    ),
    "external-metrics": Switch(
        ".Values.autoscaler.metricsApis.external",
        {"autoscaler.metricsApis.external": True},
        components=("metrics-api", "external-metrics"),
    ),
    "grpc": Switch(".Values.autoscaler.grpc", {"autoscaler.grpc": True}, components=("grpc",)),
    "cluster-api": Switch(
        ".Values.autoscaler.clusterApi", {"autoscaler.clusterApi": True}, components=("cluster-api",)
    ),
    "monitoring": Switch(".Values.monitoring.enabled", {"monitoring.enabled": True}, components=("monitoring",)),
    "prometheus-adapter": Switch(
        ".Values.monitoring.prometheusAdapter",
        {"monitoring.prometheusAdapter": True},
        components=("prometheus-adapter",),
    ),
    "views": Switch(".Values.views.enabled", {"views.enabled": True}, components=("views",)),
    "admission-network": Switch(
        ".Values.admission.apiServerCIDRs",
        {"admission.apiServerCIDRs": ["192.0.2.0/24"]},
        components=("admission-network",),
    ),
    "admission-client-certificate": Switch(
        ".Values.admission.clientCertificate",
        {"admission.clientCertificate": True},
        components=("admission-client-certificate",),
    ),
    "selinux": Switch(".Values.selinux.enabled", {"selinux.enabled": True}, components=("selinux",)),
    "mps": Switch(".Values.mps.enabled", {"mps.enabled": True}, components=("mps",)),
    "openshift": Switch(".Values.openshift.enabled", {"openshift.enabled": True}, components=("selinux", "openshift")),
}
"""In the order of docs/install.md, in which components can be listed."""
ADDED: Final = {
    "grpc-cert-manager": 'and .Values.autoscaler.grpc (eq .Values.certificates.source "cert-manager")',
}
"""Components that need others, and only add objects."""

_STRING: Final = {"type": "string"}
_BOOLEAN: Final = {"type": "boolean"}
_OBJECT: Final = {"type": "object"}
_NAME: Final = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
_NAME_OR_NONE: Final = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"}
_REPLICAS: Final = {"type": "integer", "minimum": 1}
_DIGEST: Final = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
_TAG: Final = {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$"}
_CIDRS: Final = {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"}}
_TOLERATIONS: Final = {"type": "array", "items": {"type": "object"}}
_STRINGS_BY_NAME: Final = {"type": "object", "additionalProperties": {"type": "string"}}


def _one_of(*words: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


def _image(name: str, what: str) -> tuple[Value, ...]:
    path = f"images.{name}"
    return (
        Value(f"{path}.repository", f"Image of {what}.", {"type": "string", "minLength": 1}, f"gpushare-{name}"),
        Value(f"{path}.tag", "Its tag; empty: the chart's version.", _TAG, ""),
        Value(f"{path}.digest", "Its digest, which then decides instead of the tag.", _DIGEST, ""),
    )


def _pods(name: str, what: str, workload: str, container: str) -> tuple[Value, ...]:
    return (
        Value(
            f"{name}.priorityClassName",
            f"Priority of {what}.",
            _NAME,
            at=(f"{workload} {POD}/priorityClassName",),
        ),
        Value(
            f"{name}.resources", f"Requests and limits of {what}.", _OBJECT, at=(f"{workload} {container}/resources",)
        ),
    )


VALUES: Final = (
    Value(
        "namespaceOverride",
        "Namespace of all objects; empty: the release's. Policies, certificates and processes follow.",
        _NAME_OR_NONE,
        "",
    ),
    Value(
        "namespace.create",
        "Whether the Namespace, with its Pod Security labels, is part of the release. Not with --create-namespace, "
        "and not where it exists.",
        _BOOLEAN,
        False,
    ),
    Value("images.registry", "Put before the names of our images, for example registry.example/gpu.", _STRING, ""),
    Value(
        "images.pullPolicy", "Pull policy of all images.", _one_of("Always", "IfNotPresent", "Never"), "IfNotPresent"
    ),
    Value(
        "images.pullSecrets",
        "Names of Secrets with which images are pulled.",
        {"type": "array", "items": _NAME},
        [],
    ),
    *_image("controller", "scheduler and autoscaler"),
    *_image("exporter", "the exporter"),
    *_image("node", "the node agent"),
    Value(
        "memoryUnit",
        "Memory of one unit of aliyun.com/gpu-mem, in the whole cluster.",
        _one_of("1GiB", "256MiB"),
        "1GiB",
    ),
    Value("logLevel", "The least that our processes log.", _one_of("debug", "info", "warning"), "info"),
    Value(
        "certificates.source",
        "Who makes certificates: script (certificate.sh of this chart, after the installation and again before they "
        "end) or cert-manager, which must be installed.",
        _one_of("script", "cert-manager"),
        "script",
    ),
    Value(
        "scheduler.existing",
        "Whether a kube-scheduler that you run asks our extender; then there is none of ours.",
        _BOOLEAN,
        False,
    ),
    Value(
        "scheduler.replicas", "Replicas; one leads, all serve admission.", _REPLICAS, at=(f"{SCHEDULER} spec/replicas",)
    ),
    Value("scheduler.policy", "Which node and cards a pod gets.", _one_of(*sorted(POLICIES)), "potential"),
    *_pods("scheduler", "the extender and its admission", SCHEDULER, _GPUSHARE),
    Value(
        "scheduler.nodeSelector",
        "Nodes on which the scheduler may run.",
        _STRINGS_BY_NAME,
        at=(f"{SCHEDULER} {POD}/nodeSelector",),
    ),
    Value("scheduler.tolerations", "Taints that it tolerates.", _TOLERATIONS, at=(f"{SCHEDULER} {POD}/tolerations",)),
    Value(
        "scheduler.kubeScheduler.image.repository",
        "Image of the stock kube-scheduler beside it.",
        {"type": "string", "minLength": 1},
        "registry.k8s.io/kube-scheduler",
    ),
    Value(
        "scheduler.kubeScheduler.image.tag",
        "Its tag; empty: it follows the cluster's version (README.md).",
        _TAG,
        "",
    ),
    Value("scheduler.kubeScheduler.image.digest", "Its digest, beside the tag.", _DIGEST, ""),
    Value(
        "scheduler.kubeScheduler.resources",
        "Its requests and limits.",
        _OBJECT,
        at=(f"{SCHEDULER} {_KUBE}/resources",),
    ),
    Value(
        "admission.dialects",
        "Systems for which pods may be written; ack must be among them.",
        {"type": "array", "items": _one_of(ACK.name, *SYSTEMS), "uniqueItems": True, "contains": {"const": ACK.name}},
        [ACK.name],
    ),
    Value(
        "admission.leaveTo",
        "Namespaces whose pods stay with the system that they are written for, by dialect. An empty list: that system "
        "is in the cluster, and every namespace is ours.",
        {
            "type": "object",
            "propertyNames": _one_of(*SYSTEMS),
            "additionalProperties": {"type": "array", "items": _NAME},
        },
        {},
    ),
    Value(
        "admission.apiServerCIDRs",
        "Addresses of the API servers; if any are given, only they reach the webhooks (needs a network plugin that "
        "enforces policies).",
        _CIDRS,
        [],
    ),
    Value(
        "admission.clientCertificate",
        "Whether the API server must show a client certificate to the webhooks (first: certificate.sh admission).",
        _BOOLEAN,
        False,
    ),
    Value(
        "node.backend",
        "What enforces limits; the node label gpushare.dev/backend goes before it.",
        _one_of("auto", "kernel", "mig", "library", "mps", "none"),
        "auto",
    ),
    Value(
        "node.unsupportedImages",
        "What happens to a container with limits whose image cannot load the isolation library.",
        _one_of("refuse", "allow"),
        "refuse",
    ),
    Value(
        "node.overLimit",
        "What happens to a container that uses more memory of a card than it was promised.",
        _one_of("report", "kill"),
        "report",
    ),
    *_pods("node", "the node agent", NODE, _AGENT),
    Value("node.runtimeClassName", "For example nvidia, where that runtime is not the default.", _NAME_OR_NONE, ""),
    *_pods("exporter", "the exporter", EXPORTER, _EXPORTER),
    Value("exporter.runtimeClassName", "For example nvidia, where that runtime is not the default.", _NAME_OR_NONE, ""),
    Value("exporter.ackMetrics", "Whether metrics are also served under ACK's names.", _BOOLEAN, False),
    Value("autoscaler.replicas", "Replicas; one acts.", _REPLICAS, at=(f"{AUTOSCALER} spec/replicas",)),
    *_pods("autoscaler", "the autoscaler", AUTOSCALER, _AUTOSCALER),
    Value(
        "autoscaler.nodeSelector",
        "Nodes on which the autoscaler may run.",
        _STRINGS_BY_NAME,
        at=(f"{AUTOSCALER} {POD}/nodeSelector",),
    ),
    Value("autoscaler.tolerations", "Taints that it tolerates.", _TOLERATIONS, at=(f"{AUTOSCALER} {POD}/tolerations",)),
    Value("autoscaler.enabled", "Whether the autoscaler does anything.", _BOOLEAN, True),
    Value("autoscaler.dryRun", "Whether it only shows what it would do.", _BOOLEAN, True),
    Value(
        "autoscaler.pools",
        "Node pools, as in docs/autoscaler.md. The API server lets the autoscaler scale those of provider scale.",
        {"type": "array", "items": {"type": "object", "required": ["name", "provider"]}},
        at=("ConfigMap gpushare-autoscaler-config data/config.yaml/pools",),
    ),
    Value("autoscaler.limits", "Limits of what it does, as in docs/autoscaler.md.", _OBJECT, {}),
    Value(
        "autoscaler.metrics",
        "Where it reads what is used.",
        _OBJECT,
        at=("ConfigMap gpushare-autoscaler-config data/config.yaml/metrics",),
    ),
    Value("autoscaler.clusterApi", "Rights over pools that are Cluster API MachineDeployments.", _BOOLEAN, False),
    Value("autoscaler.grpc", "Ports for cluster-autoscaler and KEDA.", _BOOLEAN, False),
    Value("autoscaler.metricsApis.custom", "Whether custom.metrics.k8s.io is served.", _BOOLEAN, False),
    Value("autoscaler.metricsApis.external", "Whether external.metrics.k8s.io is served.", _BOOLEAN, False),
    Value(
        "monitoring.enabled",
        "ServiceMonitors, rules, alerts and dashboards; needs the kinds of the Prometheus operator.",
        _BOOLEAN,
        False,
    ),
    Value("monitoring.prometheusAdapter", "A ConfigMap with rules for prometheus-adapter.", _BOOLEAN, False),
    Value("views.enabled", "Roles, without bindings, for people who use kubectl gpushare.", _BOOLEAN, False),
    Value("selinux.enabled", "Whether the nodes enforce SELinux: the exporter then runs as spc_t.", _BOOLEAN, False),
    Value("mps.enabled", "The keeper of MPS daemons, for nodes in mode mps (docs/mps.md).", _BOOLEAN, False),
    Value("openshift.enabled", "Security context constraints for OpenShift, and SELinux as above.", _BOOLEAN, False),
    Value("demo.enabled", "Simulated cards, for a cluster without GPUs.", _BOOLEAN, False),
    Value(
        "ack.enabled",
        "Beside ACK's own GPU sharing: exporter and autoscaler only.",
        _BOOLEAN,
        False,
    ),
)


def _argument(option: str, value: str, default: str) -> Branch:
    return Branch(f'if ne .Values.{value} "{default}"', Raw(f"--{option}={{{{ .Values.{value} }}}}"))


_UNIT: Final = _argument("memory-unit", "memoryUnit", "1GiB")
_LEVEL: Final = _argument("log-level", "logLevel", "info")
ADDITIONS: Final = (
    (f"{SCHEDULER} {_GPUSHARE}/args", _argument("policy", "scheduler.policy", "potential")),
    (f"{SCHEDULER} {_GPUSHARE}/args", _UNIT),
    (f"{SCHEDULER} {_GPUSHARE}/args", _LEVEL),
    (
        f"{SCHEDULER} {_GPUSHARE}/args",
        Branch("if gt (len .Values.admission.dialects) 1", Raw('--dialects={{ join "," .Values.admission.dialects }}')),
    ),
    (
        f"{SCHEDULER} {_GPUSHARE}/args",
        Branch(
            "range $dialect, $namespaces := .Values.admission.leaveTo",
            Raw('--leave-to={{ $dialect }}={{ join "," $namespaces }}'),
        ),
    ),
    (f"{NODE} {_AGENT}/args", _argument("backend", "node.backend", "auto")),
    (f"{NODE} {_AGENT}/args", _argument("unsupported-images", "node.unsupportedImages", "refuse")),
    (f"{NODE} {_AGENT}/args", _argument("over-limit", "node.overLimit", "report")),
    (f"{NODE} {_AGENT}/args", _UNIT),
    (f"{NODE} {_AGENT}/args", _LEVEL),
    (f"{NODE} {_PLUGIN}/args", _LEVEL),
    (f"{EXPORTER} {_EXPORTER}/args", _LEVEL),
    (f"{AUTOSCALER} {_AUTOSCALER}/args", _UNIT),
    (f"{AUTOSCALER} {_AUTOSCALER}/args", _LEVEL),
)
"""Items of lists that only values add."""

OPTIONAL: Final = (
    *(
        (
            f"{workload} {POD}",
            Branch("with .Values.images.pullSecrets", Block('include "gpushare.pullSecrets" .'), "imagePullSecrets"),
        )
        for workload in (SCHEDULER, NODE, EXPORTER, AUTOSCALER)
    ),
    *(
        (f"{workload} {POD}", Branch(f"with .Values.{name}.runtimeClassName", Raw("{{ . }}"), "runtimeClassName"))
        for workload, name in ((NODE, "node"), (EXPORTER, "exporter"))
    ),
)
"""Keys that only values add."""

SPECIAL: Final = {
    "ConfigMap gpushare-autoscaler data/enabled": Raw("{{ .Values.autoscaler.enabled | quote }}"),
    "ConfigMap gpushare-autoscaler data/dryRun": Raw("{{ .Values.autoscaler.dryRun | quote }}"),
    "ValidatingAdmissionPolicy gpushare-autoscaler-scale spec/variables/name bounds/expression": Raw(
        '{{ include "gpushare.scaleBounds" . | quote }}'
    ),
}
"""Places with an expression of their own."""
