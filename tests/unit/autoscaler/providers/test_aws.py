# SPDX-License-Identifier: Apache-2.0
"""
Auto Scaling groups with the manners of the API reference, and where boto3 is there, with its own checks of shapes.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import threading

import pytest

from autoscaler.providers import aws, base
from autoscaler.providers.aws import AwsProvider, AwsSettings
from autoscaler.providers.base import (
    ChangedError,
    DeniedError,
    InstanceState,
    OutOfStockError,
    ProviderUnreachableError,
)

NO_STOCK = (
    "We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you requested (eu-central-1a). "
    "Launching EC2 instance failed."
)


class ApiError(Exception):
    """As botocore's ClientError shows what the service said."""

    def __init__(self, code, message, status=400):
        super().__init__(f"{code}: {message}")
        self.response = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


class Groups:
    """The service: groups, instances, activities; `stock` is what can be launched yet."""

    def __init__(self, **sizes):
        self.stock = 1000
        self.made = 0
        self.error = None
        self.calls = []
        self.activities = []
        self.groups = {}
        for name, size in sizes.items():
            self.groups[name] = {
                "AutoScalingGroupName": name,
                "MinSize": 0,
                "MaxSize": 5,
                "DesiredCapacity": size,
                "DefaultCooldown": 300,
                "AvailabilityZones": ["eu-central-1a"],
                "HealthCheckType": "EC2",
                "CreatedTime": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
                "Instances": [],
                "Tags": [],
            }
            self.work()

    def work(self):
        """The service launches what is desired, and says so when it cannot."""
        for name, group in self.groups.items():
            live = [one for one in group["Instances"] if not one["LifecycleState"].startswith("Terminating")]
            for _ in range(group["DesiredCapacity"] - len(live)):
                self.made += 1
                self.stock -= 1
                well = self.stock >= 0
                self.activities.insert(0, self._activity(name, self.made, well=well))
                if well:
                    group["Instances"].append(self._instance(f"i-{self.made:017x}"))

    def _activity(self, group, number, *, well):
        return {
            "ActivityId": f"activity-{number}",
            "AutoScalingGroupName": group,
            "Description": "Launching a new EC2 instance",
            "Cause": "a difference between desired and actual capacity",
            "StartTime": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
            "StatusCode": "Successful" if well else "Failed",
        } | ({} if well else {"StatusMessage": NO_STOCK})

    def _instance(self, name):
        return {
            "InstanceId": name,
            "AvailabilityZone": "eu-central-1a",
            "LifecycleState": "InService",
            "HealthStatus": "Healthy",
            "ProtectedFromScaleIn": False,
        }

    def _asked(self, method, given):
        self.calls.append((method, given))
        if self.error is not None:
            raise self.error

    def describe_auto_scaling_groups(self, **given):
        """Two a page, so that pages are read."""
        self._asked("describe_auto_scaling_groups", given)
        assert len(given["AutoScalingGroupNames"]) <= 50
        found = [self.groups[name] for name in given["AutoScalingGroupNames"] if name in self.groups]
        start = int(given.get("NextToken", "0"))
        more = {"NextToken": str(start + 2)} if start + 2 < len(found) else {}
        return {"AutoScalingGroups": found[start : start + 2], **more}

    def set_desired_capacity(self, **given):
        """Refused while a cooldown is honoured or beyond the bounds."""
        self._asked("set_desired_capacity", given)
        group = self.groups[given["AutoScalingGroupName"]]
        if given.get("HonorCooldown", False):
            raise ApiError("ScalingActivityInProgress", "cooldown")
        if not group["MinSize"] <= given["DesiredCapacity"] <= group["MaxSize"]:
            raise ApiError("ValidationError", "New SetDesiredCapacity value is out of bounds")
        group["DesiredCapacity"] = given["DesiredCapacity"]
        return {}

    def terminate_instance_in_auto_scaling_group(self, **given):
        """Lowers what is desired each time it is asked."""
        self._asked("terminate_instance_in_auto_scaling_group", given)
        assert given["ShouldDecrementDesiredCapacity"] is True
        for group in self.groups.values():
            for one in group["Instances"]:
                if one["InstanceId"] == given["InstanceId"]:
                    if group["DesiredCapacity"] <= group["MinSize"]:
                        raise ApiError("ValidationError", "Terminating instance will violate group's min size")
                    one["LifecycleState"] = "Terminating:Wait"
                    group["DesiredCapacity"] -= 1
                    return {"Activity": self._activity(group["AutoScalingGroupName"], 0, well=True)}
        raise ApiError("ValidationError", "Instance Id not found")

    def describe_scaling_activities(self, **given):
        """Newest first."""
        self._asked("describe_scaling_activities", given)
        mine = [one for one in self.activities if one["AutoScalingGroupName"] == given["AutoScalingGroupName"]]
        return {"Activities": mine[: given["MaxRecords"]]}


