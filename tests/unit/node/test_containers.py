# SPDX-License-Identifier: Apache-2.0
"""The agent's answers to the runtime, with its real files and pods, cards and processes as a test says."""

from __future__ import annotations

import itertools
import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from isolation.contract import abi
from isolation.contract.codec import decode_allocation
from isolation.contract.host_allocation import load
from isolation.contract.model import Card, Mode
from isolation.contract.names import ALLOCATION, START_NONCE
from isolation.contract.nri_api import NriContainerState
from isolation.contract.quantity import GIB
from isolation.node import containers
from isolation.node.allocations import Allocations
from isolation.node.backend import LibraryBackend, NoBackend, UndeliverableError
from isolation.node.bound import Bound, Wanted
from isolation.node.cdi import Edits
from isolation.node.containers import ALLOW, REFUSE, Containers, Parts
from isolation.node.delivery import Delivery
from isolation.node.guard_device import GuardDevice
from isolation.node.nri.model import Container, NriRefusedError, Sandbox

UID, OTHER = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}
CARDS = [f"GPU-00000000-0000-4000-8000-{number:012x}" for number in range(2)]
CUDA = {"NVIDIA_VISIBLE_DEVICES": "all", "PATH": "/bin"}
GLIBC = {
    "x86_64": ("lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"),
    "aarch64": ("lib/ld-linux-aarch64.so.1", "lib/aarch64-linux-gnu/libc.so.6"),
}[platform.machine()]


def record(uid=UID, **parts):
    """An allocation's text: (card, GiB) or (card, GiB, core) by container."""
    cards = {
        name: [{"uuid": CARDS[card], "bytes": size * GIB, "core": core[0] if core else 0}]
        for name, (card, size, *core) in parts.items()
    }
    whole = [{"uuid": uuid, "index": at, "bytes": 64 * GIB, "core": 100} for at, uuid in enumerate(CARDS)]
    containers = [{"name": name, "cards": part} for name, part in cards.items()]
    return json.dumps({"version": 1, "promise": uid, "cards": whole, "containers": containers})


