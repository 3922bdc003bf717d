# SPDX-License-Identifier: Apache-2.0
"""The images: what their build copies, installs and starts, checked without a builder."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from e2e.manifest_build import BUILDS, objects, templates
from support.waiting import PATIENCE_SECONDS

from gpushare import COMMANDS
from isolation.distribution import DISTRIBUTION, release

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "images" / "Containerfile"
LOCK = runpy.run_path(str(ROOT / "images" / "lock.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = ("exporter", "node", "controller")
"""Of the manifests."""
EVERY = (*TARGETS, "demo")
PACKAGES = {
    "exporter": ["exporter", "isolation.contract"],
    "node": ["isolation.node", "isolation.doctor", "isolation.simgpu", "isolation.host"],
    "controller": [
        "isolation.scheduler",
        "isolation.kube",
        "autoscaler.kube",
        "autoscaler.apis.rpc",
        "autoscaler.apis.metrics",
    ],
    "demo": ["autoscaler.demo", "exporter", "isolation.run", "isolation.simgpu", "dashboards.terminal"],
}
"""Whose every module must be importable in the image."""
CLUSTER_FORMATS = {
    f"isolation.contract.{name}" for name in ("codec", "dialects", "exposition", "provisioning_request", "reservation")
}
"""Read and written by whoever talks to the API server, which the exporter never does."""
APART = {
    "exporter": {"exporter.fleet"} | CLUSTER_FORMATS,
    "node": set(),
    "controller": set(),
    "demo": {"exporter.fleet"},
}
"""Modules that another process loads."""
PROBE = """
import importlib.util, json, pkgutil, sys
from importlib.metadata import distribution, packages_distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as plain

extras, wanted, packages, apart = json.loads(sys.argv[1])
found, todo = set(), [(Requirement(line), ()) for line in wanted]
seen = set()
while todo:
    need, _ = todo.pop()
    if need.marker and not any(need.marker.evaluate({"extra": e}) for e in ("", *need.extras)):
        continue
    key = (plain(need.name), tuple(sorted(need.extras)))
    if key in seen:
        continue
    seen.add(key)
    found.add(plain(need.name))
    for line in distribution(need.name).requires or ():
        inner = Requirement(line)
        if inner.marker is None or any(inner.marker.evaluate({"extra": e}) for e in ("", *need.extras)):
            inner.marker = None
            todo.append((inner, ()))
owners = packages_distributions()
kept = {"gpushare", "isolation", "exporter", "autoscaler", "dashboards"}

class Bare:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in kept or top not in owners or any(plain(o) in found for o in owners[top]):
            return None
        raise ModuleNotFoundError(f"{name} is in no package of this image", name=name)

for name in [n for n in sys.modules if n.partition(".")[0] == "packaging"]:
    del sys.modules[name]
sys.meta_path.insert(0, Bare())
look = importlib.util.find_spec

def asked(name, package=None):
    try:
        return look(name, package)
    except ModuleNotFoundError:
        return None  # as for a package that is not installed

importlib.util.find_spec = asked
missing = {}
for name in packages:
    package = importlib.import_module(name)
    names = [name] + [m.name for m in pkgutil.walk_packages(package.__path__, name + ".")]
    for name in names:
        origin = str(importlib.util.find_spec(name).origin)
        if name in apart or name.endswith("__main__") or not origin.endswith(".py"):
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as exc:
            missing[name] = str(exc)
print(json.dumps([sorted(found), missing]))
"""


def words():
    """The file's instructions, continuation lines joined, comments away."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    return [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]


def stages():
    """Instructions by stage; in "" those before the first."""
    found, name = {"": []}, ""
    for verb, rest in words():
        if verb == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = [("FROM", base)]
        else:
            found[name].append((verb, rest))
    return found


def requirements(target):
    """The file that pip installs for it."""
    [(_, line)] = [one for one in stages()[f"{target}-packages"] if one[0] == "RUN"]
    inside = re.search(r'-r "/requirements/(.+?)\.txt"', line)[1]
    for name, value in re.findall(r"^ARG (\w+)=(.+)$", FILE.read_text(), re.MULTILINE):
        inside = inside.replace(f"${{{name}}}", value)
    return inside


def extras(target):
    """Of which that file is made."""
    return list(LOCK["IMAGES"][requirements(target)])


