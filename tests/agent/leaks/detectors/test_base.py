"""What all detectors share: the stacks that they report."""

from __future__ import annotations

import sys

import pytest

import memagent.cli.run
import memagent.leaks.census
from memagent.leaks.detectors.base import StackAllocation

RUNNER, CENSUS = memagent.cli.run.__file__, memagent.leaks.census.__file__


def frames(*files: str) -> list[str]:
    stack = tuple((file, 1, "") for file in files)
    return StackAllocation(stack, 64, 1).to_message().frames


@pytest.mark.parametrize("outer", [("/bin/memagent",), ("<frozen runpy>", "<frozen runpy>")])
def test_a_stack_under_memagent_run_begins_with_the_script(monkeypatch, outer):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    assert frames(*outer, RUNNER, __file__, CENSUS) == [f"{__file__}:1", f"{CENSUS}:1"]


def test_a_stack_of_a_thread_or_without_the_script_is_whole(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    assert len(frames("/usr/lib/threading.py", __file__)) == 2
    assert len(frames(RUNNER, CENSUS)) == 2
