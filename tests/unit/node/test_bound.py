# SPDX-License-Identifier: Apache-2.0
"""
What the agent believes of a pod's JSON.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import CodecError
from isolation.contract.names import ACK, ALLOCATION
from isolation.node.bound import bound_of

UID = "1140914f-bf25-4cf5-a28a-2853bcd66768"


def record(uid=UID, **containers):
    """Our record, 1 GiB of one card for each container."""
    card = {"uuid": "GPU-0", "index": 0, "bytes": 1 << 30, "core": 0}
    parts = [{"name": name, "cards": [{"uuid": "GPU-0", "bytes": units << 30}]} for name, units in containers.items()]
    return json.dumps({"version": 1, "promise": uid, "cards": [card | {"bytes": 64 << 30}], "containers": parts})


def box(name, units=None, **more):
    """A container."""
    return {"name": name, "resources": {"limits": {ACK.memory: str(units)} if units is not None else {}}} | more


def pod(inits=(), apps=(), annotations=None, **status):
    """A pod's JSON."""
    return {
        "metadata": {"name": "a", "namespace": "ml", "uid": UID, "annotations": annotations or {}},
        "spec": {"nodeName": "n", "initContainers": list(inits), "containers": list(apps)},
        "status": status,
    }


def test_containers_stand_in_the_kubelets_order_with_what_they_ask():
    """
    Init containers and sidecars first; who asks for nothing is not there.
    """
    made = pod([box("fetch", 3), box("side", 1, restartPolicy="Always"), box("other")], [box("main", 2), box("log")])

    found = bound_of(made)

    assert [("fetch", 3, True), ("side", 1, False), ("main", 2, False)] == [
        (one.name, one.units, one.init) for one in found.wanted
    ]


def test_the_status_says_which_init_container_has_ended():
    """
    Only an init container is done, and only when it ended well; a sidecar never.
    """
    well, badly = {"terminated": {"exitCode": 0}}, {"terminated": {"exitCode": 1}}
    status = {
        "initContainerStatuses": [
            {"name": name, "state": badly if name == "two" else well} for name in ("one", "two", "side")
        ],
        "containerStatuses": [{"name": "main", "state": well}],
    }
    inits = [box("one", 1), box("two", 1), box("side", 1, restartPolicy="Always"), box("next", 1)]
    found = bound_of(pod(inits, [box("main", 1)], **status))

    assert ["one"] == [one.name for one in found.wanted if one.done]
    assert (("one", 1), None) == ((found.container("one").name, found.container("one").units), found.container("x"))


@pytest.mark.parametrize(
    ("annotations", "readable"),
    [
        ({ALLOCATION: record(main=1)}, True),
        ({ALLOCATION: record(uid="another-pods", main=1)}, False),
        ({ALLOCATION: "{"}, False),
        ({}, False),
    ],
    ids=["ours", "copied", "cut", "none"],
)
def test_a_record_counts_if_it_was_made_for_this_pod(annotations, readable):
    """
    A copied one promises nothing.
    """
    found = bound_of(pod(apps=[box("main", 1)], annotations=annotations))

    assert readable == (found.allocation is not None)
    assert readable == (found.part("main") is not None)
    assert found.part("other") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
PATHS = [
    ("metadata",),
    ("metadata", "annotations"),
    ("metadata", "annotations", ALLOCATION),
    ("spec", "containers"),
    ("spec", "initContainers"),
    ("status", "initContainerStatuses"),
]


@given(st.sampled_from(PATHS), JSON)
def test_any_json_is_a_pod_or_a_codec_error(path, thing):
    """
    Nothing else comes of it: a pod that cannot be read must not stop the agent.
    """
    made = pod(apps=[box("main", 1)], annotations={ALLOCATION: record(main=1)})
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = thing
    try:
        bound_of(made)
    except CodecError:
        return
