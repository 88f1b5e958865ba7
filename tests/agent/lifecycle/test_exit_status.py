"""The sentence about a signal that ended a run."""

from __future__ import annotations

import os

import pytest
import torch

from memagent.hooks.termination import Termination
from memagent.lifecycle.exit_status import describe_termination


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    for name in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def test_it_names_the_innermost_line_of_the_script():
    frames = ((os.__file__, 10), (torch.__file__, 125), (__file__, 7), (__file__, 42))
    assert describe_termination(Termination("SIGTERM", frames)) == (
        "SIGTERM, in test_exit_status.py:7: another process or a user sent it"
    )


def test_without_a_line_of_the_script_it_names_the_signal_only():
    assert describe_termination(Termination("SIGHUP")) == "SIGHUP: the terminal was closed"
    own = Termination("SIGTERM", is_own=True)
    assert describe_termination(own) == "SIGTERM: the script sent it to itself"
