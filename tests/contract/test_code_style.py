"""Names, prose and size of the code base: each rule shown failing, then held on all files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import code_metrics, style_rules
from scripts.code_metrics import CodeBase, Figure

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def base():
    return CodeBase(ROOT)


@pytest.fixture(scope="module")
def figures(base):
    return code_metrics.measure(base)


def rules(findings):
    return [finding.rule for finding in findings]


@pytest.mark.parametrize(
    "name", ["foresight", "last_words", "StoryReader", "_Grave", "HTTPWitness"]
)
def test_a_literary_name_is_reported(name):
    assert style_rules.literary_words(name)


@pytest.mark.parametrize("name", ["forecast_monitor", "WriteLock", "HTTPTransport", "watchdog"])
def test_a_field_name_passes(name):
    assert not style_rules.literary_words(name)


def test_modules_of_one_stem_are_reported():
    modules = [Path("web/compared.py"), Path("web/comparing.py"), Path("notify/compare.py")]
    assert [finding.text for finding in style_rules.shared_stems(modules)] == [
        "compared, comparing"
    ]


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "for asked in []: ...",
        "def heard(): ...",
        "def f(mine): ...",
        "x.seen = 2",
        "MOST_TAGS = 100",
        "_LEAST_ROWS = 1",
    ],
)
def test_a_bad_identifier_is_reported(source):
    assert style_rules.bad_identifiers(source, "a.py")


def test_good_identifiers_pass():
    assert not style_rules.bad_identifiers("MAX_TAGS = 100\nreported = read(limit=2)", "a.py")


def test_a_tuple_assignment_of_attributes_is_reported():
    assert style_rules.tuple_assignments("self.a, self.b = 1, 2", "a.py")
    assert not style_rules.tuple_assignments("self.a = 1\nfirst, self.rest = parts", "a.py")


@pytest.mark.parametrize(
    ("prose", "rule"),
    [
        ("Who guesses tokens is blocked.", "fused subject"),
        ("It is short. What is read is kept.", "fused subject"),
        ("None where there is no server.", "conditional where"),
        ("The server is told the step.", "told, tell"),
        ("Nobody reads it.", "nobody, somebody"),
        ("A thread of its own sends it.", "of ours, of its own"),
        ("The name is no number.", "is no X"),
        ("It is kept beside the run.", "beside"),
        ("The step stands in the header.", "stands"),
        ("The job begins anew.", "anew"),
        ("It lets go of the lock.", "let go of"),
        ("It is late by now.", "gravest, by now, of late"),
    ],
)
def test_an_odd_construction_is_reported(prose, rule):
    assert rules(style_rules.constructions(prose, "a.md")) == [rule]


@pytest.mark.parametrize(
    "prose",
    [
        "What is a prediction?",
        "Return None if there is no server.",
        "The folder `where it lies` is removed when the run is no longer active.",
        "Send the step to the server, and wait for its answer.",
    ],
)
def test_plain_prose_passes(prose):
    assert not style_rules.constructions(prose, "a.md")


def test_a_long_sentence_is_reported():
    assert style_rules.long_sentences("word " * 31 + ".", "a.md")
    assert not style_rules.long_sentences("word " * 30 + ".", "a.md")


@pytest.mark.parametrize(
    "docstring", ["What it does.", "Whether it fits.", "Of the limit.", "As JSON."]
)
def test_a_docstring_that_opens_with_a_clause_is_reported(docstring):
    assert style_rules.clause_openers(f'def f():\n    """{docstring}"""', "a.py")


def test_a_docstring_that_opens_with_a_verb_or_noun_passes():
    source = '"""Supervisor of the server."""\n\nLIMIT = 1\n"""Bytes at most."""\n'
    assert not style_rules.clause_openers(source, "a.py")


def test_the_documentation_of_a_constant_is_read():
    assert style_rules.clause_openers('LIMIT = 1\n"""What fits."""\n', "a.py")


def test_messages_are_read_and_their_variables_are_not():
    source = 'raise E(f"{name} is no number of {told} steps")\nx = "short text"\n'
    assert style_rules.messages(source) == [(1, "it is no number of it steps")]


def test_templates_are_read_without_markup():
    text = style_rules.prose_of_template(
        "<p class='told'>Runs {{ told }}</p>{% if told %}<b>now</b>{% endif %}"
    )
    assert text.split() == ["Runs", "it", "now"]


def test_code_tables_and_headings_of_a_page_are_not_prose():
    page = "# What it is\n\nA `told` run.\n\n```\nnobody\n```\n\n| where it is | x |\n"
    assert style_rules.prose_of_markdown(page).split() == ["A", "`told`", "run."]
    assert "where it is" in style_rules.prose_of_markdown(page, with_tables=True)


def test_a_figure_is_held_at_its_bound_and_else_at_its_target(monkeypatch):
    monkeypatch.setitem(code_metrics.BOUNDS, "modules", 11)
    assert not Figure("lines", 11, 10).holds
    assert Figure("modules", 11, 10).holds
    assert not Figure("modules", 11, 10).meets_target
    assert not Figure("tests", 0.9, 1.0, is_minimum=True).holds
    assert "missed" in Figure("lines", 11, 10).row()


def test_a_bound_is_needed_and_names_a_figure(figures):
    by_name = {figure.name: figure for figure in figures}
    for name in code_metrics.BOUNDS:
        assert not by_name[name].meets_target, f"{name} meets its target: delete its bound"


def test_types_that_modules_define_twice_are_reported(tmp_path):
    for package, source in {
        "agent/a.py": "class Kind: ...\nLevel = int | str\n",
        "server/b.py": "class Kind: ...\nclass Other: ...\nLevel = str\n",
    }.items():
        (tmp_path / package).parent.mkdir()
        (tmp_path / package).write_text(source)
    assert [finding.text for finding in CodeBase(tmp_path).duplicate_types()] == ["Kind", "Level"]


def test_each_figure_holds(figures):
    missed = [figure.row() for figure in figures if not figure.holds]
    assert not missed, "run `python scripts/code_metrics.py`:\n" + "\n".join(missed)


def test_the_script_prints_the_figures_of_a_checkout(tmp_path):
    (tmp_path / "agent/memagent").mkdir(parents=True)
    (tmp_path / "agent/memagent/run.py").write_text('"""The run."""\n\n\ndef step(): ...\n')
    (tmp_path / ".importlinter").write_text("[importlinter:contract:agent-layers]\nlayers = a\n")
    script = ROOT / "scripts" / "code_metrics.py"
    command = [sys.executable, "-S", script, "--root", tmp_path]  # without what is installed
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search("^modules of agent, server and demo +1 ", done.stdout, re.MULTILINE)
