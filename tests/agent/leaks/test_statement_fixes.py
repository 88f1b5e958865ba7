"""Fixes name what the script stores and where, and the code in them parses."""

from __future__ import annotations

import ast
import re

import pytest

from memagent.leaks.statement_fixes import statement_fix
from memagent.leaks.stored_values import Traits
from memagent.leaks.suspect import KINDS, build_suspect, fix_for, without_source

HOST = Traits(is_on_host=True)
WITH_GRAPH = Traits(is_on_host=True, has_graph=True)
PARTS = Traits(are_items=False)


@pytest.fixture
def fix(tmp_path):
    """fix(kind, line): the fix at a line of a script."""

    def fix(kind, line, traits=Traits(), holder="self.rows: list of 4", number=1):  # noqa: B008
        script = tmp_path / f"train_{abs(hash(line))}.py"
        script.write_text(f"{line}\n")
        return statement_fix(kind, str(script), number, holder, traits)

    return fix


@pytest.mark.parametrize(
    ("kind", "line", "traits", "text"),
    [
        ("list", "rows.append(out)", Traits(), "Append `out.detach().cpu()` instead of `out`, and clear `rows` once"),
        ("list", "rows.append(out.detach())", Traits(), "Append `out.detach().cpu()` instead of `out`"),
        ("list", "rows.append(loss)", Traits(), "Append `loss.item()` instead of `loss`"),
        ("list", "rows.append(a + b)", Traits(), "Append `(a + b).detach().cpu()` instead of `a + b`"),
        ("list", "rows.append(out)", HOST, "Clear `rows` once its values are used, or store less than `out`, such"),
        ("list", "rows.append(out)", WITH_GRAPH, "Append `out.detach()` instead of `out`, and clear"),
        ("list", "rows.append((a, b))", Traits(), "Clear `rows` once its values are used, and move the tensors of `(a, b)`"),
        ("list", "rows.append(record)", PARTS, "Clear `rows` once its values are used, and move the tensors of `record`"),
        ("list", "rows = [*rows, out]", Traits(), "Add `out.detach().cpu()` instead of `out`, and clear `rows`"),
        ("dict", "d[k] = out", Traits(), "Store `out.detach().cpu()` instead of `out`, and delete entries of `d`"),
        ("dict", "d.setdefault(k, []).append(v)", HOST, "Delete entries of `d.setdefault(k, [])`"),
        ("deque", "q.appendleft(out)", HOST, "Give `q` a `maxlen`, or store less than `out`"),
        ("set", "seen.add(out)", Traits(), "Add `out.detach().cpu()` instead of `out`, and clear `seen`"),
        ("object", "head = Node(out, head)", HOST, "Delete what is no longer needed of `head`"),
        ("buffer", "self.b = torch.cat([self.b, out])", HOST, "Make `self.b` once, as long as it gets, and write `out`"),
        ("variable", "keys[i] = torch.cat([keys[i], k], dim=-2)", HOST, "Make `keys[i]` once, as long as it gets, and write `k`"),
        ("graph", "total += loss * 2", HOST, "Add `(loss * 2).item()` or `(loss * 2).detach()`: `total` keeps"),
        ("graph", "self.last = loss", HOST, "Store `loss.item()` or `loss.detach()`: `self.last` keeps"),
        ("gradient", "loss.backward(create_graph=True)", HOST, "Use `torch.autograd.grad(loss, ..., create_graph=True)`"),
        ("hook", "m.register_forward_hook(f)", HOST, "Call `m.register_forward_hook` once only"),
        ("hook", "acts.append(out)", HOST, "Clear `acts` before each forward, or remove the hook, or store less"),
        ("exception", "errors.append(e)", HOST, "Keep `str(e)` in `errors`, or call `e.with_traceback(None)`"),
        ("exception", "raise self.error", HOST, "Raise a new error each time instead of `self.rows`: a traceback"),
        ("autograd_function", "ctx.y = y", HOST, "Use `ctx.save_for_backward(y)` instead of `ctx.y`"),
        ("view", "rows.append(out[0])", HOST, "Keep `out[0].clone()` instead"),
        ("optimizer", "o.add_param_group({'params': [w]})", HOST, "Add each parameter group to `self.rows` only once"),
        ("cycle", "self.parent = parent", HOST, "Not a leak: a reference cycle that waits for the garbage collector. Break the cycle through `self.parent` by `weakref.proxy(parent)`"),
        ("thread", "results.put(batch)", HOST, "End each thread that waits at `results.put(batch)`"),
        ("allocation", "y = model(x)", HOST, "Check what keeps the result of `model(x)`"),
        ("host", "rows.append(str(i))", HOST, "Clear `rows` once its values are used, or store less than `str(i)`"),
        ("worker", "self.seen.append(x)", HOST, "Store nothing in `self.seen`"),
    ],
)  # fmt: skip
def test_a_fix_names_what_the_statement_stores_and_where(fix, kind, line, traits, text):
    assert fix(kind, line, traits).startswith(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("traits", [Traits(), HOST, WITH_GRAPH, PARTS])
@pytest.mark.parametrize(
    "line",
    [
        "rows.append(a + b)",
        "d[key] = [f(v) for v in x]",
        "y = lambda: x",
        "if y: rows += [x]",
        "f()",
    ],
)
def test_the_code_of_a_fix_parses(fix, kind, traits, line):
    text = fix(kind, line, traits)
    codes = re.findall("`(.*?)`", text)
    assert text.endswith(".") and all(ast.parse(code, mode="eval") for code in codes)
    assert not traits.is_on_host or ".cpu()" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_known_line_the_fix_is_that_of_the_kind(kind, tmp_path):
    place = str(tmp_path / "missing.py"), 3, None
    assert build_suspect(*place, "rows: list of 4", kind, 1, 0.8).fix == fix_for(kind)


def test_an_expression_with_text_or_of_many_characters_is_not_quoted(fix):
    assert "secret" not in fix("list", "rows.append(login('secret'))")
    assert "name" not in fix("list", f"rows.append({'name + ' * 20}x)")
    assert "`out['loss'].item()`" in fix("list", "rows.append(out['loss'])")


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("[rows.append(x) for x in xs]", "Delete what is no longer needed of `rows`"),
        ("done = [d.setdefault(k, []).append(v) for k in ks]", "Clear `self.rows` once its values are used"),
        ("each(lambda x: rows.append(x))", "Delete what is no longer needed of `rows`"),
        ("rows.append([f(x) for x in xs])", "Clear `rows` once its values are used, or store less than `[f(x)"),
        ("table = np.append(old, x)", "Clear `table` once its values are used, or store less than `np.append"),
    ],
)  # fmt: skip
def test_a_fix_has_names_of_its_scope_only(fix, line, start):
    """Those of a comprehension mean nothing outside of it. A module holds nothing."""
    assert fix("host", line, HOST).startswith(start)


