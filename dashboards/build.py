"""Writes everything that Grafana gets: `python dashboards/build.py`. With `--check` it writes nothing, and says what is not as committed.

Boards are tables in `boards/`; `boards/panels.py` turns them into Grafana's types. Needs grafana-foundation-sdk (extra `dev`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from boards import alerting, fleet, run, server
from boards.panels import build, json_of

HERE = Path(__file__).resolve().parent
BOARDS = {"fleet.json": fleet.BOARD, "run.json": run.BOARD, "server.json": server.BOARD}


def files() -> dict[Path, str]:
    """Path -> content of every file that is built."""
    found = {HERE / name: json_of(build(board)) for name, board in BOARDS.items()}
    found[HERE / "provisioning/alerting/rules.json"] = alerting.provisioning(
        HERE / "prometheus/rules.yml"
    )
    return {
        path: json.dumps(content, indent=2, sort_keys=True) + "\n"
        for path, content in found.items()
    }


def main() -> int:
    stale = [
        path for path, text in files().items() if not path.exists() or path.read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        print(
            "".join(f"{path} is not what dashboards/build.py builds: run it\n" for path in stale),
            end="",
        )
        return 1 if stale else 0
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