def pins(text):
    """Versions and numbers of hashes by name, as files of pip have them."""
    found = {}
    for entry in re.sub(r"\\\n", " ", text).splitlines():
        name, version = re.match(r"(\S+?)==(\S+)", entry).groups()
        found[re.sub(r"[-_.]+", "-", name).lower()] = (
            version,
            len(re.findall(r"--hash=sha256:[0-9a-f]{64}(?= |$)", entry)),
        )
    return found


@pytest.mark.parametrize("name", LOCK["IMAGES"])
def test_images_install_by_hash_what_the_tests_run_with(name):
    """
    Every package has hashes, in the version of the constraints, which have none; no registry is named.
    """
    text = (ROOT / "images" / "requirements" / f"{name}.txt").read_text()
    plain = (ROOT / "constraints.txt").read_text()
    locked, known = pins(text), pins(plain)

    assert {package: version for package, (version, _) in locked.items()}.items() <= {
        package: version for package, (version, _) in known.items()
    }.items()
    assert all(hashes for _, hashes in locked.values())
    assert "--hash" not in plain
    assert not re.search(r"://|index-url|find-links", text + plain)


@pytest.mark.processes
@pytest.mark.parametrize("name", LOCK["IMAGES"])
def test_the_locked_set_is_all_that_the_extras_need(name):
    """
    Nothing is left to be found without a hash: `--require-hashes` would refuse it, in the build.
    """
    arguments = json.dumps([list(LOCK["IMAGES"][name]), wanted_by(LOCK["IMAGES"][name]), [], []])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    needed, _ = json.loads(done.stdout)

    assert set(needed) == set(pins((ROOT / "images" / "requirements" / f"{name}.txt").read_text()))


def test_the_bill_of_materials_is_of_what_is_installed():
    """
    CycloneDX 1.6: each package once, by its purl; every reference is one of a component; the same twice.
    """
    made = [
        json.loads(
            subprocess.run(
                [sys.executable, ROOT / "images" / "sbom.py", "gpushare-x"],
                capture_output=True,
                text=True,
                check=True,
                timeout=300,
            ).stdout
        )
        for _ in range(2)
    ]
    bill, again = made
    parts = {one["bom-ref"]: one for one in bill["components"]}
    installed = {(re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(), one.version) for one in distributions()}

    assert again == bill
    assert ("CycloneDX", "1.6", 1) == (bill["bomFormat"], bill["specVersion"], bill["version"])
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", bill["serialNumber"])
    assert installed == {(one["name"], one["version"]) for one in parts.values()}
    assert len(parts) == len(bill["components"])
    assert release() == bill["metadata"]["component"]["version"]
    assert all(ref == one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}" for ref, one in parts.items())
    refs = {one["ref"] for one in bill["dependencies"]} | {n for one in bill["dependencies"] for n in one["dependsOn"]}
    assert refs == {*parts, bill["metadata"]["component"]["bom-ref"]}


def wanted_by(names):
    """What these extras, and we without any, ask for."""
    wanted, todo = list(PROJECT["project"]["dependencies"]), list(names)
    while todo:
        for line in PROJECT["project"]["optional-dependencies"][todo.pop()]:
            inner = re.fullmatch(rf"{DISTRIBUTION}\[(.+)\]", line)
            todo += inner[1].split(",") if inner else []
            wanted += [] if inner else [line]
    return wanted


def test_only_one_base_is_used_and_it_is_pinned_by_digest():
    """
    A tag can come to mean something else overnight; its Python is the oldest that the project runs on.
    """
    [(_, given)] = [one for one in stages()[""] if one[0] == "ARG"]
    bases = {base for name, lines in stages().items() if name for verb, base in lines if verb == "FROM"}

    found = re.fullmatch(r"PYTHON=docker\.io/library/python:(3\.\d+)-slim-\w+@sha256:[0-9a-f]{64}", given)
    assert bases - set(stages()) == {"${PYTHON}"}
    assert PROJECT["project"]["requires-python"] == f">={found[1]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == found[1]


