# SPDX-License-Identifier: Apache-2.0
"""
Kinds of others that the manifests speak of, as far as they do: CustomResourceDefinitions for a bare API server.

Fields and types are re-typed from the published API references (Prometheus operator v1, cert-manager v1, KEDA
v1alpha1, Cluster API v1beta1); what is not here is refused under strict validation, as the real ones would.
"""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "string"}
FLAG: dict[str, Any] = {"type": "boolean"}
WHOLE: dict[str, Any] = {"type": "integer"}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
ANYTHING: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def some(**fields: dict[str, Any]) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {"type": "object", "properties": fields}


def many(item: dict[str, Any]) -> dict[str, Any]:
    """A list."""
    return {"type": "array", "items": item}


_RELABEL = some(action=TEXT, sourceLabels=many(TEXT), targetLabel=TEXT, regex=TEXT, replacement=TEXT, separator=TEXT)
_ENDPOINT = some(
    port=TEXT,
    path=TEXT,
    scheme=TEXT,
    interval=TEXT,
    scrapeTimeout=TEXT,
    honorLabels=FLAG,
    relabelings=many(_RELABEL),
    metricRelabelings=many(_RELABEL),
)
_RULE = some(record=TEXT, alert=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS, keep_firing_for=TEXT, **{"for": TEXT})
_ISSUER = some(name=TEXT, kind=TEXT, group=TEXT)
_TRIGGER = some(type=TEXT, name=TEXT, metadata=TEXTS, metricType=TEXT, authenticationRef=some(name=TEXT))
_SELECTOR = some(matchLabels=TEXTS)

SPECS = {
    ("monitoring.coreos.com", "v1", "ServiceMonitor"): some(
        jobLabel=TEXT, selector=_SELECTOR, endpoints=many(_ENDPOINT), namespaceSelector=some(any=FLAG)
    ),
    ("monitoring.coreos.com", "v1", "PrometheusRule"): some(
        groups=many(some(name=TEXT, interval=TEXT, rules=many(_RULE)))
    ),
    ("cert-manager.io", "v1", "Issuer"): some(selfSigned=some(), ca=some(secretName=TEXT)),
    ("cert-manager.io", "v1", "Certificate"): some(
        secretName=TEXT,
        commonName=TEXT,
        dnsNames=many(TEXT),
        duration=TEXT,
        renewBefore=TEXT,
        isCA=FLAG,
        usages=many(TEXT),
        privateKey=some(algorithm=TEXT, size=WHOLE, rotationPolicy=TEXT, encoding=TEXT),
        issuerRef=_ISSUER,
    ),
    ("keda.sh", "v1alpha1", "ScaledObject"): some(
        scaleTargetRef=some(name=TEXT, kind=TEXT, apiVersion=TEXT),
        minReplicaCount=WHOLE,
        maxReplicaCount=WHOLE,
        pollingInterval=WHOLE,
        cooldownPeriod=WHOLE,
        triggers=many(_TRIGGER),
    ),
    ("security.openshift.io", "v1", "SecurityContextConstraints"): some(),
    ("cluster.x-k8s.io", "v1beta1", "MachineDeployment"): ANYTHING,
    ("cluster.x-k8s.io", "v1beta1", "Machine"): ANYTHING,
}

_STRATEGY = some(type=TEXT)
BESIDE_SPEC = {
    "SecurityContextConstraints": {
        **dict.fromkeys(
            (
                *("allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID", "allowHostPorts"),
                *("allowPrivilegeEscalation", "allowPrivilegedContainer", "readOnlyRootFilesystem"),
            ),
            FLAG,
        ),
        **dict.fromkeys(
            (
                *("allowedCapabilities", "defaultAddCapabilities", "requiredDropCapabilities"),
                *("seccompProfiles", "volumes"),
            ),
            many(TEXT),
        ),
        **dict.fromkeys(("runAsUser", "fsGroup", "supplementalGroups", "seLinuxContext"), _STRATEGY),
    }
}
"""Fields of kinds that have them without a spec; these kinds are of the whole cluster."""


def definitions() -> list[dict[str, Any]]:
    """One for each kind."""
    return [_definition(group, version, kind, spec) for (group, version, kind), spec in SPECS.items()]


def _definition(group: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    plural = f"{kind.lower().removesuffix('s')}s"
    fields = some(**BESIDE_SPEC.get(kind, {"spec": spec}))
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": fields}}
    if kind == "MachineDeployment":
        scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
        served |= {"subresources": {"scale": scale}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster" if kind in BESIDE_SPEC else "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [served],
        },
    }
