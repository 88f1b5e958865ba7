"""Where `migrations/`, `dashboards/` and `docs/` are: inside an installed wheel, or at the top of a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """The folder `migrations`, `dashboards` or `docs`. Raises FileNotFoundError where neither place has it."""
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"{name}/ is neither in the installed package nor in a checkout; reinstall memagent[server]"
    )
