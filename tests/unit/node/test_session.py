# SPDX-License-Identifier: Apache-2.0
"""The plugin of the container runtime over a real socket: taken into service, never late, back within a moment."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.nri_runtime import DroppedError, NriRuntime, RefusedError
from support.waiting import PATIENCE_SECONDS, until

from isolation.contract import nri_api as api
from isolation.node.cdi import Mount
from isolation.node.nri import session as module
from isolation.node.nri.model import Adjustment, Sandbox
from isolation.node.nri.model import NriRefusedError as Refusal
from isolation.node.nri.session import NriSession

UID = "11111111-2222-3333-4444-555555555555"


class Handler:
    """Answers as it is reported, and keeps what it was reported."""

    def __init__(self):
        self.shown, self.created, self.started, self.ended = [], [], [], []
        self.answer, self.seconds, self.error = None, 0.0, None

    def synchronize(self, sandboxes, containers):
        """Keep the list."""
        self.shown.append((list(sandboxes), list(containers)))

    def create(self, container):
        """As told."""
        self.created.append(container)
        return self._answer()

    def start(self, container):
        """As told."""
        self.started.append(container)
        self._answer()

    def gone(self, container, *, removed):
        """Keep it."""
        self.ended.append((container.id, removed))

    def _answer(self):
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.answer


class World:
    """A runtime, a handler and the session between them, which runs in a thread as the agent runs it."""

    def __init__(self, folder):
        self.runtime, self.handler = NriRuntime(folder / "nri" / "nri.sock", PATIENCE_SECONDS), Handler()
        self.outcomes = Counter()
        self.session = NriSession(self.runtime.path, self.handler, lambda *took: self.outcomes.update([took[::2]]))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._stop.is_set():
            self._stop.wait(self.session.cycle())

    def start(self):
        """The agent's thread."""
        self._thread.start()
        return self

    def in_force(self):
        """Both sides say so."""
        until(lambda: self.session.in_force and self.runtime.connected(), lambda: self.session.trouble)
        return self

    def end(self):
        """In the agent's order."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.session.close()
        self.runtime.down()


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.02)
    with TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        made = World(Path(folder))
        stack.callback(made.end)
        yield made


@pytest.mark.parametrize("configures_first", [True, False])
def test_it_registers_and_is_in_force_once_it_knows_what_is_there(world, configures_first):
    """Configure comes while RegisterPlugin is unanswered, or after it: who waits for one of them would hang."""
    runtime = world.runtime
    runtime.configures_first = configures_first
    pod = runtime.run_pod(UID, "train", "ml", {"a": "b"})
    running = runtime.create(pod, "main", {"X": "1=2"}, devices=["/dev/fuse"], hooks=["/opt/hook"])
    runtime.start(running, 77)
    runtime.up()
    world.start().in_force()

    assert [("gpushare", "90")] == runtime.registered
    subscribed = {event for event in api.NriEvent if runtime.events >> (event - 1) & 1}
    assert (set(api.NriEvent), len(api.NriEvent)) == (subscribed, runtime.events.bit_count())
    assert runtime.failure_policy.fail_request
    assert ("", 1, "containerd v2.1.9") == (world.session.trouble, world.session.times, world.session.runtime)
    [(sandboxes, [found])] = world.handler.shown
    assert [Sandbox(pod.id, UID, "ml", "train", {"a": "b"})] == sandboxes
    assert (running.id, "main", sandboxes[0], 77, True) == (found.id, found.name, found.sandbox, found.pid, found.runs)
    assert ({"X": "1=2"}, ("/dev/fuse",), ("/opt/hook",)) == (found.env, found.devices, found.hooks)


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_list_in_parts_is_one_list(world, part):
    runtime = world.runtime
    runtime.part = part
    for number in range(3):
        pod = runtime.run_pod(f"uid-{number}")
        for name in ("a", "b"):
            runtime.create(pod, name)
    runtime.up()
    world.start().in_force()

    [(sandboxes, containers)] = world.handler.shown
    assert list(runtime.pods) == [one.id for one in sandboxes]
    assert list(runtime.containers) == [one.id for one in containers]


def test_a_connection_lost_amid_the_list_leaves_nothing_of_it(world):
    runtime = world.runtime
    runtime.run_pod(UID)
    runtime.up()
    world.start().in_force()
    runtime.ask("Synchronize", api.SynchronizeRequest(pods=[{"id": "half"}], more=True))
    runtime.drop()
    until(lambda: world.session.times == 2)
    assert [UID] == [one.uid for one in world.handler.shown[-1][0]]


def test_an_adjustment_arrives_as_it_was_meant(world):
    world.runtime.up()
    world.start().in_force()
    world.handler.answer = Adjustment(
        env={"A": "1"},
        mounts=(Mount("/h/list", "/etc/ld.so.preload"), Mount("/h/region", "/r", writable=True)),
        cdi_devices=("gpushare.dev/card=GPU-1",),
        annotations={"gpushare.dev/start-nonce": "n"},
        hook=("/opt/guard", "/run/marks"),
    )
    made = world.runtime.create(world.runtime.run_pod(UID, annotations={"x": "y"}), "main").adjustment

    assert [("A", "1")] == [(one.key, one.value) for one in made.env]
    assert [
        ("/h/list", "/etc/ld.so.preload", "bind", ["ro", "nosuid", "nodev", "rprivate", "bind"]),
        ("/h/region", "/r", "bind", ["rw", "nosuid", "nodev", "rprivate", "bind"]),
    ] == [(one.source, one.destination, one.type, list(one.options)) for one in made.mounts]
    assert ["gpushare.dev/card=GPU-1"] == [one.name for one in made.CDI_devices]
    assert {"gpushare.dev/start-nonce": "n"} == dict(made.annotations)
    [hook] = made.hooks.create_runtime
    assert ("/opt/guard", ["/opt/guard", "/run/marks"]) == (hook.path, list(hook.args))
    assert (UID, {"x": "y"}) == (world.handler.created[0].sandbox.uid, world.handler.created[0].sandbox.annotations)


@pytest.mark.parametrize("methods", [False, True])
def test_events_reach_the_handler_and_its_no_at_the_start_is_an_error(world, methods):
    """As StateChange, or by methods of their own as runtimes with NRI 0.12 send them."""
    runtime, handler = world.runtime, world.handler
    runtime.methods = methods
    runtime.up()
    world.start().in_force()
    container = runtime.create(runtime.run_pod(UID), "main")
    assert container.adjustment is not None, "None from the handler: the container as it is"
    assert b"" == container.adjustment.SerializeToString()

    runtime.start(container, 4711)
    assert [(container.id, 4711)] == [(one.id, one.pid) for one in handler.started]
    runtime.exit(container)
    runtime.remove(container)
    assert [(container.id, False), (container.id, True)] == handler.ended

    handler.error = Refusal("the image hides\nit")
    with pytest.raises(RefusedError) as refused:
        runtime.start(container, 4712)
    assert (api.FAILED_PRECONDITION, "the image hides?it") == (refused.value.code, refused.value.text)
    assert world.session.in_force


def test_a_refusal_is_an_error_with_its_text_and_changes_nothing_else(world):
    runtime, handler = world.runtime, world.handler
    runtime.up()
    world.start().in_force()
    handler.error = Refusal("ml/train/main: 4 GiB are not free yet")
    pod = runtime.run_pod(UID)
    with pytest.raises(RefusedError) as refused:
        runtime.create(pod, "main")
    assert (9, "ml/train/main: 4 GiB are not free yet") == (refused.value.code, refused.value.text)
    assert [False, True] == [removed for _, removed in handler.ended]
    handler.error = None
    assert runtime.create(pod, "main").adjustment is not None
    assert (1, 1) == (world.outcomes["CreateContainer", "refused"], world.session.times)


@pytest.mark.parametrize("what", ["create", "start"])
def test_whoever_is_late_refuses_before_the_runtime_gives_up(world, what):
    """Silence would start the container as it is. The runtime's own limit is what counts, not a constant."""
    runtime, handler = world.runtime, world.handler
    runtime.request_seconds, runtime.grace = 2.0, PATIENCE_SECONDS  # who is late is judged by the answer's own words
    runtime.up()
    world.start().in_force()
    pod = runtime.run_pod(UID)
    container = runtime.create(pod, "before")
    handler.seconds, began = 5.0, time.monotonic()
    with pytest.raises(RefusedError, match=r"no answer within 1\.2 s"):
        runtime.create(pod, "main") if what == "create" else runtime.start(container, 1)
    assert 1.1 < time.monotonic() - began
    handler.seconds = 0.0
    assert runtime.create(pod, "after").adjustment is not None, "others are not held up by it"
    assert (1, True) == (world.session.times, runtime.connected())
    assert 1 == sum(number for (_, outcome), number in world.outcomes.items() if outcome == "timeout")


