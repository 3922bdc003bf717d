# SPDX-License-Identifier: Apache-2.0
"""
cluster-autoscaler's command line and cloud configuration, refused where 1.36.1 refuses them.

Known are the flags that change what the stand-in does, and some that change nothing here; every other one is refused
as an unknown one is. Source: config/flags/flags.go, expander/factory, expander/grpcplugin/grpc_client.go and
cloudprovider/externalgrpc/externalgrpc_cloud_provider.go of kubernetes/autoscaler.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from e2e.cluster_autoscaler.objects import duration
from e2e.cluster_autoscaler.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROVIDER: Final = "externalgrpc"
STRATEGIES: Final = frozenset({"random"})
"""Expanders that leave one option: none may stand behind them."""
EXPANDERS: Final = STRATEGIES | {"most-pods", "least-waste", "least-nodes", "price", "priority", "grpc"}
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class FlagError(Exception):
    """The program ends with this."""


@dataclass(frozen=True, slots=True)
class Given:
    """What was typed."""

    options: Options
    kubeconfig: str
    cloud: Cloud
    expanders: tuple[str, ...] = ("least-waste",)
    expander_url: str = ""
    expander_cert: str = ""


@dataclass(frozen=True, slots=True)
class Cloud:
    """The cloud configuration; paths of PEM files."""

    address: str
    cert: str = ""
    key: str = ""
    cacert: str = ""
    timeout: float = 5.0
    """Seconds for one call."""


def _boolean(text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise ValueError("parse error")
    return text in _TRUE


def _seconds(text: str) -> float:
    found = 0.0 if text == "0" else duration(text)
    if found is None:
        raise ValueError("invalid duration")
    return found


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - {""}


_PLAIN: Final = {"scale_down_utilization_threshold", "max_total_unready_percentage"}
_READERS: Final = {"bool": _boolean, "int": int, "frozenset[str]": _names}
_RENAMED: Final = {"max_graceful_termination": "max-graceful-termination-sec"}
_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    _RENAMED.get(one.name, one.name.replace("_", "-")): (
        one.name,
        float if one.name in _PLAIN or one.name in _RENAMED else _READERS.get(str(one.type), _seconds),
    )
    for one in fields(Options)
}
_TEXTS: Final = ("cloud-provider", "cloud-config", "kubeconfig", "expander", "grpc-expander-url", "grpc-expander-cert")
_IDLE: Final[dict[str, Callable[[str], Any]]] = {
    "v": int,
    "stderrthreshold": str,
    "logtostderr": _boolean,
    "leader-elect": _boolean,
    "namespace": str,
    "address": str,
    "balance-similar-node-groups": _boolean,
}


def read(words: Sequence[str]) -> Given:
    """The words after the program's name; FlagError says what is wrong, as the program would on its way out."""
    texts, options = dict[str, str](), dict[str, Any]()
    for name, text in _pairs(words):
        try:
            if name in _OPTIONS:
                options[_OPTIONS[name][0]] = _OPTIONS[name][1](text)
            elif name in _IDLE:
                _IDLE[name](text)
            else:
                texts[name] = text
        except ValueError as exc:
            raise FlagError(f'invalid argument "{text}" for "--{name}" flag: {exc}') from exc
    if texts.get("cloud-provider") != PROVIDER:
        raise FlagError(f"cloud provider {texts.get('cloud-provider')!r}: here there is only {PROVIDER}")
    expanders = _expanders(texts.get("expander", "least-waste"))
    if "grpc" in expanders and not texts.get("grpc-expander-cert"):
        raise FlagError("GRPC Expander Cert not specified, insecure connections not allowed")
    return Given(
        Options(**options),
        texts.get("kubeconfig", ""),
        cloud_of(texts.get("cloud-config", "")),
        expanders,
        texts.get("grpc-expander-url", ""),
        texts.get("grpc-expander-cert", ""),
    )


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Flags and their values: `--name=value`, `--name value`; a boolean one may stand alone."""
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if word.startswith("-"):
                raise FlagError(f"unknown shorthand flag: {word}")
            continue
        name, equals, text = word[2:].partition("=")
        reader = _OPTIONS[name][1] if name in _OPTIONS else _IDLE.get(name, str if name in _TEXTS else None)
        if reader is None:
            raise FlagError(f"unknown flag: --{name}")
        if not equals and reader is _boolean:
            text = "true"
        elif not equals:
            if not rest:
                raise FlagError(f"flag needs an argument: --{name}")
            text = rest.pop(0)
        found.append((name, text))
    return found


def _expanders(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for at, name in enumerate(names):
        if name not in EXPANDERS:
            raise FlagError(f"Expander {name} not supported")
        if name in names[:at]:
            raise FlagError(f"Expander {name} was specified multiple times")
        if at and names[at - 1] in STRATEGIES:
            raise FlagError(f"Expander {name} came after {names[at - 1]}, which leaves one option only")
    return names


def cloud_of(path: str) -> Cloud:
    """The file of --cloud-config; keys that it does not know are passed over."""
    if not path:
        raise FlagError("No config file provided, please specify it via the --cloud-config flag")
    try:
        whole: Mapping[str, Any] = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as exc:
        raise FlagError(f"Could not open cloud provider configuration file {path}: {exc}") from exc
    if not isinstance(whole, dict) or not all(isinstance(value, str) for value in whole.values()):
        raise FlagError(f"{path}: can't parse YAML")
    host, colon, port = whole.get("address", "").rpartition(":")
    if not colon or not host or not port:
        raise FlagError(f"failed to parse address: {whole.get('address')!r}")
    timeout = whole.get("grpc_timeout")
    seconds = 5.0 if timeout is None else duration(timeout)
    if seconds is None:
        raise FlagError(f"can't parse YAML: time: invalid duration {timeout!r}")
    return Cloud(whole["address"], *(whole.get(name, "") for name in ("cert", "key", "cacert")), seconds)
