# SPDX-License-Identifier: Apache-2.0
"""
What the API server holds the autoscaler to when it scales: the objects of the configured pools, within their bounds.

Decides nothing: it says the configuration's `scale` pools as a patch of the ValidatingAdmissionPolicy
`gpushare-autoscaler-scale`, which names no object as it is shipped.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from autoscaler.providers import scale
from autoscaler.providers.registry import ProviderConfigError, make_provider
from isolation.contract.codec.cursor import CodecError
from isolation.contract.names import AUTOSCALER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoscaler.kube.core.config import PoolConfig

POLICY = f"{AUTOSCALER}-scale"


def bounds(pools: Iterable[PoolConfig]) -> dict[str, list[int]]:
    """Fewest and most replicas by `RESOURCE.GROUP/NAMESPACE/NAME`; ConfigError where a pool's settings are wrong."""
    found = {}
    for pool in pools:
        try:
            source = make_provider(pool.source)
            settings = scale.parse_settings(source.settings) if source.provider == scale.NAME else None
        except CodecError as exc:
            raise ProviderConfigError(str(exc)) from None
        if settings is not None:
            target = settings.target
            key = f"{target.resource}.{target.group}/{target.namespace}/{settings.name}"
            found[key] = [pool.min_nodes, pool.max_nodes]
    return found


def patch(pools: Iterable[PoolConfig]) -> list[dict[str, Any]]:
    """The JSON patch; a map of JSON strings and numbers is one of CEL too."""
    first = "/spec/variables/0"
    return [
        {"op": "test", "path": f"{first}/name", "value": "bounds"},
        {"op": "replace", "path": f"{first}/expression", "value": json.dumps(bounds(pools))},
    ]


def text(pools: Iterable[PoolConfig]) -> str:
    """The file, for `patches` of a kustomization."""
    head = f"# Made by `gpushare autoscaler bounds`; target: ValidatingAdmissionPolicy {POLICY}.\n"
    return head + yaml.safe_dump(patch(pools), sort_keys=False, width=10_000)
