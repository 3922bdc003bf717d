# SPDX-License-Identifier: Apache-2.0
"""
What README and docs tell a reader to type, to open or to look for is there.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache

import click
import pytest
from support.docs_reading import PLACEHOLDER, ROOT, anchors, commands, links, pages, paths, spans

import gpushare
from dashboards.rules.catalogue import ALERTS
from dashboards.rules.records import RECORDS
from dashboards.terminal.cli import views
from isolation.contract import metrics
from isolation.contract.metrics import autoscaler, card, node, scheduler

PAGES = pages()
GUIDES = [page for page in PAGES if "runbooks" not in page.name]
"""The runbooks' commands have a test of their own."""
BY_NAME = {page.name: page for page in PAGES}
FAMILIES = {
    *metrics.CATALOGUE,
    *autoscaler.CATALOGUE,
    *card.CATALOGUE,
    *node.CATALOGUE,
    *scheduler.CATALOGUE,
}
SUFFIXES = ("", "_total", "_bucket", "_count", "_sum", "_created")
SOURCES = {
    path: path.read_text(errors="replace")
    for room in (
        "autoscaler",
        "dashboards",
        "exporter",
        "isolation",
        "tests",
        "benchmarks",
        "charts",
        "hack",
        "images",
        "manifests",
    )
    for path in (ROOT / room).rglob("*")
    if path.suffix in {".py", ".h", ".c", ".sh", ".yaml"} or path.name == "Containerfile"
}
FOREIGN = {
    "--admission-control-config-file": "kube-apiserver",
    "--allowed-scheduler-names": "cluster-autoscaler",
    "--build-arg": "podman and docker",
    "--create-namespace": "helm",
    "--cloud-provider": "cluster-autoscaler",
    "--config": "kube-scheduler",
    "--expander": "cluster-autoscaler",
    "--gpu-memory-utilization": "vLLM",
    "--network": "podman and docker",
    "--no-deps": "pip",
    "--kube-version": "helm",
    "--now": "systemctl",
    "--previous": "kubectl",
    "--read-only": "podman and docker",
    "--rm": "podman and docker",
    "--server-side": "kubectl",
    "--set": "helm",
    "--set-timeslice": "nvidia-smi",
    "--timestamp": "podman",
    "--tmpfs": "podman and docker",
    "--type": "kubectl",
}
"""Options of other programs that the docs speak of."""

each_guide = pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def follow(command, words):
    """The command that these words reach, its options taken as click takes them; a wrong word is an error."""
    context = click.Context(command, ignore_unknown_options=False, help_option_names=["-h", "--help"])
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.BadOptionUsage as exc:
        if "requires an argument" in exc.format_message():  # a sentence may name an option without its value
            return command
        raise
    for parameter in command.params:
        value = given.get(parameter.name)
        if isinstance(parameter.type, click.Choice) and isinstance(value, str) and not PLACEHOLDER.search(value):
            assert set(value.split("|")) <= set(parameter.type.choices), f"{parameter.opts}: {value}"
    if not isinstance(command, click.Group) or not rest or PLACEHOLDER.search(rest[0]):
        return command
    found = command.get_command(context, rest[0])
    assert found is not None, f"no command {rest[0]}"
    return follow(found, rest[1:])


def every_command(command=gpushare.main):
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from every_command(command.get_command(context, name))


@cache
def options():
    """Every option of every command of ours."""
    return {
        name
        for command in every_command()
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }


@each_guide
def test_commands_and_their_options_exist(page):
    """A line that does not run is worse than none."""
    for words in commands(page.text, "gpushare"):
        try:
            follow(gpushare.main, words)
        except click.UsageError as exc:
            pytest.fail(f"gpushare {' '.join(words)}: {exc.format_message()}")
    for words in commands(page.text, "kubectl gpushare"):
        try:
            follow(views, words)
        except click.UsageError as exc:
            pytest.fail(f"kubectl gpushare {' '.join(words)}: {exc.format_message()}")


def test_a_wrong_option_a_wrong_value_and_a_wrong_command_are_found():
    """The test above can fail."""
    block = "```\ngpushare top --by cat | head\n```\n"
    text = f"`gpushare top --nearly`\n\n    gpushare sim --synthetic && gpushare tpo\n\n{block}"
    lines_found = commands(text, "gpushare")

    assert [["top", "--by", "cat"], ["sim", "--synthetic"], ["tpo"], ["top", "--nearly"]] == lines_found
    with pytest.raises(AssertionError):
        follow(gpushare.main, lines_found[0])
    with pytest.raises(AssertionError):
        follow(gpushare.main, lines_found[2])
    with pytest.raises(click.NoSuchOption):
        follow(gpushare.main, lines_found[3])


@each_guide
def test_options_that_stand_alone_exist(page):
    """As the first words of a table's row, or within a sentence."""
    benches = "".join(text for path, text in SOURCES.items() if path.is_relative_to(ROOT / "benchmarks"))
    scripts = "".join(path.read_text() for path in [*ROOT.glob("hack/*.sh"), *ROOT.glob("images/*.sh")])
    known = options() | set(FOREIGN) | set(re.findall(r'"(--[a-z][a-z-]+)"', benches))
    known |= set(re.findall(r"^ +(--[a-z]+)\)", scripts, re.MULTILINE))
    lines_found = {found for span in spans(page.text) for found in re.findall(r"(?:^|[ \[,|])(--[a-z][a-z-]+)", span)}

    assert set() == lines_found - known - {option.replace("--no-", "--", 1) for option in lines_found & known}


