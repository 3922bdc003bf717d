# SPDX-License-Identifier: Apache-2.0
"""Which units the kubelet has given away, by its own file."""

from __future__ import annotations

import json

import pytest

from isolation.contract.names import ACK
from isolation.node.checkpoint import FILE, Checkpoint

# As a kubelet 1.36 wrote it, the answers of the plugins shortened.
RECORDED = """{"Data":{"PodDeviceEntries":[
{"PodUID":"7a0ed4b1-9a3a-4f8e-8c64-0d3c0a4f8f11","ContainerName":"main","ResourceName":"aliyun.com/gpu-mem",
"DeviceIDs":{"-1":["1GiB-3","1GiB-0"]},"AllocResp":"OhgKFg=="},
{"PodUID":"7a0ed4b1-9a3a-4f8e-8c64-0d3c0a4f8f11","ContainerName":"main","ResourceName":"example.com/nic",
"DeviceIDs":{"-1":["eth7"]},"AllocResp":""},
{"PodUID":"f3b2a6d0-52a4-4ad8-9a2e-0f6b6a1f2c22","ContainerName":"side","ResourceName":"aliyun.com/gpu-mem",
"DeviceIDs":{"0":["1GiB-7"],"1":["1GiB-9"]},"AllocResp":"OhgKFg=="}],
"RegisteredDevices":{"aliyun.com/gpu-mem":["1GiB-0","1GiB-1","1GiB-3","1GiB-7","1GiB-9"],"example.com/nic":["eth7"]}},
"Checksum":1482927731}"""
GIVEN = {"1GiB-0", "1GiB-3", "1GiB-7", "1GiB-9"}


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / FILE).write_text(RECORDED)
    return Checkpoint(tmp_path, ACK.memory)


def test_what_containers_have_is_read_for_our_resource_over_all_numa_nodes(checkpoint):
    """Registered devices are what we have told the kubelet; they are nobody's."""
    assert GIVEN == checkpoint.used()
    assert {"7a0ed4b1-9a3a-4f8e-8c64-0d3c0a4f8f11", "f3b2a6d0-52a4-4ad8-9a2e-0f6b6a1f2c22"} == checkpoint.pods()


def test_a_kubelet_that_gave_nothing_writes_null_or_no_file(checkpoint, tmp_path):
    record = json.loads(RECORDED)
    record["Data"]["PodDeviceEntries"] = None
    (tmp_path / FILE).write_text(json.dumps(record))
    assert frozenset() == checkpoint.used()
    (tmp_path / FILE).write_text(RECORDED)
    assert GIVEN == checkpoint.used()
    (tmp_path / FILE).unlink()
    assert frozenset() == checkpoint.used()


@pytest.mark.parametrize(
    "text", ["", RECORDED[:200], "[]", '{"Data": {}}', '{"Data": {"PodDeviceEntries": [{}]}}', "[" * 100_000, "\x00"]
)
def test_what_cannot_be_read_leaves_what_was_known_and_is_reported_once(checkpoint, tmp_path, caplog, text):
    """Who has a unit must not seem to have none: it would be called unhealthy with an unhealthy card."""
    assert GIVEN == checkpoint.used()
    (tmp_path / FILE).write_text(text)
    for _ in range(3):
        assert GIVEN == checkpoint.used()
    assert 1 == caplog.text.count("cannot read")
    (tmp_path / FILE).write_text(RECORDED.replace("1GiB-9", "1GiB-8"))
    assert "1GiB-8" in checkpoint.used()


def test_the_file_is_read_again_only_when_it_has_changed(checkpoint, monkeypatch, tmp_path):
    """The kubelet replaces it; we look each second."""
    reads = []
    read = checkpoint._read
    monkeypatch.setattr(checkpoint, "_read", lambda: reads.append(1) or read())
    for _ in range(5):
        checkpoint.used()
    new = tmp_path / "new"
    new.write_text(RECORDED.replace("1GiB-9", "1GiB-8"))
    new.replace(tmp_path / FILE)
    assert ("1GiB-8" in checkpoint.used(), 2) == (True, len(reads))
