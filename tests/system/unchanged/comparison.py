"""Run a script with and without memagent, and collect what a user could notice.

A script's first comments may say how it runs:

    # options: -W error           options of Python; it then runs in a process of its own
    # process: own                a process of its own instead of a fork
    # environ: PYTHONMALLOC=debug
    # ranks: 2                    two processes that train together
    # as: module                  by -m
    # requires: transformers      modules, which print times to stderr: it isn't compared
    # stderr: has times           the same for other scripts

A line `# memagent.attach(model, optimizer)` is executed in the mode `attach`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.python_fork import ForkServer

SCRIPTS = Path(__file__).parent / "scripts"
TWO_RANKS = Path(__file__).parents[2] / "agent" / "integrations" / "two_ranks.py"
ATTACH = "# memagent.attach("
TIMEOUT_S = 240
FORK_FRAME = re.compile(r'  File ".*python_fork\.py", line .*\n(    .*\n)+')
"""A frame of the fork server below the script's in a traceback."""
ENVIRON = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True)
class Outcome:
    """What a process leaves: exit status, output without memagent's lines, hashes of files."""

    status: int
    stdout: str
    stderr: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Script:
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def modes(self) -> list[str]:
        return ["run", "attach"] if ATTACH in self.path.read_text() else ["run"]

    def directive(self, name: str) -> str:
        found = re.search(rf"^# {name}: (.+)$", self.path.read_text(), re.MULTILINE)
        return found[1] if found else ""

    def execute(self, mode: str, folder: Path, python: ForkServer) -> Outcome:
        """Run it in `folder`: mode `plain`, `run` (by `memagent run`) or `attach`."""
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        script = folder / self.path.name
        text = self.path.read_text()
        if mode == "attach":
            text = text.replace(ATTACH, f"import memagent; {ATTACH.removeprefix('# ')}")
        script.write_text(text)
        command = ["-m", self.name] if self.directive("as") else [str(script)]
        if mode == "run":
            command = ["-m", "memagent", "run", *command]
        done = self._run(command, work, self._environ(folder), python)
        files = {
            path.relative_to(work).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(work.rglob("*"))
            if path.is_file()
        }
        has_times = self.directive("requires") or self.directive("stderr")
        errors = "" if has_times else without_own_lines(done.stderr)
        return Outcome(done.returncode, done.stdout, errors, files)

    def _environ(self, folder: Path) -> dict[str, str]:
        settings = dict(item.split("=", 1) for item in self.directive("environ").split())
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MEMAGENT_", "PYTHON"))
        }
        return {
            **inherited,
            **ENVIRON,
            "MEMAGENT_DIR": str(folder / "runs"),
            "PYTHONPATH": str(folder),
            **settings,
        }

    def _run(
        self, command: list[str], work: Path, environ: Mapping[str, str], python: ForkServer
    ) -> subprocess.CompletedProcess[str]:
        options = self.directive("options").split()
        if options or self.directive("process"):
            command = [sys.executable, *options, *command]
            return subprocess.run(
                command,
                cwd=work,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        if self.directive("ranks"):
            command = [str(TWO_RANKS), *command]
        return python.run(*command, cwd=work, env=environ, timeout=TIMEOUT_S)


OWN_LINES = r"^memagent: .*\n(?:  (?:peak|noteworthy|more): .*\n)*"
"""A message, and what follows it at the end of a run."""


def without_own_lines(stderr: str) -> str:
    return re.sub(OWN_LINES, "", re.sub(FORK_FRAME, "", stderr), flags=re.MULTILINE)
