"""`make demo` installs what the demo needs, `make setup` what developers need, each on its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv

import pytest

from scripts import setup

MAKEFILE = setup.ROOT / "Makefile"


@pytest.fixture
def plan(tmp_path):
    """plan(target): the commands that make would run in a fresh checkout."""
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").touch()

    def plan(target: str) -> str:
        # as if typed: these tests may run under `make test`, whose flags are inherited
        environ = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        command = ["make", "--dry-run", target]
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        ).stdout

    return plan


def test_the_demo_has_a_small_environment_of_its_own(plan):
    commands = plan("demo")
    assert "--profile demo --venv .venv-demo" in commands
    assert "--profile dev" not in commands
    assert ".venv-demo/bin/memagent demo" in commands


def test_the_demo_uses_the_environment_of_developers_where_it_is_installed(plan, tmp_path):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.installed").touch()
    assert plan("demo").strip() == ".venv/bin/memagent demo"


def test_developers_get_everything_where_the_demo_was_installed(plan, tmp_path):
    (tmp_path / ".venv-demo").mkdir()
    (tmp_path / ".venv-demo/.installed").touch()
    assert "--profile dev --venv .venv " in plan("setup")


def test_the_demo_borrows_the_torch_that_is_there(tmp_path, capsys):
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin/python"
    assert setup.find_torch(python) is None
    setup.install_torch(python, "torch", may_borrow=True)
    assert setup.find_torch(python) == setup.find_torch(sys.executable)
    assert capsys.readouterr().out.startswith("setup: 2/3 use torch ")
