"""
`gpushare run` as a person or a script uses it, on simulated cards: what runs, where, and how it ends.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isolation.host import evidence
from isolation.lib.files import read_region
from isolation.run.book import Book
from isolation.simgpu.hardware import LIBRARIES, create, opened

pytest.importorskip("pynvml")
ROOT = Path(__file__).resolve().parents[2]
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
CLIENT = """
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
device, count, context, pointer = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
cu.cuInit(0)
cu.cuDeviceGetCount(ctypes.byref(count))
print(count.value)
for at in range(count.value):
    cu.cuDeviceGet(ctypes.byref(device), at)
    cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cu.cuCtxSetCurrent(context)
    cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    taken = 0
    while cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20)) == 0:
        taken += 256
    print(total.value >> 20, taken)
sys.stdout.flush()
sys.stdin.read()
"""


BUSY = """
import ctypes, time
cu = ctypes.CDLL("libcuda.so.1")
device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
cu.cuInit(0)
cu.cuDeviceGet(ctypes.byref(device), 0)
cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cu.cuCtxSetCurrent(context)
cu.cuModuleLoadData(ctypes.byref(module), b"simgpu 1\\nkernel k params=8 us=$0 width=1000\\n")
cu.cuModuleGetFunction(ctypes.byref(function), module, b"k")
micros = ctypes.c_uint64(5000)
words = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(micros), ctypes.c_void_p))
end = time.time() + 6
while time.time() < end:
    cu.cuLaunchKernel(function, 80, 1, 1, 256, 1, 1, 0, None, words, None)
    cu.cuCtxSynchronize()
"""


@pytest.fixture
def box(tmp_path):
    """Four V100 of 16 GB."""
    create(tmp_path / "box", ["v100-16g"] * 4)
    return tmp_path / "box"


def words(box, *arguments):
    """A whole command line."""
    return [sys.executable, "-c", FRONT, "run", "--simgpu", str(box), *arguments]


def go(box, *arguments, **more):
    """Run to the end."""
    return subprocess.run(
        words(box, *arguments), check=False, capture_output=True, text=True, timeout=60, cwd=ROOT, **more
    )


def begin(box, *arguments, **more):
    """Run in the background with a pipe for its input and output."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    return subprocess.Popen(words(box, *arguments), **(pipes | more))


def holds(box):
    """Name and cards (index, GiB) of every hold."""
    listed = json.loads(go(box, "--list", "--json").stdout)["holds"]
    return {one["name"]: [(card["index"], card["gib"]) for card in one["cards"]] for one in listed}


def soon(check, seconds=15.0):
    """Whether `check` becomes true in time."""
    end = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def lines(text):
    """Words by line."""
    return [line.split() for line in text.splitlines()]


def test_the_promise_is_what_the_command_sees(box):
    """
    The first story: job 1 is promised 5 GiB of a V100-16, job 2 gets the other 10 of the same card.
    Job 1 takes what it can and stays within its 5; job 2 gets its own.
    """
    one = begin(box, "--gpu-mem", "5", "--name", "one", "--", sys.executable, "-c", CLIENT)
    seen = [one.stdout.readline().split(), one.stdout.readline().split()]
    two = go(box, "--gpu-mem", "10", "--name", "two", "--", sys.executable, "-c", CLIENT, input="")
    among = holds(box)
    one.communicate("")

    assert [["1"], ["5120"]] == [seen[0], seen[1][:1]]
    assert 4 * 1024 <= int(seen[1][1]) <= 5 * 1024
    assert [["1"], ["10240"]] == [lines(two.stdout)[0], lines(two.stdout)[1][:1]]
    assert 9 * 1024 <= int(lines(two.stdout)[1][1]) <= 10 * 1024
    assert ({"one": [(0, 5)]}, {}) == (among, holds(box))


def test_8_gib_over_4_cards_are_4_cards_of_2(box):
    """
    CUDA and NVML both show the promise: four cards of 2 GiB.
    """
    told = "import pynvml as n; n.nvmlInit(); print(*[n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(i)).total "
    told += ">> 20 for i in range(n.nvmlDeviceGetCount())])"
    script = f"{sys.executable} -c '{CLIENT}' < /dev/null; {sys.executable} -c '{told}'"
    done = lines(go(box, "--gpu-mem", "8", "--gpu-count", "4", "--", "sh", "-c", script).stdout)
    assert [["4"], *[["2048"]] * 4] == [done[0], *[line[:1] for line in done[1:5]]]
    assert ["2048"] * 4 == done[5]


