"""Build hook: include `migrations/`, `dashboards/`, `docs/` and the rehearsal device in the wheel.

The folders are at the top of the repository, where people look for them, but an installed server
needs them, too. An editable install finds them in the checkout (see `memagent_server.files`).

The device is compiled where it runs, on Linux, if a C compiler is there; the wheel is for
this platform then. Without it, rehearsals compile it at first use.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("migrations", "dashboards", "docs")
OLDEST_GLIBC = 17
"""Minor version that the oldest of manylinux' tags still in use names."""


class IncludeResources(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        if version == "editable":
            return
        for folder in FOLDERS:
            source = Path(self.root) / folder
            build_data["force_include"][str(source)] = f"memagent_server/_resources/{folder}"
        self._stage = Path(tempfile.mkdtemp())
        sys.path.insert(0, str(Path(self.root) / "agent"))
        from memagent.errors import RehearsalError
        from memagent.rehearsal import build

        device = self._stage / build.DEVICE
        try:
            build.check_platform()
            build.compile_device(device)
        except RehearsalError as error:
            self.app.display_warning(f"The wheel is made without the rehearsal device. {error}")
            return
        build_data["force_include"][str(device)] = f"memagent/rehearsal/{build.DEVICE}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{_glibc(device)}_{_architecture(device)}"

    def finalize(self, version, build_data, artifact_path):
        if version != "editable":
            shutil.rmtree(self._stage, ignore_errors=True)


def _architecture(library):
    """Return the processor that a library is for: CC may be a cross compiler."""
    from memagent.rehearsal.stub_code import ARCHITECTURES

    number = int.from_bytes(library.read_bytes()[18:20], "little")  # e_machine of ELF
    return next(name for name, kind in ARCHITECTURES.items() if kind.elf_number == number)


def _glibc(library):
    """Return the minor version of the oldest glibc 2 that has all functions of a library."""
    versions = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
    return max([OLDEST_GLIBC, *map(int, versions)])
