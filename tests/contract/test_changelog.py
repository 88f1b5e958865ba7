"""CHANGELOG.md has its form: releases, areas, short bullets that begin with a verb."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import memagent

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text()
AREAS = ["Agent", "Estimator", "Forecast", "Leaks", "Server", "Alerts and notifications", "Docs"]
MAX_BULLETS = 60
MAX_CHARACTERS = 160
VERBS = set(
    re.findall(
        r"\w+",
        """Add Allow Attribute Buffer Change Collect Compact Demonstrate Deliver Deprecate Derive
    Describe Diagnose Document Evaluate Export Expose Find Fix Follow Forecast Give Group Improve
    Install Keep Limit Log Mirror Move Name Notify Number Predict Publish Read Record Reduce Remove
    Rename Replace Replay Report Require Restore Restrict Rewrite Run Score Serve Share Show Store
    Suggest Support Trace Try Use Warn""",
    )
)


def problems(text: str) -> list[str]:
    """Return what breaks the form, one line each."""
    results = []
    title, *releases = re.split(r"^## ", text, flags=re.MULTILINE)
    if not title.startswith("# Changelog\n"):
        results.append("the title isn't '# Changelog'")
    if not releases or not releases[0].startswith("Unreleased\n"):
        results.append("the first release isn't 'Unreleased'")
    for release in releases:
        heading = release.partition("\n")[0]
        if not re.fullmatch(r"Unreleased|\d+\.\d+\.\d+ - \d{4}-\d{2}-\d{2}", heading):
            results.append(f"{heading}: not 'VERSION - DATE'")
        areas = re.findall(r"^### (.+)$", release, re.MULTILINE)
        if areas != [area for area in AREAS if area in areas]:
            results.append(f"{heading}: areas are unknown, repeated or out of order: {areas}")
        bullets = re.findall(r"^- (.+)$", release, re.MULTILINE)
        if len(bullets) > MAX_BULLETS:
            results.append(f"{heading}: {len(bullets)} bullets")
        for bullet in bullets:
            if len(bullet) > MAX_CHARACTERS:
                results.append(f"{heading}: too long: {bullet}")
            if bullet.split()[0] not in VERBS:
                results.append(f"{heading}: no verb first: {bullet}")
        others = re.sub(r"^(- .+|#+ .+|)$\n?", "", release.partition("\n")[2], flags=re.MULTILINE)
        if len(others.splitlines()) > 1:
            results.append(f"{heading}: text outside of bullets: {others}")
    return results


def test_the_changelog_has_its_form():
    assert problems(TEXT) == []


def test_it_has_this_version():
    assert re.search(rf"^## {re.escape(memagent.__version__)} - ", TEXT, re.MULTILINE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# Changelog\n", "# Changes\n"),
        ("## Unreleased\n", "## Next\n"),
        ("### Estimator\n", "### Agent\n"),
        ("### Forecast\n", "### Various\n"),
        ("- Export runs", "- Runs are exported"),
        ("- Export runs", f"- Export runs {'x' * MAX_CHARACTERS}"),
        ("- Export runs", "- Fix it.\n" * MAX_BULLETS + "- Export runs"),
        ("- Export runs", "First,\nsome words.\n- Export runs"),
    ],
)
def test_it_finds_a_changelog_out_of_form(old, new):
    assert old in TEXT
    assert problems(TEXT.replace(old, new, 1)) != []


def test_branches_that_add_a_bullet_at_the_same_place_merge(tmp_path):
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, timeout=30)

    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(TEXT)
    shutil.copy(ROOT / ".gitattributes", tmp_path)
    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "--message=Begin")
    for branch in ("one", "two"):
        git("checkout", "--quiet", "-b", branch, "main")
        changelog.write_text(TEXT.replace("- ", f"- Add {branch}.\n- ", 1))
        git("commit", "--quiet", "--all", f"--message=Add {branch}")
    git("merge", "--quiet", "--no-edit", "one")
    merged = changelog.read_text()
    assert merged.replace("- Add one.\n", "").replace("- Add two.\n", "") == TEXT
    assert len(merged) == len(TEXT) + len("- Add one.\n- Add two.\n")
