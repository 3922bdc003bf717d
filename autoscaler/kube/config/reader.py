# SPDX-License-Identifier: Apache-2.0
"""
The configuration file, read: every mistake found at once, each with its line and what to write instead.

Decides what is a configuration. Whether a provider takes its settings is the registry's business.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from autoscaler.core.drain_rules import DrainRules
from autoscaler.core.limits import BOUNDS, LimitsError, ScalingLimits
from autoscaler.kube.config.yaml_lines import document
from autoscaler.kube.core.config import SOURCES, Config, ConfigError, Figures, PoolConfig
from autoscaler.providers.registry import PoolSource
from isolation.contract.cluster_autoscaler_annotations import Scaler
from isolation.contract.codec.cursor import At, CodecError, show, show_path
from isolation.contract.codec.template import template_at
from isolation.contract.model import CardChoice, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from enum import StrEnum
    from typing import TypeVar

    from autoscaler.kube.config.yaml_lines import ConfigDocument

    T = TypeVar("T")
    Word = TypeVar("Word", bound=StrEnum)

VERSION: Final = 1
MAX_POOLS: Final = 200
MAX_PROBLEMS: Final = 50
_LARGEST_POOL: Final = 100_000
_HIGHEST_PRIORITY: Final = 1000
_LARGEST_AMOUNT: Final = 1e12
_LONGEST_URL: Final = 2048
_POOL_KEYS: Final = (
    "name", "provider", "settings", "min_nodes", "max_nodes", "price", "priority", "spare_nodes", "mode", "placement",
    "node_template", "scale_up", "scale_down",
)  # fmt: skip
_RULES: Final = tuple(f.name for f in fields(DrainRules))
_COUNTS: Final = frozenset(f.name for f in fields(ScalingLimits) if f.type == "int")


def read_config(raw: bytes, name: str = "the configuration") -> Config:
    """A file's bytes; ConfigError with everything that is wrong with them, each with its line."""
    try:
        doc = document(raw)
    except CodecError as exc:
        raise ConfigError(f"{name}: {exc}") from None
    reader = _Reader(doc, name)
    found = reader.config()
    if reader.problems:
        raise ConfigError("\n".join(reader.problems[:MAX_PROBLEMS]))
    return found