def test_what_is_copied_exists():
    """
    From the tree by name (never all of it), or from a stage above.
    """
    lost = []
    for lines in stages().values():
        for verb, rest in lines:
            if verb == "COPY":
                parts = rest.split()
                origin = [one.partition("=")[2] for one in parts if one.startswith("--from=")]
                sources = [one for one in parts[:-1] if not one.startswith("--")]
                assert "." not in sources
                lost += [one for one in sources if not origin and not (ROOT / one).exists()]
                lost += [one for one in origin if one not in stages()]
    packages = {one.rstrip("*") for one in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = {rest.split()[0] for verb, rest in stages()["wheel"] if verb == "COPY"}
    listed = set(" ".join(rest for verb, rest in stages()["wheel"] if verb == "COPY").split())

    assert [] == lost
    assert packages <= copied
    assert {"pyproject.toml", "setup.py", "gpushare.py", PROJECT["project"]["readme"]} <= listed
    assert set(PROJECT["project"]["license-files"]) <= listed


def test_a_build_sees_what_it_copies_and_nothing_made_of_it():
    """
    Everything else is ignored, and of what is let in the caches and objects of a checkout.
    """
    lines = FILE.with_name("Containerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    copied = [rest.split()[:-1] for lines in stages().values() for verb, rest in lines if verb == "COPY"]
    sources = {one for parts in copied if not parts[0].startswith("--from=") for one in parts}

    assert "*" == rules[0]
    assert sources == {rule[1:] for rule in rules if rule.startswith("!")}
    assert {"**/__pycache__", "**/*.so", "**/*.so.1"} == {rule for rule in rules[1:] if not rule.startswith("!")}


@pytest.mark.parametrize("target", EVERY)
def test_an_image_runs_as_nobody_and_starts_a_command_that_exists(target):
    """
    By the entry point that the project installs; without a compiler and without pip.
    """
    own, runtime = dict(stages()[target]), dict(stages()["runtime"])
    [(_, installed)] = [one for one in stages()[f"{target}-packages"] if one[0] == "RUN"]
    [entry] = json.loads(runtime["ENTRYPOINT"])

    assert "runtime" == own["FROM"]
    assert entry in PROJECT["project"]["scripts"]
    assert json.loads(own["CMD"])[0] in COMMANDS
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", runtime["USER"])
    assert own.get("USER", runtime["USER"]) == runtime["USER"]  # the last one: the demo installs packages as root
    assert re.search(r"pip install --require-hashes -r .*pip install --no-deps --no-index /wheels/", installed)
    assert re.search(rf"python /sbom.py gpushare-{target} > /opt/gpushare/sbom.cdx.json$", installed)
    assert "uninstall -y pip" in installed
    assert "pip uninstall -y" in runtime["RUN"]


@pytest.mark.parametrize("target", EVERY)
def test_an_image_has_the_extras_of_its_processes(target):
    """
    They exist, and one stands for each command that the image runs.
    """
    known = PROJECT["project"]["optional-dependencies"]

    assert set(extras(target)) <= set(known)
    assert {
        "exporter": {"exporter"},
        "node": {"node", "doctor", "simgpu"},
        "controller": {"scheduler", "autoscaler"},
        "demo": {*re.search(r'-e "\.\[(.+)\]"', (ROOT / "Makefile").read_text())[1].split(",")},  # as of `make up`
    }[target] == set(extras(target))


@pytest.mark.processes
def test_images_and_manifests_agree():
    """
    Each image of the manifests is a target of the file, and the ports are those that its pods have.
    """
    opened: dict[str, set[int]] = {}
    for overlay, components in BUILDS:
        for template in templates(objects(overlay, components)).values():
            for one in template["spec"]["containers"]:
                name = one["image"].rpartition(":")[0].removeprefix("gpushare-")
                opened.setdefault(name, set()).update(p["containerPort"] for p in one.get("ports", []))
    exposed = {target: {int(port) for port in dict(stages()[target])["EXPOSE"].split()} for target in TARGETS}

    assert exposed == {name: ports for name, ports in opened.items() if "/" not in name}


@pytest.mark.processes
@pytest.mark.parametrize("target", EVERY)
def test_every_module_of_an_image_finds_its_packages(target):
    """
    With nothing importable but what pip installs for its extras.
    """
    arguments = json.dumps([extras(target), wanted_by(extras(target)), PACKAGES[target], sorted(APART[target])])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=ROOT,
    )
    assert 0 == done.returncode, done.stderr
    found, missing = json.loads(done.stdout)

    assert {} == missing
    assert "click" in found
    assert "pytest" not in found
    assert ("kubernetes" in found) == (target in {"node", "controller"})
