# SPDX-License-Identifier: Apache-2.0
"""
What is installed into the API server for admission, as the files of manifests/base/admission.

    python -m isolation.scheduler.admission.objects webhooks.yaml|policies.yaml|kustomization.yaml [SCHEDULER]

prints one of them; for an existing scheduler that asks our extender, with its name. Decides
nothing: the objects are `webhooks` and `policies`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import yaml

from isolation.contract.names import SCHEDULER
from isolation.scheduler.admission.core.policies import build_bindings, build_policies
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


def build_objects(file: str, scheduler: str = SCHEDULER) -> list[dict[str, Any]]:
    """The objects of one file."""
    if file == "kustomization.yaml":
        return [dict(_KUSTOMIZATION)]
    if file == "webhooks.yaml":
        return [build_webhooks()]
    made = build_policies(scheduler=scheduler)
    return made + build_bindings(made)


def render(file: str, scheduler: str = SCHEDULER) -> str:
    """The text of one file."""
    documents = (
        yaml.dump(thing, Dumper=_Plain, sort_keys=False, width=118) for thing in build_objects(file, scheduler)
    )
    return _HEADER.format(file) + "---\n".join(documents)


class _Plain(yaml.SafeDumper):
    """Without anchors: a manifest is read by people too."""

    def ignore_aliases(self, data: object) -> bool:
        """No value is ever written as a reference to another."""
        del data
        return True


def main(arguments: Sequence[str]) -> int:
    """Print one file."""
    if not 1 <= len(arguments) <= 2 or arguments[0] not in FILES:  # noqa: PLR2004 (a file, a scheduler)
        sys.stderr.write(f"usage: objects FILE [SCHEDULER], where FILE is one of {', '.join(FILES)}\n")
        return 2
    sys.stdout.write(render(*arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
