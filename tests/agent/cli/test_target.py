"""Targets of `memagent run`: how they start and end. Numbers are those of the module's docstring."""

from __future__ import annotations

import signal
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import memagent

PACKAGE = Path(memagent.__file__).parent


@pytest.fixture
def run(fork_server, tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run(CODE) runs a script under `memagent run`."""

    def run(code: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(code)
        return fork_server.run("-m", "memagent", "run", str(script), cwd=tmp_path)

    return run


def test_1_the_script_is_the_main_module_until_the_process_ends(run):
    done = run(
        "import atexit, pickle, sys\n"
        "class Record: pass\n"
        "def at_exit():\n"
        "    print(type(pickle.loads(pickle.dumps(Record()))) is Record)\n"
        "atexit.register(at_exit)\n"
        "print(vars(sys.modules['__main__']) is globals(), __spec__, __package__)\n"
    )
    assert (done.returncode, done.stdout) == (0, "True None None\nTrue\n")


def test_1_an_archive_runs_its_main_module(fork_server, tmp_path):
    with zipfile.ZipFile(tmp_path / "train.pyz", "w") as archive:
        archive.writestr("__main__.py", "import other; print(__name__, other.VALUE)")
        archive.writestr("other.py", "VALUE = 5")
    done = fork_server.run("-m", "memagent", "run", "train.pyz", cwd=Path(tmp_path))
    assert (done.returncode, done.stdout) == (0, "__main__ 5\n")


def test_2_an_error_in_the_constructor_of_an_optimizer_has_no_frame_of_memagent(run):
    done = run("import torch\ntorch.optim.SGD([])\n")
    assert done.returncode == 1 and "empty parameter list" in done.stderr
    assert str(PACKAGE) not in done.stderr.partition("Traceback")[2]


def test_2_an_error_of_the_scripts_own_exception_hook_is_printed_with_the_first(run):
    done = run(
        "import sys\n"
        "def hook(*_): raise TypeError('second')\n"
        "sys.excepthook = hook\n"
        "raise KeyError('first')\n"
    )
    first, _, second = done.stderr.partition("Original exception was:")
    assert done.returncode == 1 and "Error in sys.excepthook:" in first
    assert "TypeError: second" in first and "KeyError: 'first'" in second


def test_3_an_interrupt_ends_the_process_by_its_signal(run):
    done = run("import atexit\natexit.register(print, 'at exit')\nraise KeyboardInterrupt\n")
    assert done.returncode == -signal.SIGINT and done.stdout == "at exit\n"
    assert done.stderr.count("\nKeyboardInterrupt") == 1
