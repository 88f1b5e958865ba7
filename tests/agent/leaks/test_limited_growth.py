"""What the source says of growth that has a limit. Numbers are those of the module's docstring."""

from __future__ import annotations

import importlib.util
import math
import sys

import pytest

from memagent.leaks import Finder
from memagent.leaks.limited_growth import growth_of
from memagent.leaks.suspect import build_suspect
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
    rows[step % 10] = make()  # here
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


def never(_suspect):
    return False


@pytest.mark.parametrize(("growing", "name", "source"), CASES, ids=[case[1] for case in CASES])
def test_1_to_3_it_tells_kinds_of_growth_apart(tmp_path, growing, name, source):
    assert growth_of([suspect_in(tmp_path, source)], never) == growing


def test_4_most_of_the_growth_counts(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "def add(key, x):\n    if key not in seen:\n        seen[key] = x\n    rows.append(x)\n"
    )
    seen, rows = (
        build_suspect(str(path), line, "add", f"{name}: of 3", kind, size, 1.0)
        for line, name, kind, size in ((3, "seen", "dict", 900), (4, "rows", "list", 200))
    )
    assert growth_of([seen, rows], never) == "cache"
    assert growth_of([rows, seen], lambda suspect: suspect is seen) == "list"
    assert growth_of([], never) == "unknown"


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
