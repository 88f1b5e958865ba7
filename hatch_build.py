"""Build hook: include `migrations/`, `dashboards/` and `docs/` in the wheel.

They are at the top of the repository, where people look for them, but an installed server needs
them, too. An editable install finds them in the checkout (see `memagent_server.files`).
"""

from __future__ import annotations

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("migrations", "dashboards", "docs")


class IncludeResources(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        if version == "editable":
            return
        for folder in FOLDERS:
            source = Path(self.root) / folder
            build_data["force_include"][str(source)] = f"memagent_server/_resources/{folder}"
