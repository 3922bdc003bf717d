"""
The library on machines of every kind: old and new drivers, mixed cards, MIG; and who escapes it.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from itertools import product
from pathlib import Path

import pytest
from simcontainers import GIB, MIB, OOM, SimBox

from isolation.contract import abi
from isolation.contract.compare import CardUser, compare
from isolation.lib import files
from isolation.simgpu import hardware

DRIVER = Path(hardware.__file__).parent / "driver"


@pytest.fixture
def machine(tmp_path, plain_library):
    """Make one box: `machine("t4", "v100-16g", cuda_version=12000)`."""
    if not (hardware.LIBRARIES / "libcuda.so.1").is_file():
        pytest.skip("the simulated driver is not built")
    made: list[SimBox] = []

    def make(*models: str, library: Path = plain_library, **settings: int) -> SimBox:
        folder = Path("/dev/shm") / f"gpushare-test-{os.getpid()}-{tmp_path.name}-{len(made)}"  # noqa: S108 (removed below)
        folder.mkdir()
        made.append(SimBox(folder, library, models or ("v100-16g",), settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


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
def aged_driver(c_folder) -> Path:
    """The simulated driver with no name that came after CUDA 10.0: no cuGetProcAddress, pools or virtual memory."""
    names = re.findall(r"^[XAP]\w*\((\w+), (\d+), (\w+)\)", (DRIVER / "cuda" / "names.def").read_text(), re.MULTILINE)
    script, target = c_folder / "aged.map", c_folder / "aged" / "libcuda.so.1"
    old = sorted({symbol for _, version, symbol in names if int(version) <= 10000})
    script.write_text("{ global: " + "; ".join(old) + "; local: *; };\n")
    target.parent.mkdir()
    shared = [path for path in (DRIVER / "hw").glob("*.c") if path.name != "tool.c"]
    flags = ["-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,--version-script={script}"]
    flags += ["-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-o", str(target)]
    sources = [*map(str, shared), *map(str, (DRIVER / "cuda").glob("*.c"))]
    subprocess.run(["gcc", *flags, *sources, "-lpthread", "-ldl", "-lm"], check=True)
    return target


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
    told, refused = one.run(
        "a", "say([[begin(), uuid(0), *info()], alloc(6 * GIB)[0]])", CUDA_VISIBLE_DEVICES=f"MIG-{mine}"
    )
    unlisted = one.run("a", "say(begin())", CUDA_VISIBLE_DEVICES=f"MIG-{other}")

    assert [0, mine.hex, 5 * GIB - one.context_bytes(3), 5 * GIB] == told
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
    worker.communicate("", timeout=30)

    assert ("[0, 2]", "[0, 0]") == (before, end)


def test_free_memory_never_grows_while_a_program_starts(machine):
    """Context and modules are charged at once and in full: a profiler that compares two readings sees no gain."""
    one = machine()
    one.promise("a", (0, 4096))
    seen = one.run(
        "a",
        """
seen = []
def look():
    seen.append(info()[0])
begin(); look()
function = kernel(b"simgpu 1\\nkernel k params=8 ns=$0\\ncode 5242880\\n"); look()
for _ in range(3):
    ok(launch(function)); look()
ok(cu.cuCtxSynchronize()); look()
ok(cu.cuCtxSetLimit(2, c_size_t(64 * MIB))); look()
for size in (4096, MIB, 16 * MIB):
    alloc(size); look()
for _ in range(20):
    time.sleep(0.01); look()
say(seen)
""",
    )

    assert sorted(seen, reverse=True) == seen
    assert seen[0] <= 4 * GIB - one.context_bytes()


def test_free_memory_is_what_the_card_really_has_where_that_is_less(machine):
    """Somebody outside every promise has most of the card: free is the card's, total stays the promise, no breach."""
    one = machine()
    one.promise("a", (0, 5120))
    stranger = one.start("a", "begin()\nsay(alloc(13 * GIB)[0])\nsys.stdin.read()", LD_PRELOAD="")
    assert "0" == stranger.stdout.readline().strip()
    shown, full = one.run("a", "begin()\nsay([info(), alloc(3 * GIB)[0]])")
    card = one.box.cards()[0]
    stranger.communicate("", timeout=30)

    assert card.model.total_bytes - card.model.reserved_bytes - 13 * GIB - 2 * one.context_bytes() == shown[0]
    assert (5 * GIB, OOM) == (shown[1], full)
    assert () == files.read_breaches(one.folder / "a.region")[2]


