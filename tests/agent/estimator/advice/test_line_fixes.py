"""A diff of a leaking line stops the leak: each is applied to a script that leaks, and run."""

from __future__ import annotations

import gc
import importlib
import sys
import textwrap

import pytest

from memagent import leaks
from memagent.estimator.advice.by_cause import code_for_suspect
from memagent.estimator.advice.line_fixes import changed_line, diff_of
from memagent.leaks.source_excerpt import SourceExcerpts

SCRIPTS = {
    "list": """
        import torch
        kept, model = [], torch.nn.Linear(256, 256)
        def step():
            loss = model(torch.randn(64, 256)).pow(2).mean()
            kept.append(loss)
    """,
    "dict": """
        import torch
        kept, model = {}, torch.nn.Linear(256, 256)
        def step():
            output = {"loss": model(torch.randn(64, 256)).pow(2).mean()}
            kept[len(kept)] = output["loss"]
    """,
    "graph": """
        import torch
        total, model = torch.zeros(()), torch.nn.Linear(256, 256)
        def step():
            global total
            loss = model(torch.randn(64, 256)).pow(2).mean()
            total += loss * 0.5
    """,
    "hidden_state": """
        import torch
        cell, hidden = torch.nn.GRUCell(128, 128), torch.zeros(64, 128)
        def step():
            global hidden
            hidden = cell(torch.randn(64, 128), hidden)
    """,
    "view": """
        import torch
        kept = []
        def step():
            scores = torch.randn(1024, 512)
            kept.append(scores[:, 0])
    """,
    "exception": """
        import torch
        kept = []
        def step():
            try:
                batch = torch.randn(1024, 512)
                raise RuntimeError("bad batch")
            except RuntimeError as error:
                kept.append(error)
    """,
}


@pytest.fixture
def suspects_of(tmp_path, monkeypatch):
    """suspects_of(script): those of a search while it trains, with their source."""

    monkeypatch.syspath_prepend(tmp_path)

    def suspects_of(script):
        path = tmp_path / f"leaking_{len(list(tmp_path.iterdir()))}.py"
        path.write_text(script)
        monkeypatch.setitem(sys.modules, path.stem, None)  # to be removed at the end
        del sys.modules[path.stem]
        gc.collect()  # modules of before keep what they leaked
        module = importlib.import_module(path.stem)
        suspects = leaks.find(module.step, 40).suspects
        return [item for item in SourceExcerpts().add_to(suspects) if item.file == str(path)]

    return suspects_of


@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_changed_line_no_longer_leaks(suspects_of, kind):
    script = textwrap.dedent(SCRIPTS[kind])
    suspect = next(item for item in suspects_of(script) if item.kind == kind)
    removed, added = diff_of(suspect.to_dict(), on_host=True).splitlines()
    assert script.count(removed[2:]) == 1
    after = suspects_of(script.replace(removed[2:], added[2:]))
    most = (suspect.bytes_per_step or 0) / 100
    assert not [item for item in after if (item.bytes_per_step or 0) > most]


@pytest.mark.parametrize(
    ("kind", "line", "changed"),
    [
        ("list", "history.append(output)", "history.append(output.detach().cpu())"),
        ("list", "a.append(out.detach())  # x", "a.append(out.detach().cpu())  # x"),
        ("list", "self.losses.append(out.loss)", "self.losses.append(out.loss.item())"),
        ("list", "if x: a.append(loss_fn(y, z))", "if x: a.append(loss_fn(y, z).item())"),
        ("list", "self.outs += [out]", "self.outs += [out.detach().cpu()]"),
        ("deque", "é['ü'].appendleft(out)", "é['ü'].appendleft(out.detach().cpu())"),
        ("dict", "d.setdefault(k, []).append(v)", "d.setdefault(k, []).append(v.detach().cpu())"),
        ("dict", "cache[key] = value", "cache[key] = value.detach().cpu()"),
        ("graph", "total += a + b", "total += (a + b).detach()"),
        ("graph", "self.ema = 0.9 * b + self.ema", "self.ema = (0.9 * b).detach() + self.ema"),
        (
            "hidden_state",
            "out, (h, c) = lstm(x, (h, c))",
            "out, (h, c) = lstm(x, (h.detach(), c.detach()))",
        ),
        (
            "hidden_state",
            "out, self.h = rnn(x, hx=self.h)",
            "out, self.h = rnn(x, hx=self.h.detach())",
        ),
    ],
)
def test_the_line_keeps_its_form(kind, line, changed):
    assert changed_line(kind, line) == changed


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("list", "kept.append((a, b))"),
        ("list", "kept.append(loss.item())"),
        ("list", "kept.append(output.detach().cpu())"),
        ("list", "a.append(x); b.append(y)"),
        ("list", "kept.append("),
        ("list", "for x in kept:"),
        ("list", "kept = [*kept, x]"),
        ("graph", "total += loss.item()"),
        ("graph", "total = f(loss)"),
        ("graph", "total = a + b"),
        ("hidden_state", "out, state = lstm(x, state)"),
        ("hidden_state", "state = cell(x)"),
        ("view", "kept.append(x[0].clone())"),
        ("hook", "kept.append(output)"),
        ("list", "(" * 190),
        ("list", ""),
    ],
)
def test_a_line_that_needs_more_than_a_change_has_no_diff(kind, line):
    assert changed_line(kind, line) is None


def test_a_tensor_that_a_host_keeps_has_no_diff():
    assert changed_line("list", "history.append(output)", on_host=True) is None


@pytest.mark.parametrize(
    "suspect",
    [
        {"kind": "list"},
        {"kind": "list", "line": 3, "source": ["a.append(x)"], "source_first_line": 4},
        {"kind": "list", "line": 9, "source": ["a.append(x)"], "source_first_line": 4},
        {"kind": "list", "line": None, "source": None, "source_first_line": None},
        {"kind": None, "line": 4, "source": [3], "source_first_line": 4},
    ],
)
def test_a_suspect_without_the_source_of_its_line_has_no_diff(suspect):
    assert diff_of(suspect) == ""


def suspect_at(line, fix="", kind="list"):
    return {"kind": kind, "line": 4, "source": [f"    {line}"], "source_first_line": 4, "fix": fix,
            "holder": "Trainer.rows: list of 4"}  # fmt: skip


def test_a_diff_moves_nothing_to_the_host_that_the_agent_saw_there():
    line = "rows.append(features)"
    assert diff_of(suspect_at(line, "Append `features.detach().cpu()` instead."))
    assert diff_of(suspect_at(line, "Clear `rows` once its values are used.")) == ""
    assert "item" not in diff_of(suspect_at("rows.append(loss)", "Move the tensors of `loss`."))


def test_code_without_a_diff_names_what_the_line_stores_and_where():
    on_device = suspect_at("self.rows.append(a + b)", "Append `(a + b).detach().cpu()` instead.")
    assert code_for_suspect(on_device).splitlines() == [
        "self.rows.append((a + b).detach().cpu())  # not: self.rows.append((a + b))",
        "self.rows.clear()  # once its values are used",
    ]
    assert code_for_suspect(on_device, on_host=True).splitlines() == [
        "self.rows.append((a + b).detach())  # not: self.rows.append((a + b))",
        "self.rows.clear()  # once its values are used",
    ]
    without_graph = suspect_at("self.rows.append(a + b)", "Clear `self.rows` once it is used.")
    assert code_for_suspect(without_graph, on_host=True) == (
        "self.rows.clear()  # once its values are used"
    )


def test_a_masked_line_has_no_diff():
    assert diff_of(suspect_at('rows.append(login("***"))')) == ""
