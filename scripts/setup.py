"""Create a virtual environment and install memagent into it. Standard library only.

1. The profile `demo` installs what `memagent demo` needs, `dev` what the tests and linters need.
2. torch comes first and separately, so that no dependency pulls another build. A torch that is
   installed stays.
3. The demo borrows the torch of the Python that runs this script: a .pth file names its folder.
4. uv installs the 240 packages of `dev` in a fifth of pip's time. It gets pip's configuration,
   which it doesn't read by itself. Where it is missing or fails, pip does the work.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = "uv>=0.8,<1"
MIN_PYTHON = (3, 10)
EXTRAS = {"demo": "server", "dev": "dev"}
DURATIONS = {"demo": "30 packages, about 20 s", "dev": "240 packages, 3 GB on disk, about a minute"}
FIND_TORCH = """
import pathlib, torch
assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
print(torch.__version__, pathlib.Path(torch.__file__).parent.parent)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=EXTRAS, default="dev")
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
    try:
        create(python)
        if arguments.profile == "dev":
            with suppress(subprocess.CalledProcessError):
                install(python, UV)
        install_torch(python, arguments.torch, may_borrow=arguments.profile == "demo")
        say(3, f"install memagent[{EXTRAS[arguments.profile]}] ({DURATIONS[arguments.profile]})")
        install(python, "--editable", f"{ROOT}[{EXTRAS[arguments.profile]}]")
    except subprocess.CalledProcessError as error:
        print(f"setup: {' '.join(map(str, error.cmd))} failed", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def create(python: Path) -> None:
    """Create the environment of `python` unless it is complete."""
    if python.with_name("pip").exists():
        return
    folder = python.parent.parent
    say(1, f"create {folder.name} (about 5 s)")
    try:
        venv.create(folder, with_pip=True)
    except subprocess.CalledProcessError:
        print("Python's venv module is incomplete: apt-get install python3-venv", file=sys.stderr)
        raise


def install_torch(python: Path, requirement: str, *, may_borrow: bool) -> None:
    """Install torch unless it is there, or borrow that of the Python that runs this script."""
    if find_torch(python):
        return
    borrowed = find_torch(Path(sys.executable)) if may_borrow else None
    if borrowed:
        version, folder = borrowed
        say(2, f"use torch {version} in {folder}")
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        (Path(output_of(python, code)) / "borrowed_torch.pth").write_text(f"{folder}\n")
    else:
        say(2, f"install {requirement} (a download of 0.2 to 3 GB, then about 30 s)")
        install(python, requirement, "numpy")


def find_torch(python: Path) -> tuple[str, str] | None:
    """Return version and folder of a torch >= 2.4 that `python` can import."""
    try:
        version, _, folder = output_of(python, FIND_TORCH).partition(" ")
    except subprocess.CalledProcessError:
        return None
    return version, folder


def output_of(python: Path, code: str) -> str:
    command = [python, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def install(python: Path, *requirements: str) -> None:
    """Install with uv where the environment has it, else with pip.

    Nothing is compiled: a third of the files is ever imported, and compiled then.
    """
    if python.with_name("uv").exists():
        command = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python]
        environ = {**uv_settings(pip_options(python)), **os.environ}
        if subprocess.run([*command, *requirements], check=False, env=environ).returncode == 0:
            return
        print("setup: uv failed, so pip installs instead", flush=True)
    options = ["-qq", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([python, "-m", "pip", "install", *options, *requirements], check=True)


def pip_options(python: Path) -> dict[str, str]:
    """Return pip's options from its files and from the environment, which takes precedence."""
    command = [python, "-m", "pip", "config", "list"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # sorted by section, and ":env:" comes first
    lines = reversed(output.splitlines())
    pairs = [(key.rpartition(".")[2], value) for key, _, value in (x.partition("=") for x in lines)]
    return {name: ast.literal_eval(value) for name, value in pairs}


def uv_settings(options: dict[str, str]) -> dict[str, str]:
    """Return pip's options as uv's environment variables, and pip's way to choose an index.

    Most have the same name, and uv ignores those that it doesn't know.
    """
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for option, value in options.items():
        # uv separates lists by spaces, except for links
        separator = "," if option.endswith("links") else " "
        settings[f"UV_{option.replace('-', '_').upper()}"] = separator.join(value.split())
    if "cert" in options:
        settings["SSL_CERT_FILE"] = options["cert"]
    return settings


def say(stage: int, text: str) -> None:
    print(f"setup: {stage}/3 {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
