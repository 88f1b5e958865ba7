"""Values that a change replaced."""

from __future__ import annotations

from memagent_server.http.value_changes import MAX_CHARACTERS, MAX_LENGTH, changed_values


def texts(before, after):
    return [(one.name, one.old, one.new) for one in changed_values(before, after)]


def test_values_are_named_by_their_path():
    before = {"rule": {"is_on": True, "limits": {"bytes": 2.0**40, "ratio": 0.1}}}
    after = {"rule": {"is_on": False, "limits": {"bytes": 2.0**41, "ratio": 0.1}}}
    assert texts(before, after) == [
        ("rule.is_on", "on", "off"),
        ("rule.limits.bytes", "1099511627776", "2199023255552"),
    ]


def test_items_of_a_list_are_known_by_their_names():
    first, second = {"name": "a", "channels": ("x", "y")}, {"name": "b", "channels": ()}
    assert texts([first, second], [second, {**first, "channels": ["x"]}]) == [
        ("order", "a, b", "b, a"),
        ("a.channels", "x, y", "x"),
    ]
    assert texts([first], []) == [("a.channels", "x, y", None)], "no order of other items"
    assert texts([second], [second, first]) == [("a.channels", None, "x, y")]


def test_values_are_compared_and_not_their_texts():
    assert texts({"tags": ["a, b"]}, {"tags": ["a", "b"]}) == [("tags", "a, b", "a, b")]
    assert texts({"x": 1.0}, {"x": 1e300}) == [("x", "1", "1e+300")]


def test_an_empty_value_equals_none_and_moments_are_left_out():
    before = {"notes": "", "tags": [], "updated_at": 1.0}
    assert texts(before, {"notes": None, "updated_at": 2.0, "updated_by": "x"}) == []


def test_texts_and_all_values_together_have_bounds():
    before = {f"k{number}": "x" * 300 for number in range(100)}
    after = {name: text + "y" for name, text in before.items()}
    *changed, last = changed_values(before, after)
    assert len(changed[0].old) == MAX_LENGTH and changed[0].old.endswith("…")
    assert sum(len(one.name + one.old + one.new) for one in changed) <= MAX_CHARACTERS
    assert (last.name, last.old) == (f"and {100 - len(changed)} more", None)
