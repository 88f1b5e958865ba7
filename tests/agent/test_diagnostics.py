"""Internal errors, messages to the user and display paths."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from memagent.diagnostics import (
    MAX_REPORTED_MISTAKES,
    ErrorGuard,
    display_frame,
    display_path,
    display_roots,
    notify_user,
    outlast_memory_errors,
    with_display_path,
)
from memagent.errors import SettingError


class OnlyWrites:
    """A replacement of sys.stderr that scripts use to write a log."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def test_it_needs_only_write_of_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", OnlyWrites())
    notify_user("hello")
    assert sys.stderr.text == "memagent: hello\n"


def test_without_stderr_it_prints_nothing_elsewhere(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    notify_user("hello")
    assert capsys.readouterr().out == ""


def test_a_closed_stderr_is_ignored(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    notify_user("hello")


def test_a_mistake_of_the_script_is_reported_once_in_one_line(capsys, caplog):
    guard = ErrorGuard()
    for _ in range(3):
        for mistake in ("this", "that"):
            guard.caught("run.log", SettingError(mistake))
    assert capsys.readouterr().err == "memagent: this\nmemagent: that\n"
    assert guard.errors == {"run.log": 6} and not caplog.records


def test_the_number_of_reported_mistakes_is_limited(capsys):
    guard = ErrorGuard()
    for number in range(100):
        guard.caught("run.log", SettingError(f"mistake {number}"))
    assert len(capsys.readouterr().err.splitlines()) == MAX_REPORTED_MISTAKES


def test_an_agent_error_is_logged_once_a_section(capsys, caplog):
    guard = ErrorGuard()
    with caplog.at_level(logging.WARNING, logger="memagent"):
        for error in (SettingError("this"), KeyError("bug"), KeyError("bug")):
            guard.caught("run.log", error)
    assert [record.exc_info is not None for record in caplog.records] == [True]


ROOTS = ("/home/ana/project/runs", "/home/ana/project")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/ana/project/runs/train.py", "train.py"),
        ("/home/ana/project/src/model.py", "src/model.py"),
        ("/home/ana/projects/other.py", "/home/ana/projects/other.py"),
        ("train.py", "train.py"),
        ("", ""),
    ],
)
def test_a_file_is_shown_relative_to_the_first_root_that_contains_it(file, expected):
    assert display_path(file, ROOTS) == expected
    assert with_display_path({"file": file, "line": 3}, ROOTS) == {"file": expected, "line": 3}


def test_a_stack_frame_is_shown_relative_to_a_root():
    assert display_frame("main (/home/ana/project/train.py:12)", ROOTS) == "main (train.py:12)"
    assert display_frame("/home/ana/project/train.py:12", ROOTS) == "train.py:12"


def test_a_run_with_malformed_environment_has_no_roots():
    assert display_roots({}) == display_roots({"directory": "/", "git_root": 3}) == ()
    assert display_roots({"directory": "/home/ana", "git_root": "/srv"}) == ("/home/ana", "/srv")


def test_a_lack_of_memory_is_one_line(caplog):
    with ErrorGuard().section("leak diagnosis"):
        raise MemoryError
    assert caplog.messages == [
        "memagent had no memory left for leak diagnosis and goes on without it"
    ]
    assert caplog.records[0].exc_info is None


def test_work_is_repeated_while_there_is_no_memory():
    errors = [MemoryError(), RuntimeError("can't allocate lock"), None]

    def work():
        if (error := errors.pop(0)) is not None:
            raise error

    outlast_memory_errors(work)
    assert errors == []


def test_other_errors_are_raised():
    errors = [RuntimeError("of another kind"), None]

    def work():
        raise errors.pop(0)

    with pytest.raises(RuntimeError, match="of another kind"):
        outlast_memory_errors(work)
    assert errors == [None]
