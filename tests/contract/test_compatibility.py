"""docs/compatibility.md agrees with pyproject.toml, the Makefile and this environment."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def rows(page: str) -> dict[str, list[str]]:
    """Return {first cell: the other cells} of every table row."""
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in page.splitlines() if "|" in line]
    return {first: others for first, *others in cells}


def minimum_versions(page: str, extra: str) -> dict[str, str]:
    return dict(re.findall(r"([\w-]+) ([\d.]+)", rows(page)[f"`memagent[{extra}]`"][0]))


def declared_minimums(extra: str) -> dict[str, str]:
    result = (
        re.match(r"([\w-]+)>=([\d.]+)", text) for text in PROJECT["optional-dependencies"][extra]
    )
    return {match[1]: match[2] for match in result if match}


def test_python_is_what_the_package_requires():
    supported, tested = rows(PAGE)["Python"]
    assert PROJECT["requires-python"] == f">={supported.split()[0]}"
    if sys.version_info[:2] == (3, 11):
        assert tested == "3.11"


def test_torch_is_what_the_makefile_installs():
    supported, tested = rows(PAGE)["PyTorch"]
    assert f"torch >= {supported.split()[0]}" in MAKEFILE
    assert f"TORCH := torch=={tested.split(',')[0]}\n" in MAKEFILE


@pytest.mark.parametrize("extra", ["frameworks", "trackers"])
def test_minimum_versions_are_those_of_the_extra(extra):
    assert minimum_versions(PAGE, extra) == declared_minimums(extra)


def test_it_finds_an_outdated_page():
    page = PAGE.replace("transformers 5", "transformers 4")
    assert minimum_versions(page, "frameworks") != declared_minimums("frameworks")
