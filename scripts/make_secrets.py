"""Make ./secrets/*.txt for docker compose: random, readable by containers of other users, never overwritten. Standard library only."""

from __future__ import annotations

import secrets
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "secrets"


def main() -> None:
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    password = keep("postgres_password", secrets.token_urlsafe(24))
    keep("database_url", f"postgresql://memagent:{password}@postgres:5432/memagent")
    for name in ("secret_key", "admin_token", "grafana_password"):
        keep(name, secrets.token_urlsafe(32))
    print(f"secrets are in {FOLDER}")


def keep(name: str, value: str) -> str:
    """The value that the file holds, written now if there was none."""
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        path.write_text(value)
        path.chmod(0o644)  # compose mounts it as it is; the folder is closed to others
    return path.read_text()


if __name__ == "__main__":
    main()
