"""The programs that the tests drive and pip does not have: Chromium, Prometheus, PostgreSQL, a C compiler. Standard library only.

Installed where this is root on Debian or Ubuntu; elsewhere the missing ones are listed, and the tests that need them skip with that
reason (with CI set they fail instead).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NEEDED = {
    "chromium": "chromium",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "initdb": "postgresql",
    "runuser": "util-linux",
    "cc": "gcc",
    "stdio.h": "libc6-dev",
    "systemd-analyze": "systemd",
}


def main() -> int:
    missing = {program: package for program, package in NEEDED.items() if not is_there(program)}
    if missing and os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = sorted(set(missing.values()))
        print(f"installing {' '.join(packages)}", flush=True)
        subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=environment, check=False,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        missing = {
            program: package for program, package in missing.items() if not is_there(program)
        }
    for program, package in missing.items():
        print(
            f"missing: {program} (Debian and Ubuntu: apt-get install {package}); the tests that need it are skipped"
        )
    return 0


def is_there(program: str) -> bool:
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
