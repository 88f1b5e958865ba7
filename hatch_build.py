"""Build hook: ships `migrations/`, `dashboards/` and `docs/` inside the wheel.

They live at the top of the repository, where people look for them, and a server installed from a wheel needs them too.
An editable install finds them in the checkout (see `memagent_server.resources`), so it skips this.
"""

from __future__ import annotations

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = ("migrations", "dashboards", "docs")


class ShipResources(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        if version == "editable":
            return
        for folder in SHIPPED:
            source = Path(self.root) / folder
            build_data["force_include"][str(source)] = f"memagent_server/_resources/{folder}"
