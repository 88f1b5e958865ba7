"""The interpreter with a CUDA build of torch that `make test` sets up; no GPU is needed.

MEMAGENT_TEST_CUDA_PYTHON names another one, which needs memagent's packages, too.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "MEMAGENT_TEST_CUDA_PYTHON"
MISSING = "there is no CUDA build of torch here: `make test` installs one on Linux (x86-64)"


def find_python() -> Path | None:
    """Return the interpreter, or None."""
    python = Path(os.environ.get(VARIABLE) or ROOT / ".venv-cuda" / "bin" / "python")
    return python if python.exists() else None


def torch_folder(python: Path) -> Path:
    """Return the folder with the torch that `python` imports."""
    code = "from memagent.rehearsal import build; print(build.torch_folder())"
    command = [python, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Path(ended.stdout.strip())
