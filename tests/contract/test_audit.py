"""`make audit` fails for known vulnerabilities and reports packages that it can't check."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def audit(monkeypatch):
    """audit(answers): scripts/audit.py where the services answer so; one that is missing cannot be reached."""
    spec = importlib.util.spec_from_file_location("memagent_audit", ROOT / "scripts/audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(answers):
        def pip_audit(command, **_):
            service = command[command.index("--vulnerability-service") + 1]
            return subprocess.CompletedProcess(
                command, 0, json.dumps({"dependencies": answers[service]}), ""
            )

        monkeypatch.setattr(module, "is_reachable", lambda service: service in answers)
        monkeypatch.setattr(module.subprocess, "run", pip_audit)
        return module.main()

    return run


CLEAN = {"name": "flask", "version": "3.1", "vulns": []}
UNKNOWN = {"name": "torch", "skip_reason": "not found"}
FLAWED = {
    "name": "urllib3",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.0"]}],
}


@pytest.mark.parametrize(
    ("answers", "status", "output"),
    [
        ({}, 0, "audit: not checked: no vulnerability service can be reached\n"),
        ({"pypi": [UNKNOWN]}, 0, "audit: not checked: no vulnerability service can be reached\n"),
        ({"pypi": [CLEAN, UNKNOWN]}, 0, "audit: pypi knows 1 of 2 packages, 0 vulnerable\n"),
        ({"pypi": [UNKNOWN], "osv": [CLEAN]}, 0, "audit: osv knows 1 of 1 packages, 0 vulnerable\n"),
        ({"pypi": [CLEAN, FLAWED]}, 1,
         "audit: urllib3 1.0: PYSEC-1; fixed in 2.0\naudit: pypi knows 2 of 2 packages, 1 vulnerable\n"),
    ],
)  # fmt: skip
def test_it_fails_on_known_vulnerabilities_only(audit, capsys, answers, status, output):
    assert audit(answers) == status
    assert capsys.readouterr().out == output


def test_ci_runs_ruff_bandit_and_the_audit():
    tasks = (ROOT / "Makefile").read_text()
    lint = tasks.partition("\nlint: ")[2].partition("\n\n")[0]
    assert "ruff check" in lint and "bandit" in lint
    assert "test: setup lint audit " in tasks and "make test" in (ROOT / ".ci/run").read_text()
