"""Run the tests of this folder on the rehearsal device: `python -m tests.gpu [PYTEST_OPTIONS]`.

They need a process in which the device was loaded first, so they aren't part of other runs.
"""

from __future__ import annotations

import os
import subprocess
import sys

from memagent.rehearsal import build, launch
from tests import cuda_environment

CARD = "a100"
FOLDER = "tests/gpu"


def main() -> int:
    python = cuda_environment.find_python()
    if python is None:
        print(f"{FOLDER}: not run: {cuda_environment.MISSING}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    device = build.prepare(cuda_environment.torch_folder(python))
    machine = launch.Machine(launch.cuda_card(CARD))
    command = [str(python), "-m", "pytest", "-m", "gpu", "--require-gpu", *sys.argv[1:], FOLDER]
    environment = launch.environment_of(os.environ, device, machine)
    environment.pop(cuda_environment.VARIABLE, None)  # the agent refuses unknown settings
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