MISSED = {
    "the device heap": "ok(cu.cuCtxSetLimit(2, c_size_t(256 * MIB)))",
    "a module's globals": 'load(b"simgpu 1\\nglobal table 1048576\\nkernel k us=1\\n")',
    "a module's code": 'load(b"simgpu 1\\nkernel k us=1\\ncode 1048576\\n")',
    "a library's code": """
library = c_void_p()
ok(cu.cuLibraryLoadData(byref(library), b"simgpu 1\\nkernel k us=1\\n", None, None, 0, None, None, 0))""",
    "a second context": "ok(cu.cuCtxCreate_v2(byref(c_void_p()), 0, 0))",
    "an array": "ok(cu.cuArrayCreate_v2(byref(c_void_p()), (c_uint64 * 3)(4096, 4096, 0x20 | 1 << 32)))",
    "a mipmapped array": """
ok(cu.cuMipmappedArrayCreate(byref(c_void_p()), (c_uint64 * 5)(4096, 2048, 0, 0x20 | 1 << 32, 0), 3))""",
    "the default pool": "ok(cu.cuMemAllocAsync(byref(c_uint64()), c_size_t(100 * MIB), None))",
    "another default pool": """
pool, other, properties = c_void_p(), c_void_p(), create_string_buffer(88)
memmove(properties, (c_int * 4)(1, 0, 1, 0), 16)
ok(cu.cuMemPoolCreate(byref(pool), properties))
ok(cu.cuDeviceSetMemPool(0, pool))
ok(cu.cuMemAllocAsync(byref(c_uint64()), c_size_t(100 * MIB), None))""",
    "pitched memory": """
ok(cu.cuMemAllocPitch_v2(byref(c_uint64()), byref(c_size_t()), c_size_t(5000), c_size_t(9000), 4))""",
}


@pytest.mark.parametrize("family", MISSED)
def test_the_books_cover_what_the_card_holds(machine, family):
    """Families that are easily missed: never less in the ledger than on the card, and both at 0 in the end."""
    one = machine()
    one.promise("a", (0, 4096))
    worker = one.start("a", f"begin()\n{MISSED[family]}\nsay(info()[0])\nsys.stdin.read()")
    left = worker.stdout.readline()
    (client,) = one.box.clients(0)
    truth, booked = client.total_bytes, one.book("a").cards[0].used_bytes
    _, err = worker.communicate("", timeout=30)
    one.box.settle()

    assert left, err
    assert truth >= one.context_bytes()
    assert truth <= booked <= truth + 64 * MIB
    assert 4 * GIB - booked == int(left)
    assert 0 == one.box.cards()[0].used_bytes


GREEN = """
begin()
resource, description, green = create_string_buffer(256), c_void_p(), c_void_p()
ok(cu.cuDeviceGetDevResource(0, resource, 1))
ok(cu.cuDevResourceGenerateDesc(byref(description), resource, 1))
ok(cu.cuGreenCtxCreate(byref(green), description, 0, 1))
stream, function = c_void_p(), kernel()
ok(cu.cuGreenCtxStreamCreate(byref(stream), green, 1, 0))
say([launch(function, 1000, stream) for _ in range(50)])
"""


def test_a_green_contexts_launches_go_to_its_cards_bucket(machine):
    """Fewer processors, the same card: its launches are counted there."""
    one = machine()
    one.promise("a", (0, 2048), core_ppm=500_000)

    assert [0] * 50 == one.run("a", GREEN)
    assert 50 == one.book("a").cards[0].launches


