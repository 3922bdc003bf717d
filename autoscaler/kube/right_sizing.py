# SPDX-License-Identifier: Apache-2.0
"""
Right-sizing of a cluster: measurements become histories, histories become recommendations, which are published.

Decides how often, and what is believed of what an earlier leader wrote. Every replica follows the measurements, so that
its metrics are fresh; the leader writes one ConfigMap, also in a dry run: a recommendation changes no pod. What is
recommended is decided in `autoscaler.core.rightsizing`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from autoscaler.apis.metrics.core.readings import CardKey
from autoscaler.core.rightsizing.codec import HistoryError, decode, encode
from autoscaler.core.rightsizing.programs import MeasuredContainer, advance, recommend_all
from autoscaler.core.rightsizing.recommend import Abstained, EvidencePolicy
from autoscaler.kube.usage import Measured
from autoscaler.kube.usage_http import TellError
from isolation.contract.codec.recommendations import KEY, Recommended, encode_recommendations
from isolation.contract.metrics import autoscaler as catalogue
from isolation.contract.names import RIGHT_SIZING
from isolation.contract.text import printable
from isolation.kube.core.errors import NotFoundError
from isolation.kube.writes import decode_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autoscaler.core.observation import Observation
    from autoscaler.core.rightsizing.history import ProgramHistory, ProgramKey
    from autoscaler.kube.annotations import PodNote
    from autoscaler.kube.step_context import EventSink
    from autoscaler.kube.usage_http import Past
    from isolation.contract.codec.recommendations import ProgramRecommendation
    from isolation.contract.metrics import MetricSpec
    from isolation.contract.model import Node
    from isolation.kube.access import Access

log = logging.getLogger(__name__)
ROUND_SECONDS: Final = 60.0
"""Between two measurements of a container that count (VPA: a minute)."""
SAVE_SECONDS: Final = 600.0
"""Between two writes of the histories: what is lost with a leader is a few minutes of them."""
HISTORY_KEY: Final = "history"
_SECONDS: Final = 5.0
_PAST_SECONDS: Final = 40.0
"""For all that Prometheus is asked about the past."""
_NEW_SECONDS: Final = 600.0
"""An older pod's Event was written, or is of no more interest."""


