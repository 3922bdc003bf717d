# SPDX-License-Identifier: Apache-2.0
"""The table of what each token may do, as the page has it: whole, and made from what is tried on a real API server."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml
from e2e.manifest_build import MANIFESTS
from e2e.rights_table import ACCOUNTS, ROWS, table

from isolation.contract.rbac import PERMISSIONS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "threats.md"
BEGIN, END = "<!-- Made from tests/e2e/rights_table.py. -->\n", "<!-- end -->\n"
PATH = re.compile(
    r"/apis?/(?:(?P<group>[^/]+\.[^/]+|apps)/)?v[^/]+/(?:namespaces/[^/]+/)?(?P<resource>[^/?]+)(?:/[^/?]+/(?P<part>\w+))?"
)


def right_of(row):
    """Group, resource with sub-resource, verb."""
    found = PATH.match(row.path)
    part = f"/{found['part']}" if found["part"] else ""
    return found["group"] or "", found["resource"] + part, row.verb


def test_the_page_has_the_table():
    """
    GPUSHARE_UPDATE_GOLDEN=1 writes it again.
    """
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    old, end, after = rest.partition(END)
    assert begin
    assert end
    if os.environ.get("GPUSHARE_UPDATE_GOLDEN"):
        PAGE.write_text(before + begin + table() + end + after)
        return
    assert table() == old


def test_every_account_of_the_manifests_has_its_column():
    """
    Whatever file ships one.
    """
    shipped = [
        one["metadata"]["name"]
        for path in MANIFESTS.rglob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
        if isinstance(one, dict) and one.get("kind") == "ServiceAccount"
    ]
    assert sorted(ACCOUNTS) == sorted(shipped)


def test_every_right_to_write_is_in_the_table():
    """
    Each of the table of permissions is a yes somewhere.
    """
    writes = {
        (account, permission.group, permission.resource, verb)
        for account, permissions in PERMISSIONS.items()
        for permission in permissions
        for verb in permission.verbs
        if verb not in {"get", "list", "watch"}
    }

    assert writes <= {(account, *right_of(row)) for row in ROWS for account in row.may}