class Checked:
    """The same service behind boto3's own client: every question and answer has the shape of the real ones."""

    def __init__(self, groups):
        boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
        from botocore.stub import Stubber  # noqa: PLC0415 (only with boto3)

        self._groups = groups
        self._real = boto3.client(
            "autoscaling",
            region_name="eu-central-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",  # noqa: S106 (nobody is asked)
        )
        self._stubber = Stubber(self._real)
        self._stubber.activate()

    def __getattr__(self, method):
        def call(**given):
            try:
                self._stubber.add_response(method, getattr(self._groups, method)(**given), given)
            except ApiError as exc:
                error = exc.response["Error"]
                status = exc.response["ResponseMetadata"]["HTTPStatusCode"]
                self._stubber.add_client_error(method, error["Code"], error["Message"], status)
            return getattr(self._real, method)(**given)

        return call


@pytest.fixture(params=["documented", "boto3"])
def cloud(request):
    """A service, and a provider for its groups."""

    def make(**sizes):
        groups = Groups(**sizes)
        api = Checked(groups) if request.param == "boto3" else groups
        return groups, AwsProvider(api, {name: AwsSettings("eu-central-1", name) for name in sizes})

    return make


def look(provider, pool="a"):
    """One pool now."""
    return {state.name: state for state in asyncio.run(provider.pools())}[pool]


def test_groups_are_read_over_all_pages_and_named_as_nodes_name_their_machines(cloud):
    """
    `spec.providerID` of a node is the instance with its zone.
    """
    _, provider = cloud(a=2, b=0, c=1, d=0, e=1)
    states = {state.name: state for state in asyncio.run(provider.pools())}

    assert {"a": 2, "b": 0, "c": 1, "d": 0, "e": 1} == {name: state.target for name, state in states.items()}
    assert [f"aws:///eu-central-1a/i-{n:017x}" for n in (1, 2)] == [one.id for one in states["a"].nodes]
    assert (0, 5) == (states["a"].min_nodes, states["a"].max_nodes)


def test_a_group_grows_past_its_cooldown_and_gives_back_the_named_instance(cloud):
    """
    The instance named goes and what is desired falls with it.
    """
    groups, provider = cloud(a=1)
    target = asyncio.run(provider.grow("a", 2, seen=1))
    groups.work()
    named = look(provider).nodes[1].id
    gone = asyncio.run(provider.remove("a", [named]))
    again = asyncio.run(provider.remove("a", [named]))
    state = look(provider)

    assert (3, (named,), (named,)) == (target, gone, again)
    assert (2, 2) == (state.target, len(state.standing))
    assert InstanceState.LEAVING == {one.id: one.state for one in state.nodes}[named]


def test_a_target_that_is_not_the_one_seen_is_left_alone(cloud):
    """
    Somebody else has bought: nothing is written.
    """
    groups, provider = cloud(a=2)

    with pytest.raises(ChangedError, match="another client"):
        asyncio.run(provider.grow("a", 1, seen=1))

    assert 2 == groups.groups["a"]["DesiredCapacity"]


def test_a_launch_that_fails_is_said_with_the_clouds_words(cloud):
    """
    The request succeeds and the machine never comes: the newest launch says why.
    """
    groups, provider = cloud(a=1)
    groups.stock = 0
    asyncio.run(provider.grow("a", 1))
    groups.work()
    state = look(provider)

    assert 1 == state.missing
    assert "do not have sufficient" in state.short
    assert 1 == asyncio.run(provider.cancel("a", 5))
    assert "" == look(provider).short


def test_an_old_failure_says_nothing_about_a_new_wish(cloud):
    """
    What failed before the purchase is not held against it; what is under way is not known yet.
    """
    groups, provider = cloud(a=1)
    groups.stock = 0
    asyncio.run(provider.grow("a", 1))
    groups.work()
    asyncio.run(provider.cancel("a", 1))
    groups.stock = 10
    asyncio.run(provider.grow("a", 1))
    before = look(provider)
    groups.work()

    assert (1, "") == (before.missing, before.short)
    assert 0 == look(provider).missing


