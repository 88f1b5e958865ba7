"""Display paths."""

from __future__ import annotations

import pytest

from memagent.diagnostics import display_frame, display_path, display_roots, with_display_path

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
