"""Extraction of the fenced blocks and commands of README.md and docs/, for tests that run them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block. `kind` is the fence's language, possibly empty; `line` is its first line."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path, *kinds: str) -> list[Block]:
    """Return the page's blocks in order, only those of `kinds` if any are named."""
    text = page.read_text()
    all_blocks = [
        Block(page.name, text.count("\n", 0, match.start()) + 2, match[1], match[2])
        for match in FENCE.finditer(text)
    ]
    return [block for block in all_blocks if not kinds or block.kind in kinds]


def spans(page: Path) -> list[str]:
    """Return the code spans of the page's prose."""
    return SPAN.findall(FENCE.sub("", page.read_text()))


def commands(block: Block) -> list[tuple[str, str]]:
    """Return (command, output) of each `$ command` of a session."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def output_after(block: Block, page: Path) -> str | None:
    """Return the output that the page shows for a block: the text or JSON block right after it."""
    after = page.read_text().splitlines()[block.line - 1 + block.text.count("\n") + 1 :]
    rest = "\n".join(after).lstrip("\n")
    text = re.match(r"```(?:text|json)?\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    return text[1] if text else None


def looks_like(expected: str, printed: str) -> bool:
    """Check that each expected line was printed, ignoring numbers."""
    lines = {masked(line) for line in printed.splitlines()}
    return all(masked(line) in lines for line in expected.splitlines())


def masked(line: str) -> str:
    """Replace the numbers, byte units and script folders of a line."""
    line = re.sub(r"[\w/.-]*/(?=\w+\.py:)", "", re.sub(r"(\d) (?:B|[KMGT]iB)\b", r"\1 B", line))
    return re.sub(r"\d[\d,.]*\d|\d", "#", line).strip()
