"""docs/security.md: every claim names a test, and every named test exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
UNTESTED = ("Assumptions", "A malicious training script")
"""What is the operator's matter, and what is said elsewhere."""


def test_every_claim_names_a_test():
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    claims = [
        claim
        for title, text in sections.items()
        if title not in UNTESTED
        for claim in re.findall(r"^- (.+?)(?=^- |^$|\Z)", text, re.MULTILINE | re.DOTALL)
    ]
    assert len(claims) >= 20
    assert [claim for claim in claims if not re.search(r"`test_\w+`", claim)] == []


def test_every_named_test_exists():
    existing = set(
        re.findall(
            r"^def (test_\w+)",
            "\n".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py")),
            re.MULTILINE,
        )
    )
    assert set(re.findall(r"`(test_\w+)`", PAGE)) - existing == set()
