# SPDX-License-Identifier: Apache-2.0
"""Public names (metrics, alerts, limits, options ...): in the field's words, and old ones do not come back."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from autoscaler.core.limits import ScalingLimits
from autoscaler.kube.config.reader import _POOL_KEYS as POOL_KEYS
from dashboards.rules.catalogue import GROUPS
from dashboards.rules.rule import Alert
from gpushare import COMMANDS, load
from isolation.contract import metrics, names
from isolation.contract.metrics import autoscaler, card, node, scheduler

ROOT = Path(__file__).resolve().parents[3]
LIST = ROOT / "tests/golden/retired_names.txt"
RETIRED = dict(line.split() for line in LIST.read_text().splitlines())
CATALOGUES = (metrics, autoscaler, card, node, scheduler)
WORDS = """
    again ages anew answer answers bare beside blind book books bought buys door doors doubt doubts errand errands
    fewest figure figures fresh given guest guests held heritage holder holders home homes hopeless immune judge kept
    late leaderless listened lost lot manners mood namesake newcomer newcomers nobody ownerless phantom phantoms
    picture reliefs remembered rescue rescues returned round rounds said scraps seat seen settle shelf short sick
    silence silent smallest told turn turns unneeded view voice wanted well whose withheld withholds woken worth
"""
PRIVATE = frozenset(WORDS.split())
"""Words with a meaning that only its authors knew; docs/glossary.md has the few of ours that stay."""
FIELD = {"scale_down_unneeded_seconds"}
"""cluster-autoscaler's own words, although one of them is on the list."""


def commands():
    """Every command with its words."""

    def walk(words, command):
        yield " ".join(words), command
        if isinstance(command, click.Group):
            for name, one in sorted(command.commands.items()):
                yield from walk((*words, name), one)

    for name, (where, extra, _) in sorted(COMMANDS.items()):
        yield from walk((name,), load(where, extra))


def options():
    """Every option of every command."""
    for words, command in commands():
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden:
                yield words, one


def public():  # noqa: C901, PLR0912 (a list of closed lists)
    """Every name of a closed list: what kind it is, and the name."""
    for catalogue in CATALOGUES:
        for name, spec in catalogue.CATALOGUE.items():
            yield "metric", name
            for label in spec.labels:
                yield "label", label
        for label in getattr(catalogue, "LABELS", ()):
            yield "label", label
    for group in GROUPS:
        for rule in group.rules:
            yield ("alert", rule.name) if isinstance(rule, Alert) else ("record", rule.name)
    for one in fields(ScalingLimits):
        yield "limit", one.name
    for name in POOL_KEYS:
        yield "pool key", name
    for value in vars(names).values():
        if isinstance(value, str) and value.startswith(f"{names.GROUP}/"):
            yield "annotation", value
    for words, option in options():
        for spelling in option.opts:
            yield f"option of {words}", spelling
    for words, _ in commands():
        yield "command", words


def parts(name):
    """The words of a name, however it joins them."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_public_names_use_no_private_word():
    """
    A reader of Kubernetes and Prometheus guesses right what a name means.
    """
    assert [] == sorted({(kind, name) for kind, name in public() if name not in FIELD and parts(name) & PRIVATE})


def test_a_private_word_would_be_found():
    """
    Whether it stands in a metric, an alert or a flag.
    """
    for name in ("gpushare_autoscaler_doubts", "GpushareAutoscalerViewOld", "--well-after", "gpushare.dev/sick"):
        assert parts(name) & PRIVATE


def retired_in(text):
    """Retired names in a text."""
    found = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*|--[a-z][a-z-]*|gpushare\.dev/[a-z-]+", text))
    suffixes = ("_bucket", "_sum", "_count")
    bare = {name.removesuffix(suffix) for name in found for suffix in suffixes}
    return (found | bare) & RETIRED.keys()


def files():
    """What is ours to write: no build, no cache; the changelog says what names were called before."""
    for top in (
        ".ci",
        "autoscaler",
        "benchmarks",
        "dashboards",
        "docs",
        "exporter",
        "hack",
        "images",
        "isolation",
        "manifests",
        "tests",
    ):
        yield from (path for path in sorted((ROOT / top).rglob("*")) if path.is_file())
    yield from (path for path in sorted(ROOT.iterdir()) if path.is_file() and path.name != "CHANGELOG.md")


def test_retired_names_stand_nowhere():
    """
    Pages, boards, rules, manifests, code and tests say the new names.
    """
    stale = {}
    for path in files():
        if path in {LIST, Path(__file__)} or path.suffix in {".pyc", ".png", ".so", ".1", ".gz"}:
            continue
        try:
            found = retired_in(path.read_text())
        except UnicodeDecodeError:
            continue
        if found:
            stale[str(path.relative_to(ROOT))] = sorted(found)
    assert {} == stale


def test_new_names_are_there():
    """
    Each retired metric, alert and limit has its successor among the public names: the table is true.
    """
    known = {name for _, name in public()} | {part for _, name in public() for part in name.split(":")}
    missing = {new for old, new in RETIRED.items() if not old.startswith("GPUSHARE_") and new not in known}
    assert {"scrape_interval_seconds"} == missing


RIDDLES = re.compile(
    r"(?i)^(its|the same|of our|of the|of what|as before|where\b|who\b)"
    r"|\b(is said|anew|so many|nobody|told|whose|of ours|beside us)\b"
)


@pytest.mark.parametrize("words", sorted({words for words, _ in options()}))
def test_each_option_says_what_it_is(words):
    """
    A sentence that names its object: not empty, no riddle, understood without the option before it.
    """
    wrong = [
        (option.opts[0], option.help)
        for where, option in options()
        if where == words
        and not (
            option.help and len(option.help.split()) > 1 and option.help[0].isupper() and option.help.endswith(".")
        )
    ]
    riddles = [
        (option.opts[0], option.help)
        for where, option in options()
        if where == words and RIDDLES.search(option.help or "")
    ]
    assert ([], []) == (wrong, riddles)


def test_each_command_says_what_it_does():
    """
    One sentence in the list of commands, a longer one on its own page.
    """
    wrong = [words for words, command in commands() if not (command.help and command.get_short_help_str(200))]
    assert [] == wrong
    assert [] == [
        name for name, (_, _, about) in COMMANDS.items() if RIDDLES.search(about) or not about.endswith((".", "?"))
    ]
