# SPDX-License-Identifier: Apache-2.0
"""
Command lines that cannot be done: a message with the fix, a status that is not 0, never a traceback.

Also what a shell does to a command beside it: closed streams, a reader that leaves, Ctrl-C, missing packages.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpushare import COMMANDS, INTERRUPTED, OUTPUT_CLOSED, main

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[3]
GPUSHARE = f"{sys.executable} -m gpushare"
NUMBERS = ("x", "", "-", "nan", "inf", "-inf", "1e999")
CHOICES = ("x", "JSON ")


def shell(line, seconds=60):
    """What bash makes of it."""
    words = ["bash", "-c", f"set -o pipefail; {line}"]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=seconds, check=False)


def leaves(command, words=()):
    """Every command without sub-commands, with the words that lead to it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), (*words, name))
    else:
        yield words, command


LEAVES = list(leaves(main))


def lines():
    """What nobody can do: unknown options, options without their values, values of another type, words too many."""
    for words, command in LEAVES:
        yield (*words, "--no-such-option")
        for option in (one for one in command.params if isinstance(one, click.Option) and not one.is_flag):
            flag = max(option.opts, key=len)
            if option.nargs == 1 and not option._flag_needs_value:
                yield (*words, flag)
            bad = CHOICES if isinstance(option.type, click.Choice) else NUMBERS
            if isinstance(option.type, click.Choice | click.types.IntParamType | click.types.FloatParamType):
                yield from ((*words, f"{flag}={value}") for value in bad if value != "inf")


LINES = list(lines())


def test_there_are_enough_of_them():
    """The table grows with the commands."""
    assert len(LINES) >= 300
    assert set(COMMANDS) == {words[0] for words, _ in LEAVES}


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_command_line_that_makes_no_sense(words):
    """Status 2, and a message that names what was wrong."""
    done = CliRunner().invoke(main, list(words))
    assert 2 == done.exit_code, done.output
    assert "Error: " in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_the_caller_has_closed(closed):
    """Nothing is shown there, and the status is the command's own."""
    done = shell(f"{GPUSHARE} simgpu models {closed}")
    assert (0, "") == (done.returncode, done.stderr)
    assert 2 == shell(f"{GPUSHARE} simgpu no-such {closed}").returncode


def test_nothing_is_written_into_a_file_that_took_the_place_of_a_closed_stream(tmp_path):
    """The first file that a process opens gets the lowest free number."""
    path = tmp_path / "hardware"
    assert 0 == shell(f"{GPUSHARE} simgpu create {path} --model t4 >&- 2>&-").returncode
    assert 0 == shell(f"{GPUSHARE} simgpu show {path}").returncode


def test_a_reader_that_leaves_is_no_error():
    """As with other programs: no word, and the status of SIGPIPE."""
    done = shell(f"{GPUSHARE} sim --help | true; echo ${{PIPESTATUS[0]}}")
    assert "" == done.stderr
    assert int(done.stdout) in {0, OUTPUT_CLOSED}
    done = shell(f"{GPUSHARE} simgpu parameters | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}")
    assert ("", True) == (done.stderr, int(done.stdout) in {0, OUTPUT_CLOSED})


