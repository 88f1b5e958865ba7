"""Check all installed packages against public vulnerability databases: `make audit`.

Fails if a package is known to be vulnerable. If no database can be reached (on a build machine
without a network), it prints one line and passes.
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
"""Each database, with an entry that it has and that a plain package mirror lacks."""
TIMEOUT_S = 10
NOT_CHECKED = "audit: not checked: no vulnerability service can be reached"


def main() -> int:
    for service in SERVICES:
        packages = check_packages(service) if is_reachable(service) else None
        if packages is not None:
            return report(service, packages)
    print(NOT_CHECKED)
    return 0


def is_reachable(service: str) -> bool:
    try:
        with urllib.request.urlopen(SERVICES[service], timeout=TIMEOUT_S) as response:
            return response.status == 200
    except OSError:
        return False


def check_packages(service: str) -> list[dict[str, Any]] | None:
    """Return pip-audit's result for each package, None if the service knew none of them."""
    options = ["--local", "--progress-spinner", "off", "--format", "json"]
    options += ["--vulnerability-service", service, "--timeout", str(TIMEOUT_S)]
    command = [sys.executable, "-m", "pip_audit", *options]
    try:
        audit = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        packages: list[dict[str, Any]] = json.loads(audit.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return packages if any("vulns" in package for package in packages) else None


def report(service: str, packages: list[dict[str, Any]]) -> int:
    vulnerable = [package for package in packages if package.get("vulns")]
    for package in vulnerable:
        for flaw in package["vulns"]:
            fixed_in = ", ".join(flaw["fix_versions"]) or "no version yet"
            name, version = package["name"], package["version"]
            print(f"audit: {name} {version}: {flaw['id']}; fixed in {fixed_in}")
    count = sum("vulns" in package for package in packages)
    print(
        f"audit: {service} knows {count} of {len(packages)} packages, {len(vulnerable)} vulnerable"
    )
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
