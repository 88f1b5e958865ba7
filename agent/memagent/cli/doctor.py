"""Explain what is wrong in this environment: torch, CUDA, NVML, memory limits, settings, the server, its token, the clock, the folder of
run files. Exits with 1 if there is a problem; a warning is none."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from memagent.doctor import examine
from memagent.doctor.check import Finding

_COLOURS = {"ok": "32", "warning": "33", "problem": "31"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    found = examine(os.environ)
    findings = [(name, finding) for name, several in found.items() for finding in several]
    problems = sum(finding.level == "problem" for _, finding in findings)
    if arguments.json:
        print(
            json.dumps(
                {
                    "problems": problems,
                    "findings": [{"check": name, **asdict(one)} for name, one in findings],
                }
            )
        )
    else:
        _print(
            [finding for _, finding in findings],
            in_colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ,
        )
    return 1 if problems else 0


def _print(findings: list[Finding], *, in_colour: bool) -> None:
    for one in findings:
        level = f"{one.level:<7}"
        level = f"\033[{_COLOURS[one.level]}m{level}\033[0m" if in_colour else level
        print(f"{level}  {one.text}" + (f"\n         -> {one.advice}" if one.advice else ""))
