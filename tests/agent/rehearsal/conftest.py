"""Run scripts under the rehearsal device, with the interpreter of a CUDA build of torch.

See `cuda_python` in tests/agent/conftest.py. No GPU is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memagent.rehearsal import build, launch
from tests import cuda_environment

CASES = Path(__file__).with_name("cases.py")
AGENT = str(Path(__file__).parents[3] / "agent")
Rehearse = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def site_packages(cuda_python: Path) -> Path:
    """Return the folder of that interpreter's torch."""
    return cuda_environment.torch_folder(cuda_python)


@pytest.fixture(scope="session")
def device_build(site_packages: Path, tmp_path_factory: pytest.TempPathFactory) -> build.Build:
    """Compile the device once."""
    return build.prepare(site_packages, tmp_path_factory.mktemp("rehearsal"))


@pytest.fixture(scope="session")
def rehearse(cuda_python: Path, device_build: build.Build) -> Rehearse:
    """Run a case of cases.py on a card, and return what it printed."""

    def run(
        case: str, option: str = "", card: str = "a100", conf: str = "", **machine: Any
    ) -> dict[str, Any]:
        environment = launch.environment_of(
            {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf, "PYTHONPATH": AGENT},
            device_build,
            launch.Machine(launch.cuda_card(card), **machine),
        )
        command = [str(cuda_python), str(CASES), case, option]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return result

    return run
