# SPDX-License-Identifier: Apache-2.0
"""
What our processes say on standard error, and that they are asked for it in the same words.
"""

from __future__ import annotations

import json
import logging

import click
import pytest

import gpushare
from isolation import logs

PROCESSES = ("exporter", "scheduler", "node", "autoscaler")


def said(form, level, capsys, message, *more):
    """One warning, and what came of it."""
    logs.set_up(form, level)
    logging.getLogger("isolation.x").warning(message, *more)
    return capsys.readouterr().err


def test_a_line_is_one_line_whoever_is_named_in_it(capsys):
    """
    Time, level, who, text: no name forges another line, or colours a terminal.
    """
    text = said("text", "info", capsys, "pod %s", "a\nb\x1b[31m")

    assert 1 == text.count("\n")
    assert text.endswith("Z warning isolation.x: pod a?b?[31m\n")


def test_below_the_level_nothing_is_said(capsys):
    """
    At the level and above it is.
    """
    logs.set_up("text", "warning")
    logging.getLogger("isolation.x").info("detail")
    quiet = capsys.readouterr().err

    assert ("", True) == (quiet, "told" in said("text", "warning", capsys, "told"))


def test_a_line_for_programs_is_one_json_object():
    """
    Whatever stands in the text, the trace included.
    """
    try:
        raise ValueError('it "broke"\nhere')  # noqa: TRY301 (the trace is the subject)
    except ValueError as exc:
        trace = (type(exc), exc, None)
    given = {"msg": "a \"%s\" 'c'", "args": ("b\né",), "name": "x", "levelname": "ERROR", "exc_info": trace}
    record = logging.makeLogRecord(given)

    line = logs.Json().format(record)

    entry = json.loads(line)
    assert 1 == len(line.splitlines())
    assert ("a \"b?é\" 'c'", "x", "error") == (entry["message"], entry["logger"], entry["level"])
    assert "broke" in entry["trace"]


@pytest.mark.parametrize("name", PROCESSES)
def test_every_process_is_asked_for_its_log_in_the_same_words(name):
    """
    Option, choices and default.
    """
    command = gpushare.main.get_command(click.Context(gpushare.main), name)
    found = {
        option: (tuple(parameter.type.choices), parameter.default)
        for parameter in command.params
        for option in parameter.opts
        if "log" in option and isinstance(parameter.type, click.Choice)
    }

    assert {"--log-format": (logs.FORMATS, "text"), "--log-level": (logs.LEVELS, "info")} == found
    assert not [one for parameter in command.params for one in parameter.opts if one == "--json-logs"]


@pytest.mark.parametrize("name", ["autoscaler", "node", "place", "scheduler", "top"])
def test_every_command_says_a_unit_in_the_same_words(name):
    """
    What one `aliyun.com/gpu-mem` is must be the same in the whole cluster, so it is written the same.
    """
    command = gpushare.main.get_command(click.Context(gpushare.main), name)
    unit = next(parameter for parameter in command.params if "--memory-unit" in parameter.opts)

    assert ({"1GiB", "256MiB"}, "1GiB") == (set(unit.type.choices), unit.default)
