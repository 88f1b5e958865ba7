"""Files as people see them."""

from __future__ import annotations

import pytest

from memagent.diagnostics.console import (
    display_frame,
    display_path,
    display_roots,
    with_display_path,
)

ROOTS = ("/home/ana/project/runs", "/home/ana/project")


@pytest.mark.parametrize(
    ("file", "seen"),
    [
        ("/home/ana/project/runs/train.py", "train.py"),
        ("/home/ana/project/src/model.py", "src/model.py"),
        ("/home/ana/projects/other.py", "/home/ana/projects/other.py"),
        ("train.py", "train.py"),
        ("", ""),
    ],
)
def test_a_file_is_shown_relative_to_the_first_folder_that_it_lies_in(file, seen):
    assert display_path(file, ROOTS) == seen
    assert with_display_path({"file": file, "line": 3}, ROOTS) == {"file": seen, "line": 3}


def test_so_is_a_frame_of_a_stack():
    assert display_frame("main (/home/ana/project/train.py:12)", ROOTS) == "main (train.py:12)"
    assert display_frame("/home/ana/project/train.py:12", ROOTS) == "train.py:12"


def test_a_run_that_told_nothing_or_nonsense_of_its_process_has_no_folders():
    assert display_roots({}) == display_roots({"directory": "/", "git_root": 3}) == ()
    assert display_roots({"directory": "/home/ana", "git_root": "/srv"}) == ("/home/ana", "/srv")
