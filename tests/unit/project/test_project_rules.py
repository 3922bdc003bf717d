# SPDX-License-Identifier: Apache-2.0
"""The rules of this project that no linter knows."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import grimp
import pytest

from isolation.distribution import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("isolation", "exporter", "autoscaler", "dashboards")
LICENCE = "SPDX-License-Identifier: Apache-2.0"
SOURCES = {".py", ".sh", ".c", ".h", ".S", ".def", ".map", ".go"}
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_root_package_belongs_to_this_distribution_alone(package):
    """
    A flat root that another distribution also ships would be half ours, half theirs.
    """
    assert {DISTRIBUTION} == set(packages_distributions()[package])


def test_root_packages_have_an_empty_init_and_tests_have_none():
    """
    A root `__init__.py` does nothing; one under tests would shadow a package on a plain install.
    """
    assert [""] * len(PACKAGES) == [(ROOT / package / "__init__.py").read_text() for package in PACKAGES]
    assert [] == list((ROOT / "tests").rglob("__init__.py"))


def test_every_module_says_what_it_decides():
    """
    A docstring at the top.
    """
    assert [] == [path.name for path in MODULES if not _docstring(path.read_text())]


def test_every_benchmark_that_says_how_to_run_it_begins():
    """
    `python -m` of a module that only defines things prints nothing, and its exit status says that no bar was missed.
    """
    found_here, idle = [], []
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        if re.search(rf"python -m {re.escape(name)}(?![\w.])", _docstring(path.read_text()) or ""):
            found_here.append(name)
            if 'if __name__ == "__main__":' not in path.read_text():
                idle.append(name)

    assert [] == idle
    assert "benchmarks.isolation" in found_here


def test_every_source_names_its_licence():
    """
    One line at the top, after the interpreter's; who takes one file takes its licence with it. Empty files have none.
    """
    tops = (*PACKAGES, "benchmarks", "charts", "docs", "hack", "images", "manifests", "tests")
    files = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in SOURCES and path.is_file()]
    files += [
        ROOT / "gpushare.py",
        ROOT / "setup.py",
        ROOT / "Makefile",
        ROOT / "images/Containerfile",
        ROOT / ".ci/run",
    ]
    files += (ROOT / ".github/workflows").glob("*.yaml")
    bare = [path for path in files if path.stat().st_size and LICENCE not in "".join(_first_lines(path))]

    assert [] == [str(path.relative_to(ROOT)) for path in bare], f"the first line is not '# {LICENCE}' (C: /* ... */)"


def _first_lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return list(islice(file, 2))


def test_no_package_imports_the_entry_point():
    """
    Only `gpushare.py` imports all root packages; a package that imported it could reach every other.
    """
    guilty = [path for path in MODULES if re.search(r"^\s*(import|from) gpushare\b", path.read_text(), re.MULTILINE)]
    assert [] == guilty


def test_no_two_modules_need_each_other():
    """
    Imports for types count too: who reads one of two such modules has to read both.
    """
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names them


def test_pure_packages_read_no_clock_by_datetime():
    """
    import-linter keeps `time` out of them; `datetime` is there for calendars, and its clock is not.
    """
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    pure = [root.replace(".", "/") for root in contracts[-1]["source_modules"]]
    paths = [path for root in pure for path in [ROOT / f"{root}.py", *(ROOT / root).rglob("*.py")] if path.exists()]
    assert len(paths) > 100
    clock = re.compile(r"\b(?:dt|datetime|date)\.(?:now|utcnow|today)\b")
    assert [] == [str(path) for path in paths if clock.search(path.read_text())]


def test_each_name_of_the_dialect_stands_once():
    """
    Outside the tables, ours and one for each other system, no module spells a resource, label or annotation.
    """
    names = re.compile(
        r"""["'](aliyun\.com/|ack\.node\.gpu|nvidia\.com/|gpushare\.dev/|scheduler\.framework\.gpushare)"""
    )
    contract = ROOT / "isolation" / "contract"
    tables = {contract / "names.py", *(contract / "dialects").glob("*.py")}
    mentions = re.compile(r"aliyun|ack\.node|nvidia\.com|gpushare\.dev|scheduler\.framework")
    texts = {path.name: path.read_text() for path in MODULES if path not in tables}
    guilty = {name for name, text in texts.items() if mentions.search(text) and names.search(_code(text))}
    assert set() == guilty


def _docstring(text: str) -> str | None:
    """Of a module: what it begins with after comments, so that the rest need not be read."""
    head = re.match(r'(?:#.*\n|\s)*("""|\'\'\').*?\1', text, re.DOTALL)
    return ast.get_docstring(ast.parse(head[0])) if head else None


def _code(text: str) -> str:
    """A module without its docstrings and comments."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.unparse(tree)


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        (
            "exporter.http.server",
            {"grpc", "prometheus_client", "numpy", "kubernetes", "rich", "yaml", "isolation.placement"},
        ),
        ("exporter.front, exporter.app", {"aiohttp", "numpy", "kubernetes", "rich", "yaml", "isolation.placement"}),
        ("gpushare", {"numpy", "kubernetes", "rich", "yaml", "prometheus_client", *PACKAGES}),
    ],
)
def test_small_processes_stay_small(module, banned):
    """
    What a per-node process imports is memory on every node.
    """
    script = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert set() == banned & set(loaded.stdout.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full to write to")
def test_a_full_disk_is_said_in_one_line_and_is_no_refusal():
    """
    Status 1 of `place` means refused; a result that could not be written has a status of its own.
    """
    command = [sys.executable, "-m", "gpushare", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False, timeout=300
        )

    assert 74 == done.returncode
    assert "No space left" in done.stderr
    assert 1 == len(done.stderr.splitlines())


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="a machine of one's own may lack the optional parts")
def test_under_ci_nothing_that_the_set_up_provides_is_missing():
    """
    Other tests skip without these; in CI that would hide a broken set-up behind a green run.
    """
    parts = ("placement/_native.so", "lib/libgpushare.so", "lib/libgpushare-strict.so")
    drivers = ("simgpu/_hardware.so", "simgpu/lib/libcuda.so.1", "simgpu/lib/libnvidia-ml.so.1")

    assert [] == [part for part in (*parts, *drivers) if not (ROOT / "isolation" / part).is_file()]
    assert [] == [name for name in ("pynvml", "cuda.bindings", "isolation.simgpu.hardware") if not find_spec(name)]
