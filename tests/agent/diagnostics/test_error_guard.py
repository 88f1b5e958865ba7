from __future__ import annotations

import io
import logging
import sys

from memagent.diagnostics.console import notify_user
from memagent.diagnostics.error_guard import MAX_REPORTED_MISTAKES, ErrorGuard
from memagent.errors import SettingError


class OnlyWrites:
    """What scripts put in the place of sys.stderr to keep a log."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def test_a_stderr_that_can_only_write_is_enough(monkeypatch):
    monkeypatch.setattr(sys, "stderr", OnlyWrites())
    notify_user("hello")
    assert sys.stderr.text == "memagent: hello\n"


def test_without_stderr_nothing_is_told_elsewhere(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    notify_user("hello")
    assert capsys.readouterr().out == ""


def test_a_closed_stderr_does_no_harm(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    notify_user("hello")


def test_a_mistake_of_the_script_is_one_line_and_told_once(capsys, caplog):
    guard = ErrorGuard()
    for _ in range(3):
        for mistake in ("this", "that"):
            guard.caught("run.log", SettingError(mistake))
    assert capsys.readouterr().err == "memagent: this\nmemagent: that\n"
    assert guard.errors == {"run.log": 6} and not caplog.records


def test_mistakes_that_never_end_are_told_a_few_times(capsys):
    guard = ErrorGuard()
    for number in range(100):
        guard.caught("run.log", SettingError(f"mistake {number}"))
    assert len(capsys.readouterr().err.splitlines()) == MAX_REPORTED_MISTAKES


def test_an_error_of_ours_is_logged_once_a_place_after_any_mistake_of_the_script(capsys, caplog):
    guard = ErrorGuard()
    with caplog.at_level(logging.WARNING, logger="memagent"):
        for error in (SettingError("this"), KeyError("ours"), KeyError("ours")):
            guard.caught("run.log", error)
    assert [record.exc_info is not None for record in caplog.records] == [True]
