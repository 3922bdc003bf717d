# SPDX-License-Identifier: Apache-2.0
"""The small parts of the scheduler process: who waits, who leads, what it is reported, what it prints."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from support import scheduler_harness as world
from support.scheduler_endpoints import Desk
from support.waiting import PATIENCE_SECONDS, soon

from isolation.contract.metrics import Kind, Unit
from isolation.contract.metrics.scheduler import CATALOGUE, LABELS, TASK_FAILURES
from isolation.contract.names import ACK, SCHEDULER
from isolation.kube.core.lease import LeaseRecord, LeaseTiming
from isolation.kube.options import Address, parse_address
from isolation.scheduler.cli import scheduler
from isolation.scheduler.core import inspection, kube_scheduler_config
from isolation.scheduler.core.inspection import InspectedCard, InspectedNode, InspectedPod
from isolation.scheduler.core.unschedulable import MAX_PODS, UnschedulableQueue
from isolation.scheduler.leader import Leadership
from isolation.scheduler.metrics import Metrics
from isolation.scheduler.settings import SchedulerSettings

QUICK = LeaseTiming(duration=400.0, act=300.0, retry=0.05, request=50.0)


def uids(found):
    """In order."""
    return [one.pod.uid for one in found]


def test_a_pod_refused_before_room_became_free_is_woken_once():
    """
    Not before kube-scheduler had its chance, not if it was asked about since, not again at once.
    """
    waiting = UnschedulableQueue()
    waiting.add(world.pod("early"), ("n",), 10.0)
    waiting.note_freed(11.0)
    waiting.add(world.pod("late"), ("n",), 12.0)

    assert [] == uids(waiting.to_requeue(11.1))
    assert ["early"] == uids(waiting.to_requeue(13.0))
    waiting.mark_requeued("early", 13.0)
    assert [] == uids(waiting.to_requeue(14.0))
    assert ["early"] == uids(waiting.to_requeue(19.0))
    waiting.add(world.pod("early"), ("n",), 20.0)
    assert [] == uids(waiting.to_requeue(30.0))


def test_an_answer_that_nobody_waited_for_does_not_let_a_pod_sleep():
    """
    It is refused, cards become free, and a request that kube-scheduler has given up is answered "fits": the pod is
    requeued all the same, and nobody is evicted for it.
    """
    waiting = UnschedulableQueue()
    waiting.add(world.pod("late"), ("n-0",), 10.0)
    waiting.note_freed(10.1)
    waiting.note_fit("late")
    waiting.note_fit("unknown")
    assert ["late"] == uids(waiting.to_requeue(10.6))
    assert [] == list(waiting.to_preempt_for(20.0))


def test_who_matters_most_is_helped_first():
    """
    By priority, then by age; only pods that a pre-emption could help, and only after a moment.
    """
    waiting = UnschedulableQueue()
    for uid, priority, created in (("b", 0, 5.0), ("a", 0, 6.0), ("high", 9, 7.0)):
        waiting.add(world.pod(uid, priority=priority, created=created), ("n",), 10.0)
    waiting.add(world.pod("hopeless"), (), 10.0)

    assert [] == uids(waiting.to_preempt_for(10.1))
    assert ["high", "b", "a"] == uids(waiting.to_preempt_for(11.0))
    waiting.remove("b")
    assert ["high", "a"] == uids(waiting.to_preempt_for(11.0))


def test_the_memory_of_waiting_pods_is_bounded():
    """
    The one asked about longest ago is forgotten first.
    """
    waiting = UnschedulableQueue()
    for i in range(MAX_PODS + 2):
        waiting.add(world.pod(str(i)), ("n",), float(i))

    assert MAX_PODS == len(waiting)
    assert not {"0", "1"} & set(uids(waiting.to_preempt_for(1e9)))


class Looked(Desk):
    """Another's Lease; counts the looks at it."""

    looks = 0

    async def read(self, seconds):
        """As it is."""
        self.looks += 1
        return await super().read(seconds)


def leading(desk, **more):
    """A candidate in a hurry."""
    return Leadership(desk, "me_1", terms=QUICK, **more)


