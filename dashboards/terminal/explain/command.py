# SPDX-License-Identifier: Apache-2.0
"""
`gpushare explain`: finds the pod's name and namespace, reads the cluster once, shows the explanation.

Loaded only when used: it brings the placement engine with it.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import yaml

from dashboards.terminal.explain.read import read_pod
from dashboards.terminal.explain.view import explain_document, explain_lines
from dashboards.terminal.json_output import dump_document
from dashboards.terminal.read.source import NoSuchError, ask_api_server

if TYPE_CHECKING:
    from dashboards.terminal.explain.explanation import Explanation
    from dashboards.terminal.read.source import SourceSelection
    from dashboards.terminal.table import TextOutput

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MAX_BYTES: Final = 4 << 20
DEFAULT: Final = "default"


def explain_pod(source: SourceSelection, output: TextOutput, given: dict[str, Any]) -> list[str]:
    """The explanation in lines; a click error with its own exit status otherwise."""
    if source.on_one_machine:
        raise click.UsageError("explain requires a cluster: set --kubeconfig (for one machine see `gpushare top`)")
    namespace, name = _meant(given["pod"], given["namespace"], source)
    explanation: Explanation | None = ask_api_server(
        source, lambda access: read_pod(access, namespace, name, source.unit_bytes), has_local=False
    )
    if explanation is None:
        raise NoSuchError(f"pod {name} not found in namespace {namespace}; set another namespace with -n")
    if given["output"] in ("json", "yaml"):
        return [dump_document(explain_document(explanation), given["output"])]
    return explain_lines(explanation, time.time(), output, wide=given["output"] == "wide")


def _meant(pod: str, namespace: str, source: SourceSelection) -> tuple[str, str]:
    """Namespace and name; UsageError for what can be none."""
    space, slash, name = pod.rpartition("/")
    space = space.removeprefix("pod/").removeprefix("pods/") if space not in ("pod", "pods") else ""
    if slash and space and namespace and space != namespace:
        raise click.UsageError(f"-n {namespace} and {pod} name different namespaces")
    space = space or namespace or context_namespace(source)
    if not _NAME.fullmatch(name) or not _SPACE.fullmatch(space):
        raise click.UsageError("POD must be NAME or NAMESPACE/NAME with valid Kubernetes names in lower case")
    return space, name


def context_namespace(source: SourceSelection) -> str:
    """The namespace of the context that is used, as kubectl takes it; `default` where none is named."""
    files = [source.kubeconfig] if source.kubeconfig else _kubeconfigs()
    if not files:
        return _text(_IN_CLUSTER).strip() or DEFAULT
    current = source.context
    contexts: dict[str, str] = {}
    for file in files:
        try:
            said = yaml.safe_load(_text(file)) or {}
            current = current or said.get("current-context")
            for one in said.get("contexts") or ():
                contexts.setdefault(str(one["name"]), str(one["context"].get("namespace") or DEFAULT))
        except (yaml.YAMLError, AttributeError, KeyError, TypeError):
            continue
    return contexts.get(str(current), DEFAULT)


def _kubeconfigs() -> list[Path]:
    named = os.environ.get("KUBECONFIG", "")
    if named:
        return [Path(part) for part in named.split(os.pathsep) if part]
    usual = Path.home() / ".kube" / "config"
    return [usual] if usual.exists() and "KUBERNETES_SERVICE_HOST" not in os.environ else []


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
