# SPDX-License-Identifier: Apache-2.0
"""
docs/api.md, printed from the tables of names and kinds: `python -m isolation.doctor.reference > docs/api.md`.

A name's docstring says first what kind of name it is ("Pod annotation", "Node label", ...); where it stands on the page
follows from that, so a name cannot be forgotten. A test fails when the page is stale.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isolation.contract import names
from isolation.contract.reservation import definition

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD: Final = """\
<!-- Printed by `python -m isolation.doctor.reference`; change isolation/contract/names.py instead. -->
# API reference

Look up every resource, label, annotation, object and variable that gpushare reads or writes. Metrics are in
[metrics.md](metrics.md), names of other systems that are translated in [dialects.md](dialects.md), ports and accounts
in [install.md](install.md#rights-and-ports).

Of pods and nodes, what is written "by" a component is refused from anybody else
([admission](admission.md#what-is-refused)).
"""
_SECTIONS: Final = (
    ("Resources", "A container requests them; a node offers them.", ("Extended resource", "Node resource")),
    ("Pods", "", ("Pod annotation", "Pod label")),
    ("Nodes", "", ("Node label", "Node annotation", "Node taint and annotation")),
    ("Namespaces", "", ("Namespace label", "Namespace annotation")),
    ("Other objects", "In namespace `gpushare-system`.", ("ConfigMap", "Secret", "Reservation annotation")),
    ("Rights", "", ("RBAC resource",)),
    ("In a container", "", ("Container variable", "CDI device", "OCI annotation")),
)
"""Heading, a sentence, and the first words of docstrings that belong there."""
_KIND: Final = re.compile(
    "(" + "|".join(kind for *_, kinds in _SECTIONS for kind in kinds) + r")\b([^:]*): (.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Name:
    """One name as people write it, what kind it is, and what it means."""

    text: str
    kind: str
    meaning: str


def known_names() -> list[Name]:
    """Every name whose docstring says what kind of name it is, in the order of the module."""
    tree = ast.parse(Path(names.__file__).read_text(encoding="utf-8"))
    found: list[Name] = []
    for body, values in ((tree.body, vars(names)), (_dialect(tree), _values(names.ACK))):
        for statement, after in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found += _names(values.get(statement.target.id), _docstring(after))
    return found


def _dialect(tree: ast.Module) -> list[ast.stmt]:
    return next(one.body for one in tree.body if isinstance(one, ast.ClassDef) and one.name == names.Dialect.__name__)


def _values(dialect: names.Dialect) -> dict[str, Any]:
    return {field.name: getattr(dialect, field.name) for field in fields(dialect)}


def _docstring(statement: ast.stmt) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _names(value: object, text: str) -> Iterator[Name]:
    said = _KIND.match(text)
    if said is None:
        return
    kind, more, meaning = said.groups()
    written = re.sub(r"`([A-Z_]+)`", lambda constant: f"`{vars(names).get(constant[1], constant[1])}`", meaning)
    written = written.replace("our agent", "the node agent").replace("our scheduler", "the scheduler")
    author = more.replace("our agent", "the node agent").replace("our scheduler", "the scheduler").strip(" ,")
    for one in value if isinstance(value, tuple) else (value,):
        yield Name(str(one), kind + (f" {author}" if author.startswith("(") else ""), _sentence(author, written))


def _sentence(author: str, meaning: str) -> str:
    text = meaning[:1].upper() + meaning[1:]
    return text if not author or author.startswith("(") else f"{author[:1].upper()}{author[1:]}. {text}"


def reference() -> str:
    """The whole page as Markdown."""
    return "\n".join([_HEAD, *_tables(), *_reservation(), ""])


def _tables() -> Iterator[str]:
    found = known_names()
    for heading, sentence, kinds in _SECTIONS:
        yield f"## {heading}\n"
        if sentence:
            yield f"{sentence}\n"
        yield "| name | kind | meaning |\n|---|---|---|"
        for one in (one for kind in kinds for one in found if one.kind.startswith(kind)):
            yield f"| `{one.text}` | {one.kind} | {one.meaning} |"
        yield ""


def _reservation() -> Iterator[str]:
    made = definition()["spec"]
    version = made["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    yield f"## {made['names']['kind']}\n"
    short = made["names"]["shortNames"][0]
    yield f"`{made['group']}/{version['name']}`, cluster-scoped, short name `{short}`: room on cards, kept for one pod."
    yield "Scheduler and autoscaler write reservations; you need not. A spec is never changed.\n"
    yield "| field of `spec` | type | meaning |\n|---|---|---|"
    yield from _fields(spec, "")


def _fields(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, field in schema["properties"].items():
        needed = ", required" if name in schema["required"] else ""
        yield f"| `{prefix}{name}` | {field.get('format') or field['type']}{needed} | {field['description']} |"
        if "items" in field:
            yield from _fields(field["items"], f"{prefix}{name}[].")


if __name__ == "__main__":
    sys.stdout.write(reference())
