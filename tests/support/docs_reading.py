# SPDX-License-Identifier: Apache-2.0
"""
What the README and the pages of docs/ claim, taken apart: commands, links, paths, names.

Decides what counts as a claim; knows nothing of whether it is true.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = "autoscaler|benchmarks|dashboards|docs|exporter|hack|images|isolation|manifests|tests"
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELL = {"", "sh", "bash", "console"}
PLACEHOLDER = re.compile(r"^[A-Z][A-Z_.-]*$|\$|^\.\.\.$")


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its name from the root of the tree, and its text."""

    name: str
    text: str

    @property
    def folder(self) -> Path:
        """From where its links lead."""
        return (ROOT / self.name).parent


def pages() -> list[Page]:
    """README, the project's other pages, every page of docs/, the forms of issues and pull requests."""
    forms = [*(ROOT / ".github").glob("*.md"), *(ROOT / ".github/ISSUE_TEMPLATE").glob("*.yaml")]
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *forms]
    return [Page(str(path.relative_to(ROOT)), _sentences(path)) for path in sorted(files)]


def _sentences(path: Path) -> str:
    """The text of a page. What is indented in a form is YAML's and no code."""
    text = path.read_text()
    return re.sub(r"^ +", "", text, flags=re.MULTILINE) if path.suffix == ".yaml" else text


def blocks(text: str) -> tuple[dict[tuple[str, str], str], list[str], list[str]]:
    """
    Blocks that a reader of a page writes or types, in its order: whole YAML files, lists that go into them, commands.

    Files by kind and name of their first object.
    """
    files: dict[tuple[str, str], str] = {}
    lists: list[str] = []
    commands: list[str] = []
    for language, body in FENCE.findall(text):
        block = textwrap.dedent(body)
        if language == "yaml":
            first = next(yaml.safe_load_all(block))
            if isinstance(first, list):
                lists.append(block)
            else:
                files[first.get("kind", ""), first.get("metadata", {}).get("name", "")] = block
        elif not language:
            commands.append(block)
    return files, lists, commands


def readme() -> list[list[str]]:
    """What the README tells its reader to type: lines, by block."""
    _, _, commands = blocks((ROOT / "README.md").read_text())
    return [block.strip().splitlines() for block in commands]


def spans(text: str) -> list[str]:
    """What stands between single backticks in sentences and tables, on one line each."""
    plain = re.sub(r"^(?: {4}|\t).*$", "", FENCE.sub("", text), flags=re.MULTILINE)
    found = re.findall(r"(?<!`)`([^`]+)`(?!`)", plain)
    return [re.sub(r"\s*\n\s*", " ", span).replace("\\|", "|") for span in found]


def typed(text: str) -> list[str]:
    """Lines that somebody is told to type: blocks of a shell, and indented ones."""
    blocks = "".join(body for language, body in FENCE.findall(text) if language in SHELL)
    indented = "\n".join(re.findall(r"^ {4}(\S.*)$", FENCE.sub("", text), re.MULTILINE))
    joined = re.sub(r"\\\n\s*", " ", f"{blocks}\n{indented}")
    return [line.strip() for line in joined.splitlines() if line.strip()]


def commands(text: str, program: str) -> list[list[str]]:
    """The words after `program`, wherever a line or a span begins a command with it."""
    found = []
    for line in [*typed(text), *spans(text)]:
        for part in re.split(r"&&|\|\||(?<!\\)[|;]\s|\s#", line):
            words = _words(part.strip())
            while words and re.match(r"^([A-Z_]+=|\.venv/bin/)", words[0]):
                head, _, words[0] = words[0].partition(".venv/bin/")
                words = words[1:] if head or not words[0] else words
            ours = program.split()
            if words[: len(ours)] == ours:
                found.append(words[len(ours) :])
    return found


def _words(part: str) -> list[str]:
    try:
        words = shlex.split(part)
    except ValueError:
        return []
    bare = [re.sub(r"[\[\]…]", "", word) for word in words]
    kept: list[str] = []
    for word in bare:
        if word in {">", "<", "->", "="} or word.startswith((">", "<")):
            break
        if word:
            kept.append(word)
    return kept


def links(text: str) -> list[str]:
    """Where its links and pictures lead within this tree, anchors kept."""
    found = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text))
    return [link for link in found if "://" not in link and not link.startswith("mailto:")]


def paths(text: str) -> list[str]:
    """Files and folders of this tree that it names, `*` and `{a,b}` as written."""
    paths = re.findall(rf"(?<![\w./:-])((?:{FOLDERS})/[\w./*{{}},-]*[\w*/}}])", text)
    return [path for path in paths if "://" not in path]


def anchors(text: str) -> set[str]:
    """What can stand after `#` in a link to this page, by GitHub's rule."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
