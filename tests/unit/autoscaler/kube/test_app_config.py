# SPDX-License-Identifier: Apache-2.0
"""The autoscaler's configuration file: every mistake at once, with its line, and a bad new file changes nothing."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.drain_rules import DrainRules
from autoscaler.core.limits import BOUNDS, ScalingLimits
from autoscaler.kube.config.file import ConfigFile
from autoscaler.kube.config.reader import read_config
from autoscaler.kube.core.config import Config, ConfigError
from isolation.contract.model import CardChoice, Mode

GOOD = """\
version: 1
pools:
  - name: gpu-a
    provider: scale
    settings: {name: gpu-a}
    min_nodes: 1
    max_nodes: 20
    price: 3.1
    priority: 7
    spare_nodes: 2
    mode: cgpu
    placement: spread
    node_template:
      cpu: 16000
      cards: {version: 1, cards: [{uuid: c, index: 0, model: T4, total: 16106127360, unit: 1073741824}]}
limits: {scale_down_unneeded_seconds: 900, max_moves_per_cycle: 3}
metrics: {source: prometheus, url: "http://prometheus:9090/", scrape_interval_seconds: 30}
"""


def wrong(text):
    """What is said of it, line by line."""
    with pytest.raises(ConfigError) as raised:
        read_config(text.encode(), "f.yaml")
    return str(raised.value).splitlines()


def test_everything_that_may_be_said_is_read():
    """
    Pools with their settings, limits beside the defaults, where figures come from.
    """
    found = read_config(GOOD.encode())

    (pool,) = found.pools
    assert ("gpu-a", "scale", 1, 20, 3.1, 7, 2) == (
        pool.name, pool.source.provider, pool.min_nodes, pool.max_nodes, pool.price, pool.priority, pool.spare_nodes
    )  # fmt: skip
    assert (Mode.CGPU, CardChoice.SPREAD, 16000) == (pool.mode, pool.choice, pool.profile.cpu_milli)
    assert Mode.CGPU is pool.shaped(None).mode
    assert (900.0, 3, 10.0) == (
        found.limits.scale_down_unneeded_seconds, found.limits.max_moves_per_cycle, found.limits.scan_interval_seconds
    )  # fmt: skip
    assert ("prometheus", "http://prometheus:9090", 90.0) == (
        found.metrics.source, found.metrics.url, found.metrics.stale_seconds
    )  # fmt: skip


def test_what_a_turn_has_read_is_reported_until_the_turns_after_it():
    """
    With scrapes quicker than turns a figure is older than three scrapes before the next turn reads another.
    """
    quick = "metrics: {source: exporter, scrape_interval_seconds: 1}\nlimits: {scan_interval_seconds: %s}"
    assert [30.0, 3.0] == [read_config((quick % scan).encode()).fresh_seconds for scan in (10, 0.5)]
    assert 45.0 == read_config(b"version: 1").fresh_seconds


def test_what_keeps_a_pools_nodes_is_its_operators_word():
    """
    As for cluster-autoscaler where nothing is said; a word for a flag is a mistake.
    """
    pool = "pools: [{name: a, provider: scale, settings: {name: a}%s}]"
    (usual,) = read_config((pool % "").encode()).pools
    (lax,) = read_config((pool % ", skip_nodes_with_local_storage: false").encode()).pools
    assert DrainRules() == usual.drain_rules
    assert DrainRules(skip_nodes_with_local_storage=False) == lax.drain_rules
    (said,) = wrong(pool % ', skip_nodes_with_custom_controller_pods: "false"')
    assert "skip_nodes_with_custom_controller_pods" in said
    assert "is not true or false" in said
    (unknown,) = wrong(pool % ", skip_nodes_with_system_pods: false")
    assert "unknown key" in unknown


def test_every_mistake_is_named_with_its_line_and_the_remedy():
    """
    Several at once: nobody mends a file one mistake at a time.
    """
    said = wrong(
        "version: 1\n"
        "pools:\n"
        "  - name: Gpu_A\n"
        "    provider: scale\n"
        "    min_nodes: 5\n"
        "    max_nodes: 2\n"
        "    price: cheap\n"
        "  - name: b\n"
        "    minimum: 3\n"
        "limits:\n"
        "  scaleDownUnneededSeconds: 3\n"
        "metrics:\n"
        "  source: prometheus\n"
    )

    assert [3, 5, 7, 8, 9, 11, 12] == sorted(int(line.split(":")[1]) for line in said)
    everything = "\n".join(said)
    for part in (
        'f.yaml:3: pools[0].name: "Gpu_A" is not a valid name',
        "f.yaml:5: pools[0].min_nodes: 5 is greater than max_nodes, 2",
        'f.yaml:7: pools[0].price: "cheap" is not a number',
        "f.yaml:8: pools[1].provider: missing",
        "f.yaml:9: pools[1].minimum: unknown key",
        "did you mean scale_down_unneeded_seconds?",
        "source prometheus needs the URL of Prometheus",
    ):
        assert part in everything


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("pools: [", "invalid YAML"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("pools: []\npools: []\n", "line 2: duplicate key pools"),
        ("1: 2\n", "line 1: key is not a string"),
        ("pools: hello\n", 'f.yaml:1: pools: expected a list, not "hello"'),
        ("- a\n- b\n", "expected a mapping, not a list"),
        ("version: 7\n", "unsupported version 7; this program reads version 1"),
        ("limits: {hot_card_threshold_ratio: 3}\n", "hot_card_threshold_ratio: 3 is outside 0 to 1"),
        ("limits: {hot_card_target_ratio: 0.95}\n", "hot_card_target_ratio must be at most hot_card_threshold_ratio"),
        ("limits: {scan_interval_seconds: .inf}\n", "scan_interval_seconds: inf is outside 0.1 to 3600"),
        ("limits: {scan_interval_seconds: 1.0e+12}\n", "scan_interval_seconds: 1000000000000.0 is outside 0.1 to 3600"),
        ("limits: {scan_interval_seconds: 1e12}\n", "write digits without quotes, e.g. 900 or 0.5"),
        ("limits: {scan_interval_seconds: 010}\n", "line 1: YAML reads 010 as octal; write a decimal number"),
        ("pools: [{name: a, provider: scale, max_nodes: 00_10}]\n", "line 1: YAML reads 00_10 as octal"),
        ("\nlimits: {scan_interval_seconds: 1:30}\n", "line 2: YAML reads 1:30 as base 60; write a decimal number"),
        ("limits: {scan_interval_seconds: 1:30.5}\n", "line 1: YAML reads 1:30.5 as base 60"),
        ("limits: {max_moves_per_cycle: 1.5}\n", "expected a whole number"),
        ("metrics: {url: 'file:///etc/passwd'}\n", "is not a URL"),
        ("metrics: {url: 'http://[::1'}\n", "is not a URL"),
        ("metrics: {url: 'http://prometheus:999999'}\n", "is not a URL"),
        ("metrics: {url: 'http://:9090'}\n", "is not a URL"),
        ("metrics: {url: 'http://prometheus:9090/?query=up'}\n", "is not a URL"),
        ("metrics: {scrape_interval_seconds: 0}\n", "is outside 1 to 600"),
        ("{" * 50, "line 1: n"),
        ("version: !!python/name:os.system x\n", "invalid YAML"),
        ("x" * ((1 << 19) + 1), "has at most 524288"),
        ("pools: [" + "1," * 50_000 + "]", "too many keys and values: the maximum is 50000"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_what_is_no_configuration_is_said(text, part):
    """
    Broken, hostile or contradicting itself: one line that tells what to write instead.
    """
    assert any(part in line for line in wrong(text)), wrong(text)


@pytest.mark.parametrize("key", [each.name for each in fields(ScalingLimits)])
@pytest.mark.parametrize("number", ["-1", ".nan", ".inf", "1.0e+15", "1000000000000000"])
def test_no_limit_is_a_number_that_is_none(key, number):
    """
    Below nothing, not a number, or larger than anything: each is refused with what may be written.
    """
    (line,) = wrong(f"limits: {{{key}: {number}}}\n")

    assert line.startswith(f"f.yaml:1: limits.{key}: ")
    assert "is outside" in line or "expected a whole number" in line


@pytest.mark.parametrize(
    "key",
    [
        "scan_interval_seconds",
        "max_node_provision_seconds",
        "initial_pool_backoff_seconds",
        "memory_reload_bytes_per_second",
    ],
)
def test_what_may_not_be_nothing_is_refused_at_nothing(key):
    """
    A loop without a pause, a machine that has failed before it was asked for.
    """
    (line,) = wrong(f"limits: {{{key}: 0}}\n")

    assert f"{key}: 0 is outside" in line


def test_the_page_tells_each_limit_its_default_and_its_bounds():
    """
    As the reader applies them.
    """
    page = (Path(__file__).parents[4] / "docs" / "autoscaler.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", page, re.MULTILINE)
    usual = ScalingLimits()

    assert {each.name: (getattr(usual, each.name), *BOUNDS[each.name]) for each in fields(ScalingLimits)} == {
        name: tuple(map(float, numbers)) for name, *numbers in told
    }


def test_numbers_that_are_text_may_look_like_anything():
    """
    Quoted, 010 is a name as any other.
    """
    (pool,) = read_config(b"pools: [{name: a, provider: scale, settings: {name: '010'}}]").pools

    assert "010" == pool.source.settings["name"].text()


def test_two_pools_of_one_name_are_refused():
    """
    The second would be bought for the first.
    """
    pool = "  - {name: a, provider: scale}\n"
    assert ["f.yaml:3: pools[1].name: duplicate pool a; give every pool its own name"] == wrong(f"pools:\n{pool}{pool}")


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_file_is_more_than_refused(raw):
    """
    Whatever the bytes, the answer is a configuration or a ConfigError.
    """
    try:
        found = read_config(raw)
    except ConfigError:
        found = Config()
    assert isinstance(found, Config)


def test_a_bad_new_file_leaves_the_old_one_in_force(tmp_path):
    """
    It is said until the file is mended; a file that has not changed is not read as new.
    """
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    file = ConfigFile(path)
    assert 1 == len(file.first().pools)
    file.accept()
    unchanged = file.look()
    path.write_text("pools: [{name: a}]\nlimits: {disruption_cost_ratio: -1}\n")
    refused, why = file.look(), file.problem
    path.write_text("pools: []\n")
    mended = file.look()
    file.accept()

    assert (None, None) == (unchanged, refused)
    assert "provider: missing" in why
    assert [f"{path}:2: limits.disruption_cost_ratio: -1 is outside 0 to 1000"] == why.split("; ")[-1:]
    assert ((), "") == (mended.pools, file.problem)
    path.unlink()
    assert (None, True) == (file.look(), "cannot read the file" in file.problem)


def test_a_file_that_has_changed_is_read_beside_the_loop(tmp_path, caplog):
    """
    What it says about a mistake it says in another thread: nobody waits for a large file.
    """
    path = tmp_path / "config.yaml"
    path.write_text("pools: [")
    file = ConfigFile(path)

    assert asyncio.run(file.news()) is None
    assert "invalid YAML" in file.problem
    assert [False] == [
        threading.get_ident() == record.thread for record in caplog.records if record.levelname == "ERROR"
    ]


def test_no_file_at_all_is_an_empty_configuration(tmp_path):
    """
    Without --config there are no pools; a path that is not there is a mistake.
    """
    assert Config() == ConfigFile(None).first()
    with pytest.raises(ConfigError, match="cannot read the file"):
        ConfigFile(tmp_path / "none.yaml").first()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[" * 5000, "line 1: nested too deeply: the maximum is 32 levels"),
        ("- " * 40, "nested too deeply: the maximum is 32 levels"),
        ("version: 0x" + "9" * 5000, "line 1: number has 5002 characters: the maximum is 100"),
        ("version: 1\nlimits: {scan_interval_seconds: " + "1:" * 5000 + "1}", "line 2: number has"),
        ("version: !!bool perhaps", "line 1: tag tag:yaml.org,2002:bool does not match the value; remove the tag"),
        ("!!timestamp soon: 1", "line 1: tag tag:yaml.org,2002:timestamp does not match the value"),
    ],
    ids=["brackets", "dashes", "hexadecimal", "sexagesimal", "no-truth", "no-time"],
)
def test_a_file_that_costs_much_or_breaks_the_parser_is_refused_with_its_line(text, part):
    """
    Before anything is built of it.
    """
    with pytest.raises(ConfigError) as told:
        read_config(text.encode())

    assert part in str(told.value)
