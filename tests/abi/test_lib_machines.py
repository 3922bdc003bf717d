# SPDX-License-Identifier: Apache-2.0
"""The library on machines of every kind: old and new drivers, mixed cards, MIG, another card after a restore."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from support.compiled import gcc, kept
from support.lib_machine import machines
from support.simcontainers import GIB, OOM

from isolation.contract import abi
from isolation.lib import files
from isolation.simgpu import hardware

DRIVER = Path(hardware.__file__).parent / "driver"


@pytest.fixture
def machine(tmp_path, plain_library):
    """Make one box: `machine("t4", "v100-16g", cuda_version=12000)`."""
    with machines(tmp_path.name, plain_library) as make:
        yield make


@pytest.mark.parametrize("version", [11030, 11070, 12000, 12080, 13000, 13040, 14000])
@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_drivers_of_every_age_are_limited(machine, request, variant, version):
    """By exported names and by cuGetProcAddress, whichever functions the driver admits to having."""
    one = machine(library=request.getfixturevalue(variant), cuda_version=version)
    one.promise("a", (0, 2048))
    by_name, asked, total = one.run(
        "a",
        """
begin()
at = c_uint64()
rc, allocate = entry(b"cuMemAlloc", 11030)
say([alloc(3 * GIB)[0], [rc, allocate(addressof(at), MIB), allocate(addressof(at), 3 * GIB)], info()[1]])
""",
    )

    assert (OOM, [0, 0, OOM], 2 * GIB) == (by_name, asked, total)


@pytest.fixture(scope="session")
def aged_driver() -> Path:
    """The simulated driver with no name that came after CUDA 10.0: no cuGetProcAddress, pools or virtual memory."""
    names = re.findall(r"^[XAP]\w*\((\w+), (\d+), (\w+)\)", (DRIVER / "cuda" / "names.def").read_text(), re.MULTILINE)
    old = sorted({symbol for _, version, symbol in names if int(version) <= 10000})
    names = "{ global: " + "; ".join(old) + "; local: *; };\n"
    script = kept("aged.map", [names], [], lambda target: target.write_text(names))
    flags = ["-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,--version-script={script}"]
    flags += ["-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-lpthread", "-ldl", "-lm"]
    shared = [path for path in (DRIVER / "hw").glob("*.c") if path.name != "tool.c"]
    sources = sorted([*shared, *(DRIVER / "cuda").glob("*.c")])
    return gcc("libcuda.so.1", sources, *flags, beside=[DRIVER / "hw", DRIVER / "cuda"])


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_a_driver_from_before_many_names_is_limited(machine, request, aged_driver, variant):
    """What it has is limited; what it lacks is not found, neither by our export nor by a forwarder of ours."""
    one = machine(library=request.getfixturevalue(variant), cuda_version=10000)
    (one.folder / "libcuda.so.1").unlink()
    (one.folder / "libcuda.so.1").symlink_to(aged_driver)
    one.promise("a", (0, 2048))
    had, refused, total, lacked = one.run(
        "a",
        """
begin()
def missing(name):
    try:
        return cu[name](*[None] * 6)
    except AttributeError:
        return 500
names = ("cuMemCreate", "cuMemAllocAsync", "cuGetProcAddress_v2", "cuMemPoolTrimTo", "cuGraphLaunch_ptsz")
say([alloc(MIB)[0], alloc(3 * GIB)[0], info()[1], [missing(name) for name in names]])
""",
    )

    assert (0, OOM, 2 * GIB) == (had, refused, total)
    assert [500] * 4 == lacked[:4]


@pytest.mark.parametrize("order", ["", "PCI_BUS_ID"])
@pytest.mark.parametrize("visible", [False, True])
def test_on_mixed_cards_each_has_the_promise_of_its_uuid(machine, order, visible):
    """CUDA sorts by speed unless told otherwise, NVML by PCI address: both show every card with its own promise."""
    one = machine("t4", "v100-16g", "a10")
    promised = {one.uuids[card].hex: size for card, size in ((0, 1024), (1, 3072), (2, 2048))}
    one.promise("a", (2, 2048), (0, 1024), (1, 3072))
    env = {"CUDA_DEVICE_ORDER": order}
    if visible:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(f"GPU-{uuid}" for uuid in one.uuids)
    cuda, nvml = one.run(
        "a",
        """
