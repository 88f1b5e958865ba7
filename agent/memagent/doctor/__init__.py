"""What is wrong in an environment: checks side by side, each with a few findings.

A check is a module with a generator `check(patient)` and its place in `CHECKS`. It may take its time and may raise: neither keeps the
others from answering.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from memagent.doctor import configuration, data_dir, device, host, nvml, server, versions
from memagent.doctor.check import DEADLINE_S, Check, Environment, Finding, warning

CHECKS: dict[str, Check] = {
    "software": versions.check,
    "settings": configuration.check,
    "torch": device.check,
    "nvml": nvml.check,
    "host": host.check,
    "folder": data_dir.check,
    "server": server.check,
}


def examine(
    environ: Mapping[str, str],
    *,
    checks: Mapping[str, Check] = CHECKS,
    deadline_s: float = DEADLINE_S,
) -> dict[str, list[Finding]]:
    """Findings by check, in the order of `checks`. Never raises, and returns soon after `deadline_s` whatever hangs."""
    patient = Environment(environ, configuration.usable_settings(environ))
    found: dict[str, list[Finding]] = {name: [] for name in checks}
    threads = {
        name: threading.Thread(
            target=_run, args=(check, patient, found[name]), name=f"doctor-{name}", daemon=True
        )
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + deadline_s
    for name, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            found[name] = [
                *found[name],
                warning(f"no answer in {deadline_s:g} s", "look for a driver or disk that hangs"),
            ]
    return found


def _run(check: Check, patient: Environment, found: list[Finding]) -> None:
    try:
        found.extend(check(patient))
    except Exception as error:  # noqa: BLE001 - whatever an environment throws at a check is a finding, too
        found.append(
            warning(f"the check failed: {type(error).__name__}: {error}", "please report this")
        )