def test_the_last_line_of_a_long_statement_and_a_decorator_belong_to_it(fix):
    assert "`out.detach().cpu()`" in fix("list", "rows.append(\n    out\n)", number=3)
    assert "`f.cache_clear()`" in fix(
        "cache", "@lru_cache\ndef f(x): return x", holder="f: lru_cache"
    )


def test_without_source_the_fix_quotes_no_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("rows.append(private)\n")
    suspect = build_suspect(str(script), 1, None, "rows: list of 4", "list", 1, 0.8)
    other = build_suspect(str(script), 9, None, "rows: list of 4", "list", 1, 0.8)
    assert "private" in suspect.fix
    assert [item.fix for item in without_source([suspect, other])] == [fix_for("list")] * 2


def test_of_several_statements_on_a_line_the_one_that_fills_the_holder_counts(fix):
    line = "x = torch.randn(8); y = m(x); y.mean().backward(); rows.append(y)"
    assert fix("list", line).startswith("Append `y.detach().cpu()` instead of `y`")
    assert fix("list", line, holder="others: list of 4") is None
    long = "x = 1; rows[f(" + "+".join(["y"] * 900) + ")] = x"
    assert fix("list", long, holder="rows: list of 4") is None
    assert fix("list", "if ready: rows.append(y)").startswith("Append `y.detach().cpu()`")


def test_of_statements_in_each_other_the_outermost_counts_if_none_stores(fix):
    at_decorator = fix("cache", "@cache\ndef f(x): return x * 2", holder="f: cache of 9")
    at_def = fix("cache", "@cache\ndef f(x): return x * 2", holder="f: cache of 9", number=2)
    assert at_def is not None and at_def == at_decorator
