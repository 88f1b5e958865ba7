"""Make a virtual environment and install memagent with everything development needs. Standard library only.

torch comes first and on its own: whatever else depends on it must not pull another build. An environment that has a torch of its
own is left alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
RARELY_IMPORTED = r"/transformers/models/|/tests?/|/testing/"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument(
        "--torch", required=True, help="requirement to install where there is no torch"
    )
    arguments = parser.parse_args()
    if sys.version_info < OLDEST:
        print(
            f"memagent needs Python 3.10 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...",
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
                "Python's venv module is incomplete here: apt-get install python3-venv",
                file=sys.stderr,
            )
            return 1
    if (
        subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode
        != 0
    ):
        install(python, arguments.torch, "numpy")
    install(python, "--editable", f"{ROOT}[dev]")
    compile_installed(python)
    return 0


def install(python: Path, *what: str) -> None:
    print(f"installing {' '.join(what)}", flush=True)
    options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([python, "-m", "pip", "install", *options, *what], check=True)


def compile_installed(python: Path) -> None:
    """What pip would do with one processor, with all of them; what is imported rarely is compiled when it is."""
    print("compiling", flush=True)
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    command = [python, "-m", "compileall", "-q", "-j", "0", "-x", RARELY_IMPORTED, where]
    subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )  # templates are no Python


if __name__ == "__main__":
    sys.exit(main())
