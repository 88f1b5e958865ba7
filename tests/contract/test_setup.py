"""`make demo` installs what the demo needs, `make setup` what developers need, each on its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

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


def test_the_tests_get_an_environment_with_a_cuda_build(plan):
    commands = plan("test")
    created = commands.index("scripts/cuda_environment.py --venv .venv-cuda --packages .venv ")
    assert commands.index("--profile dev") < created < commands.index("-m tests.gpu")


def test_the_demo_borrows_the_torch_that_is_there(tmp_path, capsys):
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin/python"
    assert setup.find_torch(python) is None
    setup.install_torch(python, "torch", may_borrow=True)
    assert setup.find_torch(python) == setup.find_torch(sys.executable)
    assert capsys.readouterr().out.startswith("setup: 2/3 use torch ")


@pytest.fixture
def wheel(tmp_path):
    """Return the arguments that install the wheel of `tiny` into `tmp_path / "into"`."""
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return ["--no-deps", "--target", str(tmp_path / "into"), archive.filename]


def test_uv_installs_where_it_is_there(wheel, tmp_path, capfd):
    setup.install(Path(sys.executable), *wheel)
    assert (tmp_path / "into/tiny-1.0.dist-info/INSTALLER").read_text() == "uv"
    assert capfd.readouterr().out == ""


def test_pip_installs_where_uv_fails(wheel, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("UV_LINK_MODE", "nonsense")
    setup.install(Path(sys.executable), *wheel)
    assert (tmp_path / "into/tiny-1.0.dist-info/INSTALLER").read_text().strip() == "pip"
    assert capfd.readouterr().out == "setup: uv failed, so pip installs instead\n"


def test_uv_gets_the_configuration_of_pip(tmp_path, monkeypatch):
    config = tmp_path / "pip.conf"
    config.write_text("[global]\ncert = /other.pem\nindex-url = https://a/simple\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_CERT", "/own.pem")
    settings = setup.uv_settings(setup.pip_options(Path(sys.executable)))
    assert settings["UV_INDEX_URL"] == "https://a/simple"
    assert settings["SSL_CERT_FILE"] == "/own.pem"


def test_lists_are_separated_as_uv_expects():
    settings = setup.uv_settings({"more-url": "https://a\n\nhttps://b", "more-links": "one\ntwo"})
    assert settings["UV_MORE_URL"] == "https://a https://b"
    assert settings["UV_MORE_LINKS"] == "one,two"