def test_what_no_thread_has_begun_in_time_is_never_done(world):
    """
    The disk hangs and all threads with it: a container whose end was reported meanwhile is not created afterwards.
    """
    runtime, handler = world.runtime, world.handler
    hangs = threading.Event()
    handler.create = lambda container: (handler.created.append(container), hangs.wait(30))[0]
    runtime.request_seconds, runtime.grace = 1.5, PATIENCE_SECONDS
    runtime.up()
    world.start().in_force()
    pod = runtime.run_pod(UID)
    for number in range(module._WORKERS + 1):
        with pytest.raises(RefusedError, match="no answer within"):
            runtime.create(pod, f"c-{number}")
    assert len(handler.created) == module._WORKERS
    hangs.set()
    del handler.create
    assert runtime.create(pod, "after").name == "after"
    assert [f"c-{number}" for number in range(module._WORKERS)] + ["after"] == [one.name for one in handler.created]


def test_a_fault_of_ours_refuses_and_tells_no_secrets(world, caplog):
    runtime = world.runtime
    runtime.up()
    world.start().in_force()
    world.handler.error = KeyError("token=abc")
    with pytest.raises(RefusedError, match="see its log") as refused:
        runtime.create(runtime.run_pod(UID), "main")
    assert (api.INTERNAL, False) == (refused.value.code, "abc" in refused.value.text)
    assert "token=abc" in caplog.text
    assert world.session.in_force


