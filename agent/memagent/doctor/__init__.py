"""Checks of an environment: they run in parallel, each yields a few findings.

A check is a module with a generator `check(environment)`, listed in CHECKS. One that is slow or
raises an error doesn't affect the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from memagent.doctor import configuration, data_dir, device, host, nvml, rehearsal, server, versions
from memagent.doctor.check import DEADLINE_S, Check, Environment, Finding, warning

CHECKS: dict[str, Check] = {
    "software": versions.check,
    "settings": configuration.check,
    "torch": device.check,
    "nvml": nvml.check,
    "rehearsal": rehearsal.check,
    "host": host.check,
    "folder": data_dir.check,
    "server": server.check,
}


def run_checks(
    environ: Mapping[str, str],
    *,
    checks: Mapping[str, Check] = CHECKS,
    deadline_s: float = DEADLINE_S,
) -> dict[str, list[Finding]]:
    """Return the findings of each check, after `deadline_s` even if one hangs."""
    environment = Environment(environ, configuration.usable_settings(environ))
    findings: dict[str, list[Finding]] = {name: [] for name in checks}
    threads = {
        name: threading.Thread(
            target=_run,
            args=(check, environment, findings[name]),
            name=f"doctor-{name}",
            daemon=True,
        )
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + deadline_s
    for name, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            findings[name] = [
                *findings[name],
                warning(f"no result within {deadline_s:g} s", "check for a hanging driver or disk"),
            ]
    return findings


def _run(check: Check, environment: Environment, findings: list[Finding]) -> None:
    try:
        findings.extend(check(environment))
    except Exception as error:  # noqa: BLE001 - an error is a finding, too
        findings.append(
            warning(f"the check failed: {type(error).__name__}: {error}", "please report this bug")
        )
