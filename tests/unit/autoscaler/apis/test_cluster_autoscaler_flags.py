# SPDX-License-Identifier: Apache-2.0
"""The stand-in for cluster-autoscaler takes the flags and the file that 1.36.1 takes, and ends where that would end."""

from __future__ import annotations

import pytest
from e2e.cluster_autoscaler.flags import FlagError, read

CLOUD = "address: a.b.svc:8086\ncert: /c\nkey: /k\ncacert: /a\ngrpc_timeout: 1m30s\n"


def given(tmp_path, *flags, cloud=CLOUD):
    """What is read of them, with a provider and its file."""
    file = tmp_path / "cloud.yaml"
    file.write_text(cloud)
    return read(["--cloud-provider=externalgrpc", f"--cloud-config={file}", *flags])


def test_flags_are_read_as_go_reads_them(tmp_path):
    """
    With `=` or a word of its own, a boolean one alone, durations in Go's notation; the last one counts.
    """
    found = given(
        tmp_path,
        *("--enforce-node-group-min-size", "--scale-down-unneeded-time", "1m30s", "--max-node-provision-time=0"),
        *("--allowed-scheduler-names=a,b", "--max-graceful-termination-sec=30", "--v=4", "--scan-interval=10s"),
        *("--scan-interval=20s", "--expander=grpc,least-waste", "--grpc-expander-cert=/x"),
    )
    options = found.options
    assert (True, 90.0, 0.0, 20.0) == (
        options.enforce_node_group_min_size,
        options.scale_down_unneeded_time,
        options.max_node_provision_time,
        options.scan_interval,
    )
    assert ({"a", "b"}, 30.0) == (options.allowed_scheduler_names, options.max_graceful_termination)
    assert (("grpc", "least-waste"), "/x") == (found.expanders, found.expander_cert)
    assert ("a.b.svc:8086", "/c", "/k", "/a", 90.0) == (
        *(found.cloud.address, found.cloud.cert, found.cloud.key, found.cloud.cacert),
        found.cloud.timeout,
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--enforce-min-size"], "unknown flag: --enforce-min-size"),
        (["--enforce-node-group-min-size=yes"], "invalid argument"),
        (["--scan-interval=10"], "invalid duration"),
        (["--expander=cheapest"], "not supported"),
        (["--expander=price,price"], "multiple times"),
        (["--expander=random,price"], "came after random"),
        (["--expander=grpc", "--grpc-expander-url=a:1"], "insecure connections not allowed"),
        (["--cloud-provider=aws"], "only externalgrpc"),
        (["--cloud-config="], "No config file provided"),
        (["--cloud-config=/no/such"], "Could not open"),
        (["--kubeconfig"], "needs an argument"),
    ],
)
def test_what_it_would_refuse_is_refused(tmp_path, flags, words):
    """
    Before anything is asked.
    """
    with pytest.raises(FlagError, match=words):
        given(tmp_path, *flags)


@pytest.mark.parametrize(
    ("cloud", "words"),
    [
        ("address: a.b.svc\n", "failed to parse address"),
        ("- a\n", "can't parse YAML"),
        ("address: [a\n", "Could not open"),
        (CLOUD.replace("1m30s", "90"), "can't parse YAML"),
        (CLOUD.replace("1m30s", "soon"), "invalid duration"),
    ],
)
def test_a_file_that_it_would_refuse_is_refused(tmp_path, cloud, words):
    """
    The address needs a port, a duration a unit.
    """
    with pytest.raises(FlagError, match=words):
        given(tmp_path, cloud=cloud)
