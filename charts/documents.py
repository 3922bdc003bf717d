# SPDX-License-Identifier: Apache-2.0
"""
The pages of the chart about its values: values.yaml, values.schema.json, the table in README.md.

Pure.
"""

from __future__ import annotations

import json
import re
import textwrap
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from charts.values import Value

_HEAD = """\
# Values of the chart, made by `python -m charts.generate`: change charts/values.py and manifests/ there. Give your own
# in a file (`helm install -f mine.yaml`) or one by one (`--set autoscaler.dryRun=false`).
"""
_TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)


def values_text(values: Sequence[Value], defaults: Mapping[str, Any]) -> str:
    """values.yaml."""
    lines: list[str] = [_HEAD]
    above: tuple[str, ...] = ()
    for value in values:
        *parents, key = value.path.split(".")
        for depth, parent in enumerate(parents):
            if tuple(parents[: depth + 1]) != above[: depth + 1]:
                lines.append(f"{'  ' * depth}{parent}:")
                above = tuple(parents[: depth + 1])
        above = tuple(parents)
        pad = "  " * len(parents)
        lines += textwrap.wrap(value.about, 110, initial_indent=f"{pad}# ", subsequent_indent=f"{pad}# ")
        lines += [f"{pad}{line}" for line in _written({key: defaults[value.path]})]
    return "\n".join(lines) + "\n"


def schema_text(values: Sequence[Value]) -> str:
    """values.schema.json."""
    root: dict[str, Any] = {"$schema": "https://json-schema.org/draft-07/schema#", "title": "Values of gpushare"}
    root |= {"type": "object", "additionalProperties": False, "properties": {"global": {"type": "object"}}}
    for value in values:
        *parents, key = value.path.split(".")
        at = root
        for parent in parents:
            new = {"type": "object", "additionalProperties": False, "properties": {}}
            at = at["properties"].setdefault(parent, new)
        at["properties"][key] = {"description": value.about, **value.schema}
    return json.dumps(root, indent=2) + "\n"


def readme_text(page: str, values: Sequence[Value], defaults: Mapping[str, Any]) -> str:
    """README.md with its table."""
    rows = ["| value | default | what |", "|---|---|---|"]
    for value in values:
        default = json.dumps(defaults[value.path], ensure_ascii=False)
        rows.append(f"| `{value.path}` | `{default}` | {value.about} |")
    if not _TABLE.search(page):
        raise ValueError("README.md has no place for the table")
    return _TABLE.sub(lambda _: "\n".join(rows) + "\n", page)


def _written(value: Mapping[str, Any]) -> list[str]:
    return yaml.safe_dump(dict(value), sort_keys=False, width=110).splitlines()
