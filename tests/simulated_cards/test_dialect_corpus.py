# SPDX-License-Identifier: Apache-2.0
"""The vendors' own examples in a container: from the pod's record to what NVML says inside."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from support.cdi_process import Boxed, namespaces
from support.dialect_corpus import CARD_GIB, CORPUS, Share
from support.simbox import boxes

from isolation.contract import abi
from isolation.contract.codec import request_of
from isolation.contract.codec.allocation import decode_allocation, encode_allocation
from isolation.contract.dialects import Offered, translate
from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Card, Cluster, ComputePolicy, Mode, Node, Placement, Request
from isolation.contract.names import AVOID_MODELS, AVOID_UUIDS, CORE_STEPS, ONLINE, USE_MODELS, USE_UUIDS
from isolation.contract.quantity import GIB
from isolation.host.core.compute_rates import TRICKLE_PPM
from isolation.node.backend import LibraryBackend
from isolation.node.core.container_check import Given
from isolation.node.delivery import Delivery
from isolation.node.hardware import SimulatedHardware
from isolation.placement.place import place

CARD_RULES = {USE_MODELS, AVOID_MODELS, USE_UUIDS, AVOID_UUIDS}
LIBRARIES = Path(__file__).resolve().parents[2] / "isolation" / "simgpu" / "lib"
OFFERED = Offered(frozenset(CORE_STEPS), lambda _rules, **_compute: frozenset({CARD_GIB * GIB}))
SHARES = [
    row
    for row in CORPUS
    # Rules about cards name cards that are not here; time slices are not enforced, so there is no limits file; mode mps
    # needs daemons (test_mps_backend.py).
    if isinstance(row.becomes, Share)
    and not {*row.becomes.notes} & CARD_RULES
    and row.dialect != "time-slices"
    and row.name != "kai/sm_sharing"
]
SHAPES = {(row.becomes.cards, row.becomes.gib, row.becomes.percent): row for row in SHARES}
NVML = """
nv = CDLL("libnvidia-ml.so.1")
ok(nv.nvmlInit_v2())
count, seen = c_uint(), []
ok(nv.nvmlDeviceGetCount_v2(byref(count)))
for at in range(count.value):
    card, memory = c_void_p(), (c_ulonglong * 3)()
    ok(nv.nvmlDeviceGetHandleByIndex_v2(at, byref(card)))
    ok(nv.nvmlDeviceGetMemoryInfo(card, memory))
    seen.append(memory[0])
say(seen)
"""
pytestmark = [
    pytest.mark.skipif(not (LIBRARIES / "libcuda.so.1").is_file(), reason="the simulated driver was not built"),
    pytest.mark.skipif(not namespaces(), reason="this user may not make mount namespaces"),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node with three simulated cards of 80 GiB."""
    folder = tmp_path_factory.mktemp("node")
    with boxes(*("a100-80g",) * 3, teardown_ns=0) as box:
        uuids = [f"GPU-{UUID(bytes=bytes(card.model.uuid))}" for card in box.cards()]
        cards = [Card(uuid, at, CARD_GIB * GIB, model="A100-SXM4-80GB") for at, uuid in enumerate(uuids)]
        hardware = SimulatedHardware(box.path, LIBRARIES, folder / "run")
        delivery = Delivery(folder / "run", hardware, LibraryBackend(folder / "run"))
        yield SimpleNamespace(cards=cards, delivery=delivery, run=folder / "run", boxed=Boxed(folder))


def is_online(row):
    """Whether compute may be guaranteed to it."""
    return row.becomes.notes.get(ONLINE) != "false"


def delivered(node, row):
    """What the container of a row gets: its limits file, and the edits of its specification."""
    found = translate(row.pod, OFFERED)
    request = request_of(found.metadata.value, found.spec.value)
    assert isinstance(request, Request)
    mode = Mode.CORE_MEM if row.becomes.percent else Mode.CGPU
    policy = ComputePolicy.FIXED if is_online(row) else ComputePolicy.PRIORITY
    where = place(request, Cluster((Node("n1", tuple(node.cards), mode, policy=policy),), ()))
    assert isinstance(where, Placement), where
    tenant = Tenant("default", "p", "1140914f-bf25-4cf5-a28a-2853bcd66768", row.becomes.container)
    record = decode_allocation(encode_allocation(tenant.uid, request, where, policy))
    (part,) = [one for one in record.parts if one.container == row.becomes.container]
    given = Given(part.slices, compute=record.compute)
    edits = node.delivery.deliver(tenant, given, {card.uuid: card for card in node.cards}).edits
    (limits,) = (node.run / "alloc" / f"{tenant.uid}.{tenant.container}").glob("limits/limits")
    return abi.unpack_limits(limits.read_bytes()), edits


@pytest.mark.parametrize("row", SHARES, ids=lambda row: row.name)
def test_the_limits_of_an_example_are_what_the_table_says(node, row):
    """Cards, bytes and compute, as the record of its placement has them."""
    limits, _ = delivered(node, row)
    ppm = row.becomes.percent * (abi.PPM // 100) if is_online(row) else TRICKLE_PPM
    assert [(row.becomes.gib * GIB, ppm)] * row.becomes.cards == [
        (card.memory_bytes, card.core_ppm) for card in limits.cards
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_program_sees_its_cards_and_their_memory(node, shape):
    """One process for each shape of the table: NVML shows so many cards of so much memory."""
    _, edits = delivered(node, SHAPES[shape])
    cards, gib, _ = shape
    assert [gib * GIB] * cards == node.boxed.run(edits, NVML)