@each_page
def test_links_lead_somewhere(page):
    """To a file of this tree, and to a heading that is on it."""
    for link in links(page.text):
        target, _, anchor = link.partition("#")
        path = (page.folder / target).resolve() if target else ROOT / page.name

        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path.read_text()), link


@each_page
def test_paths_are_there(page):
    """Files and folders that a page names; `{a,b}` is each of them."""
    for lines_found in paths(page.text):
        first, _, rest = lines_found.partition("{")
        inner, _, last = rest.partition("}")
        for name in inner.split(",") if rest else [""]:
            assert list(ROOT.glob(f"{first}{name}{last}".rstrip("/"))), lines_found


@each_page
def test_tests_that_are_named_exist(page):
    """As the proof of a claim, by file or by function."""
    everything = "\n".join(text for path, text in SOURCES.items() if path.parts[len(ROOT.parts)] == "tests")
    for name in set(re.findall(r"\btest_\w+\b(?!\*)", page.text)):
        known = f"def {name}(" in everything or any(path.stem == name for path in SOURCES)
        assert known or name.endswith("_"), name


@each_page
def test_targets_of_make_exist(page):
    """`make x`, in a block or a sentence."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page.text, "make"):
        assert {word for word in words if "=" not in word and word.islower()} <= targets, words


@each_page
def test_metrics_rules_and_alerts_exist(page):
    """In the catalogue, among the recorded series, among the alerts."""
    names = {family + suffix for family in FAMILIES for suffix in SUFFIXES} | {"gpushare_abi"}
    recorded = {record.name for record in RECORDS.rules}
    lines_found = set(re.findall(r"(?<![\w:/.-])gpushare_[a-z][a-z0-9_]*[a-z0-9](?![\w*{:]|[*])", page.text))

    assert set() == {name for name in lines_found - names if not name.startswith("gpushare_milli")}
    assert set() == set(re.findall(r"(?<!\w)gpushare:\w+:\w+", page.text)) - recorded
    assert set() == set(re.findall(r"(?<![\w/])Gpushare[A-Z]\w+", page.text)) - {alert.name for alert in ALERTS}


@each_page
def test_variables_of_ours_are_read(page):
    """An environment variable that nobody reads sets nothing."""
    code = "\n".join(SOURCES.values()) + (ROOT / "Makefile").read_text()
    made = {f"GPUSHARE_{word}_" for word in ("EXPORTER", "NODE")}
    for name in set(re.findall(r"\bGPUSHARE_[A-Z_]+", page.text)):
        prefix = next((head for head in made if name.startswith(head)), None)
        option = "--" + name.removeprefix(prefix or "").lower().replace("_", "-")
        assert name in code or name in made or option in options(), name


@each_page
def test_extras_exist(page):
    """What `pip install 'gpushare-k8s[...]'` is given."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for lines_found in re.findall(r"(?:gpushare-k8s|pip install '\.|-e '?\.)\[([a-z,]+)\]", page.text):
        assert set(lines_found.split(",")) <= extras, lines_found


@pytest.mark.parametrize("page", [page for page in PAGES if page.name.startswith("docs/")], ids=lambda page: page.name)
def test_checks_of_the_doctor_exist(page):
    """By the name under which its table shows them."""
    code = "\n".join(text for path, text in SOURCES.items() if path.is_relative_to(ROOT / "isolation" / "doctor"))
    for name in set(re.findall(r"`((?:machine|cluster|canary)\.[a-z_]+)`", page.text)):
        assert f'"{name}"' in code, name


@pytest.mark.parametrize(
    "words",
    [
        "with enough free in total, but not on single cards",
        "in a mode that does not support this request",
        "pods.gpushare.dev",
    ],
)
def test_what_troubleshooting_quotes_is_what_is_printed(words):
    """A reader searches the page for the words of a message."""
    assert words in BY_NAME["docs/troubleshooting.md"].text
    assert any(words in text or f'"{words.partition(".")[0]}.{{' in text for text in SOURCES.values())


def test_every_page_and_every_command_is_reached_from_the_readme():
    """By one link or two; a page that nobody finds helps nobody."""
    seen, left = set(), ["README.md"]
    while left:
        name = left.pop()
        if name in seen or name not in BY_NAME:
            continue
        seen.add(name)
        page = BY_NAME[name]
        for link in links(page.text):
            path = (page.folder / link.partition("#")[0]).resolve()
            left.append(str(path.relative_to(ROOT)))
    table = " ".join(re.findall(r"^\| (`.*?) \|", BY_NAME["docs/commands.md"].text, re.MULTILINE))

    assert set() == {page.name for page in GUIDES if page.name.startswith("docs/")} - seen
    assert set() == {name for name in gpushare.COMMANDS if not re.search(rf"[` ]{name}`", table)}
