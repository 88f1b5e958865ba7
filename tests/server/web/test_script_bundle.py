"""Scripts of a page joined into one: order, names, and statements that it can't read."""

from __future__ import annotations

import re

import pytest

from memagent_server.web.rendering import FOLDER
from memagent_server.web.script_bundle import bundle

SCRIPTS = {
    "text": "export const count = String;\nexport async function later() {}\nconst own = 1;\n",
    "plot": 'import { count } from "./text.js";\nexport function axis() { return count(1); }\n',
    "page": 'import { axis } from "./plot.js";\nimport { count, later } from "./text.js";\naxis();\n',
}


@pytest.fixture
def folder(tmp_path):
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.js").write_text(text)
    return tmp_path


def test_imported_modules_come_first_and_once(folder):
    joined = bundle(folder, ["page", "plot"])
    assert re.findall(r"^const \$(\w+) = ", joined, re.M) == ["text", "plot", "page"]
    assert "const { count, later } = $text;" in joined
    assert "return { count, later };" in joined
    assert not re.search(r"^(import|export)\b", joined, re.M)


@pytest.mark.parametrize(
    "statement", ['import "./text.js";', "export let x = 1;", "export { a };", "export default 1;"]
)
def test_a_statement_outside_the_subset_is_named(folder, statement):
    (folder / "page.js").write_text(f"{statement}\n")
    with pytest.raises(ValueError, match=re.escape(repr(statement))):
        bundle(folder, ["page"])


def test_every_script_of_the_pages_can_be_joined():
    names = sorted(path.stem for path in FOLDER.glob("*.js"))
    assert "run" in names
    assert bundle(FOLDER, names).count("})();\n") >= len(names)


def test_lines_of_comments_are_left_out(folder):
    (folder / "page.js").write_text(
        '// why\nconst link = "http://x"; // here\n  // and why\nlink;\n'
    )
    joined = bundle(folder, ["page"])
    assert "why" not in joined and 'const link = "http://x"; // here\nlink;' in joined


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.js")), ids=lambda path: path.stem)
def test_no_text_goes_over_several_lines(path):
    """A line in it could begin as a comment does."""
    assert all(line.count("`") % 2 == 0 for line in path.read_text().splitlines())
