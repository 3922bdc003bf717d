# SPDX-License-Identifier: Apache-2.0
"""Pods of every dialect into canonical ones: what they become, what is refused, and that twice is once."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admission_pods import CORE, COUNT, MEM, WHOLE, annotated, beside, labelled, main_of, plain, spec
from support.dialect_pods import CASES, KOORD, QGPU, asking, hami, kai

from isolation.contract.codec import CodecError, request_of
from isolation.contract.dialects import SYSTEMS, Offered, translate
from isolation.contract.model import Card, Request
from isolation.contract.names import (
    ASKED,
    AVOID_UUIDS,
    CORE_LIMIT,
    CORE_STEPS,
    DIALECT,
    ONLINE,
    TIME_SLICES,
    USE_MODELS,
)
from isolation.contract.quantity import GIB

ALL = frozenset(CORE_STEPS)


def offered(*gib: int, **more) -> Offered:
    """Every dialect on a fleet of cards of these sizes; none: not known."""
    sizes = frozenset(size * GIB for size in gib) if gib else None
    return Offered(ALL, lambda _rules, **_compute: sizes, **more)


def became(pod, known=None):
    """Cards, GiB and percent on each, and whether they are whole: of the canonical pod, as placement reads it."""
    found = translate(pod, known or offered(15))
    assert found.refusal is None
    request = request_of(found.metadata.value, found.spec.value)
    assert isinstance(request, Request)
    return request.cards, request.card_bytes // GIB, request.card_core, request.whole


@pytest.mark.parametrize("name", CASES)
def test_each_form_becomes_the_same_request_in_our_words(name):
    """
    As the system itself reads it; a percentage is of a card of 15 GiB.
    """
    pod, expected = CASES[name]
    assert expected == became(pod)


@pytest.mark.parametrize("name", CASES)
def test_nothing_foreign_is_left_and_twice_is_once(name):
    """
    Of a translated pod no name that asks is left, its owner's object is untouched, and another pass changes nothing.
    """
    pod, _ = CASES[name]
    before = copy.deepcopy(pod)
    once = translate(pod, offered(15))
    assert before == pod
    made = {"metadata": once.metadata.value, "spec": once.spec.value}
    twice = translate(made, offered(15))
    assert (made["metadata"], made["spec"], "") == (twice.metadata.value, twice.spec.value, twice.dialect)
    system = SYSTEMS[once.dialect]
    named = {key for one in made["spec"]["containers"] for part in one["resources"].values() for key in part}
    assert not named & {*system.resources}
    assert system.name == made["metadata"]["annotations"][DIALECT]
    asked = json.loads(made["metadata"]["annotations"][ASKED])
    assert asked["containers"] or asked["annotations"]
    assert "kai-scheduler" != made["spec"]["schedulerName"]


@pytest.mark.parametrize(
    "pod",
    [
        asking({f"{KOORD}": "200"}, spec(nodeSelector={TIME_SLICES: "4"})),
        asking({f"{QGPU}memory": "4", WHOLE: "1"}, spec(nodeSelector={TIME_SLICES: "4"})),
    ],
)
def test_what_would_be_time_slices_to_the_next_reader_is_refused(pod):
    """Two whole cards are not two slices: the webhook is called again after others have changed the pod."""
    refusal = translate(pod, offered(15)).refusal
    assert refusal is not None
    assert "where that is time slices" in refusal.reason
    tied = asking({KOORD: "200"})
    assert translate(tied, offered(15)).refusal is None
    assert translate(tied, offered(15, slices=frozenset({"4"}))).refusal is not None


REFUSED = {
    "two-dialects": (
        hami(lambda p: main_of(p)["resources"]["limits"].update({"volcano.sh/vgpu-number": "1"})),
        "HAMi and Vol",
    ),
    "hami-and-ack": (hami(lambda p: main_of(p)["resources"]["limits"].update({MEM: "1"})), "ACK"),
    "hami-and-count": (hami(labelled(COUNT, "2")), "ACK"),
    "hami-and-kai": (hami(annotated("gpu-fraction", "0.5")), "KAI"),
    "hami-requests-differ": (
        hami(lambda p: main_of(p)["resources"]["requests"].update({"nvidia.com/gpumem": "1"})),
        "make them equal",
    ),
    "hami-requests-only": (hami(lambda p: main_of(p)["resources"].pop("limits")), "set"),
    "hami-no-cards": (hami(gpu="0"), "of 1 or more"),
    "hami-zero-alone": (hami(gpu=None, gpucores=None, gpumem="0"), "nvidia.com/gpumem is 0"),
    "hami-percent-0": (hami(**{"gpumem": None, "gpumem-percentage": "0"}), "request 1 to 100"),
    "hami-gibibytes": (hami(gpumem="4Gi"), "counts 1 MiB each, so write 2048 for 2 GiB"),
    "hami-priority-alone": (hami(gpu=None, gpumem=None, gpucores=None, priority="0"), "needs nvidia.com/gpu"),
    "hami-65-cards": (hami(gpu="65"), "at most 64"),
    "hami-core-101": (hami(gpucores="101"), "at most 100"),
    "hami-huge": (hami(gpumem="9" * 39), "more than any machine has"),
    "hami-mode": (hami(annotated("nvidia.com/vgpu-mode", "mig")), "does not serve"),
    "hami-switch": (
        hami(lambda p: main_of(p).update(env=[{"name": "CUDA_DISABLE_CONTROL", "value": "true"}])),
        "switch limits off",
    ),
    "hami-counts": (
        hami(beside("containers", resources={"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1024"}})),
        "share one set of cards",
    ),
    "hami-pod-level": (hami(spec(resources={"limits": {"nvidia.com/gpumem": "1"}})), "move it to a container"),
    "hami-group": (hami(annotated("scheduling.k8s.io/group-name", "g")), "starts together"),
    "volcano-no-number": (asking({"volcano.sh/vgpu-memory": "1"}), "needs volcano.sh/vgpu-number"),
    "gpu-manager-150": (asking({"tencent.com/vcuda-core": "150", "tencent.com/vcuda-memory": "1"}), "100 or 200"),
    "gpu-manager-no-memory": (asking({"tencent.com/vcuda-core": "50"}), "needs tencent.com/vcuda-memory"),
    "qgpu-greedy-alone": (asking({f"{QGPU}core-greedy": "50", f"{QGPU}memory": "4"}), "belong together"),
    "qgpu-class": (
        asking({f"{QGPU}memory": "4"}, annotated("tke.cloud.tencent.com/app-class", "fast")),
        "online or offline",
    ),
    "vgpu-manager-links": (
        asking({"nvidia.com/vgpu-number": "2"}, annotated("nvidia.com/device-topology-mode", "link-strict")),
        "demands links",
    ),
    "kai-both": (kai(**{"gpu-fraction": "0.5", "gpu-memory": "1"}), "keep one"),
    "kai-fraction-2": (kai(**{"gpu-fraction": "2"}), "above 0 and up to 1"),
    "kai-fraction-0": (kai(**{"gpu-fraction": "0.0"}), "above 0"),
    "kai-devices-alone": (kai(**{"gpu-fraction-num-devices": "2"}), "needs gpu-fraction or gpu-memory"),
    "kai-empty": (kai(**{"gpu-fraction": ""}), "is empty"),
    "kai-no-container": (kai(**{"gpu-memory": "1", "gpu-fraction-container-name": "x"}), "no container"),
    "kai-no-containers": (asking({}, annotated("gpu-memory", "1"), spec(containers=[])), "no container asks"),
    "kai-devices-forged": (
        kai(**{"gpu-memory": "1", "nvidia.com/container.main.gpus.devices": "GPU-1"}),
        "scheduler's to write",
    ),
    "kai-sm": (
        kai(
            **{
                "nvidia.com/container.main.gpu-memory.request": "4Gi",
                "nvidia.com/container.main.gpu-compute.mode": "all",
            }
        ),
        "use time-slicing or sm-sharing",
    ),
    "kai-bytes": (kai(**{"nvidia.com/container.main.gpu-memory.request": "4000"}), "such as 4Gi"),
    "koordinator-no-memory": (asking({f"{KOORD}-core": "50"}), "memory is missing"),
    "koordinator-odd": (
        asking({f"{KOORD}.shared": "2", f"{KOORD}-core": "25", f"{KOORD}-memory": "8Gi"}),
        "multiple of 2",
    ),
    "time-slices-more": (asking({WHOLE: "5"}, spec(nodeSelector={TIME_SLICES: "4"})), "request fewer"),
    "same-names": (
        hami(lambda p: p["spec"]["containers"].append({"name": "main"})),
        "same name",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_with_what_to_write(name):
    """
    As a value, in the pod's own words, and the pod is as it was.
    """
    pod, words = REFUSED[name]
    found = translate(pod, offered(15))
    assert found.refusal is not None
    assert words in found.refusal.reason
    assert found.spec.value is pod["spec"]


@pytest.mark.parametrize(("sizes", "words"), [((15, 79), "15 GiB and 79 GiB"), ((), "not known yet")])
def test_a_part_of_a_card_needs_one_size_of_cards(sizes, words):
    """
    Otherwise it is refused with the amount to write instead.
    """
    found = translate(hami(gpumem=None), offered(*sizes))
    assert words in found.refusal.reason
    assert "nvidia.com/gpumem (MiB)" in found.refusal.reason


def test_two_halves_fit_a_card():
    """
    Also one with an odd number of units; the smallest part is one unit.
    """
    half = became(kai(**{"gpu-fraction": "0.5"}))
    assert 2 * half[1] <= 15
    assert 1 == became(kai(**{"gpu-fraction": "0.01"}))[1]


@pytest.mark.parametrize(
    "pod",
    [
        hami(annotated("nvidia.com/vgpu-mode", "mps")),
        asking({"volcano.sh/vgpu-number": "1"}, annotated("volcano.sh/vgpu-mode", "mps")),
        kai(
            **{
                "nvidia.com/container.main.gpu-memory.request": "4Gi",
                "nvidia.com/container.main.gpu-compute.mode": "sm-sharing",
            }
        ),
    ],
    ids=["hami", "volcano", "kai"],
)
def test_their_word_for_mps_selects_nodes_in_that_mode(pod):
    found = translate(pod, offered(15))
    assert {"ack.node.gpu.schedule": "mps"} == found.spec["nodeSelector"].mapping()
    assert request_of(found.metadata.value, found.spec.value).rules.mps


def test_words_without_an_amount_become_our_annotations():
    """
    Rules about cards, priority, and ceilings.
    """
    pod = hami(
        annotated("nvidia.com/use-gputype", "A100,H100"),
        annotated("nvidia.com/nouse-gpuuuid", "GPU-1"),
        priority="0",
    )
    notes = translate(pod, offered(15)).metadata.value["annotations"]
    assert ("A100,H100", "GPU-1", "true") == (notes[USE_MODELS], notes[AVOID_UUIDS], notes[ONLINE])
    vcuda = asking(
        {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"},
        annotated("tencent.com/vcuda-core-limit", "60"),
    )
    assert "60" == translate(vcuda, offered(15)).metadata.value["annotations"][CORE_LIMIT]


def test_a_dialect_that_is_off_or_left_to_its_system_changes_nothing():
    """
    Off: with a warning. A mixture with one that is off is refused all the same.
    """
    off = translate(hami(), Offered(frozenset({"ack"})))
    assert "" == off.dialect
    assert "dialect hami is off" in off.warnings[0]
    left = translate(hami(), offered(left=frozenset({("hami", "team")})), "team")
    assert ("", ()) == (left.dialect, left.warnings)
    mixed = hami(lambda p: main_of(p)["resources"]["limits"].update({"volcano.sh/vgpu-number": "1"}))
    assert translate(mixed, Offered(frozenset({"ack", "hami"}))).refusal is not None


def test_pods_in_our_words_and_whole_cards_are_left_alone():
    """
    Also with any number of annotations.
    """
    for pod in (plain(), asking({MEM: "3", CORE: "30"}), asking({WHOLE: "2"})):
        pod["metadata"]["annotations"] = {f"a{i}": "" for i in range(1000)}
        found = translate(pod, offered(15))
        assert found.spec.value is pod["spec"]
        assert found.metadata.value is pod["metadata"]


NOTHING = {
    "hami": hami(gpu="0", gpumem="0", gpucores="0"),
    "volcano": asking({"volcano.sh/vgpu-number": "0", "volcano.sh/vgpu-memory": "0"}),
    "gpu-manager": asking({"tencent.com/vcuda-core": "0", "tencent.com/vcuda-memory": "0"}),
    "qgpu": asking({f"{QGPU}core": "0"}),
    "koordinator": asking({f"{KOORD}-core": "0", f"{KOORD}-memory": "0"}),
    "vgpu-manager": asking({"nvidia.com/vgpu-number": "0"}),
}


@pytest.mark.parametrize("name", NOTHING)
def test_zero_of_everything_is_a_pod_without_cards(name):
    """
    As charts write it that switch GPUs off: the amounts go, and nothing else changes.
    """
    found = translate(NOTHING[name], offered(15))
    assert found.refusal is None
    request = request_of(found.metadata.value, found.spec.value)
    assert isinstance(request, Request)
    assert not request.shared
    assert not request.whole
    assert {"cpu", "memory"} >= main_of({"spec": found.spec.value})["resources"].get("limits", {}).keys()


def test_an_amount_of_zero_beside_a_count_is_one_that_is_not_named():
    """
    All of a card's memory, or the percentage of it, or no share of compute.
    """
    assert (1, 15, 30, False) == became(hami(gpumem="0"))
    assert (1, 7, 30, False) == became(hami(**{"gpumem": "0", "gpumem-percentage": "50"}))
    assert (1, 4, 0, False) == became(asking({f"{QGPU}core": "0", f"{QGPU}memory": "4"}))
    assert (1, 8, 0, False) == became(asking({f"{KOORD}-core": "0", f"{KOORD}-memory": "8Gi"}))


def test_an_empty_name_in_a_list_of_cards_is_left_out():
    """
    In HAMi it would be in the name of every card.
    """
    notes = translate(hami(annotated("nvidia.com/use-gputype", "A100, H100,")), offered(15)).metadata.value
    assert "A100,H100" == notes["annotations"][USE_MODELS]


@pytest.mark.parametrize(
    ("part", "cards"),
    [
        ("NVIDIA-NVIDIA L4", {"NVIDIA L4", "NVIDIA-L4"}),
        ("NVIDIA-Tesla T4", {"Tesla T4", "Tesla-T4"}),
        ("l4", {"NVIDIA L4", "NVIDIA-L4"}),
        ("A100", set()),
    ],
)
def test_a_card_model_is_found_by_any_name_that_its_system_has_for_it(part, cards):
    """
    HAMi puts `NVIDIA-` before the driver's name, node labels have hyphens for spaces.
    """
    found = translate(hami(annotated("nvidia.com/use-gputype", part)), offered(15))
    rules = request_of(found.metadata.value, found.spec.value).rules.cards
    models = {"NVIDIA L4", "NVIDIA-L4", "Tesla T4", "Tesla-T4"}
    assert cards == {name for name in models if rules.allow(Card("GPU-a", 0, GIB, model=name))}


def test_what_has_no_effect_is_said():
    """
    Every annotation by which these systems choose or limit what gpushare does not.
    """
    notes = {"gpu-fraction": "0.5", "gpu-fraction.limit": "1", "gpu-sm-percentage": "30"}
    assert 2 == sum("has no effect" in text for text in translate(kai(**notes), offered(15)).warnings)
    pod = asking({"nvidia.com/vgpu-number": "2"}, annotated("nvidia.com/device-topology-mode", "link"))
    assert ["annotation nvidia.com/device-topology-mode has no effect: the links between cards are not considered"] == [
        *translate(pod, offered(15)).warnings
    ]


def test_the_ceiling_of_a_pod_of_whole_cards_is_not_taken_over():
    """
    They are the vendor's, and nothing of them is limited.
    """
    pod = asking({"tencent.com/vcuda-core": "100"}, annotated("tencent.com/vcuda-core-limit", "100"))
    assert CORE_LIMIT not in translate(pod, offered(15)).metadata.value["annotations"]


NAMES = sorted({name for one in SYSTEMS.values() for name in (*one.resources, *one.implied)} | {MEM, CORE})
JUNK = st.one_of(
    st.none(), st.integers(-3, 300), st.sampled_from(["1", "50", "3k", "-1", "x", "1e9", "8Gi", ""]), st.just({})
)
AMOUNTS = st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=4)


@given(
    limits=AMOUNTS,
    requests=AMOUNTS,
    notes=st.dictionaries(
        st.sampled_from(["gpu-fraction", "gpu-memory", "nvidia.com/container.main.gpu-memory.limit", DIALECT]),
        st.sampled_from(["0.5", "1", "", "x", "4Gi"]),
    ),
    sizes=st.sampled_from([(), (15,), (15, 79)]),
)
def test_whatever_a_pod_says_it_is_translated_whole_or_refused(limits, requests, notes, sizes):
    """
    No other outcome: no foreign name is left in a pod that passes, and what passes is stable.
    """
    pod = plain()
    main_of(pod)["resources"] = {"limits": limits, "requests": requests}
    pod["metadata"]["annotations"] = notes
    try:
        found = translate(pod, offered(*sizes))
    except CodecError:
        return
    if found.refusal is not None or not found.dialect:
        return
    made = {"metadata": found.metadata.value, "spec": found.spec.value}
    again = translate(made, offered(*sizes))
    assert ("", None) == (again.dialect, again.refusal)
    assert made["spec"] == again.spec.value