def test_a_list_that_fails_is_no_list(world):
    """As long as it is not known what runs, nothing is offered: the runtime lets us go and we try again."""
    runtime = world.runtime
    world.handler.synchronize = lambda *_: 1 / 0
    runtime.up()
    world.start()
    until(lambda: len(runtime.plugins) > 2)
    assert (False, 0, False) == (world.session.in_force, world.session.times, runtime.connected())
    del world.handler.synchronize
    world.in_force()


def test_an_unknown_method_is_unimplemented_and_harms_nothing(world):
    world.runtime.up()
    world.start().in_force()
    with pytest.raises(RefusedError, match="ValidateContainerAdjustment is not implemented") as refused:
        world.runtime.ask("ValidateContainerAdjustment", api.Empty())
    assert api.UNIMPLEMENTED == refused.value.code
    with pytest.raises(RefusedError, match="see its log"):
        world.runtime.ask("CreateContainer", api.ConfigureRequest(config="no ContainerRequest"))
    assert world.runtime.create(world.runtime.run_pod(UID), "main").adjustment is not None


@pytest.mark.parametrize("how", ["drop", "restart"])
def test_it_is_back_within_a_moment(world, how):
    runtime = world.runtime
    runtime.up()
    world.start().in_force()
    took = []
    for times in range(2, 7):
        if how == "restart":
            runtime.down()
            until(lambda: not world.session.in_force)
            assert world.session.trouble
            runtime.up()
        else:
            runtime.drop()
        began = time.monotonic()
        until(lambda times=times: world.session.times == times and runtime.connected(), every=0.002)
        took.append(time.monotonic() - began)
    assert sorted(took)[2] < 1
    assert runtime.create(runtime.run_pod(UID), "main").adjustment is not None


def test_a_refused_registration_says_why_and_is_tried_again(world):
    runtime = world.runtime
    runtime.refuses = "invalid plugin index"
    runtime.up()
    world.start()
    until(lambda: len(runtime.registered) > 2)
    assert "refused the plugin: invalid plugin index" in world.session.trouble
    assert not world.session.in_force
    runtime.refuses = ""
    world.in_force()


def test_without_a_socket_it_says_what_to_enable(world):
    assert module.CONNECT_SECONDS == world.session.cycle()
    assert f"cannot connect to {world.runtime.path}: No such file or directory: NRI must be" in world.session.trouble
    assert not world.session.in_force


def test_a_runtime_that_says_nothing_is_left(world, monkeypatch):
    monkeypatch.setattr(module, "_REGISTER_SECONDS", 0.2)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.05)
    world.runtime.path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.runtime.path))
        listener.listen()
        assert module.CONNECT_SECONDS == world.session.cycle()
    assert "did not take the plugin into service" in world.session.trouble


def test_200_kb_of_annotations_both_ways_in_frames_that_the_runtime_takes(world):
    runtime, long = world.runtime, {f"key-{number}": "v" * 2000 for number in range(100)}
    runtime.up()
    world.start().in_force()
    world.handler.answer = Adjustment(annotations=long)
    made = runtime.create(runtime.run_pod(UID, annotations=long), "main")
    assert long == made.annotations
    assert long == world.handler.created[0].sandbox.annotations
    assert 3000 < runtime.plugins[-1].largest <= 4096
    runtime.drop()
    until(lambda: world.session.times == 2)
    assert long == world.handler.shown[-1][0][0].annotations


def test_closing_frees_the_runtime_at_once(world):
    """A next instance must find nobody in its place: two of them make every creation fail."""
    world.runtime.up()
    world.start().in_force()
    world.end()
    until(lambda: not world.runtime.connected())
    assert "shutting down" in world.session.trouble
    with pytest.raises(DroppedError):
        world.runtime.ask("CreateContainer", api.ContainerRequest())
