# SPDX-License-Identifier: Apache-2.0
"""The gRPC port itself: who is heard, with which certificate, and what is too much."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from e2e.certificates import Authority
from support.rpc_harness import GENERATIONS, Pools, channel_to
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.metrics.core.readings import LatestSnapshot
from autoscaler.apis.rpc.cloud_provider import CloudProvider
from autoscaler.apis.rpc.core.node_groups import NodeGroup
from autoscaler.apis.rpc.handler import CallPolicy
from autoscaler.apis.rpc.ports import GrpcSettings, serve_ports
from autoscaler.apis.rpc.server import GrpcPort, ServingError, serve
from isolation.host.reloading_tls import CertificateFiles

CODE = grpc.StatusCode


@pytest.fixture
def authority(tmp_path):
    """Signs for this test."""
    return Authority(tmp_path, "ca")


def trusting(authority, pair=None):
    """A client's credentials: whom it trusts, and its own certificate where it has one."""
    own = (pair.key.read_bytes(), pair.certificate.read_bytes()) if pair else (None, None)
    return grpc.ssl_channel_credentials(authority.certificate.read_bytes(), *own)


async def asked(port, credentials, policy=None):
    """The status of one question."""
    async with channel_to(
        CloudProvider(Pools(NodeGroup("a")), policy),
        port=port,
        credentials=credentials,
        options=[("grpc.enable_retries", 0)],
    ) as channel:
        return await code_of(channel)


async def code_of(channel):
    """The status of one question on an open channel."""
    try:
        await GENERATIONS[0].provider(channel)["NodeGroups"]()
    except grpc.aio.AioRpcError as exc:
        return exc.code()
    return CODE.OK


def test_a_port_without_tls_is_for_this_machine_alone():
    """
    Whoever reached it could delete every node.
    """
    with pytest.raises(ServingError, match=r"certificate"):
        GrpcPort("0.0.0.0", 8086)  # noqa: S104 (what is refused)
    with pytest.raises(ServingError, match=r"certificate"):
        GrpcPort("autoscaler.example", 8086)
    assert CODE.OK == asyncio.run(asked(GrpcPort("127.0.0.1", 0), None))


@pytest.mark.parametrize("who", ["friend", "stranger", "nobody"])
def test_with_an_authority_for_clients_only_its_clients_are_heard(authority, tmp_path, who):
    """
    Without a certificate, or with somebody else's, there is no connection at all.
    """
    server = authority.issue("server", hosts=("127.0.0.1",))
    (tmp_path / "other").mkdir()
    pair = {
        "friend": authority.issue("friend"),
        "stranger": Authority(tmp_path / "other", "other").issue("friend"),
        "nobody": None,
    }[who]
    port = GrpcPort("127.0.0.1", 0, CertificateFiles(server.certificate, server.key, authority.certificate))

    code = asyncio.run(asked(port, trusting(authority, pair)))

    assert (CODE.OK if who == "friend" else CODE.UNAVAILABLE) == code


@pytest.mark.parametrize(("name", "code"), [("cluster-autoscaler", CODE.OK), ("keda", CODE.PERMISSION_DENIED)])
def test_a_certificate_is_not_yet_a_right(authority, name, code):
    """
    Whoever may read figures may not delete nodes: each service has its own list of names.
    """
    server = authority.issue("server", hosts=("127.0.0.1",))
    port = GrpcPort("127.0.0.1", 0, CertificateFiles(server.certificate, server.key, authority.certificate))
    policy = CallPolicy(callers=frozenset({"cluster-autoscaler"}))

    assert code == asyncio.run(asked(port, trusting(authority, authority.issue(name)), policy))


def test_without_tls_nobody_has_a_name():
    """
    A list of names on a port that cannot tell names lets nobody in.
    """
    policy = CallPolicy(callers=frozenset({"cluster-autoscaler"}))

    assert CODE.PERMISSION_DENIED == asyncio.run(asked(GrpcPort("127.0.0.1", 0), None, policy))


def test_a_new_certificate_is_served_without_a_restart(authority, tmp_path):
    """
    Half a pair keeps the old one in force; a whole one is taken by the next connection.
    """
    old = authority.issue("server", hosts=("127.0.0.1",))
    (tmp_path / "new").mkdir()
    later = Authority(tmp_path / "new", "later")
    new = later.issue("server", hosts=("127.0.0.1",))

    async def run():
        codes = []
        async with serve(
            GrpcPort("127.0.0.1", 0, CertificateFiles(old.certificate, old.key)), [CloudProvider(Pools())]
        ) as number:

            async def codes_now():
                for who in (authority, later):
                    where, options = f"127.0.0.1:{number}", [("grpc.use_local_subchannel_pool", 1)]
                    async with grpc.aio.secure_channel(where, trusting(who), options=options) as channel:
                        codes.append(await code_of(channel))

            await codes_now()
            old.certificate.write_bytes(new.certificate.read_bytes())
            await codes_now()
            old.key.write_bytes(new.key.read_bytes())
            await codes_now()
        return codes

    fine, bad = CODE.OK, CODE.UNAVAILABLE
    assert [fine, bad, fine, bad, bad, fine] == asyncio.run(run())


