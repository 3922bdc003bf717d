# SPDX-License-Identifier: Apache-2.0
"""
Running pods that are resized: one annotation each, on the very pod that the plan was made from.

Decides how a step is written down. Whether there is room is decided by the scheduler, which books it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoscaler.kube.core.conditions import ConditionKind
from autoscaler.kube.step_context import RefusedStepError
from isolation.contract.codec.resize import encode_wanted_memory
from isolation.contract.names import RESIZE
from isolation.contract.right_size import RightSize
from isolation.kube.core.errors import ConflictError, NotFoundError
from isolation.kube.writes import PodRef

if TYPE_CHECKING:
    from autoscaler.core.plan import ResizePod
    from autoscaler.kube.observe.observed_cluster import ObservedCluster
    from autoscaler.kube.step_context import StepContext


async def resize_pod(context: StepContext, step: ResizePod, seen: ObservedCluster) -> None:
    """Ask for it; RefusedStepError where the pod is another one by now."""
    pod, note = seen.observation.pods.get(step.pod), context.sources.notes.of_pod.get(step.pod)
    allowed = note is not None and note.wish is not None and note.wish.bounds.mode is RightSize.LIVE
    if pod is None or note is None or not allowed or pod.placement is None:
        raise RefusedStepError(ConditionKind.CONFLICT, f"pod {step.pod} is gone, or must not be resized any more")
    cards, container = len(pod.placement.slices), step.trial.container
    wanted = encode_wanted_memory(container, step.card_bytes, step.reserved_bytes, cards, context.unit_bytes)
    meta = {"uid": pod.uid, "resourceVersion": note.version, "annotations": {RESIZE: wanted}}
    path = f"{PodRef(pod.namespace, pod.name, pod.uid).path}/status"
    try:
        await context.write("PATCH", path, {"metadata": meta}, "merge-patch")
    except (ConflictError, NotFoundError):
        raise RefusedStepError(ConditionKind.CONFLICT, f"pod {pod.key} has changed in the meantime") from None
    await context.events.pod(pod.key, pod.uid, "RightSized", step.reason)
