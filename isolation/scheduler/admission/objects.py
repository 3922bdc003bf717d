# SPDX-License-Identifier: Apache-2.0
"""
What is installed into the API server for admission, as the files of manifests/base/admission.

    python -m isolation.scheduler.admission.objects webhooks.yaml|policies.yaml|kustomization.yaml [SCHEDULER]
        [--dialects ack,hami] [--leave-to hami=NAMESPACE,...]

prints one of them; for an existing scheduler that asks our extender, with its name; for other dialects than ACK's, with
the same two options as `gpushare scheduler` has. Decides nothing: the objects are `webhooks` and `policies`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

import yaml

from isolation.contract.names import ACK, SCHEDULER
from isolation.scheduler.admission.core.policies import build_bindings, build_policies
from isolation.scheduler.admission.core.serving import ONLY_ACK, Serving, parse_serving, show_serving
from isolation.scheduler.admission.core.webhook_configuration import build_webhooks

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES: Final = ("kustomization.yaml", "policies.yaml", "webhooks.yaml")
_HEADER: Final = "# Made by `python -m isolation.scheduler.admission.objects {}`; change the tables there.\n"
_KUSTOMIZATION: Final = {
    "apiVersion": "kustomize.config.k8s.io/v1beta1",
    "kind": "Kustomization",
    "resources": ["policies.yaml", "webhooks.yaml"],
}


def build_objects(file: str, scheduler: str = SCHEDULER, systems: Serving = ONLY_ACK) -> list[dict[str, Any]]:
    """The objects of one file."""
    if file == "kustomization.yaml":
        return [dict(_KUSTOMIZATION)]
    if file == "webhooks.yaml":
        return [build_webhooks(systems=systems)]
    made = build_policies(scheduler=scheduler, systems=systems)
    return made + build_bindings(made)


def render(file: str, scheduler: str = SCHEDULER, systems: Serving = ONLY_ACK) -> str:
    """The text of one file."""
    documents = (
        yaml.dump(thing, Dumper=_Plain, sort_keys=False, width=118) for thing in build_objects(file, scheduler, systems)
    )
    options = "" if systems == ONLY_ACK else f" {show_serving(systems)}"
    return _HEADER.format(f"{file}{options}") + "---\n".join(documents)


class _Plain(yaml.SafeDumper):
    """Without anchors: a manifest is read by people too."""

    def ignore_aliases(self, data: object) -> bool:
        """No value is ever written as a reference to another."""
        del data
        return True


def main(arguments: Sequence[str]) -> int:
    """Print one file."""
    parser = argparse.ArgumentParser(prog="objects", description="Print one of the files of manifests/base/admission.")
    parser.add_argument("file", choices=FILES)
    parser.add_argument("scheduler", nargs="?", default=SCHEDULER)
    parser.add_argument("--dialects", default=ACK.name)
    parser.add_argument("--leave-to", action="append", default=[], metavar="DIALECT=NAMESPACE,...")
    given = parser.parse_args(arguments)
    try:
        systems = parse_serving(given.dialects, given.leave_to)
    except ValueError as exc:
        parser.error(str(exc))
    sys.stdout.write(render(given.file, given.scheduler, systems))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
