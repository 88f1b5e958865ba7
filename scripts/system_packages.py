"""Install the programs that tests need and pip lacks, such as Chromium and PostgreSQL.

This needs root on Debian or Ubuntu. Elsewhere it lists the missing ones, and the tests that need
them are skipped (with CI set, they fail). Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "chromium-headless-shell": "chromium-headless-shell",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
    "victoria-metrics": "victoria-metrics",
    "initdb": "postgresql",
    "runuser": "util-linux",
    "cc": "gcc",
    "stdio.h": "libc6-dev",
    "systemd-analyze": "systemd",
    "zsh": "zsh",
    "fish": "fish",
}


def main() -> int:
    missing = {
        program: package for program, package in PACKAGES.items() if not is_installed(program)
    }
    if missing and os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = sorted(set(missing.values()))
        print(f"installing {' '.join(packages)}", flush=True)
        subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        for package in packages:  # one by one: a distribution may lack one of them
            subprocess.run(
                [*command, package], env=environment, check=False, stdout=subprocess.DEVNULL
            )
        missing = {
            program: package for program, package in missing.items() if not is_installed(program)
        }
    if shutil.which("chromium"):  # works too, and takes twice the processor time
        missing.pop("chromium-headless-shell", None)
    for program, package in missing.items():
        hint = f"Debian and Ubuntu: apt-get install {package}"
        print(f"missing: {program} ({hint}); the tests that need it are skipped")
    return 0


def is_installed(program: str) -> bool:
    if program == "initdb":
        return (
            bool(list(Path("/usr/lib/postgresql").glob("*/bin/initdb")))
            or shutil.which("initdb") is not None
        )
    if program == "runuser" and hasattr(os, "geteuid") and os.geteuid() != 0:
        return True
    if program == "stdio.h":
        return sys.platform == "darwin" or Path("/usr/include/stdio.h").exists()
    return shutil.which(program) is not None


if __name__ == "__main__":
    sys.exit(main())