DEEP = r"""
#include <stddef.h>
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long *, size_t);
int deep(size_t bytes)
{
    void *context;
    unsigned long at;
    int rc = cuInit(0);
    rc = rc ? rc : cuDevicePrimaryCtxRetain(&context, 0);
    rc = rc ? rc : cuCtxSetCurrent(context);
    return rc ? rc : cuMemAlloc_v2(&at, bytes);
}
"""
ABSOLUTE = r"""
#include <dlfcn.h>
#include <stddef.h>
int deep(const char *path, size_t bytes)
{
    void *driver = dlopen(path, RTLD_NOW), *context;
    unsigned long at;
    int (*init)(unsigned) = dlsym(driver, "cuInit"), (*current)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*alloc)(unsigned long *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    int rc = init(0);
    rc = rc ? rc : retain(&context, 0);
    rc = rc ? rc : current(context);
    return rc ? rc : alloc(&at, bytes);
}
"""


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
@pytest.mark.parametrize(
    ("name", "deepbind"), list(product(["libcuda.so.1", "libcuda.so", "{folder}/libcuda.so.1"], [False, True]))
)
def test_each_way_to_open_the_driver_is_bound_or_seen(machine, request, tmp_path, variant, name, deepbind):  # noqa: PLR0917
    """By name, by another name, by its path: bound. From a DEEPBIND library, whose dlsym is not ours: seen."""
    one = machine(library=request.getfixturevalue(variant))
    one.promise("a", (0, 2048))
    (one.folder / "libcuda.so").symlink_to("libcuda.so.1")
    source, deep = tmp_path / "deep.c", tmp_path / "deep.so"
    source.write_text(ABSOLUTE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", deep, source, "-ldl"], check=True)
    flags = "os.RTLD_NOW | os.RTLD_DEEPBIND" if deepbind else "os.RTLD_NOW"
    path = name.format(folder=one.folder)
    code = f"say(CDLL({str(deep)!r}, mode={flags}).deep({path.encode()!r}, c_size_t(3 * GIB)))"
    process = one.start("a", f"{code}\nsys.stdin.read()")
    answer = process.stdout.readline().strip()
    users = [CardUser(client.pid, client.total_bytes, None, client.start_time) for client in one.box.clients(0)]
    found = compare(users, one.book("a").slots, 0)
    _, err = process.communicate("", timeout=30)

    # the strict variant has the driver's SONAME: by that name even a DEEPBIND library gets us
    escapes = deepbind and not (variant == "strict_library" and name == "libcuda.so.1")
    assert ("0" if escapes else str(OOM)) == answer, err
    assert ([process.pid] if escapes else []) == [user.pid for user in found.uninstrumented]


ESCAPES = {
    "no preload": {"LD_PRELOAD": ""},
    "no promise": {"GPUSHARE_LIMITS": "", "GPUSHARE_REGION": ""},
    "deepbind": {},
}


@pytest.mark.parametrize("way", ESCAPES)
def test_who_escapes_is_seen_as_uninstrumented(machine, tmp_path, way):
    """The driver shows a process with memory, the region has no slot for it: an accusation with pid and bytes."""
    one = machine()
    one.promise("a", (0, 2048))
    code = "begin()\nrc = alloc(3 * GIB)[0]"
    if way == "deepbind":
        source, deep = tmp_path / "deep.c", tmp_path / "deep.so"
        source.write_text(DEEP)
        command = ["gcc", "-shared", "-fPIC", "-o", deep, source, f"-L{one.folder}", "-l:libcuda.so.1"]
        subprocess.run(command, check=True)
        code = f"rc = CDLL({str(deep)!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND).deep(c_size_t(3 * GIB))"
    escaped = one.start("a", f"{code}\nsay(rc)\nsys.stdin.read()", **ESCAPES[way])
    bound = one.start("a", "begin()\nsay(alloc(GIB)[0])\nsys.stdin.read()")
    answers = [process.stdout.readline().strip() for process in (escaped, bound)]
    users = [CardUser(client.pid, client.total_bytes, None, client.start_time) for client in one.box.clients(0)]
    found = compare(users, one.book("a").slots, 0)
    for process in (escaped, bound):
        process.communicate("", timeout=30)

    assert ["0", "0"] == answers
    assert [(escaped.pid, True)] == [(user.pid, user.bytes > 3 * GIB) for user in found.uninstrumented]
    assert 0 == found.hidden_bytes


def test_memory_taken_around_the_library_is_hidden_no_longer(machine, tmp_path):
    """A process with a slot takes more through a path that we do not see: the driver's figure tells."""
    one = machine()
    one.promise("a", (0, 2048))
    source, deep = tmp_path / "deep.c", tmp_path / "deep.so"
    source.write_text(
        "#include <stddef.h>\nextern int cuMemAlloc_v2(unsigned long *, size_t);\n"
        "int deep(size_t bytes) { unsigned long at; return cuMemAlloc_v2(&at, bytes); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", deep, source, f"-L{one.folder}", "-l:libcuda.so.1"], check=True)
    around = f"CDLL({str(deep)!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND).deep(c_size_t(3 * GIB))"
    process = one.start("a", f"begin()\nsay({around})\nsys.stdin.read()")
    answer = process.stdout.readline().strip()
    users = [CardUser(client.pid, client.total_bytes, None, client.start_time) for client in one.box.clients(0)]
    found = compare(users, one.book("a").slots, 0)
    process.communicate("", timeout=30)

    assert "0" == answer
    assert () == found.uninstrumented
    assert 3 * GIB - 64 * MIB <= found.hidden_bytes <= 3 * GIB + 64 * MIB
