"""Check this environment and explain what is wrong.

The checks cover torch, CUDA, NVML, memory limits, settings, the server, its token, the clock, and
the folder of run files. Exits with 1 if there is a problem; warnings don't count."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from memagent.doctor import run_checks
from memagent.doctor.check import Finding

_COLOURS = {"ok": "32", "warning": "33", "problem": "31"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    results = run_checks(os.environ)
    findings = [(name, finding) for name, result in results.items() for finding in result]
    problems = sum(finding.level == "problem" for _, finding in findings)
    if arguments.json:
        rows = [{"check": name, **asdict(finding)} for name, finding in findings]
        print(json.dumps({"problems": problems, "findings": rows}))
    else:
        in_color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for _, finding in findings:
            print(_format(finding, in_color=in_color))
    return 1 if problems else 0


def _format(finding: Finding, *, in_color: bool) -> str:
    level = f"{finding.level:<7}"
    if in_color:
        level = f"\033[{_COLOURS[finding.level]}m{level}\033[0m"
    advice = f"\n         -> {finding.advice}" if finding.advice else ""
    return f"{level}  {finding.text}{advice}"
