"""Build all files for Grafana: `python dashboards/build.py`. `--check` reports outdated files instead.

Boards are tables in `boards/`; `boards/panels.py` turns them into Grafana's types. Needs
grafana-foundation-sdk (extra `dev`).
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
    """Return the content of each built file by path."""
    boards = {HERE / name: json_of(build(board)) for name, board in BOARDS.items()}
    rules = alerting.provisioning(HERE / "prometheus/rules.yml")
    boards[HERE / "provisioning/alerting/rules.json"] = rules
    return {
        path: json.dumps(content, indent=2, sort_keys=True) + "\n"
        for path, content in boards.items()
    }


def main() -> int:
    stale = [
        path for path, text in files().items() if not path.exists() or path.read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        print("".join(f"{path} is outdated: run dashboards/build.py\n" for path in stale), end="")
        return 1 if stale else 0
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
