"""Images of the docs are small, used, and described."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = sorted((ROOT / "docs/images").iterdir())
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
MAX_BYTES = 120_000


def references(text: str) -> dict[str, str]:
    """Return {file name: description} of a page's images."""
    result = re.findall(r"!\[([^\]]*)\]\((?:docs/)?images/([^)]+)\)", text)
    return {name: description for description, name in result}


def test_every_image_is_small_used_and_described():
    used = {}
    for page in PAGES:
        used |= references(page.read_text())
    assert used.keys() == {path.name for path in IMAGES}
    assert [name for name, description in used.items() if len(description) < 10] == []
    assert [path.name for path in IMAGES if path.stat().st_size > MAX_BYTES] == []


def test_it_finds_the_description():
    assert references("![A run](images/a.png) ![](docs/images/b.png)") == {
        "a.png": "A run",
        "b.png": "",
    }
