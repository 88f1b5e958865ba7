"""The quick start: every command and script of the page, in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.snippets import ROOT, blocks

PAGE = ROOT / "docs/quickstart.md"
ADDRESS = "http://127.0.0.1:8420"


def test_every_command_of_the_page_works(start_server, tmp_path):
    (script,) = blocks(PAGE, "python")
    (tmp_path / "train.py").write_text(script.text)
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MEMAGENT_DIR": str(tmp_path / "runs"),
    }
    server = None
    for command in (block.text for block in blocks(PAGE, "sh")):
        if command == "memagent serve\n":
            server = start_server()
        elif not command.startswith("pip install"):
            shell = ["bash", "-ec", command.replace(ADDRESS, server.url if server else ADDRESS)]
            done = subprocess.run(
                shell, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    runs = server.get("/api/v1/runs").json["runs"]
    assert [(run["status"], run["step"]) for run in runs] == [("completed", 200)] * 2
