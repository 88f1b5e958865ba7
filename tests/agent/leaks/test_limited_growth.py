"""What the source says of growth that has a limit. Numbers are those of the module's docstring."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from collections import Counter

import pytest
from msgspec.structs import replace

from memagent.leaks import Finder, limited_growth, syntax
from memagent.leaks.detectors.base import finish
from memagent.leaks.limited_growth import source_evidence
from memagent.leaks.suspect import build_suspect
from memagent.leaks.time_budgets import TimeBudget
from tests.agent.leaks.test_limits import LIMITED, UNLIMITED, suspect_in

EPOCHS = {
    "a metric of a framework": """
class Metric:
    def validation_step(self, x):
        self.outputs.append(x)  # here
    def on_validation_epoch_end(self):
        self.outputs.clear()
""",
    "a metric of a library": """
for epoch in range(3):
    for x in data:
        metric.update(x)  # here
    print(metric.compute())
    metric.reset()
""",
    **{name: LIMITED[name] for name in ("flushed", "each epoch", "anew by a function")},
}
CACHES = {
    "numbers within an epoch": """
for epoch in range(3):
    for place, x in enumerate(data):
        rows[place] = encode(x)  # here
""",
    "numbers within a function for each epoch": """
def train():
    for place, x in enumerate(data):
        rows[place] = encode(x)  # here
for epoch in range(3):
    train()
""",
    "one of a number of places": """
for step in range(100):
    place = step % 10
    rows[place] = make()  # here
""",
    "a word by number": """
for step in range(100):
    word = words[step]
    rows[word] = make()  # here
""",
    "a counter that begins again": """
for x in data:
    if x.is_first:
        step = 0
    step += 1
    rows[step] = x  # here
""",
    "the last ones by number": """
for step in range(100):
    rows[step] = make()  # here
    del rows[step - 5]
""",
    **{name: LIMITED[name] for name in ("by key", "known before", "keys that may come again")},
}
LISTS = {
    "what is added is made anew": """
for x in data:
    loss = model(x)
    history.append(loss.detach())  # here
""",
    "parameters of layers made anew": """
for task in tasks:
    head = make(task)
    optimizer.add_param_group({"params": list(head.parameters())})  # here
""",
    "by the number of the step": """
for step in range(1000):
    rows[step] = make()  # here
""",
    "by the epoch and the step": """
for epoch in range(10):
    for step, x in enumerate(data):
        rows[f"{epoch}/{step}"] = make(x)  # here
""",
    "by a counter": """
class Store:
    def __init__(self):
        self.count = 0
    def add(self, x):
        self.count += 1
        self.rows[self.count] = x  # here
""",
    "by a text of a counter": """
class Store:
    def __init__(self):
        self.count = 0
    def add(self, x):
        self.count += 1
        name = f"<row {self.count}>"
        rows[name] = x  # here
""",
    "beside a call of an entry": """
for step in range(1000):
    functions[0]()
    rows[step] = make()  # here
""",
    "beside a call of a result": """
for step in range(1000):
    rows[step] = get(key)(step)  # here
