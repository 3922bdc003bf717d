# SPDX-License-Identifier: Apache-2.0
"""
Cubins, PTX and fat binaries on the simulated driver: their names, their variables, and what they take of the card.
"""

from __future__ import annotations

import pytest
from support import cuda_images

from isolation.simgpu.hardware import KINDS

MIB = 1 << 20
CUBIN = cuda_images.cubin({"first": 4096, "second": 256}, {"table": 3 * MIB, "flag": 4})
LONG = "_ZN2at6native" + "N3cub17DeviceReduceTileE" * 200


def modules(box):
    """Bytes of modules on the first card."""
    return sum(client.bytes[KINDS.index("module")] for client in box.clients(0))


def load(image: bytes) -> str:
    """Lines of a client that loads an image; `rc` is what the driver said."""
    return f"""
start()
module, found, at, size = c_void_p(), c_void_p(), c_uint64(), c_size_t()
image = c.create_string_buffer({image!r})
rc = call("cuModuleLoadData", byref(module), image)
def known(name):
    return call("cuModuleGetFunction", byref(found), module, name)
def variable(name):
    return call("cuModuleGetGlobal_v2", byref(at), byref(size), module, name) or size.value
"""


@pytest.mark.parametrize(
    ("image", "kernel", "known"),
    [
        (CUBIN, "second", ("table", 3 * MIB)),
        (CUBIN, "first", ("flag", 4)),
        (cuda_images.cubin({LONG + "k": 256}, {LONG + "d": 64}), LONG + "k", (LONG + "d", 64)),
        (cuda_images.ptx(variables=".global .f32 a[3][5], b; // .global .b8 c[7];"), "k", ("a", 60)),
        (cuda_images.fat(cuda_images.entry(CUBIN, 70)), "first", ("table", 3 * MIB)),
    ],
)
def test_images_tell_their_names_and_sizes(make_box, run, image, kernel, known):
    """Kernels and variables by name, of any length; a name that is not there is not found."""
    variable, size = known
    code = load(image) + f"say(rc, known(b'{kernel}'), variable(b'{variable}'), known(b'none'), variable(b'none'))"

    assert f"0 0 {size} 500 500" == run(make_box(), code).end()


@pytest.mark.parametrize(("permille", "mib"), [(1000, 4), (500, 2), (2000, 8)])
def test_variables_are_taken_from_the_card(make_box, run, permille, mib):
    """3 MiB and a little code, in granules; given back with the module."""
    box = make_box(module_permille=permille)
    client = run(box, load(CUBIN) + "say(rc)\nwait()\nsay(call('cuModuleUnload', module))\nwait()")
    assert "0" == client.line()
    loaded = modules(box)
    client.tell()
    unloaded = client.line(), modules(box)
    client.tell()
    client.end()

    assert mib * MIB == loaded
    assert ("0", 0) == unloaded


@pytest.mark.parametrize(("model", "mib"), [("v100-16g", 8), ("t4", 10), ("a100-80g", 4)])
def test_a_fat_binary_is_loaded_for_the_cards_architecture(make_box, run, model, mib):
    """The newest cubin that runs on it, else PTX."""
    image = cuda_images.fat(
        cuda_images.entry(cuda_images.ptx(variables=f".global .b8 a[{4 * MIB - 4096}];"), 80),
        cuda_images.entry(cuda_images.cubin({"k": 64}, {"a": 8 * MIB - 4096}), 70),
        cuda_images.entry(bytes(64), 75, full_bytes=10 * MIB),
        cuda_images.entry(cuda_images.cubin({"k": 64}, {"a": 12 * MIB}), 90),
    )
    box = make_box(model)
    client = run(box, load(image) + "say(rc)\nwait()")

    assert "0" == client.line()
    assert mib * MIB == modules(box)
    client.tell()
    client.end()


def test_a_fat_binary_for_other_cards_is_refused(make_box, run):
    """Newer than the card, and of another generation."""
    image = cuda_images.fat(cuda_images.entry(cuda_images.ptx(), 80), cuda_images.entry(CUBIN, 60))

    assert "209" == run(make_box(), load(image) + "say(rc)").end()
