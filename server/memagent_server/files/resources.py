"""Find `migrations/`, `dashboards/` and `docs/` in an installed wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def resource_dir(name: str) -> Path:
    """Return the folder `migrations`, `dashboards` or `docs`. Raises FileNotFoundError."""
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"{name}/ is missing from the installed package: reinstall memagent[server]"
    )
