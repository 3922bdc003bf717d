# SPDX-License-Identifier: Apache-2.0
"""Records of cards and allocations: the decoder for plain ones agrees with the reader of single fields."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import CodecError, allocation, node
from isolation.contract.codec.cursor import decoded
from isolation.contract.model import Ask, Compute, ComputePolicy, Placement, Request, Slice, Trust
from isolation.contract.quantity import GIB

odd = st.sampled_from([None, 0, 1, -1, 2**62, 2**62 - 1, 63, 64, "GPU-1", "", True, [], {}, 1.0, 1.5, "x" * 80])
FIELDS = ("uuid", "index", "bytes", "core", "total", "reserved", "unit", "healthy", "model")
record_cards = st.lists(st.dictionaries(st.sampled_from(FIELDS), odd), max_size=3)
documents = st.fixed_dictionaries(
    {"version": st.sampled_from([1, 2, None, "1", 1.0, True]), "cards": record_cards},
    optional={
        "promise": odd,
        "containers": st.lists(st.fixed_dictionaries({"name": odd, "cards": record_cards}), max_size=2),
        "trust": odd | st.fixed_dictionaries({}, optional={"group": odd | st.just("x" * 254), "uid": odd}),
    },
)


def outcome(read, text):
    """The value, or the error's message."""
    try:
        return read(text)
    except CodecError as exc:
        return str(exc)


def agree(text):
    """Whether both ways give the same of both records."""
    for both in (
        (allocation.decode_allocation, allocation._allocation_at),
        (node.decode_cards, node._cards_at),
    ):
        whole, by_field = both
        assert outcome(lambda t, read=by_field: read(decoded(t)), text) == outcome(whole, text)


@given(documents)
def test_any_record_is_read_as_field_by_field(document):
    """
    Whatever somebody wrote there: the same slices, parts and cards, or the same error.
    """
    agree(json.dumps(document))


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 40) | st.sampled_from([2**62, 2**63]),
    st.sampled_from(["main", "Main", "", "m-", "a" * 63, "a" * 64]),
)
def test_records_that_are_nearly_right_are_read_as_field_by_field(cards, parts, size, name):
    """
    Cards that stand twice, parts larger than the whole, names that are none.
    """
    listed = [{"uuid": f"GPU-{i % 3}", "index": i % 3, "bytes": 20 * GIB, "core": 10} for i in range(cards)]
    of = [{"uuid": f"GPU-{i}", "bytes": size * GIB, "core": 5} for i in range(parts)]
    agree(json.dumps({"version": 1, "promise": "p", "cards": listed, "containers": [{"name": name, "cards": of}]}))


@pytest.mark.parametrize("count", [1, 8, 64, 65])
def test_the_records_that_we_write_are_read_in_one_step(monkeypatch, count):
    """
    Only more cards than any machine has are looked at field by field, and refused.
    """
    cards = [
        {"uuid": f"GPU-{i}", "index": i, "total": GIB, "reserved": 0, "unit": GIB, "healthy": True}
        for i in range(count)
    ]
    text = json.dumps({"version": 1, "cards": cards})
    if count > 64:
        assert "at most 64 cards" in outcome(node.decode_cards, text)
        return
    monkeypatch.setattr(node, "_cards_at", lambda _: pytest.fail("read field by field"))
    assert count == len(node.decode_cards(text))


COMPUTES = st.builds(
    Compute, st.sampled_from(ComputePolicy), st.booleans(), weight=st.integers(0, 100), ceiling=st.integers(0, 100)
)


@given(COMPUTES)
def test_a_record_keeps_how_compute_is_shared(compute):
    """Read in one step and field by field; what is fixed and says nothing more stands in no field."""
    slices = (Slice("GPU-1", 0, GIB, 30),)
    request = Request(1, GIB, 30, asks=(Ask("main", GIB, 30),), compute=replace(compute, policy=ComputePolicy.NONE))
    text = allocation.encode_allocation("uid", request, Placement("n", slices), compute.policy)

    assert compute == allocation.decode_allocation(text).compute
    assert compute == allocation._allocation_at(decoded(text)).compute
    assert ("compute" in json.loads(text)) == (compute != Compute())


@pytest.mark.parametrize(
    "wrong", [{"policy": "fair"}, {"online": "yes"}, {"weight": 101}, {"weight": -1}, {"ceiling": 101}, []]
)
def test_a_record_of_another_kind_of_sharing_is_refused(wrong):
    """It would be obeyed as if it were fixed."""
    part = {"uuid": "GPU-1", "bytes": 1, "core": 0}
    record = {"version": 1, "promise": "u", "cards": [part | {"index": 0}], "containers": [], "compute": wrong}
    with pytest.raises(CodecError, match="compute"):
        allocation.decode_allocation(json.dumps(record))


@pytest.mark.parametrize(("group", "uid"), [("ml", 1000), ("group/research", 0), ("", 1000), ("ml", None)])
def test_a_record_keeps_beside_whom_the_pod_may_be_where_that_is_known(group, uid):
    request = Request(1, GIB, asks=(Ask("main", GIB),), group=group, uid=uid)
    text = allocation.encode_allocation("p", request, Placement("n", (Slice("GPU-0", 0, GIB),)))
    wanted = Trust(group, uid) if group and uid is not None else None
    assert wanted == allocation.decode_allocation(text).trust
    assert wanted == allocation._allocation_at(decoded(text)).trust