@pytest.mark.parametrize("spoil", ["missing", "rubbish", "another's"])
def test_files_that_are_no_pair_are_reported_at_the_start(authority, spoil):
    """
    The library itself would take them and refuse every connection in silence.
    """
    pair = authority.issue("server", hosts=("127.0.0.1",))
    if spoil == "missing":
        pair.key.unlink()
    elif spoil == "rubbish":
        pair.certificate.write_text("rubbish")
    else:
        pair.key.write_bytes(authority.issue("other", hosts=("127.0.0.1",)).key.read_bytes())

    with pytest.raises(ServingError, match=r"server\.(crt|key)"):
        asyncio.run(asked(GrpcPort("127.0.0.1", 0, CertificateFiles(pair.certificate, pair.key)), None))


def test_a_port_that_is_taken_is_reported():
    """
    Two autoscalers on one port would each hear half of the questions.
    """

    async def run():
        async with serve(GrpcPort("127.0.0.1", 0), [CloudProvider(Pools())]) as number:
            with pytest.raises(ServingError, match=str(number)):
                async with serve(GrpcPort("127.0.0.1", number), [CloudProvider(Pools())]):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize("anyone", [False, True])
def test_ports_hear_each_caller_on_what_is_its_own(authority, anyone):
    """
    cluster-autoscaler changes pools and is advised, KEDA reads figures; nobody else's call is served, nor any by the
    wrong port. Only where that is wished is anybody advised: a stock cluster-autoscaler shows its expander nothing.
    """
    server = authority.issue("server", hosts=("127.0.0.1",))
    files = CertificateFiles(server.certificate, server.key, authority.certificate)
    asking = {
        "groups": "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/NodeGroups",
        "figures": "/externalscaler.ExternalScaler/IsActive",
        "options": "/grpcplugin.Expander/BestOptions",
    }

    class Known:
        def pools(self):
            return {}

    async def run():
        found = {}
        settings = GrpcSettings(number=0, expander_number=0, files=files, anyone_asks=anyone)
        async with serve_ports(
            settings, state=Pools(NodeGroup("a")), known=Known(), readings=LatestSnapshot()
        ) as opened:
            for who in ("cluster-autoscaler", "keda-operator", None):
                credentials = trusting(authority, authority.issue(who) if who else None)
                for number in (opened.number, opened.expander_number):
                    async with grpc.aio.secure_channel(f"127.0.0.1:{number}", credentials) as channel:
                        for what, method in asking.items():
                            port = "expander" if number == opened.expander_number else "first"
                            found[who, port, what] = await raw_code(channel, method)
        return found

    denied, none, missing = CODE.PERMISSION_DENIED, CODE.UNAVAILABLE, CODE.UNIMPLEMENTED
    expected = {}
    for who, first in {
        "cluster-autoscaler": (CODE.OK, denied, missing),
        "keda-operator": (denied, CODE.INVALID_ARGUMENT, missing),
        None: (none, none, none),
    }.items():
        advice = {"cluster-autoscaler": (missing, missing, CODE.OK), "keda-operator": (missing, missing, denied)}
        second = (missing, missing, CODE.OK) if anyone else advice.get(who, (none, none, none))
        for port, codes in {"first": first, "expander": second}.items():
            expected |= {(who, port, what): code for what, code in zip(asking, codes, strict=True)}
    assert expected == asyncio.run(run())


def test_an_expander_for_everybody_must_be_wished_for(authority):
    """
    Over TLS without an authority for clients it is not served.
    """
    server = authority.issue("server", hosts=("127.0.0.1",))

    async def run(**more):
        settings = GrpcSettings(expander_number=0, files=CertificateFiles(server.certificate, server.key), **more)
        async with serve_ports(settings, known=object()) as opened:
            return opened.expander_number

    with pytest.raises(ServingError, match="--expander-allow-anonymous"):
        asyncio.run(run())
    assert asyncio.run(run(anyone_asks=True))


async def raw_code(channel, method):
    """The status of an empty question."""
    try:
        await channel.unary_unary(method)(b"", timeout=PATIENCE_SECONDS)
    except grpc.aio.AioRpcError as exc:
        return exc.code()
    return CODE.OK


def test_the_network_may_not_change_pools_without_showing_who_it_is(authority):
    """
    A certificate of the server alone hides what is said, not who says it.
    """
    server = authority.issue("server", hosts=("127.0.0.1",))

    async def run():
        async with serve_ports(GrpcSettings(files=CertificateFiles(server.certificate, server.key)), state=Pools()):
            pass

    with pytest.raises(ServingError, match="set --grpc-client-ca"):
        asyncio.run(run())