@pytest.mark.parametrize("after", [0.0, 0.05, 0.15, 0.3, 0.6, 1.0])
def test_an_interrupt_at_any_moment_ends_it_without_a_traceback(after):
    """Also while modules are loaded: the status is 130, or the signal itself; 0 once `up` runs, which ends so."""
    script = (  # until the command begins, an interrupt ends this script, which is none of ours
        "import gpushare, signal; usual = signal.signal(signal.SIGINT, signal.SIG_DFL); print(1, flush=True)\n"
        "signal.signal(signal.SIGINT, usual); gpushare.run()"
    )
    command = [sys.executable, "-c", script, "up", "--for", "60", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        process.stdout.readline()
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode in {INTERRUPTED, -signal.SIGINT, 0}, said
    met_the_script = "/signal.py" in said and "gpushare.py" not in said
    assert met_the_script or "Traceback" not in said


_WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from click.testing import CliRunner
import gpushare
for words in sys.argv[2:]:
    done = CliRunner().invoke(gpushare.main, [*words.split(), "--help"])
    print(words, done.exit_code, type(done.exception).__name__, " ".join(done.output.split()) if done.exit_code else "")
"""


@pytest.mark.parametrize("missing", ["rich", "numpy", "grpc", "aiohttp", "yaml", "msgspec", "kubernetes", "pynvml"])
def test_a_partial_installation(missing):
    """Where a package is missing, the extra that brings it is named; commands that do without it still run."""
    command = [sys.executable, "-c", _WITHOUT, missing, *(" ".join(words) for words, _ in LEAVES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=True)
    output = done.stdout.splitlines()
    assert len(LEAVES) == len(output)
    for line in (line for line in output if " 0 NoneType" not in line):
        assert f"Python module {missing}" in line
        assert f"pip install 'gpushare-k8s[{COMMANDS[line.split()[0]][1]}]'" in line


@pytest.fixture
def page():
    """A web server that is no exporter."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"node_cpu_seconds_total 1\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("words", [["breaches", "--exit-code"], ["breaches", "-o", "json"], ["top"], ["inspect"]])
def test_a_page_that_is_no_exporter(page, words):
    """Nothing is known, which is not "no breach": status 3, with the address."""
    done = CliRunner().invoke(main, [*words, "--local", page])
    assert 3 == done.exit_code, done.output
    assert f"{page}/metrics is not a page of gpushare's exporter" in done.output


def test_allocations_from_a_folder_that_is_not_there(tmp_path):
    """A typo would read as "nothing is allocated"."""
    done = CliRunner().invoke(main, ["exporter", "--once", "--state-dir", str(tmp_path / "typo")])
    assert 2 == done.exit_code
    assert "does not exist" in done.output


def test_a_box_in_use_is_not_replaced_by_mistake(tmp_path):
    """Its users would keep cards that nobody sees any more."""
    path = tmp_path / "hardware"
    create = ["simgpu", "create", str(path), "--model", "t4"]
    assert 0 == CliRunner().invoke(main, [*create, "--driver"]).exit_code
    assert 0 == CliRunner().invoke(main, create).exit_code  # nobody uses it
    hold = "import ctypes, sys; lib = ctypes.CDLL('libcuda.so.1'); lib.cuInit(0); context = ctypes.c_void_p(); "
    hold += "assert not lib.cuCtxCreate_v2(ctypes.byref(context), 0, 0); print('held', flush=True); sys.stdin.read()"
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", hold]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert "held\n" == process.stdout.readline()
        done = CliRunner().invoke(main, create)
        assert 1 == done.exit_code
        assert f"in use by 1 processes ({process.pid})" in done.output
        assert "--force" in done.output
        assert 0 == CliRunner().invoke(main, [*create, "--force"]).exit_code
        process.stdin.close()


POD = """apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: main, resources: {limits: {NAME: "1"}}}]}
"""


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("amd.com/gpu", 1),
        ("aliyun.com/gpu-memory", 1),
        ("metax-tech.com/sgpu", 1),
        ("huawei.com/Ascend910", 1),
        ("example.com/licence", 0),
        ("aliyun.com/gpu-mem", 0),
    ],
)
def test_gpus_by_a_name_that_placement_does_not_know(name, status):
    """Refused, with the name and those that it knows: the pod would be placed as if it needed no card."""
    words = ["place", "-f", "-", "--node", "name=n1,cards=1,gib=15,mode=cgpu"]
    done = CliRunner().invoke(main, words, input=POD.replace("NAME", name))
    output = " ".join(done.output.split())
    assert status == done.exit_code, output
    assert (f"requests GPUs as resource {name}," in output.replace('"', "").replace("'", "")) is (status == 1)
    assert ("use aliyun.com/gpu-mem (a share of a card) or nvidia.com/gpu" in output) is (status == 1)


def test_policies_are_compared_where_nobody_names_one():
    """One policy alone tells nobody anything."""
    words = ["sim", "--synthetic", "--fleet-scale", "0.01", "--seeds", "1", "--json", "-"]
    done = CliRunner().invoke(main, words)
    assert {"best-fit", "binpack", "fgd", "potential"} == {one["policy"] for one in json.loads(done.stdout)["summary"]}


