"""
The stand-in kubelet has a real one's manners and faults, as reference recordings of kubelet 1.36 show them.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from device_manager import Box, DeviceManager, ManagedPod

from isolation.contract import kubelet_api as api

RESOURCE = "test.dev/part"


class Scripted:
    """A plugin that says what the test wants; nothing of the code under test."""

    def __init__(self, kubelet, per_card=8, cards=2):
        self.kubelet = kubelet
        self.ids = [f"GPU-{card}-_-{i}" for card in range(cards) for i in range(per_card)]
        self.prefer = lambda available, must, size: [*must, *(i for i in available if i not in must)][:size]
        self.allocate_error = self.prestart_error = ""
        self.hold = 0.0
        self.preferred, self.allocated, self.prestarted = [], [], []
        self.over = threading.Event()
        self.server = None

    def __enter__(self):
        self.serve()
        return self

    def __exit__(self, *_):
        self.leave()

    def serve(self):
        """Serve and register."""
        unary = {
            "GetPreferredAllocation": (self._prefer, api.PreferredAllocationRequest),
            "Allocate": (self._allocate, api.AllocateRequest),
            "PreStartContainer": (self._prestart, api.PreStartContainerRequest),
        }
        write = lambda message: message.SerializeToString()  # noqa: E731
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(answer, asked.FromString, write)
            for name, (answer, asked) in unary.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._watch, api.Empty.FromString, write)
        self.over.clear()
        self.server = grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(api.PLUGIN, handlers),))
        self.server.add_insecure_port(f"unix:{self.kubelet.plugins}/scripted.sock")
        self.server.start()
        options = {"pre_start_required": True, "get_preferred_allocation_available": True}
        with grpc.insecure_channel(f"unix:{self.kubelet.plugins}/kubelet.sock") as channel:
            register = channel.unary_unary(api.REGISTER, write, api.Empty.FromString)
            register(
                api.RegisterRequest(
                    version="v1beta1", endpoint="scripted.sock", resource_name=RESOURCE, options=options
                )
            )

    def leave(self):
        """End the connection."""
        self.over.set()
        self.server.stop(None).wait()

    def _watch(self, _request, context):
        yield api.ListAndWatchResponse(devices=[{"ID": one, "health": "Healthy"} for one in self.ids])
        while context.is_active() and not self.over.wait(0.02):
            pass

    def _prefer(self, request, _context):
        one = request.container_requests[0]
        asked = list(one.available_deviceIDs), list(one.must_include_deviceIDs), one.allocation_size
        self.preferred.append(asked)
        return api.PreferredAllocationResponse(container_responses=[{"deviceIDs": self.prefer(*asked)}])

    def _allocate(self, request, context):
        time.sleep(self.hold)
        if self.allocate_error:
            context.abort(grpc.StatusCode.INTERNAL, self.allocate_error)
        ids = list(request.container_requests[0].devices_ids)
        self.allocated.append(ids)
        answer = {"envs": [{"key": "FROM", "value": "plugin"}, {"key": "ONLY", "value": "plugin"}]}
        answer["mounts"] = [{"container_path": "/ours", "host_path": "/plugin"}]
        return api.AllocateResponse(container_responses=[answer])

    def _prestart(self, request, context):
        self.prestarted.append(list(request.devices_ids))
        if self.prestart_error:
            context.abort(grpc.StatusCode.UNAVAILABLE, self.prestart_error)
        return api.PreStartContainerResponse()


@pytest.fixture
def kubelet():
    """A stand-in whose waits are a fiftieth of a real one's."""
    with DeviceManager(resource=RESOURCE, pace=0.02, seed=7) as started:
        yield started


@pytest.fixture
def plugin(kubelet):
    """Registered, its devices known."""
    with Scripted(kubelet) as scripted:
        kubelet.until(lambda: kubelet.status() == (16, 16))
        yield scripted


def pod(name, units=4, **more):
    """A pod of one container, or of those given."""
    apps = more.pop("apps", None) or [Box("main", {RESOURCE: units})]
    return ManagedPod("ns", name, f"uid-{name}", apps, **more)