def test_a_candidate_leads_only_beside_its_own_scheduler():
    """
    Another host's kube-scheduler leads: we only look. It moves here: we take the Lease; it moves away: we give it back.
    """

    async def story():
        ours, theirs = Desk(LeaseRecord("1", "", 1.0, 0)), Looked(LeaseRecord("1", "other_x", 5.0, 0))
        leadership = leading(ours, beside=theirs, host="me")
        running = asyncio.create_task(leadership.run())
        await soon(lambda: theirs.looks > 1)
        before = leadership.fence(), ours.record.holder
        theirs.record = LeaseRecord("2", "me_abc", 5.0, 1)
        assert await leadership.wait(PATIENCE_SECONDS)
        during = ours.record.holder
        theirs.record = LeaseRecord("3", "another_abc", 5.0, 2)
        await soon(lambda: not ours.record.holder and leadership.fence() is None)
        after = leadership.fence(), ours.record.holder
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return before, during, after

    before, during, after = asyncio.run(story())
    assert (None, "") == before
    assert "me_1" == during
    assert (None, "") == after


def test_the_lease_lapses_while_something_that_was_sent_may_still_take_effect():
    """
    The kube-scheduler has moved away in mid-bind: we stop acting, and the next holder has to wait.
    """

    async def story():
        ours, theirs = Desk(LeaseRecord("1", "", 1.0, 0)), Desk(LeaseRecord("1", "me_abc", 5.0, 0))
        leadership = leading(ours, beside=theirs, host="me")
        asked = []
        leadership.release_when(lambda: asked.append(None))
        running = asyncio.create_task(leadership.run())
        assert await leadership.wait(PATIENCE_SECONDS)
        theirs.record = LeaseRecord("2", "another_abc", 5.0, 1)
        await soon(lambda: asked and leadership.fence() is None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return leadership.fence(), ours.record.holder

    assert (None, "me_1") == asyncio.run(story())


def test_a_host_whose_name_begins_like_ours_is_another():
    """
    `me-2` is not `me`.
    """

    async def story():
        theirs = Looked(LeaseRecord("1", "me-2_x", 5.0, 0))
        leadership = leading(Desk(LeaseRecord("1", "", 1.0, 0)), beside=theirs, host="me")
        running = asyncio.create_task(leadership.run())
        await soon(lambda: theirs.looks > 1)
        led = await leadership.wait(0.1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return led

    assert not asyncio.run(story())


def test_the_lease_is_given_back_at_the_end():
    """
    The next one need not wait for it to run out.
    """

    async def story():
        desk = Desk(LeaseRecord("1", "", 1.0, 0))
        leadership = leading(desk)
        running = asyncio.create_task(leadership.run())
        assert await leadership.wait(PATIENCE_SECONDS)
        held = desk.record.holder
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return held, desk.record.holder, leadership.fence()

    assert ("me_1", "", None) == asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", None),
        ("127.0.0.1:8442", Address("127.0.0.1", 8442)),
        ("[::1]:80", Address("::1", 80)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_addresses(text, expected):
    """
    As people write them; and they are printed the same way.
    """
    assert expected == parse_address(text)
    assert expected is None or text == str(expected)


@pytest.mark.parametrize("text", ["", "8442", ":8442", "a:b", "a:65536", "a:-1", "a:", "a:٣"])
def test_what_is_no_address_says_how_to_write_one(text):
    """
    Never a port that nobody meant.
    """
    with pytest.raises(ValueError, match=r"0\.0\.0\.0:9448"):
        parse_address(text)


def test_every_mistake_is_said_at_once():
    """
    An open sidecar, TLS without a certificate, unknown policy, odd Lease names: one message with what to do.
    """
    settings = SchedulerSettings(
        admission=Address("0.0.0.0", 8443),  # noqa: S104 (that is the point)
        extender=Address("0.0.0.0", 8441),  # noqa: S104
        sidecar=Address("0.0.0.0", 8442),  # noqa: S104
        policy="magic",
        kube_scheduler_lease="No Lease",
    )

    said = list(settings.problems())

    words = ("--tls-cert", "needs --extender-client-ca", "loopback", "magic", "--kube-scheduler-lease")
    assert len(words) == len(said)
    assert all(word in line for word, line in zip(words, said, strict=True)), said
    alone = SchedulerSettings(
        sidecar=Address("127.0.0.1", 1), admission_client_ca=Path("a"), extender_client_ca=Path("b")
    )
    assert ["--admission-client-ca", "--extender-client-ca"] == [line.split()[0] for line in alone.problems()]
    assert [] == list(SchedulerSettings(sidecar=Address("127.0.0.1", 1)).problems())


def test_bad_options_end_with_status_two():
    """
    Before anything is opened.
    """
    done = CliRunner().invoke(scheduler, ["--extender-listen", "0.0.0.0:1", "--admission-listen", "none"])

    assert 2 == done.exit_code
    assert "loopback" in done.output


def test_the_configuration_beside_us_is_what_the_design_says():
    """
    Our name, every node scored, our resources counted in-tree too, a Lease that is followed in time.
    """
    printed = yaml.safe_load(CliRunner().invoke(scheduler, ["config"]).output)

    assert kube_scheduler_config.sidecar_config() == printed
    assert (100, SCHEDULER) == (printed["percentageOfNodesToScore"], printed["profiles"][0]["schedulerName"])
    entry = printed["extenders"][0]
    assert "http://127.0.0.1:8442/extender" == entry["urlPrefix"]
    assert {ACK.memory, ACK.compute} == {one["name"] for one in entry["managedResources"]}
    assert [False, False] == [one["ignoredByScheduler"] for one in entry["managedResources"]]
    assert (True, False) == (entry["nodeCacheCapable"], entry["ignorable"])
    assert "shortlist" == entry["filterVerb"]
    election = printed["leaderElection"]
    assert ("5s", "3s", "1s") == tuple(election[key] for key in ("leaseDuration", "renewDeadline", "retryPeriod"))


def test_a_kube_scheduler_whose_extender_is_gone_is_ended():
    """
    The manifest: the liveness of the container beside ours is what ours says, after time enough for one restart.
    """
    path = Path(__file__).resolve().parents[3] / "manifests" / "base" / "scheduler" / "deployment.yaml"
    containers = {c["name"]: c for c in yaml.safe_load(path.read_text())["spec"]["template"]["spec"]["containers"]}
    probe = containers["kube-scheduler"]["livenessProbe"]
    port = next(p["containerPort"] for p in containers["gpushare"]["ports"] if p["name"] == "metrics")

    assert {"path": "/healthz", "port": port} == probe["httpGet"]
    assert 15 < probe["periodSeconds"] * probe["failureThreshold"] <= 60


def test_an_existing_scheduler_comes_with_certificates():
    """
    TLS with the authority named: without one kube-scheduler would verify nothing.
    """
    entry = yaml.safe_load(CliRunner().invoke(scheduler, ["config", "--existing-scheduler"]).output)["extenders"][0]

    assert entry["enableHTTPS"]
    assert "filter" == entry["filterVerb"]  # another extender may come after us: it gets every node that fits
    assert entry["urlPrefix"].startswith("https://")
    assert {"caFile", "certFile", "keyFile", "serverName"} == set(entry["tlsConfig"])


def test_the_classic_inspect_answer():
    """
    As tools know it; an unknown node is an error in the answer.
    """
    card = InspectedCard(1, "GPU-x", 15, 7, (InspectedPod("p", "ml", 7),))
    nodes = [InspectedNode("a", (card,)), InspectedNode("b", ())]

    everything = json.loads(inspection.encode_inspection(nodes))

    dev = {"id": 1, "totalGPU": 15, "usedGPU": 7, "pods": [{"name": "p", "namespace": "ml", "usedGPU": 7}]}
    assert {"name": "a", "totalGPU": 15, "usedGPU": 7, "devs": [dev]} == everything["nodes"][0]
    assert (2, "") == (len(everything["nodes"]), everything["error"])
    assert ["b"] == [node["name"] for node in json.loads(inspection.encode_inspection(nodes, "b"))["nodes"]]
    assert "c" in json.loads(inspection.encode_inspection(nodes, "c"))["error"]


def test_metrics_are_those_of_the_catalogue():
    """
    Types, labels and help; what is unknown is absent.
    """
    metrics = Metrics()
    specs = (spec for spec in CATALOGUE.values() if spec.kind is Kind.GAUGE or "_admission_" in spec.name)
    gauges = {spec: {tuple("x" for _ in spec.labels): 1.0} for spec in specs}
    metrics.add_gauges(lambda: gauges | {TASK_FAILURES: {("x",): 1.0}})
    metrics.count_request("filter", "fit", 0.001)
    metrics.count_preemption("done")
    metrics.count_eviction("done")
    metrics.count_requeue("")

    families = {f.name: f for f in text_string_to_metric_families(metrics.page().decode())}

    for name, spec in CATALOGUE.items():
        found = families[name.removesuffix("_total")]
        assert (spec.kind.value, spec.help) == (found.type, found.documentation)
        assert set(spec.labels) <= set(found.samples[0].labels)


def test_the_catalogue_keeps_its_rules():
    """
    Units and kinds in the names, every label explained and used, every series in the handbook.
    """
    handbook = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
    for name, spec in CATALOGUE.items():
        assert (spec.kind is Kind.COUNTER) == name.endswith("_total")
        assert not spec.unit or name.endswith(spec.unit)
        assert spec.unit in (Unit.NONE, Unit.SECONDS, Unit.BYTES)
        assert f"`{name}`" in handbook
    assert set(LABELS) == {label for spec in CATALOGUE.values() for label in spec.labels}
