"""Files as people see them."""

from __future__ import annotations

import pytest

from memagent.diagnostics.display_paths import roots_of, shown, shown_frame, shown_path

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
    assert shown_path(file, ROOTS) == seen
    assert shown({"file": file, "line": 3}, ROOTS) == {"file": seen, "line": 3}


def test_so_is_a_frame_of_a_stack():
    assert shown_frame("main (/home/ana/project/train.py:12)", ROOTS) == "main (train.py:12)"
    assert shown_frame("/home/ana/project/train.py:12", ROOTS) == "train.py:12"


def test_a_run_that_told_nothing_or_nonsense_of_its_process_has_no_folders():
    assert roots_of({}) == roots_of({"directory": "/", "git_root": 3}) == ()
    assert roots_of({"directory": "/home/ana", "git_root": "/srv"}) == ("/home/ana", "/srv")
