"""docs/architecture.md follows the code: every hop exists, and the paths stay short."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
MAX_HOPS = {"The path of a sample": 18, "The path of an estimate": 12, "The path of a suspect": 16}


def hops_of(page: str) -> dict[str, list[str]]:
    """Return the code of each hop, by section. Raises ValueError if hops are misnumbered."""
    paths = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| (\d+) \| `([\w.]+)` \| .+ \|$", section, re.MULTILINE)
        if rows:
            title = section.partition("\n")[0]
            if [int(number) for number, _ in rows] != list(range(1, len(rows) + 1)):
                raise ValueError(f"{title}: hops are not numbered 1, 2, 3 ...")
            paths[title] = [code for _, code in rows]
    return paths


def resolve(code: str) -> object:
    """Return the module, class, function or method that `code` names."""
    parts = code.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            value = getattr(value, name)
        return value
    raise AttributeError(code)


def test_every_path_is_described_and_short():
    paths = hops_of(PAGE)
    assert paths.keys() == MAX_HOPS.keys()
    assert {title: len(hops) for title, hops in paths.items() if len(hops) > MAX_HOPS[title]} == {}


@pytest.mark.parametrize("code", [code for hops in hops_of(PAGE).values() for code in hops])
def test_every_hop_exists(code):
    resolve(code)


def test_every_package_exists():
    table = PAGE.partition("## Packages and borders")[2].partition("\n## ")[0]
    packages = []
    for cell in re.findall(r"^\| (`memagent.+?) \|", table, re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", cell)
        top = first.partition(".")[0]
        packages += [first, *(f"{top}.{name}" for name in others)]
    assert len(packages) > 10
    for package in packages:
        assert hasattr(importlib.import_module(package), "__path__"), package


@pytest.mark.parametrize(
    "code", ["memagent.nothing", "memagent.forecast.Forecaster.nothing", "nothing.at_all"]
)
def test_it_finds_a_hop_that_does_not_exist(code):
    with pytest.raises(AttributeError):
        resolve(code)


def test_it_finds_misnumbered_hops():
    with pytest.raises(ValueError, match="not numbered"):
        hops_of(PAGE.replace("| 2 | `", "| 3 | `", 1))


def test_the_root_has_no_file_of_a_script():
    """Scripts of benchmarks write files where they run."""
    files = (path.name for path in ROOT.iterdir() if path.is_file())
    visible = {name for name in files if not name.startswith(".")}
    assert visible == {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "docker-compose.yml",
        "hatch_build.py",
        "pyproject.toml",
    }
