"""Create a virtual environment and install memagent for development. Standard library only.

torch is installed first and separately, so that no dependency pulls another build. An existing
torch is kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIN_PYTHON = (3, 10)
RARELY_IMPORTED = r"/transformers/models/|/tests?/|/testing/"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--torch", required=True, help="requirement to install if torch is missing")
    arguments = parser.parse_args()
    if sys.version_info < MIN_PYTHON:
        version = sys.version.split()[0]
        print(
            f"memagent needs Python 3.10 or newer, not {version}: make PYTHON=python3.12 ...",
            file=sys.stderr,
        )
        return 1
    python = arguments.venv / "bin" / "python"
    if not python.exists():
        print(f"creating {arguments.venv}", flush=True)
        try:
            venv.create(arguments.venv, with_pip=True)
        except subprocess.CalledProcessError:
            print(
                "Python's venv module is incomplete: apt-get install python3-venv", file=sys.stderr
            )
            return 1
    command = [python, "-c", "import torch"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        install(python, arguments.torch, "numpy")
    install(python, "--editable", f"{ROOT}[dev]")
    compile_installed(python)
    return 0


def install(python: Path, *requirements: str) -> None:
    print(f"installing {' '.join(requirements)}", flush=True)
    options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([python, "-m", "pip", "install", *options, *requirements], check=True)


def compile_installed(python: Path) -> None:
    """Compile with all processors, which pip does with one. Skip what is rarely imported."""
    print("compiling", flush=True)
    code = "import sysconfig; print(sysconfig.get_path('platlib'))"
    output = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    options = ["-q", "-j", "0", "-x", RARELY_IMPORTED, output.strip()]
    # Not checked: some packages ship templates that end in .py and don't compile.
    subprocess.run([python, "-m", "compileall", *options], capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
