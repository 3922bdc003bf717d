# SPDX-License-Identifier: Apache-2.0
"""KEDA's external scaler through a real gRPC client: figures, and none where none can be reported."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import grpc
import pytest
from support.rpc_harness import channel_to
from support.waiting import PATIENCE_SECONDS, soon

from autoscaler.apis.metrics.core.readings import (
    ContainerCardUse,
    LatestSnapshot,
    MetricsSnapshot,
    PendingPod,
    PodUse,
    PoolCapacity,
)
from autoscaler.apis.rpc import keda_scaler
from autoscaler.apis.rpc.keda_scaler import ExternalScaler
from autoscaler.apis.rpc.ports import GrpcSettings, serve_ports
from isolation.contract.protobuf import Wire
from isolation.contract.quantity import GIB
from isolation.kube.election import boottime

# Typed again, as KEDA declares them.
WIRE = Wire().package(
    "keda",
    {
        "Ref": {"name": "1 string", "namespace": "2 string", "scalerMetadata": "3 {string}"},
        "Active": {"result": "1 bool"},
        "Specs": {"metricSpecs": "1 *Spec"},
        "Spec": {"metricName": "1 string", "targetSize": "2 int64", "targetSizeFloat": "3 double"},
        "Ask": {"scaledObjectRef": "1 Ref", "metricName": "2 string"},
        "Values": {"metricValues": "1 *Value"},
        "Value": {"metricName": "1 string", "metricValue": "2 int64", "metricValueFloat": "3 double"},
    },
)
CODE = grpc.StatusCode
PENDING = {"metric": "gpu_mem_pending_bytes", "target": "16Gi"}
USED = {"metric": "gpu_mem_used_ratio", "target": "0.8", "selector": "app=chat"}


def used(name, bytes_used, measured=100.0):
    """A pod of 8 GiB that uses so much of it."""
    uses = (ContainerCardUse("main", "GPU-1", 0, 8 * GIB, None, bytes_used, 0.1),)
    return PodUse("demo", name, "node-1", uses, {"app": "chat"}, measured)


PICTURE = MetricsSnapshot(
    at=100.0,
    pods={"demo": (used("a", 6 * GIB), used("b", 2 * GIB))},
    pools=(PoolCapacity("shared", 4 * GIB, 2.0, 0.5),),
    waiting=(PendingPod("demo", "shared", 24 * GIB), PendingPod("other", "shared", GIB)),
)


def call(picture, method, metadata, *, now=110.0, namespace="demo", metric=None):
    """The answer of one call, or its status and what was said."""

    async def run():
        scaler = ExternalScaler(LatestSnapshot(picture), steady=lambda: now)
        async with channel_to(scaler) as channel:
            ref = WIRE["Ref"](name="chat", namespace=namespace, scalerMetadata=metadata)
            asked = ref if method != "GetMetrics" else WIRE["Ask"](scaledObjectRef=ref, metricName=metric or "")
            kind = {"IsActive": "Active", "GetMetricSpec": "Specs", "GetMetrics": "Values"}[method]
            unary = channel.unary_unary(
                f"/externalscaler.ExternalScaler/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=WIRE[kind].FromString,
            )
            try:
                return await unary(asked, timeout=PATIENCE_SECONDS)
            except grpc.aio.AioRpcError as exc:
                return exc.code(), exc.details()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("metadata", "value"),
    [
        (PENDING, 24.0 * GIB),
        (PENDING | {"selector": "pool in (shared,other)"}, 24.0 * GIB),
        ({"metric": "gpu_mem_largest_free_bytes", "target": "1"}, 4.0 * GIB),
        ({"metric": "gpu_fragmentation_ratio", "target": "1"}, 0.25),
        (USED, 1.0),
        (USED | {"combine": "average"}, 0.5),
        (USED | {"combine": "max"}, 0.75),
        (USED | {"selector": "app=none"}, 0.0),
    ],
)
def test_a_figure_is_reported_as_it_is(metadata, value):
    """
    Of pools by the namespace of the ScaledObject, of pods over those that its selector names.
    """
    (value_given,) = call(PICTURE, "GetMetrics", metadata, metric=metadata["metric"]).metricValues

    assert (metadata["metric"], value) == (value_given.metricName, value_given.metricValueFloat)


def test_a_target_is_told_as_a_fraction_and_never_as_nothing():
    """
    KEDA of today reads the one, older ones the other: rounded down it would be no target at all.
    """
    (spec,) = call(PICTURE, "GetMetricSpec", USED).metricSpecs

    assert ("gpu_mem_used_ratio", 0.8, 1) == (spec.metricName, spec.targetSizeFloat, spec.targetSize)


@pytest.mark.parametrize(("activation", "active"), [("0", True), ("23Gi", True), ("24Gi", False)])
def test_there_is_something_to_do_above_the_activation(activation, active):
    """
    At it, there is not.
    """
    assert active is call(PICTURE, "IsActive", PENDING | {"activation": activation}).result


@pytest.mark.parametrize("method", ["IsActive", "GetMetrics"])
@pytest.mark.parametrize(
    ("picture", "metadata", "now"),
    [
        (MetricsSnapshot(), PENDING, 110.0),
        (PICTURE, PENDING, 146.0),
        (PICTURE, PENDING, 50.0),
        (replace(PICTURE, pods={"demo": (used("a", GIB), used("b", GIB, measured=None))}), USED, 110.0),
        (replace(PICTURE, pods={"demo": (used("a", GIB), used("b", None))}), USED, 110.0),
        (replace(PICTURE, pods={"demo": (used("a", GIB), used("b", GIB, measured=60.0))}), USED, 110.0),
        (PICTURE, USED | {"selector": "app=none", "combine": "max"}, 110.0),
        (PICTURE, PENDING | {"selector": "pool=gone"}, 110.0),
    ],
    ids=["nothing", "stale", "ahead", "unmeasured", "unknown", "old exporter", "nobody", "no pool"],
)
def test_what_is_unknown_is_an_error_and_never_nothing(picture, metadata, now, method):
    """
    An outage of the monitoring must not look like an idle service: KEDA leaves the replicas as they are.
    """
    assert CODE.UNAVAILABLE == call(picture, method, metadata, now=now)[0]


@pytest.mark.parametrize(("scrapes", "value_given"), [({}, CODE.UNAVAILABLE), ({"fresh_seconds": 180.0}, CODE.OK)])
def test_how_old_a_figure_may_be_follows_how_often_is_scraped(scrapes, value_given):
    """
    A minute old: too old where nothing is said, not where Prometheus scrapes once a minute.
    """

    async def run():
        board = LatestSnapshot(replace(PICTURE, at=boottime() - 60))
        async with (
            serve_ports(GrpcSettings(number=0, **scrapes), readings=board) as opened,
            grpc.aio.insecure_channel(f"127.0.0.1:{opened.number}") as channel,
        ):
            unary = channel.unary_unary(
                "/externalscaler.ExternalScaler/IsActive",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=WIRE["Active"].FromString,
            )
            asked = unary(WIRE["Ref"](name="chat", namespace="demo", scalerMetadata=PENDING), timeout=PATIENCE_SECONDS)
            return await asked.code()

    assert value_given is asyncio.run(run())


WRONG = pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (PENDING | {"selektor": "pool=shared"}, 'unknown key "selektor"; write one of metric, target'),
        (PENDING | {"selectorFromEnv": "pool=shared"}, "selectorFromEnv"),
        (PENDING | {"x\n" * 1000: "1"}, "write one of metric"),
        ({}, "write one of gpu_mem_used_bytes"),
        ({"metric": "gpu_mem_used_ratio"}, "target"),
        (PENDING | {"target": "0"}, "greater than 0"),
        (PENDING | {"target": "-3"}, "write 0 or more"),
        (PENDING | {"target": "9e99"}, "write 0 or more"),
        (PENDING | {"activation": "much"}, "activation"),
        (PENDING | {"selector": "zone=a"}, "labels namespace, pool"),
        (PENDING | {"selector": "((("}, "selector"),
        (USED | {"combine": "product"}, "write one of sum"),
        ({"metric": "x\n" * 1000}, "write one of"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "trigger",
)


@pytest.mark.parametrize("method", ["IsActive", "GetMetrics"])
@WRONG
def test_a_trigger_that_says_nothing_sensible_is_told_what_to_write(metadata, words, method):
    """
    The words end up in the ScaledObject's events.
    """
    code, said = call(PICTURE, method, metadata)

    assert (CODE.INVALID_ARGUMENT, True, True) == (code, words in said, said.isprintable())


@WRONG
def test_a_trigger_that_says_nothing_sensible_gets_a_spec_all_the_same(metadata, words):
    """
    KEDA swallows what GetMetricSpec refuses: nobody would read what to write.
    """
    (spec,) = call(PICTURE, "GetMetricSpec", metadata).metricSpecs

    assert words
    assert spec.metricName in (metadata.get("metric"), keda_scaler.REFUSED_METRIC)
    assert spec.targetSize >= 1
    assert spec.targetSizeFloat > 0
    assert CODE.INVALID_ARGUMENT == call(PICTURE, "GetMetrics", metadata, metric=spec.metricName)[0]


def test_what_keda_sends_along_of_its_own_is_no_unknown_key():
    """
    The connection's settings stand beside ours in the trigger.
    """
    own = {
        "scalerAddress": "gpushare-autoscaler.gpushare-system.svc:8086",
        "enableTLS": "true",
        "unsafeSsl": "false",
        "caCert": "pem",
        "tlsClientCert": "pem",
        "tlsClientKey": "pem",
        "tlsCertFile": "/ca.pem",
    }
    assert call(PICTURE, "IsActive", PENDING | own).result is True


def test_another_metric_than_the_triggers_is_refused():
    """
    So that a mixed-up HorizontalPodAutoscaler does not scale on the wrong figure.
    """
    assert CODE.INVALID_ARGUMENT == call(PICTURE, "GetMetrics", PENDING, metric="gpu_mem_used_ratio")[0]


def test_a_stream_speaks_at_once_and_when_something_changes(monkeypatch):
    """
    Silent while nothing can be reported; streams beyond the bound are refused and leave the others alone.
    """
    monkeypatch.setattr(keda_scaler, "MAX_STREAMS", 1)
    board = LatestSnapshot(PICTURE)

    async def run():
        scaler = ExternalScaler(board, look_seconds=0.01, steady=lambda: 110.0)
        async with channel_to(scaler) as channel:
            open_stream = channel.unary_stream(
                "/externalscaler.ExternalScaler/StreamIsActive",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=WIRE["Active"].FromString,
            )
            ref = WIRE["Ref"](name="chat", namespace="demo", scalerMetadata=PENDING)
            stream = open_stream(ref, timeout=PATIENCE_SECONDS)
            value_given = [(await stream.read()).result]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await open_stream(ref, timeout=PATIENCE_SECONDS).read()
            board.put(MetricsSnapshot())
            await asyncio.sleep(0.05)
            board.put(replace(PICTURE, waiting=()))
            value_given.append((await stream.read()).result)
            stream.cancel()

            async def reopened():
                """Once the server has heard of the end of the other."""
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return await open_stream(ref, timeout=PATIENCE_SECONDS).read()

            value_given.append((await soon(reopened)).result)
            return value_given, refused.value.code()

    assert ([True, False, False], CODE.RESOURCE_EXHAUSTED) == asyncio.run(run())
