"""The fenced blocks and the commands of README.md and docs/, as tests take them out of the pages."""

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
    """A fenced block: `kind` is what its fence says, empty where it says nothing; `line` is its first in the file."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path, *kinds: str) -> list[Block]:
    """The page's blocks in order; of these kinds only, where any are named."""
    text = page.read_text()
    found = [
        Block(page.name, text.count("\n", 0, match.start()) + 2, match[1], match[2])
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if not kinds or block.kind in kinds]


def spans(page: Path) -> list[str]:
    """What stands between backquotes in the page's prose."""
    return SPAN.findall(FENCE.sub("", page.read_text()))


def commands(block: Block) -> list[tuple[str, str]]:
    """(command, what it prints) of each `$ command` of a session."""
    found = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    return list(zip(found[1::2], found[2::2], strict=True))


def output_after(block: Block, page: Path) -> str | None:
    """What the page shows as the output of a block: text or JSON that follows at once."""
    after = page.read_text().splitlines()[block.line - 1 + block.text.count("\n") + 1 :]
    rest = "\n".join(after).lstrip("\n")
    shown = re.match(r"```(?:text|json)?\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    return shown[1] if shown else None


def looks_like(shown: str, printed: str) -> bool:
    """Whether each line that a page shows was printed, whatever the numbers in it."""
    lines = {masked(line) for line in printed.splitlines()}
    return all(masked(line) in lines for line in shown.splitlines())


def masked(line: str) -> str:
    """A line with every number, the unit of bytes behind it, and the folder of every script replaced."""
    line = re.sub(r"[\w/.-]*/(?=\w+\.py:)", "", re.sub(r"(\d) (?:B|[KMGT]iB)\b", r"\1 B", line))
    return re.sub(r"\d[\d,.]*\d|\d", "#", line).strip()
