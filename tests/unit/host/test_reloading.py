# SPDX-License-Identifier: Apache-2.0
"""A file that names another: either one's change is noticed, and what cannot be used changes nothing."""

from __future__ import annotations

import logging

import pytest

from isolation.host.reloading import Reloading, stamp_of


class Named:
    """The name of a file and its content."""

    def __init__(self, folder):
        self.folder, self.during = folder, []

    def load(self):
        """OSError where a file is missing."""
        stamp = stamp_of([self.folder / "main"])
        name = (self.folder / "main").read_text()
        stamp += stamp_of([self.folder / name])
        content = (self.folder / name).read_text()
        for action in self.during:
            action()
        return (name, content), stamp

    def stamp(self, value):
        """Of the two files."""
        return stamp_of([self.folder / "main", self.folder / value[0]])


@pytest.fixture
def files(tmp_path):
    """`main` names `a`; there is a `bb` too. Contents differ in size: time stamps are coarse."""
    for name, content in {"main": "a", "a": "1", "bb": "2"}.items():
        (tmp_path / name).write_text(content)
    return Named(tmp_path)


def test_the_files_that_the_present_value_names_are_looked_at(files, tmp_path):
    """A change of one that is no longer named is nobody's news."""
    reloading = Reloading(files.load, files.stamp, OSError)
    found = []
    for name, content in (("bb", "22"), ("a", "11"), ("main", "bb "), ("main", "bb"), ("a", "111"), ("bb", "222")):
        (tmp_path / name).write_text(content)
        found.append((reloading.refresh(), *reloading.current))
    assert [
        (False, "a", "1"),
        (True, "a", "11"),
        (False, "a", "11"),
        (True, "bb", "22"),
        (False, "bb", "22"),
        (True, "bb", "222"),
    ] == found


def test_what_cannot_be_used_is_logged_once_for_each_state_of_the_files(files, tmp_path, caplog):
    """It is tried at every look, and the next usable state is taken."""
    reloading = Reloading(files.load, files.stamp, OSError, "thing")
    with caplog.at_level(logging.INFO):
        for name in ("none", "none", "nothing"):
            (tmp_path / "main").write_text(name)
            assert [False, False] == [reloading.refresh() for _ in range(2)]
            assert ("a", "1") == reloading.current
        (tmp_path / "nothing").write_text("3")
        assert reloading.refresh()
    assert ("nothing", "3") == reloading.current
    assert "reloaded thing" == caplog.messages[-1]
    assert {"WARNING"} == {record.levelname for record in caplog.records[:-1]}


def test_what_changes_while_it_is_loaded_is_loaded_again(files, tmp_path):
    """The two files read may be of two generations."""
    reloading = Reloading(files.load, files.stamp, OSError)
    (tmp_path / "a").write_text("11")
    files.during.append(lambda: (tmp_path / "main").write_text("bb"))
    assert not reloading.refresh()
    files.during.clear()
    assert reloading.refresh()
    assert ("bb", "2") == reloading.current


def test_without_usable_files_there_is_nothing_to_begin_with(files, tmp_path):
    """The error is the caller's own."""
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        Reloading(files.load, files.stamp, OSError)
