"""Suspects on the terminal."""

from __future__ import annotations

from dataclasses import replace

from memagent.leaks.diagnosis_report import SuspectNotices, diagnosis_text
from memagent.leaks.suspect import Diagnosis
from memagent.wire.messages import Suspect


def diagnosis(step: int, *lines: int) -> Diagnosis:
    found = tuple(
        Suspect(
            kind="list",
            holder="rows",
            file="train.py",
            line=line,
            bytes_per_step=9.0,
            confidence=1.0,
            fix="Clear it.",
        )
        for line in lines
    )
    return Diagnosis(first_step=step - 20, step=step, suspects=found, pause_s=0.01)


def test_a_line_that_is_found_again_is_printed_once(capsys):
    notices = SuspectNotices([])
    notices.print_urgently()
    notices.set(diagnosis(30, 7))
    notices.set(diagnosis(150, 7, 9))
    notices.print()
    notices.set(diagnosis(300, 9))
    notices.print()
    printed = capsys.readouterr().err
    assert (printed.count(".py:7:"), printed.count(".py:9:")) == (1, 1)


def test_a_line_that_a_warning_has_printed_is_not_printed_again(capsys):
    notices = SuspectNotices([])
    found = diagnosis(30, 7, 9)
    notices.set(found)
    notices.note_printed(found.suspects)
    notices.print_urgently()
    printed = capsys.readouterr().err
    assert (printed.count(".py:7:"), printed.count(".py:9:")) == (0, 1)


def test_a_line_that_grows_again_is_printed_again(capsys):
    notices = SuspectNotices([])
    for step in (30, 300):
        notices.set(diagnosis(step, 7))
        notices.print()
        notices.withdraw(diagnosis(step, 7).suspects, diagnosis(step + 100))
    printed = capsys.readouterr().err
    assert printed.count("suspect: ") == 4 and printed.count("no longer a suspect") == 2


def test_how_a_diagnosis_was_made_is_one_sentence():
    made = diagnosis(2136)
    assert (
        diagnosis_text(made) == "The diagnosis of steps 2,116 to 2,136 paused training for 10 ms."
    )
    cut = replace(made, growth_bytes_per_step=295 * 1024, is_cut_short=True)
    assert diagnosis_text(cut) == (
        "In steps 2,116 to 2,136, memory in use grew by 295 KiB a step; the diagnosis paused "
        "training for 10 ms and was cut short by its time limit."
    )
