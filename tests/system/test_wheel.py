"""What a wheel holds, and that rehearsals need no compiler beside it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from memagent.rehearsal import build
from tests import cuda_environment
from tests.snippets import ROOT

DEVICE = f"memagent/rehearsal/{build.DEVICE}"
TRAINING = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
LINUX_ONLY = pytest.mark.skipif(
    sys.platform != "linux", reason="the device is compiled for Linux only"
)


def build_wheel(folder: Path, **environ: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environ}, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@LINUX_ONLY
def test_it_holds_device_pages_and_migrations_and_is_for_its_platform(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {DEVICE, "memagent_server/_resources/docs/index.md"} <= {*names}
    assert any(name.startswith("memagent_server/_resources/migrations/") for name in names)
    tag = wheel.stem.partition("-py3-none-manylinux_2_")[2]
    assert tag.endswith(f"_{platform.machine()}") and int(tag.partition("_")[0]) >= 17


def test_it_is_made_for_every_platform_where_no_compiler_is(tmp_path):
    wheel = build_wheel(tmp_path, CC="/nowhere/cc")
    assert wheel.stem.endswith("-py3-none-any")
    assert DEVICE not in zipfile.ZipFile(wheel).namelist()


@pytest.mark.long
@pytest.mark.skipif(shutil.which(CROSS_COMPILER) is None, reason=f"no {CROSS_COMPILER}")
def test_it_is_for_the_processor_of_the_compiler(tmp_path):
    wheel = build_wheel(tmp_path, CC=CROSS_COMPILER)
    assert wheel.stem.endswith("_aarch64")
    assert DEVICE in zipfile.ZipFile(wheel).namelist()


@LINUX_ONLY
def test_a_rehearsal_needs_no_compiler_beside_it(wheel, tmp_path):
    python = cuda_environment.find_python()
    if python is None:
        assert not os.environ.get("CI"), cuda_environment.MISSING
        pytest.skip(cuda_environment.MISSING)
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    environment = {
        **os.environ,
        "CC": "/nowhere/cc",
        "PYTHONPATH": str(tmp_path / "installed"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    (tmp_path / "train.py").write_text(TRAINING)
    command = [python, "-m", "memagent", "rehearse", "--gpu", "a100", "train.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    assert "fits" in ended.stdout
