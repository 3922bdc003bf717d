# SPDX-License-Identifier: Apache-2.0
"""The site of docs/: it builds without a network, no link is broken, no page is alone, and every page begins alike."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.docs_reading import ROOT, links
from support.waiting import PATIENCE_SECONDS

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """Its links, the anchors that others may name, and what a browser fetches with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        """By the standard library's parser."""
        given = dict(attrs)
        self.anchors |= {value for name, value in attrs if name in {"id", "name"} and value}
        for name, value in given.items():
            if (tag, name) in LOADED and value and given.get("rel") not in {"canonical", "next", "prev"}:
                self.fetched.append(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built strictly: a warning is an error. Proxies lead nowhere, so that whoever asks a network fails."""
    out = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return {str(path.relative_to(out)): Page(path) for path in sorted(out.rglob("*.html"))}, out


def test_every_page_is_in_the_site(site):
    """By the name that links to it have."""
    pages, _ = site
    wanted = {str(path.relative_to(DOCS).with_suffix(".html")).replace("README", "index") for path in PAGES}

    assert wanted | {"404.html"} == set(pages)


def test_no_link_of_the_site_is_broken(site):
    """Within the site to a file and a heading; outside, files of the repository are there."""
    pages, out = site
    broken = []
    for name, page in pages.items():
        if name == "404.html":  # its links begin at the root of a server
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.netloc == "github.com" and parts.path.startswith("/gpushare/gpushare/"):
                _, _, _, _, _, *path = parts.path.split("/")
                if not (ROOT / "/".join(path)).exists():
                    broken.append((name, link))
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(Path(name).parent / unquote(parts.path)) if parts.path else name
            anchors = pages[target].anchors if target in pages else set()
            if not (out / target).exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append((name, link))

    assert [] == broken


def test_a_browser_fetches_nothing_from_elsewhere(site):
    """The site can be read in a network of its own."""
    pages, _ = site

    assert set() == {url for page in pages.values() for url in page.fetched if urlsplit(url).netloc}


def test_the_index_leads_to_every_page_by_one_link_and_to_runbooks_by_their_alerts():
    """A page that the index does not name is found by nobody."""
    index = {link.partition("#")[0] for link in links((DOCS / "README.md").read_text())}
    alerts = {link.partition("#")[0] for link in links((DOCS / "alerts.md").read_text())}
    names = {str(path.relative_to(DOCS)) for path in PAGES} - {"README.md"}

    assert set() == {name for name in names if not name.startswith("runbooks/")} - index
    assert set() == {name for name in names if name.startswith("runbooks/")} - alerts


VERBS = (
    *(
        "Bring",
        "Build",
        "Check",
        "Choose",
        "Connect",
        "Decide",
        "Find",
        "Have",
        "Install",
        "Judge",
        "Know",
        "Let",
        "Load",
    ),
    *("Look up", "Move", "Run", "Scale", "Search", "See", "Share", "Understand", "Use"),
)
"""How a page begins: with what its reader can do."""
ALERT = re.compile(r"\*\*(critical|warning|info)\*\*, ")
"""How a runbook begins; tests/unit/dashboards/rules/test_runbooks.py has the rest of its form."""
OTHERS = {"backends.md", "resize.md", "right-sizing.md"}
"""Begin with a sentence about their subject."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_begins_with_what_its_reader_can_do(path):
    """Before any other sentence, heading, table or code."""
    text = re.sub(r"\A<!--.*?-->\n", "", path.read_text(encoding="utf-8"))
    title, _, rest = text.partition("\n")
    first = rest.strip()

    assert title.startswith("# ")
    assert first.startswith(VERBS) or ALERT.match(first) or path.name in OTHERS, first[:80]
