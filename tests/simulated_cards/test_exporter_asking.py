# SPDX-License-Identifier: Apache-2.0
"""
Whom the exporter asks of a node's pods, and how often: by the stand-in kubelet's own count.
"""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("pynvml")
pytest.importorskip("grpc")
from support.fake_kubelet import FakeKubelet
from support.node_harness import exporter_node
from support.waiting import PATIENCE_SECONDS

from exporter.sources import pod_resources


def test_pod_by_pod_where_our_agent_keeps_the_node(monkeypatch):
    """
    Never List there: it can make the kubelet hand out devices twice. Each pod once, from then on one of them a turn
    (so that a kubelet that is gone is noticed) and not all of them.
    """
    monkeypatch.setattr(pod_resources, "ASKING_SECONDS", PATIENCE_SECONDS)
    with exporter_node("t4") as world:
        for at in range(5):
            pod = world.pod(f"pod-{at}", {"main": {0: 1}})
            world.kubelet.add(pod.namespace, pod.name, {"main": {"aliyun.com/gpu-mem": [f"{world.uuids[0]}-_-{at}"]}})
        world.run_once()
        assert 5 == world.kubelet.calls["Get"]
        for _ in range(9):
            world.run_once()

        assert 5 + 9 <= world.kubelet.calls["Get"] < 5 * 10 / 2  # an answer may have come too late on a busy machine
        assert 0 == world.kubelet.calls["List"]


def test_all_at_once_where_no_agent_does():
    """One List a turn, whatever the number of pods."""
    with exporter_node("t4") as world:
        shutil.rmtree(world.run_dir / "alloc")
        for at in range(5):
            world.whole(f"pod-{at}", [0])
        answered = sum(world.run_once().snapshot.kubelet.ok for _ in range(3))

        assert answered
        assert (answered, 0) == (world.kubelet.calls["List"], world.kubelet.calls["Get"])


def test_not_at_all_while_nobody_knows_which():
    """Until promises can be read it is not known whether there is an agent: the kubelet is left alone."""
    with exporter_node("t4") as world:
        boot = world.tree.proc / "sys/kernel/random/boot_id"
        boot.rename(boot.with_name("away"))
        cycle = world.run_once()
        assert not cycle.snapshot.promises.ok
        assert "not queried" in cycle.snapshot.kubelet.error
        assert 0 == sum(world.kubelet.calls.values())
        boot.with_name("away").rename(boot)
        assert world.run_once().snapshot.kubelet.ok


def test_a_machine_without_a_kubelet():
    """Its folder is not there: no such collector. A kubelet that is installed later is found without a restart."""
    with exporter_node("t4") as world:
        folder = world.kubelet.socket.parent
        world.kubelet.gone()
        folder.rename(folder.with_name("away"))
        with exporter_node("t4", kubelet_socket=world.kubelet.socket) as plain:
            cycle = plain.run_once()
            assert (None, None) == (cycle.snapshot.kubelet, cycle.snapshot.identities)
            folder.with_name("away").rename(folder)
            world.kubelet.back()
            assert plain.run_once().snapshot.kubelet.ok


def test_names_from_the_pods_api_where_there_is_one():
    """A process of a pod that only the kubelet knows of: named by the pods API, in the turn in which it appears."""
    with exporter_node("t4", kubelet=FakeKubelet(pods_api=True)) as world:
        shutil.rmtree(world.run_dir / "alloc")
        world.run_once()
        pod = world.whole("train", [0])
        world.kubelet.pods[pod.namespace, pod.name, pod.uid].ids = {
            name: f"containerd://{ident}" for name, ident in pod.containers.items()
        }
        shutil.rmtree(world.tree.links)
        process = world.process(pod, "main", gib=2)
        world.adds_up({("train", "main", 0): (process,)})
        assert "pods-api" == world.run_once().snapshot.identities.value.source


@pytest.mark.parametrize("pods", [1, 6])
def test_samples_stay_within_their_budget(pods):
    """At most 11 for each container and card, 60 for each card and 60 besides."""
    with exporter_node("t4", "t4") as world:
        for at in range(pods):
            world.pod(f"pod-{at}", {"main": {0: 1, 1: 1}}, policy="fixed", core=10)
        for _ in range(3):
            world.run_once()
        found = sum(len(series) for series in world.samples().values())

        assert found <= 11 * 2 * pods + 60 * 2 + 60