def get(kubelet, name):
    """Device IDs by container as pod-resources Get tells them; None for no such pod."""
    with grpc.insecure_channel(f"unix:{kubelet.socket}") as channel:
        call = channel.unary_unary(api.GET, lambda m: m.SerializeToString(), api.GetPodResourcesResponse.FromString)
        try:
            told = call(api.GetPodResourcesRequest(pod_name=name, pod_namespace="ns"))
        except grpc.RpcError:
            return None
    return {c.name: [i for d in c.devices for i in d.device_ids] for c in told.pod_resources.containers}


def listed(kubelet):
    """Names of the pods that List tells."""
    with grpc.insecure_channel(f"unix:{kubelet.socket}") as channel:
        call = channel.unary_unary(api.LIST, lambda m: m.SerializeToString(), api.ListPodResourcesResponse.FromString)
        return {told.name for told in call(api.ListPodResourcesRequest()).pod_resources}


def running(kubelet, *pods):
    """Bind them and wait for them."""
    for one in pods:
        kubelet.bind(one)
    kubelet.until(lambda: all(one.phase == "Running" for one in pods))


def test_the_preferred_ids_are_given_and_prestart_comes_before_the_start(kubelet, plugin):
    """
    An exact answer is honoured; the container starts after PreStart with these IDs.
    """
    plugin.prefer = lambda available, _must, size: sorted(available)[:size]
    made = pod("a")
    running(kubelet, made)

    wanted = [f"GPU-0-_-{i}" for i in range(4)]
    assert wanted == sorted(plugin.allocated[0]) == sorted(plugin.prestarted[0]) == sorted(made.boxes["main"].ids)
    assert {"main": wanted} == {name: sorted(ids) for name, ids in get(kubelet, "a").items()}


def test_free_ids_of_all_cards_are_offered_in_no_order(kubelet, plugin):
    """
    What is offered is every free ID once, not sorted.
    """
    running(kubelet, pod("a"))
    available, must, size = plugin.preferred[0]
    assert (sorted(plugin.ids), [], 4) == (sorted(available), must, size)
    assert available != sorted(available)


@pytest.mark.parametrize("answer", ["none", "short", "unknown", "repeated"])
def test_a_preference_that_does_not_suffice_is_filled_at_random_over_the_cards(kubelet, plugin, answer):
    """
    The kubelet takes what makes sense of it and mixes cards for the rest.
    """
    said = {"none": [], "short": ["GPU-0-_-0"], "unknown": ["GPU-9-_-0"] * 8, "repeated": ["GPU-0-_-0"] * 8}[answer]
    plugin.prefer = lambda *_: said
    made = pod("a", 8)
    running(kubelet, made)
    cards = {one.split("-_-")[0] for one in made.boxes["main"].ids}
    assert (8, {"GPU-0", "GPU-1"}) == (len(set(made.boxes["main"].ids)), cards)


def test_an_error_of_allocate_fails_the_pod_for_good(kubelet, plugin):
    """
    Failed, not retried, not listed; its IDs are free for the next.
    """
    plugin.allocate_error = "no"
    bad = kubelet.bind(pod("bad", 16))
    kubelet.until(lambda: bad.phase == "Failed")
    plugin.allocate_error = ""
    good = pod("good", 16)
    running(kubelet, good)
    assert ("UnexpectedAdmissionError", True, None) == (bad.reason, "no" in bad.message, get(kubelet, "bad"))


def test_a_slow_allocate_holds_up_everything(kubelet, plugin):
    """
    A pod without devices waits behind it, and so does a deletion.
    """
    before = pod("before", 1)
    running(kubelet, before)
    plugin.hold = 0.4
    slow, plain = kubelet.bind(pod("slow")), kubelet.bind(pod("plain", apps=[Box("main")]))
    kubelet.delete(before)
    time.sleep(0.2)
    held = (slow.phase, plain.phase, before.phase)
    kubelet.until(lambda: (slow.phase, plain.phase, before.phase) == ("Running", "Running", "Gone"))
    assert ("Pending", "Pending", "Running") == held


