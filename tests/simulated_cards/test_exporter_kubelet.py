# SPDX-License-Identifier: Apache-2.0
"""
The kubelet source against a stand-in kubelet that speaks real gRPC, with its manners and its faults.
"""

from __future__ import annotations

import contextlib

import grpc
import pytest
from support.fake_kubelet import FakeKubelet
from support.waiting import PATIENCE_SECONDS, until

from exporter.pipeline.snapshot import DeviceGrant
from exporter.sources import pod_resources
from exporter.sources.errors import SourceError
from exporter.sources.pod_resources import ASKED_AT_ONCE, KEPT_SECONDS, KubeletSource

GPU, MEM = "nvidia.com/gpu", "aliyun.com/gpu-mem"
POD = ("ml", "train-0", "u0")


@pytest.fixture
def kubelet():
    """A kubelet with one pod."""
    with FakeKubelet() as made:
        made.add("ml", "train-0", {"main": {GPU: ["GPU-1", "GPU-2"]}, "sidecar": {}})
        yield made


@pytest.fixture
def source(kubelet):
    """The source on it."""
    made = KubeletSource(kubelet.socket, PATIENCE_SECONDS)
    yield made
    made.close()


@pytest.fixture
def unhurried(monkeypatch):
    """A reading asks for as long as it takes, also on a busy machine."""
    monkeypatch.setattr(pod_resources, "ASKING_SECONDS", PATIENCE_SECONDS)


def many(kubelet, count):
    """So many pods with one card each, and how they are asked for."""
    for at in range(count):
        kubelet.add("ml", f"p{at}", {"main": {GPU: [f"GPU-{at}"]}})
    return [("ml", f"p{at}", f"u{at}") for at in range(count)]


def test_list_tells_every_container_once_per_resource(kubelet, source):
    """
    However many entries and IDs the kubelet makes of it; containers without devices have no grant.
    """
    kubelet.add("ml", "share", {"a": {MEM: ["G-_-1", "G-_-2", "G-_-1"]}, "b": {MEM: ["G-_-3"], GPU: ["GPU-9"]}})
    expected = {
        DeviceGrant("ml", "train-0", "main", GPU, ("GPU-1", "GPU-2")),
        DeviceGrant("ml", "share", "a", MEM, ("G-_-1", "G-_-2")),
        DeviceGrant("ml", "share", "b", MEM, ("G-_-3",)),
        DeviceGrant("ml", "share", "b", GPU, ("GPU-9",)),
    }
    facts = source.read(0.0)
    assert (expected, len(expected), frozenset()) == (set(facts.grants), len(facts.grants), facts.unanswered)
    assert {"List": 1} == kubelet.calls


def test_dynamic_resources_are_grants_of_their_claim(kubelet, source):
    """
    Driver, pool, device and share, as far as they are reported.
    """
    kubelet.add("ml", "dra", {"main": {}}, claims={"main": [("one", "gpu.nvidia.com", "node-1", "gpu-3")]})
    grants = [grant for grant in source.read(0.0).grants if grant.pod == "dra"]
    assert [DeviceGrant("ml", "dra", "main", "claim:ml/one", ("gpu.nvidia.com/node-1/gpu-3",))] == grants


def test_single_pods_are_asked_for_without_a_list(kubelet, source):
    """
    List can make a kubelet hand out IDs twice: where our agent keeps the node it is never called.
    """
    facts = source.read(0.0, [POD])
    assert [DeviceGrant("ml", "train-0", "main", GPU, ("GPU-1", "GPU-2"))] == list(facts.grants)
    assert {"Get": 1} == kubelet.calls


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND])
@pytest.mark.usefixtures("unhurried")
def test_a_pod_that_has_ended_has_nothing(kubelet, source, code):
    """
    Kubelets say so with a code or in words; it is an answer, not a failure.
    """
    kubelet.not_found = code
    kubelet.end("ml", "train-0")
    facts = source.read(0.0, [POD, ("ml", "never-was", "u1")])
    assert ((), frozenset()) == (facts.grants, facts.unanswered)


@pytest.mark.usefixtures("unhurried")
def test_an_answer_with_devices_stands_and_an_empty_one_is_asked_again(kubelet, source):
    """
    Devices are fixed at admission; an empty answer may be an admission under way.
    """
    kubelet.add("ml", "z-late", {"main": {}})
    asked = [POD, ("ml", "z-late", "u1")]
    source.read(0.0, asked)
    kubelet.pods["ml", "z-late", ""].containers["main"] = {GPU: ["GPU-7"]}
    kubelet.calls.clear()
    facts = source.read(2.0, asked)
    assert {"train-0", "z-late"} == {grant.pod for grant in facts.grants}
    assert {"Get": 1} == kubelet.calls
    kubelet.calls.clear()
    source.read(2.0 + KEPT_SECONDS, asked)
    assert {"Get": 2} == kubelet.calls


def test_a_successor_of_the_same_name_is_asked_for_again(kubelet, source):
    """
    What its predecessor had is not its.
    """
    source.read(0.0, [POD])
    kubelet.pods["ml", "train-0", ""].containers = {"main": {GPU: ["GPU-5"]}}
    facts = source.read(2.0, [("ml", "train-0", "another-uid")])
    assert [("GPU-5",)] == [grant.device_ids for grant in facts.grants]


def test_who_is_not_asked_for_is_forgotten(kubelet, source):
    """
    A pod that no hold names any more is gone within one reading.
    """
    source.read(0.0, [POD])
    facts = source.read(2.0, [])
    assert ((), {}) == (facts.grants, source._answers)
    assert kubelet.calls == {"Get": 1}