def test_nothing_beyond_the_groups_own_bounds_is_asked(cloud):
    """
    The remedy is named; the group is as before.
    """
    groups, provider = cloud(a=4)
    groups.groups["a"]["MinSize"] = 4

    with pytest.raises(DeniedError, match="MaxSize 5; raise it"):
        asyncio.run(provider.grow("a", 2))
    with pytest.raises(DeniedError, match="min size"):
        asyncio.run(provider.remove("a", [look(provider).nodes[0].id]))

    assert 4 == groups.groups["a"]["DesiredCapacity"]


def test_instances_of_another_group_are_not_touched(cloud):
    """
    Whoever names one by mistake: it is not in the answer.
    """
    groups, provider = cloud(a=1, b=1)
    other = look(provider, "b").nodes[0].id

    assert () == asyncio.run(provider.remove("a", [other, "i-unknown", ""]))
    assert (1, 1) == tuple(group["DesiredCapacity"] for group in groups.groups.values())


def test_what_is_done_of_several_is_said_though_the_rest_fails(cloud):
    """
    The first has gone, the second may not: the answer names the first, asking again tells about the second.
    """
    groups, provider = cloud(a=2)
    groups.groups["a"]["MinSize"] = 1
    ids = [one.id for one in look(provider).nodes]

    assert (ids[0],) == asyncio.run(provider.remove("a", ids))
    with pytest.raises(DeniedError):
        asyncio.run(provider.remove("a", ids[1:]))


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("Throttling", 400, ProviderUnreachableError),
        ("InternalFailure", 500, ProviderUnreachableError),
        ("ResourceContention", 500, ChangedError),
        ("ScalingActivityInProgress", 400, ChangedError),
        ("AccessDenied", 403, DeniedError),
        ("InsufficientInstanceCapacity", 500, ProviderUnreachableError),
        ("InsufficientInstanceCapacity", 400, OutOfStockError),
    ],
    ids=str,
)
def test_the_services_errors_are_distinguished(cloud, code, status, expected):
    """
    Not known, look again, never, not now.
    """
    groups, provider = cloud(a=1)
    groups.error = ApiError(code, "for a test", status)

    with pytest.raises(expected):
        asyncio.run(provider.grow("a", 1))


def test_a_service_that_does_not_answer_has_a_deadline(monkeypatch):
    """
    Whether it happened is unknown, and that is said in time.
    """
    over = threading.Event()

    class Slow(Groups):
        def set_desired_capacity(self, **given):
            over.wait()
            return super().set_desired_capacity(**given)

    groups = Slow(a=1)
    provider = AwsProvider(groups, {"a": AwsSettings("r", "a")})
    monkeypatch.setattr(aws, "WRITE_SECONDS", 0.1)

    with pytest.raises(ProviderUnreachableError, match="timed out after"):
        asyncio.run(provider.grow("a", 1))
    over.set()


def test_faults_of_ours_are_not_taken_for_the_clouds(cloud):
    """
    An error that is neither the SDK's nor the network's goes up as it is.
    """
    groups, provider = cloud(a=1)
    groups.error = ZeroDivisionError()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(provider.pools())


def test_a_group_that_counts_weights_is_not_scaled(cloud):
    """
    Its capacity is no number of machines: seen with the reason, never changed.
    """
    groups, provider = cloud(a=1)
    groups.groups["a"]["Instances"][0]["WeightedCapacity"] = "4"

    assert "weights" in look(provider).short
    with pytest.raises(DeniedError, match="weights"):
        asyncio.run(provider.grow("a", 1))


def test_standby_and_warm_pool_instances_do_not_count(cloud):
    """
    They are not what the group desires, and not ours to give back.
    """
    groups, provider = cloud(a=3)
    for state, one in zip(("Standby", "Warmed:Stopped", "Pending:Wait"), groups.groups["a"]["Instances"], strict=True):
        one["LifecycleState"] = state

    assert [InstanceState.COMING] == [one.state for one in look(provider).nodes]


def test_the_template_comes_from_the_groups_tags(cloud):
    """
    As for the cluster-autoscaler; without them nobody can tell.
    """
    groups, provider = cloud(a=0)
    silent = asyncio.run(provider.template("a"))
    key = "k8s.io/cluster-autoscaler/node-template/resources"
    groups.groups["a"]["Tags"] = [{"Key": f"{key}/cpu", "Value": "4"}, {"Key": f"{key}/memory", "Value": "16Gi"}]

    assert silent is None
    assert 4000 == asyncio.run(provider.template("a")).cpu_milli


def test_deadlines_leave_room_for_one_request_within_each_call():
    """
    A call may ask several times; one request must be able to fail before the call is given up.
    """
    assert aws.ANSWER_SECONDS < min(base.READ_SECONDS, base.WRITE_SECONDS)