def test_the_pod_being_admitted_is_listed_empty_and_those_behind_it_are_not(kubelet, plugin):
    """
    That is how an agent learns whom it is asked for.
    """
    plugin.hold = 0.3
    kubelet.bind(pod("first"))
    kubelet.bind(pod("second"))
    kubelet.until(lambda: get(kubelet, "first") is not None)
    assert ({"main": []}, None) == (get(kubelet, "first"), get(kubelet, "second"))


def test_apps_reuse_the_ids_of_inits_and_the_surplus_stays_held_unlisted(kubelet, plugin):
    """
    A larger init's IDs: the app has some of them unasked, the rest is offered to nobody.
    """
    made = pod("a", inits=[Box("init", {RESOURCE: 6})], apps=[Box("main", {RESOURCE: 2})])
    running(kubelet, made)
    asked = len(plugin.preferred)
    second = pod("b", 10)
    running(kubelet, second)

    told = get(kubelet, "a")
    assert (1, {"main"}, 2) == (asked, set(told), len(told["main"]))
    assert set(told["main"]) < set(plugin.allocated[0])
    assert not set(plugin.allocated[0]) & set(second.boxes["main"].ids)


def test_a_larger_app_must_include_the_inits_ids(kubelet, plugin):
    """
    It is asked with these as a must.
    """
    running(kubelet, pod("a", inits=[Box("init", {RESOURCE: 2})], apps=[Box("main", {RESOURCE: 5})]))
    available, must, size = plugin.preferred[1]
    assert (set(plugin.allocated[0]), 5) == (set(must), size)
    assert set(must) <= set(available)


def test_a_sidecar_takes_the_inits_ids_and_keeps_them(kubelet, plugin):
    """
    Unasked; the app then gets others.
    """
    inits = [Box("init", {RESOURCE: 3}), Box("side", {RESOURCE: 3}, sidecar=True)]
    made = pod("a", inits=inits, apps=[Box("main", {RESOURCE: 3})])
    running(kubelet, made)
    init, side, main = (set(made.boxes[name].ids) for name in ("init", "side", "main"))
    assert (init, set(), {"side", "main"}) == (side, side & main, set(get(kubelet, "a")))
    assert 2 == len(plugin.preferred)


def test_prestart_is_asked_again_with_the_same_ids(kubelet, plugin):
    """
    The pod waits, others start, no Allocate is repeated, and it heals by itself.
    """
    plugin.prestart_error = "not yet"
    made = kubelet.bind(pod("a"))
    kubelet.until(lambda: len(plugin.prestarted) >= 3)
    waiting = (made.phase, made.boxes["main"].reason, made.boxes["main"].starts)
    plugin.prestart_error = ""
    kubelet.until(lambda: made.phase == "Running")
    assert ("Pending", "CreateContainerConfigError", 0) == waiting
    assert (1, 1) == (len(plugin.allocated), len({tuple(ids) for ids in plugin.prestarted}))


def test_a_container_that_ends_is_prestarted_and_not_allocated_again(kubelet, plugin):
    """
    Also after the kubelet was restarted.
    """
    made = pod("a")
    running(kubelet, made)
    kubelet.crash(made, "main")
    kubelet.until(lambda: made.boxes["main"].starts == 2)
    plugin.leave()
    kubelet.restart(grace=0.3)
    plugin.serve()
    time.sleep(0.4)
    kubelet.crash(made, "main")
    kubelet.until(lambda: made.boxes["main"].starts == 3)
    assert (1, 3) == (len(plugin.allocated), len(plugin.prestarted))


def test_after_a_restart_without_the_plugin_only_running_containers_keep_theirs(kubelet, plugin):
    """
    A pod whose container does not run is rejected for good, its neighbour is left alone.
    """
    down, up = pod("down"), pod("up")
    running(kubelet, down, up)
    plugin.prestart_error = "not now"
    kubelet.crash(down, "main")
    kubelet.until(lambda: down.boxes["main"].reason)
    plugin.leave()
    kubelet.restart(grace=0.0)
    kubelet.until(lambda: down.phase == "Failed")
    assert ("Running", 4) == (up.phase, len(get(kubelet, "up")["main"]))
    assert "no healthy devices" in down.message