def test_a_start_with_many_pods_keeps_below_the_kubelets_limit(kubelet, source):
    """
    A few readings answer for all of 120 pods, and nobody else is locked out meanwhile.
    """
    asked, turns = many(kubelet, 120), 0
    while (facts := source.read(float(turns), asked)).unanswered and turns < 60:
        turns += 1
        assert len({grant.pod for grant in facts.grants}) + len(facts.unanswered) == 120
    assert 120 == len(facts.grants)
    assert kubelet.calls["Get"] <= 120 + turns


def test_a_rejection_is_neither_nothing_nor_a_failure_of_the_rest(kubelet, source):
    """
    The kubelet's limit is everybody's: who cannot be asked is unanswered, what is known stays.
    """
    source.read(0.0, [POD])
    kubelet.refuse = -1
    facts = source.read(2.0, [POD, ("ml", "new", "u1")])
    assert (["train-0"], {("ml", "new")}) == ([grant.pod for grant in facts.grants], facts.unanswered)


def test_a_short_rejection_is_waited_out(kubelet, source):
    """
    With List too: a call or two refused are not worth a gap.
    """
    kubelet.refuse = 2
    assert 1 == len(source.read(0.0).grants)
    kubelet.refuse = 2
    assert 1 == len(source.read(2.0, [POD]).grants)


def test_a_limit_that_lasts_is_a_failure(kubelet, source):
    """
    Absent, not empty: with List at once, pod by pod once no answer stands any more.
    """
    kubelet.refuse = -1
    with pytest.raises(SourceError, match="rate limit"):
        source.read(0.0)
    with pytest.raises(SourceError, match="rejects every call"):
        source.read(0.0, [POD])
    kubelet.refuse = 0
    source.read(0.0, [POD])
    kubelet.refuse = -1
    with pytest.raises(SourceError, match="rejects every call"):
        source.read(3 * KEPT_SECONDS, [POD])


@pytest.mark.parametrize("pods", [None, [POD]])
def test_a_slow_kubelet_costs_a_deadline_and_nothing_else(kubelet, pods):
    """
    The reading ends in an error though there is never an answer, and a later one is right again.
    """
    source = KubeletSource(kubelet.socket, 0.5)
    kubelet.delay = 3600
    with pytest.raises(SourceError, match=r"timed out after 0.5 s"):
        source.read(0.0, pods)
    kubelet.delay = 0

    def right():
        with contextlib.suppress(SourceError):
            return source.read(2.0, pods).grants

    assert until(right)
    source.close()


@pytest.mark.parametrize("pods", [None, [POD], []])
def test_a_kubelet_that_is_gone_is_an_error_and_comes_back(kubelet, source, pods):
    """
    Also when every answer would still stand; recovery needs no restart.
    """
    before = source.read(0.0, pods)
    kubelet.gone()
    for turn in range(3):
        with pytest.raises(SourceError, match="kubelet"):
            source.read(2.0 + turn, pods)
    kubelet.back()
    assert before == source.read(10.0, pods)


def test_a_socket_on_which_nobody_listens_says_so(tmp_path):
    """
    Nothing there, and something there that is no server.
    """
    with pytest.raises(SourceError, match="No such file"):
        KubeletSource(tmp_path / "none.sock", PATIENCE_SECONDS).read(0.0)
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="nothing listens"):
        KubeletSource(tmp_path / "file", PATIENCE_SECONDS).read(0.0)


def test_a_kubelet_without_get_names_the_version(kubelet, source):
    """
    The feature gate was off by default before 1.34.
    """
    kubelet.get_disabled = True
    with pytest.raises(SourceError, match=r"1\.34"):
        source.read(0.0, [POD])


def test_what_is_reported_is_bounded(kubelet, source):
    """
    A device plugin may name its devices as it likes; long names end somewhere.
    """
    kubelet.add("ml", "long", {"main": {"x" * 5000: ["y" * 5000]}})
    grant = next(grant for grant in source.read(0.0).grants if grant.pod == "long")
    assert (253, 253) == (len(grant.resource), len(grant.device_ids[0]))


@pytest.mark.usefixtures("unhurried")
def test_the_burst_is_left_to_others(kubelet, source):
    """
    A reading asks fewer pods at once than the kubelet grants to everybody together.
    """
    source.read(0.0, many(kubelet, ASKED_AT_ONCE))
    other = KubeletSource(kubelet.socket, PATIENCE_SECONDS)
    assert other.read(0.0).grants
    other.close()
    assert {"Get": ASKED_AT_ONCE, "List": 1} == kubelet.calls


def test_a_sluggish_kubelet_is_not_asked_for_everybody_at_once(kubelet, source):
    """
    Each call in time, and still the reading ends: the rest is unanswered until the next ones.
    """
    asked, kubelet.delay = many(kubelet, 8), 0.3
    facts = source.read(0.0, asked)
    assert 1 <= kubelet.calls["Get"] <= 2
    assert (8, kubelet.calls["Get"]) == (len(facts.grants) + len(facts.unanswered), len(facts.grants))


def test_an_answer_beyond_all_measure_is_an_error_and_no_rate_limit(kubelet, source):
    """
    Memory is bound_label, and asking again would not help.
    """
    kubelet.add("ml", "huge", {"main": {GPU: ["x" * (17 << 20)]}})
    with pytest.raises(SourceError, match="larger than max"):
        source.read(0.0)
    assert {"List": 1} == kubelet.calls


@pytest.mark.parametrize("pods", [None, [POD]])
def test_a_restarted_kubelet_is_not_missed_once(kubelet, source, pods):
    """
    The connection is broken and a new socket is there: the very next reading finds it.
    """
    for turn in range(10):
        assert 1 == len(source.read(2.0 * turn, pods).grants)
        kubelet.gone()
        kubelet.back()