# Files.


@pytest.mark.parametrize("words", [["dashboards", "build"], ["rules", "build"]], ids=" ".join)
def test_files_are_written_all_or_none(words, tmp_path):
    """One of them cannot be: the others stay as they were, and no draft is left."""
    assert 0 == CliRunner().invoke(main, [*words, "--out", str(tmp_path)]).exit_code
    *first, last = sorted(tmp_path.iterdir())
    for path in first:
        path.write_text("mine")
    last.unlink()
    last.mkdir()
    before = {path: path.read_text() for path in first}
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path)])
    assert 1 == done.exit_code
    assert f"cannot write {last}: Is a directory" in done.output
    assert before == {path: path.read_text() for path in first}
    assert sorted([*first, last]) == sorted(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["dashboards", "build"], ["rules", "build"]], ids=" ".join)
def test_nothing_is_written_into_an_installed_package(words, tmp_path):
    """What pip wrote is pip's."""
    inside = tmp_path / "lib" / "site-packages" / "dashboards" / "json"
    inside.mkdir(parents=True)
    done = CliRunner().invoke(main, [*words, "--out", str(inside)])
    assert 2 == done.exit_code
    assert "choose a directory of your own with --out" in " ".join(done.output.split())
    assert [] == list(inside.iterdir())


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path):
    """A full disk: the file of the last run is still whole."""
    out = tmp_path / "out.json"
    out.write_text("old")
    script = f"ulimit -f 1; {GPUSHARE} sim --synthetic --fleet-scale 0.01 --seeds 1-3 --details --json {out}"
    done = shell(f"trap '' XFSZ; {script}")
    assert 2 == done.returncode, done.stderr
    assert "choose another path" in " ".join(done.stderr.split())
    assert "old" == out.read_text()
    assert [out] == list(tmp_path.iterdir())


# The network, and files of another kind.


CLUSTER = """{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": %s}],
 "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": %s}]}"""
READERS = [
    ["top"],
    ["inspect"],
    ["breaches"],
    ["explain", "web", "-n", "x"],
    ["doctor", "cluster"],
    ["autoscaler", "plan"],
]


@pytest.fixture(scope="module")
def strange_servers(tmp_path_factory):
    """Ports that answer otherwise than somebody thinks: `plain` HTTP, `tls` with an unknown certificate, `silent`."""
    folder = tmp_path_factory.mktemp("pair")
    pair = ["-keyout", str(folder / "key"), "-out", str(folder / "cert"), "-days", "2", "-subj", "/CN=other"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *pair], check=True, capture_output=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_):
            """Nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    plain, tls = (http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
    tls.socket = context.wrap_socket(tls.socket, server_side=True)
    for server in (plain, tls):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"PLAIN": plain.server_port, "TLS": tls.server_port, "CERT": str(folder / "cert")}
    plain.shutdown()
    tls.shutdown()


RAW = ("_ssl.c", "[Errno", "ssl:default", "Traceback", "ClientConnector", "Protocol error", "Not Loaded", "Exception")
"""Of clients and libraries: nothing that anybody could act on."""


@pytest.mark.parametrize("words", READERS, ids=" ".join)
@pytest.mark.parametrize(
    ("told_of", "fix"),
    [
        (('{"server": "https://127.0.0.1:PLAIN"}', "{}"), "does not speak TLS on this port: use http://"),
        (('{"server": "http://127.0.0.1:TLS"}', "{}"), "use https://"),
        (('{"server": "https://127.0.0.1:TLS"}', "{}"), "is not trusted (self-signed certificate): use the CA"),
        (('{"server": "https://127.0.0.1:TLS", "certificate-authority": "CERT"}', "{}"), "is for another name"),
        (('{"server": "http://127.0.0.1:9"}', "{}"), "connection refused: nothing listens there"),
        (('{"server": "http://no-such-host.invalid"}', "{}"), "cannot be resolved: check its spelling"),
        (('{"server": "ftp://127.0.0.1"}', "{}"), "not a URL of http or https: correct it"),
        (('{"server": "https://x", "certificate-authority-data": "aGVsbG8="}', "{}"), "contains no certificate"),
        (
            (
                '{"server": "https://127.0.0.1:9"}',
                '{"client-certificate-data": "aGVsbG8=", "client-key-data": "aGVsbG8="}',
            ),
            "client certificate or its key is not valid PEM",
        ),
        (('{"server": "https://127.0.0.1:9"}', '{"exec": {"command": "no-such-plugin"}}'), "is not installed"),
        (('{"server": "https://127.0.0.1:9"}', '{"tokenFile": "/no/token"}'), "cannot read /no/token (No such file"),
        (('{"server": "https://127.0.0.1:9", "certificate-authority": "/none"}', "{}"), "File does not exists: /none"),
    ],
)
def test_a_kubeconfig_that_leads_nowhere(words, told_of, fix, strange_servers, tmp_path):
    """Status 3, and what to change, in every command that reads a cluster; nothing of a client's own text."""
    cluster, user = told_of
    for name, value in strange_servers.items():
        cluster = cluster.replace(name, str(value))
    path = tmp_path / "kubeconfig"
    path.write_text(CLUSTER % (cluster, user))
    done = CliRunner().invoke(main, [*words, "--kubeconfig", str(path)], env={"HOME": str(tmp_path)})
    output = " ".join(done.output.split())
    assert 3 == done.exit_code, output
    assert fix in output
    assert [] == [raw for raw in RAW if raw in output]


