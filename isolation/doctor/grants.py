"""
The objects that come from closed tables, as YAML: roles from `rights`, the definition of our kind of object.

`python -m isolation.doctor.grants NAME` prints one; the committed files under `manifests/base` are its output,
and a test says when they are stale.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import yaml

from isolation.contract.names import AUTOSCALER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE
from isolation.contract.reservation import definition
from isolation.doctor.rights import RIGHTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.doctor.rights import Right

FILES: Final = {
    "crd": "crd/reservations.yaml",
    "scheduler": "scheduler/rights.yaml",
    "node": "node/rights.yaml",
    "autoscaler": "autoscaler/rights.yaml",
}
"""Where each goes, below `manifests/base`."""
_ACCOUNTS: Final = {"scheduler": SCHEDULER, "node": NODE_AGENT, "autoscaler": AUTOSCALER}
_RBAC: Final = "rbac.authorization.k8s.io"
# Two containers share one account: what the stock kube-scheduler beside the extender needs is Kubernetes' own role.
_STOCK: Final = {SCHEDULER: ("system:kube-scheduler", "system:volume-scheduler")}
_READER: Final = "extension-apiserver-authentication-reader"
PART_OF: Final = {"app.kubernetes.io/part-of": "gpushare"}


def objects(name: str) -> list[dict[str, Any]]:
    """The objects of one file."""
    if name == "crd":
        made = definition()
        return [{**made, "metadata": {**made["metadata"], "labels": PART_OF}}]
    return roles(_ACCOUNTS[name])


def roles(account: str) -> list[dict[str, Any]]:
    """The account, what it may do everywhere and in our namespace, and Kubernetes' own roles where it needs them."""
    rights = RIGHTS[account]
    wide, local = ([right for right in rights if right.local is here] for here in (False, True))
    made = [_object("ServiceAccount", account, "v1", local=True), *_role(account, wide, local=False)]
    if local:
        made += _role(account, local, local=True)
    for stock in _STOCK.get(account, ()):
        made.append(
            _bind(f"{account}:{stock.removeprefix('system:')}", account, "ClusterRole", stock, "ClusterRoleBinding")
        )
    if account in _STOCK:
        reads = _bind(f"{account}:{_READER}", account, "Role", _READER, "RoleBinding")
        reads["metadata"]["namespace"] = "kube-system"
        made.append(reads)
    return made


def text(name: str) -> str:
    """The file."""
    head = f"# Made by `python -m isolation.doctor.grants {name}`; change the table there, not this file.\n"
    return head + yaml.safe_dump_all(objects(name), sort_keys=False, width=120)


def _role(account: str, rights: Sequence[Right], *, local: bool) -> list[dict[str, Any]]:
    kind = "Role" if local else "ClusterRole"
    role = _object(kind, account, f"{_RBAC}/v1", local=local)
    role["rules"] = [_rule(right) for right in rights]
    return [role, _bind(account, account, kind, account, f"{kind}Binding", local=local)]


def _rule(right: Right) -> dict[str, Any]:
    rule: dict[str, Any] = {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}
    return rule | ({"resourceNames": list(right.names)} if right.names else {})


def _bind(name: str, account: str, kind: str, role: str, binding: str, *, local: bool = False) -> dict[str, Any]:
    made = _object(binding, name, f"{_RBAC}/v1", local=local)
    made["roleRef"] = {"apiGroup": _RBAC, "kind": kind, "name": role}
    made["subjects"] = [{"kind": "ServiceAccount", "name": account, "namespace": SYSTEM_NAMESPACE}]
    return made


def _object(kind: str, name: str, version: str, *, local: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name} | ({"namespace": SYSTEM_NAMESPACE} if local else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata | {"labels": dict(PART_OF)}}


if __name__ == "__main__":
    [_wanted] = sys.argv[1:] if sys.argv[1:2] != [] and sys.argv[1] in FILES else sys.exit(f"name one of {list(FILES)}")
    sys.stdout.write(text(_wanted))
