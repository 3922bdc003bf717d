# SPDX-License-Identifier: Apache-2.0
"""
Prints a CycloneDX 1.6 bill of materials of the Python packages that are installed beside this interpreter.

    /opt/gpushare/bin/python images/sbom.py gpushare-node > sbom.cdx.json

Standard library only; the same packages give the same bytes. Names and versions are those of the installed metadata,
so that the list is of what is in the image and not of what was asked for.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from importlib.metadata import Distribution, distributions
from typing import Any

from isolation.distribution import DISTRIBUTION


def plain(name: str) -> str:
    """As indexes write it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def component(found: Distribution) -> dict[str, Any]:
    """One package."""
    name, version = plain(found.metadata["Name"]), found.version
    purl = f"pkg:pypi/{name}@{version}"
    made: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if told := found.metadata.get_all("License-Expression"):
        made["licenses"] = [{"expression": told[0]}]
    elif names := [
        line.rpartition(" :: ")[2]
        for line in found.metadata.get_all("Classifier") or ()
        if line.startswith("License :: ") and not line.endswith(":: OSI Approved")
    ]:
        made["licenses"] = [{"license": {"name": name}} for name in names]
    return made


def needs(found: Distribution) -> set[str]:
    """Names that it may require, whatever the markers say."""
    words = (re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line) for line in found.requires or ())
    return {plain(word.group()) for word in words if word is not None}


def bill(image: str, kind: str = "container") -> dict[str, Any]:
    """The whole document, about an image or whatever else CycloneDX has a type for."""
    every = {plain(one.metadata["Name"]): one for one in distributions()}
    parts = {name: component(one) for name, one in sorted(every.items())}
    depends = [
        {"ref": part["bom-ref"], "dependsOn": sorted(parts[n]["bom-ref"] for n in needs(every[name]) & parts.keys())}
        for name, part in parts.items()
    ]
    ours = every.get(DISTRIBUTION)
    whole = {"type": kind, "bom-ref": image, "name": image} | ({"version": ours.version} if ours else {})
    listed = json.dumps([whole, *parts.values()], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, listed)}",
        "version": 1,
        "metadata": {"component": whole},
        "components": list(parts.values()),
        "dependencies": [{"ref": image, "dependsOn": sorted(part["bom-ref"] for part in parts.values())}, *depends],
    }


if __name__ == "__main__":
    json.dump(bill(*sys.argv[1:]), sys.stdout, indent=1)
    sys.stdout.write("\n")