class World:
    """A node: what the agent asks is set here. `agent` is one life of it, on the same folders."""

    def __init__(self, folder):
        self.folder = folder
        self.known, self.is_synced, self.exempt_names, self.unisolated_names = {}, True, frozenset(), frozenset()
        self.label, self.whole_cards = Mode.CGPU, False
        self.living = set()
        self.trouble = ""
        self.backend = LibraryBackend(folder / "run", lambda: folder / "library.so")
        (folder / "library.so").write_bytes(b"\x7fELF library")
        (folder / "guard").write_bytes(b"\x7fELF guard")
        self._ids = itertools.count(1)
        self.sandboxes = [Sandbox("before", "someone", "kube-system", "proxy")]
        self.start_agent()

    def start_agent(self, unsupported=REFUSE, *, synchronize=True):
        """A new one; what was there is known from the disk and the runtime alone."""
        self.gate = GuardDevice(self.folder / "run", self.folder / "cdi", self.folder / "marks", self.folder / "guard")
        self.gate.install()
        self.allocations = Allocations(self)
        delivery = Delivery(self.folder / "run", self, self.backend)
        delivery._regions._refused = True  # no file systems of their own
        parts = Parts(self, self, self.allocations, delivery, self.gate)
        self.agent = Containers(parts, unsupported, str(self.folder / "proc"))
        self.agent.load()
        if synchronize:
            self.agent.synchronize(self.sandboxes, ())

    # What the agent asks.

    def get(self, uid):
        """See `Pods`."""
        return self.known.get(uid)

    def synced(self):
        """See `Pods`."""
        return self.is_synced

    def exempt(self):
        """See `Pods`."""
        return self.exempt_names

    def unisolated(self):
        """See `Pods`."""
        return self.unisolated_names

    def cards(self):
        """See `Inventory`."""
        return [Card(uuid, at, 16 * GIB, model="Tesla T4") for at, uuid in enumerate(CARDS)]

    def mode(self):
        """See `Inventory`."""
        return self.label

    def whole(self):
        """See `Inventory`."""
        return self.whole_cards

    def pids(self, uid, container):
        """See `Processes`."""
        return frozenset({7} if (uid, container) in self.living else ())

    def strays(self, uid, known):
        """See `Processes`."""
        return frozenset({7} if any(pod == uid and one not in known for pod, one in self.living) else ())

    def edits(self, slices, _cards):
        """See `Hardware`."""
        if self.trouble:
            raise UndeliverableError(self.trouble)
        return Edits({"GPUSHARE_VISIBLE_DEVICES": slices[0].uuid}, devices=(f"gpushare.dev/card={slices[0].uuid}",))

    # What happens.

    def pod(self, uid=UID, *, watched=True, init=(), done=(), **parts):
        """A pod with its record, as the runtime shows it and, if `watched`, the API server."""
        text = record(uid, **parts)
        sandbox = Sandbox(f"s{next(self._ids)}", uid, "ml", f"pod-{uid[0]}", {ALLOCATION: text} if parts else {})
        if watched:
            self.watch(uid, text if parts else "", init, done, parts)
        return sandbox

    def watch(self, uid, text, init=(), done=(), names=("main",)):
        """What the API server says of it now."""
        wanted = tuple(Wanted(name, 1, name in init, name in done) for name in names)
        allocation = decode_allocation(text) if text else None
        self.known[uid] = Bound(uid, f"pod-{uid[0]}", "ml", wanted, allocation)

    def container(self, sandbox, name="main", *, guarded=True, **more):
        """The kubelet wants one."""
        hooks = (self.gate.hook[0],) if guarded else ()
        return Container(f"c{next(self._ids)}", name, sandbox, hooks=hooks, **more)

    def run(self, sandbox, name="main", **more):
        """Created; its processes live."""
        made = self.container(sandbox, name, **more)
        adjustment = self.agent.create(made)
        self.living.add((sandbox.uid, made.id))
        return replace(made, state=NriContainerState.RUNNING, annotations=adjustment.annotations), adjustment

    def end(self, container, *, lingers=False):
        """It ends, and is removed."""
        if not lingers:
            self.living.discard((container.sandbox.uid, container.id))
        self.agent.gone(container, removed=False)
        self.agent.gone(container, removed=True)

    def refused(self, container):
        """With which words."""
        with pytest.raises(NriRefusedError) as refused:
            self.agent.create(container)
        return str(refused.value)

    def limits(self, name="main", uid=UID):
        """As the library reads them: generation, GiB."""
        found = abi.unpack_limits((self.folder / f"run/alloc/{uid}.{name}/limits/limits").read_bytes())
        return found.generation, [card.memory_bytes // GIB for card in found.cards]

    def promised(self):
        """Promises that count, by folder."""
        return {path.parent.name: load(path.read_text()) for path in self.folder.glob("run/alloc/*/promise.json")}

    def marks(self):
        """Containers that may start."""
        return {path.name for path in (self.folder / "marks").iterdir()}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_container_gets_what_its_pods_record_says(world):
    made, adjustment = world.run(world.pod(main=(1, 4, 30)))

    assert {"/etc/ld.so.preload", "/run/gpushare/limits"} < {mount.container for mount in adjustment.mounts}
    assert [f"/run/gpushare/{name}" for name in ("limits/limits", "region/region")] == [
        adjustment.env[f"GPUSHARE_{name}"] for name in ("LIMITS", "REGION")
    ]
    assert (f"gpushare.dev/card={CARDS[1]}",) == adjustment.cdi_devices
    assert (1, [4]) == world.limits()
    hold = world.promised()[f"{UID}.main"]
    assert ("fixed", UID, 4 * GIB, 30) == (hold.policy, hold.tenant.uid, hold.slices[0].bytes, hold.slices[0].core)
    nonce, *mounts = (world.folder / "marks" / made.id).read_text().splitlines()
    assert {START_NONCE: nonce} == adjustment.annotations
    assert [mount.container for mount in adjustment.mounts] == [line.split("\t")[1] for line in mounts]


def test_a_container_that_the_kubelet_did_not_close_gets_the_guard_too(world):
    """Of a record that names it, whatever it asked for."""
    sandbox = world.pod(main=(0, 4))
    assert () == world.agent.create(world.container(sandbox)).hook
    assert world.gate.hook == world.agent.create(world.container(sandbox, guarded=False)).hook


def test_who_has_no_share_is_left_alone_or_closed(world):
    sandbox = world.pod(main=(0, 4))
    assert world.agent.create(world.container(sandbox, "log", guarded=False)) is None
    closed = world.agent.create(world.container(sandbox, "side", guarded=False, env=CUDA))
    assert ({"NVIDIA_VISIBLE_DEVICES": "void"}, (), {}) == (closed.env, closed.mounts, closed.annotations)
    assert (set(), {}) == (world.marks(), world.promised())


@pytest.mark.parametrize(
    ("sandbox", "name", "said"),
    [
        (Sandbox("s", OTHER, "ml", "x"), "main", "no valid allocation annotation"),
        (Sandbox("s", OTHER, "ml", "x", {ALLOCATION: record(UID, main=(0, 4))}), "main", "no valid allocation"),
        (Sandbox("s", OTHER, "ml", "x", {ALLOCATION: "{"}), "main", "no valid allocation annotation"),
        (Sandbox("s", OTHER, "ml", "x", {ALLOCATION: record(OTHER, main=(0, 4))}), "side", "no entry for container"),
        (Sandbox("s", OTHER, "ml", "x", {ALLOCATION: record(OTHER, main=(0, 17))}), "main", "are not free yet"),
        (Sandbox("s", "../..", "ml", "x"), "main", "invalid UID or container"),
        (Sandbox("s", "a/b", "ml", "x", {ALLOCATION: record("a/b", main=(0, 4))}), "main", "invalid UID or"),
        (Sandbox("s", OTHER, "ml", "x", {ALLOCATION: record(OTHER, main=(0, 4))}), "../main", "invalid UID or"),
    ],
)
def test_a_refused_container_leaves_nothing(world, sandbox, name, said):
    """A copied record, none, a damaged one, an entry for another container, more than there is, a name for a path."""
    container = world.container(sandbox, name)
    assert said in world.refused(container)
    world.end(container)
    assert (set(), {}, []) == (world.marks(), world.promised(), world.allocations.in_force())
    assert "" == world.agent.fault, "nothing is wrong with the node"


def test_the_api_servers_word_is_newer_than_the_sandboxs(world):
    sandbox = world.pod(main=(0, 4))
    world.watch(UID, record(main=(1, 6)))
    world.run(sandbox)
    assert ([6], CARDS[1]) == (world.limits()[1], world.promised()[f"{UID}.main"].slices[0].uuid)
    world.watch(UID, "")
    assert "no valid allocation" in world.refused(world.container(sandbox))


def test_what_the_node_cannot_deliver_is_refused_and_reported_until_it_works(world):
    world.trouble = "the driver does not list GPU-0"
    sandbox = world.pod(main=(0, 4))
    container = world.container(sandbox)
    assert "ml/pod-1/main: the driver does not list GPU-0" in world.refused(container)
    world.end(container)
    assert ([], set()) == (world.allocations.in_force(), world.marks())
    assert world.trouble in world.agent.fault
    world.trouble = ""
    world.run(sandbox)
    assert "" == world.agent.fault


def test_a_marks_folder_that_is_full_refuses(world, monkeypatch):
    monkeypatch.setattr(world.gate, "mark", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "No space left" in world.refused(world.container(world.pod(main=(0, 4))))
    assert [] == world.allocations.in_force()


@pytest.mark.parametrize("backend", ["label", "option"])
def test_where_nothing_is_enforced_nothing_is_mounted_and_the_promise_counts(world, backend):
    if backend == "label":
        world.label = Mode.SHARE
    else:
        world.backend = NoBackend()
        world.start_agent()
    made, adjustment = world.run(world.pod(main=(0, 4)))
    assert ((), "none") == (adjustment.mounts, world.promised()[f"{UID}.main"].policy)
    assert {made.id} == world.marks()
    world.agent.start(replace(made, pid=1))  # no look into its root


def test_an_answer_that_is_late_leaves_nothing(world, monkeypatch):
    """The runtime was told no in time and has removed the container; nobody will say again that it is gone."""
    container = world.container(world.pod(main=(0, 12)))
    monkeypatch.setattr(world, "edits", lambda *_: world.end(container) or Edits())
    world.agent.create(container)
    assert ([], set()) == (world.allocations.in_force(), world.marks())
    monkeypatch.undo()
    world.run(world.pod(OTHER, main=(0, 12)))


def test_a_card_is_free_when_the_last_process_of_the_one_before_is_gone(world):
    """Not when its pod is: memory of a process that does not die stays on the card."""
    first, _ = world.run(world.pod(main=(0, 12)))
    second = world.container(world.pod(OTHER, main=(0, 8)))
    assert "12 GiB of 16 GiB are in use by containers of this node; the kubelet will retry" in world.refused(second)
    world.end(first, lingers=True)
    del world.known[UID]
    world.agent.tidy()
    assert "are not free yet" in world.refused(second)
    assert f"{UID}.main" in world.promised()
    world.living.clear()
    assert world.agent.create(world.container(second.sandbox)) is not None
    world.agent.tidy()
    assert [f"{OTHER}.main"] == [path.name for path in (world.folder / "run/alloc").iterdir()]


def test_what_was_not_started_in_an_earlier_sandbox_gives_its_part_back(world, monkeypatch):
    """The kubelet has stopped that sandbox, and leaves the last container of each name there while the pod lives."""
    sandbox = world.pod(init=("fetch",), fetch=(0, 16), main=(0, 12))
    main = world.container(sandbox)
    world.agent.create(main)
    renewed = replace(sandbox, id="renewed")
    assert "12 GiB of 16 GiB are in use" in world.refused(world.container(renewed, "fetch"))
    world.agent.tidy()
    assert "are not free yet" in world.refused(world.container(renewed, "fetch")), "it may just be starting"
    monkeypatch.setattr("isolation.node.allocations.START_SECONDS", -1.0)
    world.living.add((UID, main.id))
    world.agent.tidy()
    assert "are not free yet" in world.refused(world.container(renewed, "fetch")), "it was started"
    world.living.clear()
    world.agent.tidy()
    fetch, _ = world.run(renewed, "fetch")
    assert {fetch.id} == world.marks(), "the guard would refuse it now"


def test_what_was_not_started_in_its_pods_only_sandbox_keeps_its_part(world, monkeypatch):
    """The kubelet may start it at any time."""
    monkeypatch.setattr("isolation.node.allocations.START_SECONDS", -1.0)
    sandbox = world.pod(main=(0, 12), second=(0, 4))
    main = world.container(sandbox)
    world.agent.create(main)
    world.run(sandbox, "second")
    world.agent.tidy()
    assert "are not free yet" in world.refused(world.container(world.pod(OTHER, main=(0, 8))))
    assert main.id in world.marks()


def test_a_restart_goes_on_in_its_own_region(world):
    """It is the same promise: what an undying process has stays booked."""
    sandbox = world.pod(main=(0, 12))
    first, _ = world.run(sandbox)
    region = world.folder / f"run/alloc/{UID}.main/region/region"
    before = region.stat().st_ino
    world.end(first, lingers=True)
    world.agent.tidy()
    second, _ = world.run(sandbox)
    assert (before, 1, {second.id}) == (region.stat().st_ino, world.limits()[0], world.marks())


def test_nothing_is_retired_while_the_watch_is_silent(world):
    """Silence is no word that a pod is gone."""
    container, _ = world.run(world.pod(main=(0, 4)))
    world.end(container)
    world.known.clear()
    world.is_synced = False
    world.agent.tidy()
    assert world.promised()
    world.is_synced = True
    world.agent.tidy()
    assert {} == world.promised()


def test_an_init_container_that_has_ended_counts_no_more(world):
    sandbox = world.pod(init=("fetch",), fetch=(0, 2), main=(0, 4))
    fetch, _ = world.run(sandbox, "fetch")
    world.agent.tidy()
    assert {f"{UID}.fetch"} == set(world.promised())
    world.end(fetch)
    world.agent.tidy()
    assert {f"{UID}.fetch"} == set(world.promised()), "it may have failed, and starts again"
    world.watch(UID, record(fetch=(0, 2), main=(0, 4)), ("fetch",), ("fetch",), ("fetch", "main"))
    world.agent.tidy()
    assert {} == world.promised()
    world.run(sandbox)
    world.agent.tidy()
    assert {f"{UID}.main"} == set(world.promised())


def test_a_changed_record_changes_the_limits_of_a_running_container(world):
    world.run(world.pod(main=(0, 4)))
    file = world.folder / f"run/alloc/{UID}.main/limits/limits"
    before = file.stat().st_ino
    for _ in range(3):
        world.watch(UID, record(main=(0, 6)))
        world.agent.tidy()
    assert (2, [6]) == world.limits()
    assert before == file.stat().st_ino, "in place: a mount keeps the old file"
    assert 6 * GIB == world.promised()[f"{UID}.main"].slices[0].bytes == world.allocations.bytes_by_card()[CARDS[0]]


def test_a_record_that_grows_beyond_the_card_waits_until_others_are_gone(world):
    """The card never has more in force than it has, also while nobody starts."""
    world.run(world.pod(main=(0, 4)))
    other, _ = world.run(world.pod(OTHER, main=(0, 10)))
    world.watch(UID, record(main=(0, 8)))
    world.agent.tidy()
    assert ([4], 14 * GIB) == (world.limits()[1], world.allocations.bytes_by_card()[CARDS[0]])
    world.end(other)
    world.agent.tidy()
    assert ([8], 8 * GIB) == (world.limits()[1], world.allocations.bytes_by_card()[CARDS[0]])


def test_what_a_container_had_must_fit_too(world):
    """Before the watch has spoken it gets that, and not what its record says: so that is what must be free."""
    sandbox = world.pod(watched=False, main=(0, 12))
    world.end(world.run(sandbox)[0])
    world.is_synced, world.sandboxes = False, [sandbox]
    world.start_agent()
    other, _ = world.run(world.pod(OTHER, watched=False, main=(0, 8)))
    container = world.container(replace(sandbox, annotations={ALLOCATION: record(main=(0, 1))}))
    assert "12 GiB of card" in world.refused(container)
    world.end(other)
    world.agent.create(container)
    assert [12] == world.limits()[1]


def test_another_card_comes_with_the_next_start(world):
    sandbox = world.pod(main=(0, 4))
    world.run(sandbox)
    world.watch(UID, record(main=(1, 6)))
    world.agent.tidy()
    assert ((1, [4]), {CARDS[0]: 4 * GIB}) == (world.limits(), world.allocations.bytes_by_card())


def test_after_a_restart_of_the_agent_a_running_container_has_what_it_had(world):
    """From the disk and the runtime's list; with nobody in either it would be free."""
    container, _ = world.run(world.pod(main=(0, 12)))
    world.start_agent(synchronize=False)
    world.agent.synchronize([container.sandbox], [container])
    assert "are not free yet" in world.refused(world.container(world.pod(OTHER, main=(0, 8))))
    assert {container.id} == world.marks()
    world.end(container)
    assert world.agent.create(world.container(world.pod(OTHER, main=(0, 8)))) is not None


@pytest.mark.parametrize("had", [True, False])
def test_a_sandbox_older_than_the_agent_waits_for_the_watch_or_keeps_what_it_had(world, had):
    """Its annotation is frozen: meanwhile the scheduler may have changed the record."""
    sandbox = world.pod(watched=False, main=(0, 4))
    if had:
        world.end(world.run(sandbox)[0])
    world.is_synced, world.sandboxes = False, [sandbox]
    world.start_agent()
    sandbox = replace(sandbox, annotations={ALLOCATION: record(main=(0, 8))})
    container = world.container(sandbox)
    if had:
        world.agent.create(container)
        assert [4] == world.limits()[1]
        world.end(container)
    else:
        assert "the pod is older than this node agent" in world.refused(container)
    world.is_synced = True
    world.run(sandbox)
    assert [8] == world.limits()[1]


def test_a_sandbox_younger_than_the_agent_needs_no_api_server(world):
    world.is_synced = False
    world.run(world.pod(watched=False, main=(0, 4)))
    assert [4] == world.limits()[1]


def test_before_the_runtimes_first_list_every_sandbox_is_old(world):
    world.start_agent(synchronize=False)
    world.is_synced = False
    assert "is older than this node agent" in world.refused(world.container(world.pod(watched=False, main=(0, 4))))


@pytest.mark.parametrize("spoil", ["boot", "damaged", "renamed"])
def test_what_stands_on_the_disk_and_means_nothing_goes(world, spoil):
    world.run(world.pod(main=(0, 4)))
    folder = world.folder / f"run/alloc/{UID}.main"
    file = folder / "promise.json"
    match spoil:
        case "boot":
            file.write_text(file.read_text().replace('"boot": "', '"boot": "another'))
        case "damaged":
            file.write_text("{")
        case "renamed":
            folder.rename(folder.with_name("other"))
    world.start_agent()
    assert ([], []) == (list((world.folder / "run/alloc").iterdir()), world.allocations.in_force())


# Its start.


def rooted(world, adjustment, *image):
    """The container's root at its start: our mounts (links that stay inside it), and these files."""
    (world.folder / "proc/42").mkdir(parents=True, exist_ok=True)
    (world.folder / "proc/42/root").symlink_to(world.folder)
    for mount in adjustment.mounts:
        target = world.folder / mount.container.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to("/" + str(Path(mount.host).relative_to(world.folder)))
    for name in image:
        (world.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (world.folder / name).write_bytes(b"\0GLIBC_2.36\0")


def test_a_container_starts_where_everything_is_on_top(world):
    made, adjustment = world.run(world.pod(main=(0, 4)))
    rooted(world, adjustment, *GLIBC)
    world.agent.start(replace(made, pid=42))


@pytest.mark.parametrize("place", ["/etc/ld.so.preload", "/run/gpushare/limits", "/run/gpushare/region/region"])
def test_a_container_in_which_one_of_ours_is_hidden_does_not_start(world, place):
    made, adjustment = world.run(world.pod(main=(0, 4)))
    rooted(world, adjustment, *GLIBC)
    (world.folder / place.lstrip("/")).unlink()
    (world.folder / place.lstrip("/")).write_text("another")
    with pytest.raises(NriRefusedError, match=f"the image or a volume of the pod hides {place}"):
        world.agent.start(replace(made, pid=42))


@pytest.mark.parametrize("unsupported", [REFUSE, ALLOW])
def test_an_image_that_would_load_no_library_starts_only_where_that_is_allowed(world, unsupported):
    world.start_agent(unsupported)
    made, adjustment = world.run(world.pod(main=(0, 4)))
    rooted(world, adjustment)
    if unsupported == ALLOW:
        world.agent.start(replace(made, pid=42))
        assert [False] == [hold.enforced for hold in world.promised().values()]
    else:
        with pytest.raises(NriRefusedError, match="limits cannot be enforced: the image has no glibc loader"):
            world.agent.start(replace(made, pid=42))


def test_a_container_that_cannot_be_looked_into_does_not_start(world):
    made, _ = world.run(world.pod(main=(0, 4)))
    with pytest.raises(NriRefusedError, match="cannot look into the container: No such file"):
        world.agent.start(replace(made, pid=43))


def test_a_runtime_that_starts_in_spite_of_an_error_and_names_no_process(world, monkeypatch):
    """CRI-O: the process that waits for its start is found by its control group, and ended where it is refused."""
    ended = []
    monkeypatch.setattr(containers, "end", lambda pids: ended.extend(pids()))
    made, adjustment = world.run(world.pod(main=(0, 4)))
    rooted(world, adjustment, *GLIBC)
    (world.folder / "proc/42").rename(world.folder / "proc/7")
    world.agent.start(made)
    assert [] == ended
    (world.folder / "etc/ld.so.preload").unlink()
    with pytest.raises(NriRefusedError, match=r"hides /etc/ld\.so\.preload"):
        world.agent.start(made)
    assert [7] == ended


def test_who_was_created_while_we_were_away_does_not_start_without_limits(world):
    sandbox = world.pod(main=(0, 4))
    with pytest.raises(NriRefusedError, match="created while the node agent was not connected"):
        world.agent.start(world.container(sandbox, env=ALL))
    world.agent.start(world.container(sandbox))  # it sees no card
    world.agent.start(world.container(sandbox, "log", env=ALL))
    world.agent.start(world.container(sandbox, annotations={START_NONCE: "n"}))  # by the agent before this one


@pytest.mark.parametrize("prepared", [False, True])
def test_who_was_started_while_we_were_away_and_sees_cards_is_ended(world, monkeypatch, prepared):
    """No pod is deleted."""
    ended = []
    monkeypatch.setattr(containers, "end", lambda pids: ended.extend(pids()))
    sandbox = world.pod(main=(0, 4))
    annotations = {START_NONCE: "n"} if prepared else {}
    running = world.container(sandbox, annotations=annotations, state=NriContainerState.RUNNING, pid=4711, env=ALL)
    world.agent.synchronize([sandbox], [running, replace(running, id="log", name="log"), replace(running, state=4)])
    assert ([] if prepared else [4711]) == ended
    world.living.add((UID, running.id))
    world.agent.synchronize(
        [sandbox], [replace(running, pid=0), replace(running, pid=0, state=NriContainerState.CREATED)]
    )
    assert ([] if prepared else [4711, 7]) == ended


def test_marks_of_containers_that_are_gone_are_swept(world):
    sandbox = world.pod(main=(0, 4))
    made, _ = world.run(sandbox)
    world.gate.mark("gone", ())
    world.agent.tidy()
    assert {made.id} == world.marks()
    world.gate.mark("gone", ())
    world.agent.synchronize([sandbox], [made])
    assert {made.id} == world.marks()
    world.end(made)
    assert set() == world.marks()
