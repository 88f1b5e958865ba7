"""Ask public lists of vulnerabilities about every package that is installed here: `make audit`.

Fails where one is known to be vulnerable. Where no list can be reached (a build machine without a network) it says so in one line and
passes: nothing is known then, and a build that cannot be mended must not be broken by it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

SERVICES = {
    "pypi": "https://pypi.org/pypi/pip/24.0/json",
    "osv": "https://api.osv.dev/v1/vulns/PYSEC-2023-228",
}
"""Each list with an entry that it has: a mirror of packages alone does not know it."""
TIMEOUT_S = 10
NOT_CHECKED = "audit: not checked: no vulnerability service can be reached"


def main() -> int:
    for service in SERVICES:
        found = ask(service) if is_there(service) else None
        if found is not None:
            return report(service, found)
    print(NOT_CHECKED)
    return 0


def is_there(service: str) -> bool:
    try:
        with urllib.request.urlopen(SERVICES[service], timeout=TIMEOUT_S) as answer:
            return answer.status == 200
    except OSError:
        return False


def ask(service: str) -> list[dict[str, Any]] | None:
    """What pip-audit says of each package; None where the service said nothing of any of them."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--local",
        "--progress-spinner",
        "off",
        "--format",
        "json",
    ]
    try:
        done = subprocess.run(
            [*command, "--vulnerability-service", service, "--timeout", str(TIMEOUT_S)],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return packages if any("vulns" in package for package in packages) else None


def report(service: str, packages: list[dict[str, Any]]) -> int:
    vulnerable = [package for package in packages if package.get("vulns")]
    for package in vulnerable:
        for flaw in package["vulns"]:
            mended = ", ".join(flaw["fix_versions"]) or "no version yet"
            print(
                f"audit: {package['name']} {package['version']}: {flaw['id']}; mended in {mended}"
            )
    asked = sum("vulns" in package for package in packages)
    print(
        f"audit: {asked} of {len(packages)} packages are known to {service}, {len(vulnerable)} of them to be vulnerable"
    )
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