nv, cuda, nvml = CDLL("libnvidia-ml.so.1"), [], []
for device in range(3):
    ok(begin(device))
    cuda.append([uuid(device), info()[1] // MIB, alloc(4 * GIB)[0]])
ok(nv.nvmlInit_v2())
for device in range(3):
    card, text, memory = c_void_p(), create_string_buffer(96), (c_uint64 * 3)()
    ok(nv.nvmlDeviceGetHandleByIndex_v2(device, byref(card)))
    ok(nv.nvmlDeviceGetUUID(card, text, 96))
    ok(nv.nvmlDeviceGetMemoryInfo(card, memory))
    nvml.append([text.value.decode(), memory[0] // MIB])
say([cuda, nvml])
""",
        **env,
    )

    assert promised == {uuid: size for uuid, size, _ in cuda}
    assert [OOM] * 3 == [rc for *_, rc in cuda]
    assert [[f"GPU-{uuid}", promised[uuid.hex]] for uuid in one.uuids] == nvml
    by_speed = [uuid for uuid, *_ in cuda]
    in_nvml_order = [uuid.hex for uuid in one.uuids]
    assert (bool(order) or visible) == (by_speed == in_nvml_order)


def test_a_mig_instance_is_a_card_of_its_own(machine):
    """Keyed by the UUID that CUDA tells: the instance has the promise, its sisters are not promised."""
    one = machine("a100-80g-mig")
    mine, other = one.uuids[3], one.uuids[4]
    one.promise("a", (3, 5120))
    printed, refused = one.run(
        "a", "say([[begin(), uuid(0), *info()], alloc(6 * GIB)[0]])", CUDA_VISIBLE_DEVICES=f"MIG-{mine}"
    )
    unlisted = one.run("a", "say(begin())", CUDA_VISIBLE_DEVICES=f"MIG-{other}")

    assert [0, mine.hex, 5 * GIB - one.context_bytes(3), 5 * GIB] == printed
    assert (OOM, OOM) == (refused, unlisted)


def test_nvml_shows_the_divided_card_and_the_promised_instance(machine):
    """One card, as large as the promise, and in it one instance: without the card no program finds the instance."""
    one = machine("a100-80g-mig", "v100-16g")
    one.promise("a", (3, 5120))
    seen = one.run(
        "a",
        """
nv = CDLL("libnvidia-ml.so.1")
ok(nv.nvmlInit_v2())
def told(handle):
    text, memory = create_string_buffer(96), (c_uint64 * 3)()
    ok(nv.nvmlDeviceGetUUID(handle, text, 96))
    ok(nv.nvmlDeviceGetMemoryInfo(handle, memory))
    return [text.value.decode(), memory[0] // MIB]
count, card, parts, none = c_uint(), c_void_p(), [], c_void_p()
ok(nv.nvmlDeviceGetCount_v2(byref(count)))
ok(nv.nvmlDeviceGetHandleByIndex_v2(0, byref(card)))
for index in range(7):
    part = c_void_p()
    rc = nv.nvmlDeviceGetMigDeviceHandleByIndex(card, index, byref(part))
    parts.append(rc or told(part))
say([count.value, told(card), parts])
""",
    )

    assert [1, [f"GPU-{one.uuids[0]}", 5120], [[f"MIG-{one.uuids[3]}", 5120], *[6] * 6]] == seen


@pytest.mark.parametrize(("core_ppm", "counted"), [(0, False), (300_000, True)])
def test_compute_of_an_instance_is_limited_only_if_asked(machine, core_ppm, counted):
    """MIG divides the processors itself: no launch is counted or held back unless the host wrote a share."""
    one = machine("a100-80g-mig")
    one.promise("a", (1, 2048), core_ppm=core_ppm)
    one.run("a", "begin()\nfunction = kernel()\nsay([launch(function) for _ in range(100)])", CUDA_VISIBLE_DEVICES="")
    (card,) = one.book("a").cards

    assert (counted, core_ppm) == (card.launches > 0, card.rate_ppm)


def test_a_container_restored_on_another_card_obeys_the_new_promise(machine):
    """A checkpoint may come back on another chip: the host writes its UUID, and the same ledger goes on."""
    one = machine("v100-16g", "v100-16g")
    one.promise("a", (0, 2048))
    worker = one.start("a", "for line in sys.stdin: say([begin(0), begin(1)])")

    def ask() -> str:
        worker.stdin.write("\n")
        worker.stdin.flush()
        return worker.stdout.readline().strip()

    before = ask()
    context = one.context_bytes()
    moved = abi.CardLimit(one.uuids[1], 2 * GIB, context)
    files.write_limits(one.folder / "a.limits", abi.Limits(2, "a", (moved,)))
    time.sleep(0.12)
    ask()  # looks at the limits, at most every 50 ms
    end = ask()
    worker.communicate("", timeout=120)

    assert ("[0, 2]", "[0, 0]") == (before, end)