def test_share_without_isolation_is_the_same_placement_without_a_limit(box):
    """
    `--policy none` books and names the card; the command sees all of it, and is told its share.
    """
    script = f"echo $ALIYUN_COM_GPU_MEM_CONTAINER $ALIYUN_COM_GPU_MEM_DEV; {sys.executable} -c '{CLIENT}'"
    done = lines(go(box, "--policy", "none", "--gpu-mem", "5", "--", "sh", "-c", script, input="").stdout)
    assert [["5", "15"], ["1"]] == done[:2]
    assert int(done[2][0]) > 15 * 1024


def test_compute_promises_are_written_for_the_library(box):
    """
    `--gpu-core 30` stands in the limits file as 300,000 millionths, with its policy.
    """
    read = (
        "import os, pathlib; from isolation.contract.abi import unpack_limits; "
        "print(*[(c.core_ppm, c.policy.name) for c in "
        "unpack_limits(pathlib.Path(os.environ['GPUSHARE_LIMITS']).read_bytes()).cards])"
    )
    done = go(box, "--gpu-mem", "5", "--gpu-core", "30", "--policy", "burst", "--", sys.executable, "-c", read)
    assert "(300000, 'BURST')\n" == done.stdout


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["./no-such-program"], 127),
        (["/dev/null"], 126),
    ],
)
def test_the_exit_status_is_the_commands_as_a_shell_tells_it(box, command, code):
    """
    128 + n for a signal, 127 for what is not there, 126 for what cannot be run; the hold is gone at once.
    """
    done = go(box, "--gpu-mem", "15", "--gpu-count", "1", "--", *command)
    assert (code, []) == (done.returncode, list(Path(f"{box}.book").iterdir()))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signals_reach_the_command(box, name):
    """
    What is sent to `gpushare run` the command gets, once, and may answer as it likes.
    """
    script = f"trap 'echo got; n=1' {name[3:]}; echo ready; while [ -z $n ]; do sleep 0.05; done; exit 9"
    runner = begin(box, "--gpu-mem", "1", "--", "sh", "-c", script)
    assert "ready\n" == runner.stdout.readline()
    runner.send_signal(getattr(signal, name))
    assert ("got\n", 9) == (runner.communicate(timeout=20)[0], runner.returncode)


def only(box):
    """Folder of the one hold there is, or None."""
    folders = list(Path(f"{box}.book").glob("run-*"))
    return folders[0] if len(folders) == 1 else None


def test_the_keeper_feeds_own_gpu_time(box):
    """
    What it writes for the library is what the simulator's own books say, but for the last samples; the
    library then charges corrected time.
    """
    runner = begin(box, "--gpu-mem", "1", "--gpu-core", "40", "--", sys.executable, "-c", BUSY)
    assert soon(lambda: only(box))
    time.sleep(4)
    feed = struct.unpack_from("<Q", (only(box) / "feed").read_bytes(), 64)[0]
    with opened(box) as machine:
        truth = sum(client.own_ns for client in machine.clients(0))
    book = read_region(only(box) / "region").cards[0]
    runner.communicate(timeout=30)
    assert truth > 500_000_000
    assert pytest.approx(truth, abs=500_000_000) == feed
    assert not book.uncorrected


def test_what_a_neighbour_leaves_idle_is_granted_while_it_does(box):
    """
    Alone, a burst of 30 % is granted the whole card; beside a neighbour of 30 % that computes, half of it;
    and the whole again when the neighbour has gone.
    """
    options = ("--gpu-mem", "1", "--gpu-core", "30", "--policy", "burst")
    one = begin(box, *options, "--", "sh", "-c", "echo $GPUSHARE_FEED; read x")
    feed = Path(one.stdout.readline().strip())

    def granted(rate):
        return soon(lambda: struct.unpack_from("<I", feed.read_bytes(), 64 + 24)[0] == rate)

    alone = granted(1_000_000)
    two = begin(box, *options, "--", sys.executable, "-c", BUSY)
    beside = granted(500_000)
    two.communicate(timeout=30)
    after = granted(1_000_000)
    one.communicate("\n")
    assert (True, True, True) == (alone, beside, after)