def test_a_plugin_that_is_gone_leaves_its_capacity_for_five_minutes(kubelet, plugin):
    """
    Allocatable is 0 at once, capacity later; running pods stay listed, new ones fail.
    """
    kubelet.pace = 0.002
    made = pod("a")
    running(kubelet, made)
    plugin.leave()
    kubelet.until(lambda: kubelet.status() == (16, 0))
    late = kubelet.bind(pod("late"))
    kubelet.until(lambda: kubelet.status() == (0, 0))
    assert ("Failed", {"a"}) == (late.phase, listed(kubelet))


def doubled(kubelet, plugin, look):
    """Two pods one after the other while a third ends; whether they got IDs in common."""
    old = pod("old", 2)
    running(kubelet, old)
    plugin.hold = 0.4
    first = kubelet.bind(pod("first", 4))
    kubelet.until(lambda: get(kubelet, "first") is not None)
    old.phase = "Succeeded"
    look()
    kubelet.until(lambda: first.phase == "Running")
    plugin.hold = 0.0
    second = pod("second", 12)
    running(kubelet, second)
    return bool(set(first.boxes["main"].ids) & set(second.boxes["main"].ids))


def test_a_list_during_an_allocate_makes_the_kubelet_give_ids_twice(kubelet, plugin):
    """
    The fault that an agent's own book is for.
    """
    assert doubled(kubelet, plugin, lambda: listed(kubelet))


def test_a_get_during_an_allocate_does_not(kubelet, plugin):
    """
    The same story with Get.
    """
    assert not doubled(kubelet, plugin, lambda: get(kubelet, "first"))


@pytest.mark.usefixtures("plugin")
def test_the_ids_of_a_force_deleted_pod_are_free_while_its_process_lives(kubelet):
    """
    The next owner runs beside the old process.
    """
    old = pod("old", 16)
    running(kubelet, old)
    kubelet.linger = 0.5
    kubelet.force_delete(old)
    new = pod("new", 16)
    running(kubelet, new)
    groups = {path.parent.parent.name for path in kubelet.cgroups.rglob("cgroup.procs")}
    kubelet.until(lambda: not (kubelet.cgroups / "kubepods/besteffort/poduid-old").exists())
    assert {"poduid-old", "poduid-new"} == groups


@pytest.mark.usefixtures("plugin")
def test_the_tenants_env_and_mounts_win_over_allocate_and_lose_against_cdi(kubelet):
    """
    R7: what counts must come by CDI.
    """
    box = Box("main", {RESOURCE: 1}, env={"FROM": "tenant"}, mounts={"/ours": "/tenant"})
    made = pod("a", apps=[box])
    running(kubelet, made)
    started = made.boxes["main"]
    assert ({"FROM": "tenant", "ONLY": "plugin"}, {"/ours": "/tenant"}) == (started.env, started.mounts)


def test_a_reboot_ends_every_process_and_keeps_the_ids(kubelet, plugin):
    """
    With the plugin there in time, every container starts again with the same IDs and without Allocate.
    """
    made = pod("a")
    running(kubelet, made)
    ids = made.boxes["main"].ids
    plugin.leave()
    kubelet.reboot(grace=0.3)
    groups = list(kubelet.cgroups.rglob("cgroup.procs"))
    plugin.serve()
    kubelet.until(lambda: made.boxes["main"].starts == 2)
    assert ([], ids, 1) == (groups, made.boxes["main"].ids, len(plugin.allocated))


@pytest.mark.usefixtures("plugin")
def test_a_pod_whose_containers_end_frees_its_ids(kubelet):
    """
    A Job's pod succeeds; the next takes all.
    """
    job = pod("job", apps=[Box("main", {RESOURCE: 16}, seconds=0.05)])
    running(kubelet, job)
    kubelet.until(lambda: job.phase == "Succeeded")
    running(kubelet, pod("next", 16))
    assert {"next"} == listed(kubelet)