@pytest.mark.parametrize("words", READERS, ids=" ".join)
@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("", "not a valid kubeconfig"),
        ("hello", "not a valid kubeconfig"),
        ('{"a": [1,', "line 1, column 10"),
        ('{"current-context": "gone"}', "Expected object with name gone in"),
        ('{"contexts": []}', "Expected key current-context in"),
    ],
)
def test_a_kubeconfig_that_is_none(words, text, fix, tmp_path):
    """Broken in the ways in which files break."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    done = CliRunner().invoke(main, [*words, "--kubeconfig", str(path)], env={"HOME": str(tmp_path)})
    output = " ".join(done.output.split())
    assert 3 == done.exit_code, output
    assert fix in output
    assert [] == [raw for raw in RAW if raw in output]


@pytest.mark.parametrize("words", [["top", "--local"], ["breaches", "--local"], ["inspect", "--local"]], ids=" ".join)
@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("https://127.0.0.1:PLAIN", "does not speak TLS on this port: use http://"),
        ("http://127.0.0.1:TLS", "use https://"),
        ("https://127.0.0.1:TLS", "is not trusted"),
        ("http://127.0.0.1:9", "nothing listens there"),
        ("http://no-such-host.invalid", "cannot be resolved"),
        ("http://127.0.0.1:PLAIN", "is not a page of gpushare's exporter"),
    ],
)
def test_an_exporter_that_is_not_there(words, url, fix, strange_servers):
    """Status 3, and what to change."""
    for name in ("PLAIN", "TLS"):
        url = url.replace(name, str(strange_servers[name]))
    done = CliRunner().invoke(main, [*words, url])
    output = " ".join(done.output.split())
    assert 3 == done.exit_code, output
    assert fix in output
    assert [] == [raw for raw in RAW if raw in output]


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00\xff" * 5000], ids=["empty", "text", "binary"])
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("run --simgpu FILE --gpu-mem 1 -- true", 125),
        ("exporter --once --no-kubernetes --simgpu FILE", 3),
        ("doctor machine --simgpu FILE", 1),
        ("simgpu show FILE", 1),
        ("simgpu set FILE seed=1", 1),
        ("simgpu clock FILE", 1),
        ("simgpu inject FILE lost 1", 1),
    ],
)
def test_a_file_that_holds_no_cards(line, status, content, tmp_path):
    """The file is named, and where such files come from."""
    path = tmp_path / "file"
    path.write_bytes(content)
    done = shell(f"{GPUSHARE} {line.replace('FILE', str(path))}")
    output = " ".join((done.stderr + done.stdout).split())
    assert status == done.returncode, output
    assert f"{path}" in output
    assert "gpushare simgpu create" in output
    assert [] == [raw for raw in RAW if raw in output]