def test_memory_of_a_dead_process_comes_back_while_the_command_runs(box):
    """
    Nobody has to ask for memory first: the keeper looks each second.
    """
    client = CLIENT.replace("sys.stdin.read()", "import time; time.sleep(60)")
    script = f"{sys.executable} -c '{client}' & read x; kill -9 $!; wait $!; read x"
    runner = begin(box, "--gpu-mem", "2", "--", "sh", "-c", script)
    lines_ = [runner.stdout.readline(), runner.stdout.readline()]
    used = [sum(card.used_bytes for card in read_region(only(box) / "region").cards)]
    runner.stdin.write("\n")
    runner.stdin.flush()
    assert soon(lambda: sum(card.used_bytes for card in read_region(only(box) / "region").cards) == 0)
    runner.communicate("\n", timeout=20)
    assert ("1\n", True) == (lines_[0], used[0] > 1 << 30)


def test_what_was_ignored_stays_ignored(box):
    """
    Under nohup the command outlives the hang-up, as it would without us.
    """
    script = "echo ready; sleep 0.3; echo lived"
    runner = begin(box, "--gpu-mem", "1", "--", "sh", "-c", script, preexec_fn=lambda: signal.signal(1, signal.SIG_IGN))
    runner.stdout.readline()
    runner.send_signal(signal.SIGHUP)
    assert ("lived\n", 0) == (runner.communicate(timeout=20)[0], runner.returncode)


