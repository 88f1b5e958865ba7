"""The systemd unit: systemd accepts it, its command exists, and it is sandboxed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memagent.cli import VERBS, main
from memagent.environment import ALL_SETTINGS

UNIT = Path(__file__).parents[2] / "deploy/systemd/memagent.service"
WORST_EXPOSURE = 2.0
"""Of 10, as `systemd-analyze security` counts; a service without any of this has 9.2."""


@pytest.fixture
def analyze(tmp_path):
    """analyze(*arguments): systemd-analyze on the unit, its program being one that is here."""
    if shutil.which("systemd-analyze") is None:
        reason = "there is no systemd-analyze: install systemd"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/memagent/bin/memagent", sys.executable))

    def run(*arguments):
        command = ["systemd-analyze", "--no-pager", *arguments, str(unit)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_systemd_accepts_the_unit(analyze):
    done = analyze("verify")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_is_sandboxed(analyze):
    output = analyze("security", "--offline=true").stdout
    assert (
        float(re.search(r"exposure level for memagent.service: ([\d.]+)", output)[1])
        <= WORST_EXPOSURE
    )


def test_its_command_and_settings_exist(capsys):
    unit = UNIT.read_text()
    program, verb, *options = re.search(r"^ExecStart=(.+)$", unit, re.MULTILINE)[1].split()
    assert program.endswith("/memagent") and verb in VERBS
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    helped = capsys.readouterr().out
    assert all(option in helped for option in options if option.startswith("--"))
    assert {name.removesuffix("_FILE") for name in re.findall(r"MEMAGENT_\w+", unit)} <= set(
        ALL_SETTINGS
    )


def test_the_stop_signal_is_the_servers():
    unit = UNIT.read_text()
    assert "KillMode=mixed" in unit, "the parent ends its children itself"
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) > 10
