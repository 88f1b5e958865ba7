"""Make ./secrets/*.txt and .env for docker compose: random, readable by containers of other users, never overwritten.

Standard library only.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "secrets"
NOBODY = "http://127.0.0.1:9/put-the-address-of-your-slack-webhook-here"


def main() -> None:
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    password = keep("postgres_password", secrets.token_urlsafe(24))
    keep("database_url", f"postgresql://memagent:{password}@postgres:5432/memagent")
    for name in ("secret_key", "admin_token", "grafana_password"):
        keep(name, secrets.token_urlsafe(32))
    keep("alertmanager_slack_url", NOBODY)
    if not (ROOT / ".env").exists():
        shutil.copyfile(ROOT / ".env.example", ROOT / ".env")
    print(f"secrets are in {FOLDER}, settings that are none in .env")


def keep(name: str, value: str) -> str:
    """The value that the file holds, written now if there was none."""
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        path.write_text(value)
        path.chmod(0o644)  # compose mounts it as it is; the folder is closed to others
    return path.read_text()


if __name__ == "__main__":
    main()