class _Reader:
    """One pass over a document; mistakes are collected, and a part that has one keeps its default meanwhile."""

    def __init__(self, doc: ConfigDocument, name: str) -> None:
        self._doc, self._name = doc, name
        self.problems: list[str] = []

    def config(self) -> Config:
        at = self._doc.at
        if not self._mapping(at):
            return Config()
        self._only(at, "version", "pools", "limits", "metrics")
        self._try(lambda: _version(at["version"]), VERSION)
        return Config(self._pools(at["pools"]), self._limits(at["limits"]), self._figures(at["metrics"]))

    def _pools(self, at: At) -> tuple[PoolConfig, ...]:
        nothing: list[At] = []
        items = self._try(at.items, nothing)
        if len(items) > MAX_POOLS:
            self._say(at.wrong(f"{len(items)} pools: the maximum is {MAX_POOLS}"))
            return ()
        found: dict[str, PoolConfig] = {}
        for item in items:
            pool = self._pool(item)
            if pool is not None and pool.name in found:
                self._say(item["name"].wrong(f"duplicate pool {pool.name}; give every pool its own name"))
            elif pool is not None:
                found[pool.name] = pool
        return tuple(found.values())

    def _pool(self, at: At) -> PoolConfig | None:
        if not self._mapping(at):
            return None
        self._only(at, *_POOL_KEYS, *_RULES)
        name = self._try(at["name"].label_name, "")
        provider = self._try(lambda: _needed(at["provider"]), "")
        min_nodes = self._try(lambda: at["min_nodes"].integer(0, 0, _LARGEST_POOL), 0)
        max_nodes = self._try(lambda: at["max_nodes"].integer(10, 0, _LARGEST_POOL), _LARGEST_POOL)
        if min_nodes > max_nodes:
            self._say(at["min_nodes"].wrong(f"{min_nodes} is greater than max_nodes, {max_nodes}"))
        scale_up = self._try(lambda: _choice(at["scale_up"], Scaler), None) or Scaler.GPUSHARE
        if scale_up is Scaler.CLUSTER_AUTOSCALER and at["spare_nodes"].value is not None:
            self._say(
                at["spare_nodes"].wrong(f"gpushare buys no nodes here: scale_up is {scale_up}; remove spare_nodes")
            )
        pool = PoolConfig(
            name=name,
            source=PoolSource(name, provider, at["settings"]),
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            price=self._try(lambda: _amount(at["price"], 1.0, lowest=1e-9), 1.0),
            priority=self._try(lambda: at["priority"].integer(0, -_HIGHEST_PRIORITY, _HIGHEST_PRIORITY), 0),
            spare_nodes=self._try(lambda: at["spare_nodes"].integer(0, 0, _LARGEST_POOL), 0),
            mode=self._try(lambda: _choice(at["mode"], Mode), None),
            choice=self._try(lambda: _choice(at["placement"], CardChoice), None),
            drain_rules=DrainRules(**{key: self._try(partial(_flag, at[key]), default=True) for key in _RULES}),
            scale_up=scale_up,
            scale_down=self._try(lambda: _choice(at["scale_down"], Scaler), None) or Scaler.GPUSHARE,
            profile=self._try(lambda: template_at(at["node_template"]) if at["node_template"] else None, None),
        )
        return pool if name and provider else None

    def _limits(self, at: At) -> ScalingLimits:
        given: dict[str, float | int] = {}
        for key, value in self._fields(at):
            if key not in BOUNDS:
                self._say(value.wrong(f"unknown limit{_meant(key, BOUNDS)}; docs/autoscaler.md lists all limits"))
                continue
            usual, (lowest, highest) = getattr(ScalingLimits(), key), BOUNDS[key]
            if key in _COUNTS:
                given[key] = self._try(partial(value.integer, usual, int(lowest), int(highest)), usual)
            else:
                given[key] = self._try(partial(_amount, value, usual, lowest, highest), usual)
        try:
            return replace(ScalingLimits(), **given)  # type: ignore[arg-type] # each was read as its field's kind
        except LimitsError as exc:
            self._say(at.wrong(str(exc)))
            return ScalingLimits()

    def _figures(self, at: At) -> Figures:
        if not self._mapping(at):
            return Figures()
        self._only(at, *(f.name for f in fields(Figures)))
        usual = Figures()
        source = self._try(lambda: _one_of(at["source"], SOURCES, usual.source), usual.source)
        url = self._try(lambda: _url(at["url"]), "")
        if source == "prometheus" and not url and at["url"].value is None:
            self._say(
                at["url"].wrong("missing; source prometheus needs the URL of Prometheus, e.g. http://prometheus:9090")
            )
        return Figures(
            source=source,
            url=url,
            port=self._try(lambda: at["port"].integer(usual.port, 1, 65_535), usual.port),
            scrape_interval_seconds=self._try(
                lambda: _amount(
                    at["scrape_interval_seconds"], usual.scrape_interval_seconds, lowest=1.0, highest=600.0
                ),
                15.0,
            ),
        )

    def _only(self, at: At, *known: str) -> None:
        for key, value in self._fields(at):
            if key not in known:
                self._say(value.wrong(f"unknown key{_meant(key, known)}; known keys: {', '.join(known)}"))

    def _mapping(self, at: At) -> bool:
        return self._try(lambda: at.mapping() is not None, default=False)

    def _fields(self, at: At) -> list[tuple[str, At]]:
        nothing: list[tuple[str, At]] = []
        return self._try(lambda: list(at.fields()), nothing)

    def _try(self, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except CodecError as exc:
            self._say(exc)
            return default

    def _say(self, exc: CodecError) -> None:
        where = f"{show_path(exc.path)}: " if exc.path else ""
        self.problems.append(f"{self._name}:{self._doc.line(exc.path)}: {where}{exc.problem}")


def _version(at: At) -> int:
    if at.integer(VERSION) != VERSION:
        raise at.wrong(f"unsupported version {show(at.value)}; this program reads version {VERSION}")
    return VERSION


def _flag(at: At) -> bool:
    if at.value is None:
        return True
    if not isinstance(at.value, bool):
        raise at.wrong(f"{show(at.value)} is not true or false")
    return at.value


def _needed(at: At) -> str:
    if not at.text():
        raise at.wrong("missing; docs/providers.md lists the providers")
    return at.text()


def _amount(at: At, default: float, lowest: float = 0.0, highest: float = _LARGEST_AMOUNT) -> float:
    value = default if at.value is None else at.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise at.wrong(f"{show(value)} is not a number; write digits without quotes, e.g. 900 or 0.5")
    if not isfinite(value) or not lowest <= value <= highest:
        raise at.wrong(f"{show(value)} is outside {lowest:.15g} to {highest:.15g}")
    return float(value)


def _one_of(at: At, allowed: tuple[str, ...], default: str) -> str:
    value = at.text(default)
    if value not in allowed:
        raise at.wrong(f"{show(value)} is not one of {', '.join(allowed)}")
    return value


def _choice(at: At, kind: type[Word]) -> Word | None:
    if at.value is None:
        return None
    return kind(_one_of(at, tuple(each.value for each in kind if each.value), ""))


def _url(at: At) -> str:
    url = at.text()
    if url and (len(url) > _LONGEST_URL or not url.isprintable() or not _is_address(url)):
        raise at.wrong(f"{show(url)} is not a URL; write for example http://prometheus.monitoring:9090")
    return url.rstrip("/")


def _is_address(url: str) -> bool:
    """Of a server, and maybe a path below which it answers."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not set(url) & set("?# ")
        )
    except ValueError:  # brackets that do not close, a port that is none
        return False


def _meant(key: str, known: Iterable[str]) -> str:
    """A hint where only the spelling differs."""
    plain = key.replace("-", "_").replace(" ", "_").lower()
    names = {name.replace("_", "").lower(): name for name in known}
    meant = names.get(plain.replace("_", ""))
    return f" (did you mean {meant}?)" if meant and meant != key else ""
