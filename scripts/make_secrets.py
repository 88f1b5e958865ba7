"""Create ./secrets/*.txt and .env for docker compose. Existing files are never overwritten.

Containers run as other users, so the files are readable by all. Standard library only.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "secrets"
PLACEHOLDER_URL = "http://127.0.0.1:9/put-the-address-of-your-slack-webhook-here"


def main() -> None:
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    password = read_or_create("postgres_password", secrets.token_urlsafe(24))
    read_or_create("database_url", f"postgresql://memagent:{password}@postgres:5432/memagent")
    for name in ("secret_key", "admin_token", "grafana_password"):
        read_or_create(name, secrets.token_urlsafe(32))
    read_or_create("alertmanager_slack_url", PLACEHOLDER_URL)
    if not (ROOT / ".env").exists():
        shutil.copyfile(ROOT / ".env.example", ROOT / ".env")
    print(f"secrets are in {FOLDER}, other settings in .env")


def read_or_create(name: str, value: str) -> str:
    """Return the content of the file; create it with `value` if it's missing."""
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        path.write_text(value)
        path.chmod(0o644)  # compose keeps the mode; the folder itself is private
    return path.read_text()


if __name__ == "__main__":
    main()
