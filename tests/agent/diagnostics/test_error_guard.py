from __future__ import annotations

import io
import logging
import sys

from memagent.diagnostics import MAX_REPORTED_MISTAKES, ErrorGuard, notify_user
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