class RightSizing:
    """Of one process."""

    def __init__(self, access: Access, namespace: str, policy: EvidencePolicy | None = None) -> None:
        self._access, self.policy = access, policy or EvidencePolicy()
        self._all = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._one = f"{self._all}/{RIGHT_SIZING}"
        self.histories: Mapping[ProgramKey, ProgramHistory] = {}
        self.programs: tuple[ProgramRecommendation, ...] = ()
        """The latest recommendations."""
        self.recommended = Recommended()
        """The same for new pods."""
        self._cards: dict[ProgramKey, int] = {}
        self._loaded: int | None = None
        """Epoch of the Lease for which the histories were read."""
        self._saved = float("-inf")
        self.unknown = False
        """No earlier leader has left anything."""

    async def backfill(self, observation: Observation, past: Past, nodes: Iterable[Node]) -> None:
        """
        What Prometheus knows of pods that run, on a first start; before the first round.

        Of pods that are gone nobody knows the workload. Trouble leaves what was learnt until then.
        """
        self.unknown = False
        models, hours = {card.uuid: card.model for node in nodes for card in node.cards}, 0
        found: Mapping[ProgramKey, ProgramHistory] = {}
        try:
            async with asyncio.timeout(_PAST_SECONDS):
                async for at, measured in past:
                    uses = find_uses(observation, Measured(uses=measured), models, past=True)
                    living = [use for use in uses if use.pod.created <= at]
                    found = advance(found, living, observation.pods, at)
                    hours += bool(living)
        except (TellError, TimeoutError) as exc:
            log.warning("cannot read all of the past usage: Prometheus %s", exc or "is too slow")
        self._take(found)
        log.info("read past usage from Prometheus: hours=%d, programs=%d", hours, len(found))

    def observe(self, observation: Observation, measured: Measured | None, nodes: Iterable[Node]) -> None:
        """One round of measurements; `nodes`: all of the cluster, those of no pool too."""
        models = {card.uuid: card.model for node in nodes for card in node.cards}
        uses = () if measured is None else tuple(find_uses(observation, measured, models))
        self.histories = advance(self.histories, uses, observation.pods, observation.at)
        self._cards |= {use.key: use.pod.request.cards for use in uses}
        self.programs = tuple(recommend_all(self.histories, self._cards, observation.at, self.policy))
        self.recommended = Recommended.of(self.programs)

    async def announce(self, observation: Observation, notes: Mapping[str, PodNote], events: EventSink) -> None:
        """An Event for each new pod that admission made smaller."""
        for pod in observation.pods.values():
            note = notes.get(pod.uid)
            if note is None or not note.right_sized or observation.at - pod.created > _NEW_SECONDS:
                continue
            text = explain_sized(note.right_sized)
            if text:
                await events.pod(pod.key, pod.uid, "RightSized", text)

    async def load(self, epoch: int, now: float) -> bool:
        """What an earlier leader knew, once for each right to act (`epoch`); whether it was. Raises ClusterError."""
        if self._loaded == epoch:
            return False
        await self._load(now)
        self._loaded = epoch
        return True

    async def publish(self, at: float, *, acts: bool) -> None:
        """Write the recommendations; `acts`: whether admission may apply them. Raises ClusterError."""
        data = {KEY: encode_recommendations(self.programs, at, applied=acts)}
        if at - self._saved >= SAVE_SECONDS:
            data[HISTORY_KEY] = encode(self.histories)
        body: dict[str, Any] = {"metadata": {"name": RIGHT_SIZING}, "data": data}
        try:
            await self._access.send("PATCH", self._one, body, "merge-patch", _SECONDS)
        except NotFoundError:
            body |= {"apiVersion": "v1", "kind": "ConfigMap"}
            await self._access.send("POST", self._all, body, "json", _SECONDS)
        if HISTORY_KEY in data:
            self._saved = at

    async def _load(self, now: float) -> None:
        """What an earlier leader knew, of programs of which we know less."""
        self.unknown = True
        try:
            found = decode_object(await self._access.send("GET", self._one, seconds=_SECONDS))
        except NotFoundError:
            return
        data = found.get("data")
        text = data.get(HISTORY_KEY) if isinstance(data, dict) else None
        if not isinstance(text, str):
            return
        self.unknown = False
        try:
            saved = decode(text, now)
        except HistoryError as exc:
            log.warning("cannot read usage history: starting from empty history: %s", exc)
            return
        self._take(saved)
        log.info("loaded usage history: programs=%d", len(saved))

    def _take(self, found: Mapping[ProgramKey, ProgramHistory]) -> None:
        """Histories of programs of which we know less."""
        ours = self.histories
        more = {key: one for key, one in found.items() if key not in ours or _knows_more(one, ours[key])}
        self.histories = {**ours, **more}

    def rows(self) -> dict[MetricSpec, dict[tuple[str, ...], float]]:
        """For a scrape; revisions of one program count as one."""
        memory: dict[tuple[str, ...], float] = {}
        compute: dict[tuple[str, ...], float] = {}
        freed: Counter[tuple[str, ...]] = Counter()
        abstained: Counter[tuple[str, ...]] = Counter({(why.value,): 0 for why in Abstained})
        for one in self.programs:
            if not one.replicas:
                continue
            labels = (one.namespace, one.owner, one.container, one.model)
            if one.abstained:
                abstained[one.abstained,] += 1
                continue
            memory[labels] = max(memory.get(labels, 0.0), float(one.memory_bytes))
            freed[labels] += one.freed_bytes
            if one.core:
                compute[labels] = max(compute.get(labels, 0.0), one.core / 100)
        return {
            catalogue.RECOMMENDED_MEMORY: memory,
            catalogue.RECOMMENDED_COMPUTE: compute,
            catalogue.RECOMMENDED_FREED: {labels: float(amount) for labels, amount in freed.items()},
            catalogue.RECOMMENDED_ABSTAINED: {labels: float(number) for labels, number in abstained.items()},
        }


def explain_sized(text: str) -> str:
    """The annotation in words; empty where it is none of admission's."""
    try:
        lines = [
            f"container {name} gets {int(one['got'])} of the {int(one['asked'])} units of memory that it requested: "
            f"{one['why']}"
            for name, one in json.loads(text).items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ""
    return printable("; ".join(lines))


def _knows_more(saved: ProgramHistory, ours: ProgramHistory) -> bool:
    def weight(history: ProgramHistory) -> float:
        return sum(life.observed for life in history.lives())

    return weight(saved) > weight(ours)


def find_uses(
    observation: Observation, measured: Measured, models: Mapping[str, str], *, past: bool = False
) -> Iterator[MeasuredContainer]:
    """
    Containers with shares of cards that were measured, by the promises of their pods; `models`: by card's UUID.

    `past`: by what was promised then.
    """
    for pod in observation.pods.values():
        if pod.placement is None or pod.request.whole or pod.deleting or pod.placement.node in measured.stale:
            continue
        for hold in pod.holds:
            use = measured.uses.get(CardKey(pod.namespace, pod.name, hold.container, hold.uuid))
            if use is not None and hold.bytes:
                yield MeasuredContainer(
                    pod,
                    hold.container,
                    hold.uuid,
                    models.get(hold.uuid, ""),
                    use.allocated_bytes if past and use.allocated_bytes is not None else hold.bytes,
                    use.used_bytes,
                    use.peak_bytes,
                    use.denied,
                    use.compute_seconds,
                )
