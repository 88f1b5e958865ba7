"""Play docs/quickstart.md: every command and script of the page, in order."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.snippets import ROOT, blocks

PAGE = ROOT / "docs/quickstart.md"
ADDRESS = "http://127.0.0.1:8420"
SERVE = "memagent serve\n"
TIMEOUT_S = 240


def play(programs: Path, folder: Path) -> list[tuple[str, int]]:
    """Follow the page with the `python` and `memagent` of `programs`; install nothing.

    Return (status, last step) of each run that the server then has.
    """
    (script,) = blocks(PAGE, "python")
    (folder / "train.py").write_text(script.text)
    environ = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "MEMAGENT_DIR": str(folder / "runs"),
        "XDG_DATA_HOME": str(folder),
        "MEMAGENT_DATABASE_URL": f"sqlite:///{folder / 'memagent.db'}",
    }
    commands = [block.text for block in blocks(PAGE, "sh")]
    before, after = commands[: commands.index(SERVE)], commands[commands.index(SERVE) + 1 :]
    for command in before:
        if not command.startswith("pip install"):
            _run(command, folder, environ)
    with _server(programs, folder, environ) as address:
        for command in after:
            _run(command.replace(ADDRESS, address), folder, environ)
        listed = _run(f"memagent runs --server {address} --json", folder, environ)
    return [(run["status"], run["step"]) for run in json.loads(listed)["runs"]]


def _run(command: str, folder: Path, environ: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def _server(programs: Path, folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    command = [programs / "memagent", *SERVE.split()[1:], "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stdout or ())
        yield next(line for line in lines if "listening on" in line).split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