@pytest.mark.parametrize("streams", ["<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_hindrance(box, streams):
    """
    Started with standard streams closed, as by some daemons, the command runs with them closed.
    """
    command = shlex.join(words(box, "--gpu-mem", "1", "--", "sh", "-c", "exit 3"))
    assert 3 == subprocess.run(["sh", "-c", f"{command} {streams}"], check=False, cwd=ROOT, timeout=60).returncode


def test_few_descriptors_are_enough(box):
    """
    The lock's descriptor stands high where it can, and elsewhere where it cannot.
    """
    command = shlex.join(words(box, "--gpu-mem", "1", "--", "sh", "-c", "exit 3"))
    assert 3 == subprocess.run(["sh", "-c", f"ulimit -n 24; {command}"], check=False, cwd=ROOT, timeout=60).returncode


def test_a_key_on_the_terminal_reaches_the_command_once(box):
    """
    Ctrl-C goes to the whole foreground group: forwarding it as well would deliver it twice.
    """
    script = "n=0; trap 'n=$((n+1))' INT; echo ready; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done; echo times $n"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        command = words(box, "--gpu-mem", "1", "--", "sh", "-c", script)
        os.execv(command[0], command)  # noqa: S606 (our own command)
    text = b""
    while b"ready" not in text:
        text += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    try:
        while b"times" not in text or not text.endswith(b"\n"):
            text += os.read(terminal, 1024)
    except OSError:
        pass
    os.close(terminal)
    assert (b"times 1", 0) == (text.split(b"\r\n")[-2][-7:], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_a_hold_lives_until_the_last_descendant_does(box):
    """
    A daemon that left its session, closed every descriptor and cleaned its environment still counts; the
    runner has told the command's status long before.
    """
    daemon = "import os, time; os.closerange(0, 1024); time.sleep(30)"
    script = f"env -i setsid {sys.executable} -c '{daemon}' & echo $! ; exit 5"
    done = go(box, "--gpu-mem", "5", "--name", "d", "--", "sh", "-c", script)
    assert (5, {"d": [(0, 5)]}) == (done.returncode, holds(box))
    os.kill(int(done.stdout), signal.SIGKILL)
    assert soon(lambda: holds(box) == {})


def test_a_refusal_says_who_holds_what(box):
    """
    One line with the reason, each card with its takers, each hold with its command: plain in a pipe.
    """
    one = begin(box, "--gpu-mem", "40", "--gpu-count", "4", "--name", "big", "--", "sh", "-c", "echo on; read x")
    one.stdout.readline()
    done = go(box, "--gpu-mem", "6", "--", "true")
    one.communicate("\n")

    told = done.stderr.splitlines()
    assert 75 == done.returncode
    assert "Error: no room for 6 GiB on one card: none of 4 cards has it free" == told[0]
    assert "card 3: 10 of 15 GiB held: big 10" == told[4]
    assert ["big", "0,1,2,3", "10 each"] == [told[6].split("\t")[at] for at in (0, 2, 3)]
    assert "sh -c echo on; read x" == told[6].split("\t")[-1]


def test_waiting_tells_who_is_in_the_way_and_starts_when_there_is_room(box):
    """
    One line of progress; what can never fit is not waited for.
    """
    one = begin(box, "--gpu-mem", "60", "--gpu-count", "4", "--name", "big", "--", "sh", "-c", "echo on; read x")
    one.stdout.readline()
    two = begin(box, "--gpu-mem", "6", "--wait", "--", "echo", "mine", stderr=subprocess.PIPE)
    line = two.stderr.readline()
    never = go(box, "--gpu-mem", "16", "--wait", "--", "true")
    one.communicate("\n")
    assert "waiting 0s: no room for 6 GiB on one card: none of 4 cards has it free; held by big 60 GiB\n" == line
    assert ("mine\n", 0) == (two.communicate(timeout=20)[0], two.returncode)
    assert (75, True) == (never.returncode, "the largest card offers 15 GiB" in never.stderr)


def test_a_book_that_cannot_be_believed_stops_everybody(box):
    """
    Neither a foreign format nor garbage is reset or skipped: the message names the file and what to do.
    """
    stray = Path(f"{box}.book") / "run-x"
    stray.mkdir(parents=True)
    for text, reason in (
        ('{"format": 9}', "format 9; this gpushare reads format 1"),
        ("{", "cut short"),
        (None, "No such"),
    ):
        (stray / "hold.json").unlink(missing_ok=True)
        if text is not None:
            (stray / "hold.json").write_text(text)
        done = go(box, "--gpu-mem", "1", "--", "true")
        assert (125, True, True) == (done.returncode, reason in done.stderr, f"remove {stray}" in done.stderr)
    assert stray.is_dir()


def test_memory_taken_outside_any_hold_is_told(box):
    """
    A program beside `gpushare run` has most of card 0: the promise is made, and the person is warned.
    """
    outside = {"GPUSHARE_SIMGPU": str(box), "LD_LIBRARY_PATH": str(LIBRARIES)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLIENT], env=os.environ | outside, **pipes) as stranger:
        for _ in range(5):
            stranger.stdout.readline()
        done = go(box, "--gpu-mem", "1", "--", "true")
        stranger.communicate("")
    assert (0, True) == (done.returncode, f"used outside any hold (pid {stranger.pid})" in done.stderr)
    assert "" == go(box, "--gpu-mem", "1", "--", "true").stderr


def test_a_lost_card_is_not_sold(box):
    """
    A card that fell off the bus offers nothing; the others go on.
    """
    with opened(box) as machine:
        machine.inject(0, "lost", 1)
    done = go(box, "--gpu-mem", "5", "--", *words(box, "--list", "--json"))
    listed = json.loads(done.stdout)["holds"]
    assert [1] == [card["index"] for card in listed[0]["cards"]]
    assert (75, True) == (
        (never := go(box, "--gpu-mem", "4", "--gpu-count", "4", "--", "true")).returncode,
        "1 card besides is not healthy" in never.stderr,
    )


def test_a_share_is_not_divided_further(box):
    """
    `gpushare run` inside `gpushare run` is refused before it looks at a card.
    """
    done = go(box, "--gpu-mem", "5", "--", *words(box, "--gpu-mem", "1", "--", "true"))
    assert (2, True) == (done.returncode, "already runs on hold run-" in done.stderr)


@pytest.mark.parametrize(
    ("arguments", "words_"),
    [
        (["--", "true"], "--gpu-mem GIB"),
        (["--gpu-mem", "1"], "what shall run?"),
        (["--gpu-mem", "1", ""], "what shall run?"),
        (["--gpu-mem", "6", "--gpu-count", "4", "--", "true"], "ask for 4 or 8"),
        (["--gpu-mem", "1", "--policy", "weight", "--", "true"], "--gpu-core PERCENT"),
        (["--gpu-mem", "1", "--online", "--", "true"], "--policy priority"),
        (["--gpu-mem", "1", "--json", "--", "true"], "--list"),
        (["--gpu-mem", "0", "--", "true"], "0 is not in the range"),
    ],
)
def test_bad_input_is_told_with_the_fix(box, arguments, words_):
    """
    Exit status 2, and the option that is missing or wrong.
    """
    done = go(box, *arguments)
    assert (2, True) == (done.returncode, words_ in done.stderr)


def test_the_keeper_holds_nothing_of_its_callers(box):
    """
    A pipe that reads the command's output ends with the command, though a daemon of it lives on.
    """
    script = f"setsid {shutil.which('sleep')} 30 > /dev/null 2>&1 < /dev/null & echo $!"
    began = time.monotonic()
    done = go(box, "--gpu-mem", "5", "--", "sh", "-c", script)
    assert time.monotonic() - began < 20
    os.kill(int(done.stdout), signal.SIGKILL)
    assert soon(lambda: holds(box) == {})


def test_the_book_stands_on_every_kind_of_evidence(box):
    """
    With the keeper and the runner killed, a child that closed every descriptor and left its session is
    known by what the book noted of it.
    """
    script = "import os, time; os.setsid(); os.closerange(0, 1024); time.sleep(60)"
    runner = begin(box, "--gpu-mem", "5", "--name", "k", "--", sys.executable, "-c", script)
    book = Book(Path(f"{box}.book"))

    def noted():
        with book.deciding():
            return [(held, evidence.members(held.folder)) for held in book.holds()]

    def noted_and_closed():
        # the note follows within a second; until then the hold names nobody
        members = [member for _, found in noted() for member in found]
        return members and not list(Path(f"/proc/{members[0].pid}/fd").iterdir())

    assert soon(noted_and_closed)
    (held, (command, *_)), *_ = noted()
    keeper = int(Path(f"/proc/{command.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(keeper, signal.SIGKILL)
    assert 125 == runner.wait(20)
    assert [held] == [one for one, _ in noted()]
    os.kill(command.pid, signal.SIGKILL)
    assert soon(lambda: noted() == [])


def test_who_waits_longest_goes_first(box):
    """
    Three wait for a card: a small one behind two large ones does not overtake, and a killed one in front
    of them holds up nobody.
    """
    one = begin(box, "--gpu-mem", "52", "--gpu-count", "4", "--name", "big", "--", "sh", "-c", "echo on; read x")
    one.stdout.readline()
    waiting = []
    for size in ("7", "7", "1"):
        command = ("--gpu-mem", size, "--wait", "--", "sh", "-c", "echo mine; read x")
        waiting.append(begin(box, *command, stderr=subprocess.PIPE))
        waiting[-1].told = waiting[-1].stderr.readline()
    killed, second, third = waiting
    killed.kill()
    killed.wait()
    time.sleep(0.3)
    before = set(holds(box))
    one.communicate("\n")
    first_words = second.stdout.readline(), third.stdout.readline()
    for runner in (second, third):
        runner.communicate("\n", timeout=20)

    assert "no room for 7 GiB" in second.told
    assert "2 wait already, first come, first served" in third.told
    assert ({"big"}, ("mine\n", "mine\n")) == (before, first_words)


def test_a_command_that_the_library_does_not_reach_is_told(box, tmp_path):
    """
    A static program runs, with a note that nothing limits it; without isolation there is nothing to tell.
    """
    source, program = tmp_path / "static.c", tmp_path / "static"
    source.write_text("int main(void) { return 4; }")
    subprocess.run(["gcc", "-static", "-o", program, source], check=True)
    limited = go(box, "--gpu-mem", "1", "--", str(program))
    free = go(box, "--gpu-mem", "1", "--policy", "none", "--", str(program))

    assert (4, True) == (limited.returncode, limited.stderr.startswith(f"note: {program} is a static program: "))
    assert (4, "") == (free.returncode, free.stderr)


def test_mig_instances_are_refused_by_twos(tmp_path):
    """
    One instance per process is CUDA's rule: waiting cures nothing, the message says what to ask for.
    """
    create(tmp_path / "box", ["a100-80g-mig"])
    done = go(tmp_path / "box", "--gpu-mem", "8", "--gpu-count", "2", "--wait", "--", "true")

    assert (75, True) == (done.returncode, "ask for --gpu-count 1" in done.stderr)
