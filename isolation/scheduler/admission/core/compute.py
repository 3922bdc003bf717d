# SPDX-License-Identifier: Apache-2.0
"""
What a pod with shares says of its compute in the words of Alibaba's cGPU, translated into ours.

Decides about container variables alone; annotations are the codec's business. That `CGPU_DISABLE` is for namespaces
with the label `gpushare.dev/unisolated` only, the policies say: the webhook sees no labels of namespaces.

Source: Alibaba ACK, "Configure the computing power scheduling policy of cGPU" (`ALIYUN_COM_GPU_SCHD_WEIGHT`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import show
from isolation.contract.model import MAX_WEIGHT
from isolation.contract.names import CGPU_WEIGHT_ENV, WEIGHT
from isolation.scheduler.admission.core.pod_security import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.contract.codec.cursor import At

_WEIGHT: Final = re.compile(r"[1-9][0-9]{0,2}")


def compute_annotations(metadata: At, spec: At) -> dict[str, str]:
    """Annotations that say what the containers' variables say; none where the pod says it by annotation already."""
    if metadata["annotations"][WEIGHT]:
        return {}
    weights = {text for text in _weights(spec) if text}
    return {WEIGHT: weights.pop()} if len(weights) == 1 else {}


def find_compute_problems(metadata: At, spec: At) -> Iterator[str]:
    """Weights that cannot be translated."""
    said, stated = set(_weights(spec)), metadata["annotations"][WEIGHT]
    for text in sorted(said):
        if not _WEIGHT.fullmatch(text) or int(text) > MAX_WEIGHT:
            yield (
                f"variable {CGPU_WEIGHT_ENV} is {show(text)}; set a whole number from 1 to {MAX_WEIGHT} as its value, "
                f"or use annotation {WEIGHT}"
            )
            return
    if len(said) > 1:
        yield f"containers set different {CGPU_WEIGHT_ENV}; a pod has one weight: set one value, or annotation {WEIGHT}"
    elif said and stated and stated.text() not in said:
        yield f"variable {CGPU_WEIGHT_ENV} is {show(next(iter(said)))}, but annotation {WEIGHT} differs; remove one"


def _weights(spec: At) -> Iterator[str]:
    """Values of the variable; empty where it is set from elsewhere."""
    for kind in KINDS[:2]:
        for container in spec[kind].items():
            for item in container["env"].items():
                if item["name"].text() == CGPU_WEIGHT_ENV:
                    yield item["value"].text()