""",
    **UNLIMITED,
}
BUFFERS = {
    "a metric that nobody resets": LIMITED["two at once"],
    **{name: LIMITED[name] for name in ("by number", "crops itself", "the smallest leaves")},
}
CASES = [
    (growing, name, source)
    for growing, sources in {
        "epoch": EPOCHS, "cache": CACHES, "list": LISTS, "buffer": BUFFERS,
    }.items()
    for name, source in sources.items()
]  # fmt: skip


KEYS_THAT_COME_AGAIN = [
    '"warm" if step < 100 else "hot"', "min(step, 9)", "step > 100", "vocab.get(step)",
    "bucket_of(step)", "words[step]", "step - first", "step // 10", 'f"{step % 10}"', "str(step)[0]",
]  # fmt: skip
NEW_KEYS = [
    "step", "str(step)", '"row " + str(step)', '"row {}".format(step)', '"row %d" % step',
    '"row %d of %d" % (step, n)', "step - 1", "2 * n + step", "(step, kind)", 'f"{epoch}/{step:03d}"',
]  # fmt: skip


def never(_suspect):
    return False


def growth_of(suspects, is_beyond=never):
    return finish(source_evidence(suspects, is_beyond, TimeBudget())).growing


@pytest.mark.parametrize(("growing", "name", "source"), CASES, ids=[case[1] for case in CASES])
def test_1_to_3_it_tells_kinds_of_growth_apart(tmp_path, growing, name, source):
    assert growth_of([suspect_in(tmp_path, source)]) == growing


@pytest.mark.parametrize("store", ["rows[{}]", "key = {}\n    rows[key]"], ids=["at once", "set"])
@pytest.mark.parametrize("key", [*KEYS_THAT_COME_AGAIN, *NEW_KEYS])
def test_2_a_text_or_sum_of_a_counter_is_new_and_other_results_may_come_again(tmp_path, key, store):
    source = f"for step in range(1000):\n    {store.format(key)} = make()  # here\n"
    assert growth_of([suspect_in(tmp_path, source)]) == ("list" if key in NEW_KEYS else "cache")


@pytest.mark.parametrize(
    "lines",
    [
        "name = str(step)\n    name = 'all'",
        "at += 1\n    at %= 9\n    name = at",
        "name = all, step",
    ],
    ids=["set again", "a ring", "a pair"],
)
def test_2_what_a_variable_is_set_to_last_counts(tmp_path, lines):
    source = f"for step in range(1000):\n    {lines}\n    rows[name] = make()  # here\n"
    assert growth_of([suspect_in(tmp_path, source)]) == (
        "list" if "all, step" in lines else "cache"
    )


@pytest.mark.parametrize(
    ("source", "is_keyed"),
    [(LISTS["by a text of a counter"], False), (LIMITED["keys that may come again"], True)],
    ids=["a counter", "any key"],
)
def test_2_only_keys_that_may_come_again_make_a_table(tmp_path, source, is_keyed):
    suspect = suspect_in(tmp_path, source)
    keyed = finish(source_evidence([suspect], never, TimeBudget())).keyed
    assert keyed == ({(suspect.file, suspect.line)} if is_keyed else frozenset())


def test_4_most_of_the_growth_counts(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "def add(key, x):\n    if key not in seen:\n        seen[key] = x\n    rows.append(x)\n"
    )
    seen, rows = (
        build_suspect(str(path), line, "add", f"{name}: of 3", kind, size, 1.0)
        for line, name, kind, size in ((3, "seen", "dict", 900), (4, "rows", "list", 200))
    )
    assert growth_of([seen, rows]) == "cache"
    assert growth_of([rows, seen], lambda suspect: suspect is seen) == "list"
    assert growth_of([]) == "unknown"


def test_4_allocations_count_for_what_nothing_else_holds(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("def add(key, x):\n    if key not in seen:\n        seen[key] = x.clone()\n")
    seen, made = (
        build_suspect(str(path), line, "add", f"{kind} of 3", kind, size, 1.0)
        for line, kind, size in ((3, "dict", 900), (1, "allocation", 1000))
    )
    assert growth_of([made, seen]) == "cache"
    assert growth_of([made]) == growth_of([replace(seen, bytes_per_step=400), made]) == "list"


def test_a_long_file_is_read_once_for_all_suspects_in_parts(tmp_path, monkeypatch):
    lines = [f"for step_{n} in range(9):\n    rows[step_{n}] = make({n})\n" for n in range(400)]
    path = tmp_path / "long.py"
    path.write_text("".join(lines))
    suspects = [build_suspect(str(path), 2 * n, None, "", "dict", 100, 1.0) for n in range(1, 9)]
    walked, asked = Counter(), Counter()
    walk, takes_out = syntax.walk, limited_growth.takes_out

    def counted_walk(root):
        walked[root] += 1
        for item in walk(root):
            asked["nodes"] += 1
            yield item

    def counted_takes_out(*arguments):
        asked["statements"] += 1
        return takes_out(*arguments)

    monkeypatch.setattr(syntax, "walk", counted_walk)
    monkeypatch.setattr(limited_growth, "takes_out", counted_takes_out)
    budget = TimeBudget()
    budget.begin_slice(0.0)  # over at once: training goes on wherever it may
    work, parts = source_evidence(suspects, never, budget), []
    with pytest.raises(StopIteration) as end:
        while True:
            asked.clear()
            next(work)
            parts.append(dict(asked))
    evidence = end.value.value
    assert evidence.growing == "list" and evidence.suspects == suspects
    assert not evidence.keyed
    assert walked[syntax.syntax_tree(str(path))] == 1 and set(walked.values()) == {1}
    assert sum(part.get("statements", 0) for part in parts) > 8 * 3 * 400
    assert max(sum(part.values()) for part in parts) <= syntax.NODES_AT_ONCE
    syntax.clear_cache()
    assert not syntax._contents


def test_a_long_block_before_a_key_is_read_in_parts(tmp_path, monkeypatch):
    path = tmp_path / "long.py"
    path.write_text("row.name = 'word'\n" * 2000 + "rows[row.name, name] = make()\n")
    read, parts, unparse = Counter(), [], ast.unparse

    def counted_unparse(node):
        read["targets"] += 1
        return unparse(node)

    monkeypatch.setattr(ast, "unparse", counted_unparse)
    budget = TimeBudget()
    budget.begin_slice(0.0)
    for _ in source_evidence(
        [build_suspect(str(path), 2001, None, "", "dict", 100, 1.0)], never, budget
    ):
        parts.append(read["targets"])
        read.clear()
    assert sum(parts) >= 1792
    assert max(parts) <= syntax.NODES_AT_ONCE


SCRIPTS = {
    "epoch": """
class Metric:
    def __init__(self):
        self.scores = []
    def update(self, x):
        self.scores.append(x)
    def reset(self):
        self.scores = []
metric = Metric()
def step(number):
    metric.update(torch.zeros(512))
    if number % 10_000 == 0:
        metric.reset()
""",
    "cache": """
features = {}
def step(number):
    sample = number * 7919 % 100_003
    if sample not in features:
        features[sample] = torch.zeros(512)
""",
    "list": """
count, losses = 0, {}
def step(number):
    global count
    count += 1
    losses[count] = torch.zeros(512)
""",
}


@pytest.mark.parametrize("growing", SCRIPTS)
def test_a_diagnosis_of_a_script_tells_the_forecaster(tmp_path, growing):
    path = tmp_path / f"script_of_{growing}.py"
    path.write_text("import torch\n" + SCRIPTS[growing])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = script
    try:
        spec.loader.exec_module(script)
        finder = Finder(window=12, max_slice_s=0.02)
        finder.budget.allowance_s = math.inf
        finder.request(beyond_budget=True)
        told = []
        for number in range(1, 500):
            script.step(number)
            done = finder.after_step(number)
            told.append(finder.growing)
            if done is not None:
                break
        # already of the first window, and still once a longer one has confirmed it
        assert finder.suspects and told[-1] == growing
        assert list(dict.fromkeys(told)) == ["unknown", growing]
    finally:
        del sys.modules[path.stem]
