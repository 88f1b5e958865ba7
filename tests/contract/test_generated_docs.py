"""The generated parts of the docs are those that the code of this checkout generates."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import memagent
from memagent_server.metrics.collector import BY_NAME

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("build_docs", ROOT / "scripts/build_docs.py")
build_docs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build_docs)


@pytest.mark.parametrize(
    ("path", "text"), build_docs.pages().items(), ids=lambda value: getattr(value, "name", "")
)
def test_a_generated_page_is_up_to_date(path, text):
    assert path.read_text() == text, "run: python scripts/build_docs.py"


def test_the_python_api_has_every_public_name():
    page = build_docs.API_PAGE.read_text()
    functions = [name for name in memagent.__all__ if callable(getattr(memagent, name))]
    missing = [
        name
        for name in functions
        if f"## memagent.{name}\n" not in page and f" {name}  " not in page and name not in page
    ]
    assert functions and missing == []


def test_the_metrics_table_has_a_row_for_each_metric():
    page = build_docs.METRICS_PAGE.read_text()
    assert [name for name in BY_NAME if f"| `{name}` |" not in page] == []


def test_it_replaces_an_outdated_metrics_table():
    page = f"# Metrics\n\n{build_docs.METRICS_HEADING}\n\n| old |\n\n## Next\n\ntext\n"
    text = build_docs.with_metrics_table(page)
    assert "| old |" not in text and text.endswith("## Next\n\ntext\n")
    assert build_docs.metrics_table() in text


def test_it_describes_parameters_as_a_list():
    doc = "Do it.\n\nsize: bytes. name: of the run,\nor None.\n\nRaises ValueError."
    assert list(build_docs.paragraphs(doc, ("size", "name"))) == [
        "Do it.",
        "- `size`: bytes.\n- `name`: of the run, or None.",
        "Raises ValueError.",
    ]
