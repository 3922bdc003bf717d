# SPDX-License-Identifier: Apache-2.0
"""Cards that MIG divides: NVIDIA's profiles and places, as nvidia-ml-py and CUDA tell of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from isolation.simgpu.hardware import LIBRARIES, SimulatorError, describe
from isolation.simgpu.mig import PROFILES, SLICES, LayoutError, layout, layouts
from isolation.simgpu.models import MIB, MODELS

LOOK = """
import json
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
found = []
for i in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):
    try:
        p = n.nvmlDeviceGetMigDeviceHandleByIndex(h, i)
    except n.NVMLError:
        continue
    a = n.nvmlDeviceGetAttributes_v2(p)
    found.append([n.nvmlDeviceGetName(p), n.nvmlDeviceGetIndex(p), n.nvmlDeviceGetGpuInstanceId(p),
                  n.nvmlDeviceGetMemoryInfo(p).total, a.multiprocessorCount, a.gpuInstanceSliceCount,
                  a.computeInstanceSliceCount])
print(json.dumps(found))
"""
# By name: how many may be on one card, how many slices of seven and of eight each has (MIG User Guide).
GUIDE = {
    "a100-80g": {
        "1g.10gb": (7, 1, 1),
        "1g.10gb+me": (1, 1, 1),
        "1g.20gb": (4, 1, 2),
        "2g.20gb": (3, 2, 2),
        "3g.40gb": (2, 3, 4),
        "4g.40gb": (1, 4, 4),
        "7g.80gb": (1, 7, 8),
    },
    "b200": {
        "1g.23gb": (7, 1, 1),
        "1g.23gb+me": (1, 1, 1),
        "1g.45gb": (4, 1, 2),
        "2g.45gb": (3, 2, 2),
        "3g.90gb": (2, 3, 4),
        "4g.90gb": (1, 4, 4),
        "7g.180gb": (1, 7, 8),
    },
}
GUIDE["h100-80g"] = GUIDE["a100-80g"]


@pytest.mark.parametrize("model", sorted(PROFILES))
def test_profiles_are_those_of_the_guide(model):
    """As many of each on one card as the guide says; no division has more of memory or compute than the card."""
    profiles, most = PROFILES[model], {}
    for each in layouts(profiles):
        names = [part.profile.name for part in each]
        for name in names:
            most[name] = max(most.get(name, 0), names.count(name))
        assert sum(part.profile.compute for part in each) <= 7
        assert sum(part.profile.size for part in each) <= SLICES
        assert sum(part.profile.mib for part in each) <= MODELS[model].memory_mib
        assert sum(part.profile.sms for part in each) <= MODELS[model].sms
        assert len({part.gpu_instance for part in each}) == len(each)
    assert GUIDE[model] == {name: (most[name], each.compute, each.size) for name, each in profiles.items()}


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("1g.10gb,1g.10gb", [(0, 7), (1, 8)]),
        ("3g.40gb@4,2g.20gb,1g.10gb", [(0, 3), (2, 9), (4, 2)]),  # as a driver numbered them on an A100
        ("3g.40gb,4g.40gb", [(0, 1), (4, 2)]),  # only the other way round: 4g begins at 0
        ("7g.80gb", [(0, 0)]),
    ],
)
def test_a_division_is_put_where_it_fits(text, places):
    """Slice and id of each instance, whatever order they are named in."""
    assert places == [(part.start, part.gpu_instance) for part in layout(PROFILES["a100-80g"], text)]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("a100-80g:5g.50gb", "no MIG profile '5g.50gb'; choose from 1g.10gb"),
        ("a100-80g:3g.40gb@2", "cannot begin at slice '2'; choose from 0, 4"),
        ("a100-80g:4g.40gb,4g.40gb", "do not fit on one card together"),
        ("h100-80g:1g.10gb+me,1g.10gb+me", "do not fit on one card together"),
        ("t4:1g.10gb", "model t4 has no MIG profiles; choose from a100-80g"),
        ("k80", "unknown model k80; choose from"),
    ],
)
def test_a_division_that_no_card_has_is_refused(model, said):
    with pytest.raises(SimulatorError, match=said):
        describe([model], 1)
    assert issubclass(LayoutError, ValueError)


@pytest.mark.parametrize(
    "model",
    ["a100-80g:3g.40gb@4,2g.20gb@0,1g.10gb@2", "h100-80g:4g.40gb,3g.40gb", "b200:1g.45gb,2g.45gb,3g.90gb"],
)
def test_nvml_tells_each_instance_with_its_parts(make_box, model):
    """
    Name, index, GPU instance, memory, SMs and slices: as the profile has them.
    """
    env = {**os.environ, "GPUSHARE_SIMGPU": str(make_box(model).path), "LD_LIBRARY_PATH": str(LIBRARIES)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert 0 == done.returncode, done.stderr

    name, _, text = model.partition(":")
    assert [
        [
            f"{MODELS[name].name} MIG {part.profile.name}",
            at,
            part.gpu_instance,
            part.profile.mib * MIB,
            part.profile.sms,
            part.profile.size,
            part.profile.compute,
        ]
        for at, part in enumerate(layout(PROFILES[name], text))
    ] == json.loads(done.stdout)


def test_a_process_gets_the_memory_and_the_sms_of_its_instance(make_box, run):
    """The neighbour on the same card has its own, and is not charged."""
    box = make_box("h100-80g:3g.40gb@0,1g.20gb@4")
    small = next(at for at, card in enumerate(box.cards()) if card.model.profile == b"1g.20gb")
    uuid = bytes(box.cards()[small].model.uuid).hex()
    dashed = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    code = """
        start()
        first = alloc(18 << 30)
        say(call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(2 << 30)))
        wait()
    """
    client = run(box, code, CUDA_VISIBLE_DEVICES=f"MIG-{dashed}")

    assert "2" == client.line()
    used = [card.used_bytes for card in box.cards()]
    assert [at for at, each in enumerate(used) if each] == [small]
