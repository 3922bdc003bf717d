# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor inside`, as a container runs it: with exactly what the agent adjusts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from support.cdi_process import Boxed, namespaces
from support.simbox import boxes

from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Card, Slice
from isolation.contract.quantity import GIB
from isolation.node.backend import LibraryBackend, NoBackend
from isolation.node.core.container_check import Given
from isolation.node.delivery import Delivery
from isolation.node.hardware import SimulatedHardware

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ROOT / "isolation" / "simgpu" / "lib"
pytestmark = [
    pytest.mark.skipif(not (LIBRARIES / "libcuda.so.1").is_file(), reason="the simulated driver was not built"),
    pytest.mark.skipif(not namespaces(), reason="this user may not make mount namespaces"),
]
DOCTOR = f"""
import os, subprocess
command = [{sys.executable!r}, "-c", "from isolation.doctor.cli import doctor; doctor()", "inside", "--json"]
done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ) | {{"PYTHONPATH": {str(ROOT)!r}}})
print(done.stdout.replace(chr(10), ""))
"""


SECURE = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>
int main(void)
{
    void *cu = dlopen("/run/gpushare/simgpu/lib/libcuda.so.1", RTLD_NOW), *context = 0;
    size_t left = 0, total = 0;
    int secure = getauxval(AT_SECURE) != 0;
    ((int (*)(unsigned))dlsym(cu, "cuInit"))(0);
    ((int (*)(void **, int))dlsym(cu, "cuDevicePrimaryCtxRetain"))(&context, 0);
    ((int (*)(void *))dlsym(cu, "cuCtxSetCurrent"))(context);
    ((int (*)(size_t *, size_t *))dlsym(cu, "cuMemGetInfo_v2"))(&left, &total);
    printf("[%d, %d, %zu]\n", secure, (int)getuid(), total);
    return 0;
}
"""
AS_NOBODY = """
import shutil, subprocess
shutil.copy({program!r}, "/run/secure")
os.chmod("/run/secure", 0o4755)
command = ["setpriv", "--reuid=65534", "--clear-groups", "/run/secure"]
done = subprocess.run(command, capture_output=True, text=True)
print(done.stdout.strip() or json.dumps([done.returncode, done.stderr]))
"""


@pytest.fixture
def container(tmp_path):
    """Runs the doctor in a container with two GiB of a simulated card."""
    run_dir = tmp_path / "run"
    tenant = Tenant("ml", "train-0", "1140914f-bf25-4cf5-a28a-2853bcd66768", "main")
    with boxes("v100-16g") as box:
        [card] = [Card(f"GPU-{UUID(bytes=bytes(one.model.uuid))}", 0, 16 * GIB) for one in box.cards()]
        hardware, boxed = SimulatedHardware(box.path, LIBRARIES, run_dir), Boxed(tmp_path)

        def run(backend, code=DOCTOR, *, enforced=True):
            given = Given((Slice(card.uuid, 0, 2 * GIB),), enforced)
            made = Delivery(run_dir, hardware, backend).deliver(tenant, given, {card.uuid: card})
            return boxed.run(made.edits, code)

        yield SimpleNamespace(run=run, run_dir=run_dir)


def test_a_promise_that_is_kept_is_said_to_be_kept(container):
    """
    Loaded by /etc/ld.so.preload, the promise is the card, the excess refused by the library.
    """
    outcome = container.run(LibraryBackend(container.run_dir))

    assert (0, ["ok", "ok"]) == (outcome["status"], [one["state"] for one in outcome["findings"]])


def test_a_container_that_nothing_limits_is_a_problem(container):
    """
    A node that only shares gives the cards and the variables, and no library: the doctor finds no ledger.
    """
    outcome = container.run(NoBackend(), enforced=False)

    assert 1 == outcome["status"]
    assert "problem" in json.dumps(outcome["findings"])


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root makes programs set-user-ID")
def test_a_set_user_id_program_is_bound_too(container, tmp_path):
    """
    Its loader drops LD_PRELOAD and obeys /etc/ld.so.preload: started by nobody and run as root, it sees the promise.
    """
    (tmp_path / "secure.c").write_text(SECURE)
    program = tmp_path / "secure"
    subprocess.run(["gcc", "-o", str(program), str(tmp_path / "secure.c"), "-ldl"], check=True)

    outcome = container.run(LibraryBackend(container.run_dir), code=AS_NOBODY.format(program=str(program)))

    assert [1, 65534, 2 * GIB] == outcome
