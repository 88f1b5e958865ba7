"""Create the environment in which the tests of the CUDA half run. Standard library only.

1. It has every package of the developers' environment: a .pth file names their folders.
2. Unless the torch there is a CUDA build, one is installed beside them. No GPU is needed.
3. Such builds and the rehearsal device are for Linux on x86-64. Elsewhere nothing is done, and
   these tests are skipped.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import venv
from pathlib import Path

from setup import ROOT, install, output_of

FOLDERS = ("agent", "server", "demo", "")
SITE_PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"
IS_CUDA_BUILD = """
import importlib.util, pathlib
torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
print((torch / "lib" / "libtorch_cuda.so").exists())
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True, help="environment to borrow from")
    parser.add_argument("--torch", required=True, help="requirement of a CUDA build")
    arguments = parser.parse_args()
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print("setup: no CUDA environment: it needs Linux on x86-64, and its tests are skipped")
        return 0
    try:
        is_complete = create(arguments.venv, arguments.packages, arguments.torch)
    except subprocess.CalledProcessError as error:
        print(f"setup: {' '.join(map(str, error.cmd))} failed", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not is_complete:
        print(f"setup: {arguments.torch} is no CUDA build: pip's index has others", file=sys.stderr)
    return 0 if is_complete else 1


def create(folder: Path, packages: Path, requirement: str) -> bool:
    """Create the environment, and return whether its torch is a CUDA build."""
    venv.create(folder, with_pip=False)
    python, lender = folder / "bin" / "python", packages / "bin" / "python"
    borrowed = [output_of(lender, SITE_PACKAGES), *(str(ROOT / name) for name in FOLDERS)]
    target = Path(output_of(python, SITE_PACKAGES))
    (target / "borrowed_packages.pth").write_text("\n".join(borrowed) + "\n")
    if not is_cuda_build(python):
        size = "a download of 2.7 GB, then about 30 s; 5.2 GB on disk"
        print(f"setup: install {requirement} for CUDA into {folder.name} ({size})", flush=True)
        install(lender, "--upgrade", "--target", str(target), requirement)
    return is_cuda_build(python)


def is_cuda_build(python: Path) -> bool:
    return output_of(python, IS_CUDA_BUILD) == "True"


if __name__ == "__main__":
    sys.exit(main())
