"""Calls and assignments found in a script's source."""

from __future__ import annotations

from memagent.leaks.source_lines import (
    SourceScope,
    attribute_assignments,
    first_assignment,
    hook_calls,
    is_hook,
    lines_of_later_uses,
)


def test_it_knows_a_hook_by_its_registration(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("layer.register_forward_hook(self.note)\nregister(keep)\n")
    assert is_hook(str(path), "Model.note") and not is_hook(str(path), "keep")


def test_a_hook_is_registered_where_its_function_is_mentioned(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "a.register_forward_hook(self.note)\n"
        "a.register_full_backward_hook(keep)\n"
        "a.register_forward_pre_hook(other)\n"
    )
    assert hook_calls(str(path), "_forward_pre_hooks")[0].line == 3
    assert hook_calls(str(path), "_forward_pre_hooks", {"keep"})[0].line == 2


def test_it_finds_the_first_assignment_among_several_targets(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("use(cache)\na, (b, *cache) = load()\ncache = []\n")
    line = first_assignment(SourceScope(str(path)), "cache")
    assert line is not None
    assert (line.line, line.function, line.text) == (2, "<module>", "a, (b, *cache) = load()")
    assert first_assignment(SourceScope(str(path)), "missing") is None


def test_it_finds_assignments_of_an_attribute_in_its_class(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("x.kept = 1\nclass A:\n    def f(self):\n        self.kept, b = 1, 2\n")
    lines = attribute_assignments(str(path), "A", "kept")
    assert [(line.line, line.function) for line in lines] == [(4, "A.f")]
    assert [line.line for line in attribute_assignments(str(path), "B", "kept")] == [1, 4]


def test_it_finds_what_later_uses_the_result_of_a_line(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "def make(rows):\n"
        "    x = load()\n"
        "    y = x = load()\n"
        "    rows.append(y)\n"
        "    atexit.register(use, y)\n"
        "    other(rows)\n"
        "y = 3\n"
        "print(y)\n"
    )
    lines = lines_of_later_uses(str(path), 3)
    assert [(line.line, line.keeps) for line in lines] == [(4, False), (5, True)]
    assert [line.line for line in lines_of_later_uses(str(path), 7)] == [8]
