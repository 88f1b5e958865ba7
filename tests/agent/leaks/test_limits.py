"""Limits in the source. Numbers are those of the module's docstring."""

from __future__ import annotations

import pytest

from memagent.leaks.limits import ends_by_itself, is_keyed, may_stop_growing
from memagent.leaks.suspect import build_suspect

LIMITED = {
    "flushed": """
class Writer:
    def __init__(self):
        self.rows = []
    def add(self, x):
        self.rows.append(x)  # here
        if len(x) > 3:
            self.rows = []
""",
    "two at once": """
class Metric:
    def update(self, x):
        self.state.append(x)  # here
    def reset(self):
        self.state, self.count = [], 0
""",
    "cropped": """
def train(bank):
    for x in data:
        bank = torch.cat([bank, x])  # here
        bank = bank[-100:]
""",
    "each epoch": """
for epoch in range(3):
    outputs = []
    for x in data:
        outputs.append(x)  # here
""",
    "taken from a queue": """
def work():
    use(ahead.get())
def produce(x):
    ahead.put(x)  # here
""",
    "rows deleted": """
def note(db, step, data):
    db.execute("insert into notes values (?, ?)", (step, data))  # here
    db.execute(" DELETE from notes where step < ?", (step - 50,))
""",
    "least recent": """
cache = OrderedDict()
def add(key, x):
    cache[key] = x  # here
    cache.popitem(last=False)
""",
    "by key": """
def mask(length):
    if length not in masks:
        masks[length] = make(length)  # here
""",
    "by number": """
class Replay:
    def push(self, x):
        if len(self.items) < self.size:
            self.items.append(x)  # here
        else:
            self.items[0] = x
""",
    "lists by key, anew": """
class Maps:
    def add(self, key, x):
        self.maps[key].append(x)  # here
    def reset(self):
        self.maps = {"cross": [], "self": []}
""",
    "anew by a function": """
def main():
    cache = None
    for x in data:
        if x.is_first:
            cache = model.new_cache()
        cache = model.extend(cache, x)  # here
""",
    "the smallest leaves": """
def keep(x):
    heappush(best, x)  # here
    heapq.heappop(best)
""",
    "known before": """
class Tokenizer:
    def bpe(self, word):
        if word in self.cache:
            return self.cache[word]
        pieces = split(word)
        self.cache[word] = pieces  # here
""",
    "full before": """
def push(x):
    for item in x:
        if len(memory) >= 100:
            continue
        with lock:
            memory.append(item)  # here
""",
    "what it makes is kept by number": """
class Reservoir:
    def add(self, x):
        for row in x:
            item = (row.copy(), 1)  # here
            if len(self.slots) < self.capacity:
                self.slots.append(item)
""",
    "keys that may come again": """
def push(nodes, values):
    for node, value in zip(nodes, values):
        history.rows[node] = value.clone()  # here
""",
    "crops itself": """
def enqueue(self, keys):
    self.queue = torch.cat([self.queue, keys])[-self.capacity:].clone()  # here
""",
    "deleted": """
def forget(key):
    del store[key]
def add(key, x):
    store.setdefault(key, []).append(x)  # here
""",
}
UNLIMITED = {
    "rows selected": """
def note(db, step, data):
    db.execute("insert into notes values (?, ?)", (step, data))  # here
    db.execute("select max(step) from notes")
    other.execute("delete from notes")
""",
    "begun once": """
def main():
    outputs = []
    for x in data:
        outputs.append(x)  # here
""",
    "another one is cleared": """
def main():
    outputs.append(x)  # here
    others.clear()
    values = settings.get("outputs")
""",
    "joined to itself": """
class Store:
    def add(self, x):
        self.features = torch.cat([self.features, x])  # here
""",
    "a condition on something else": """
def push(x):
    if x in known:
        return
    if memory:
        print(memory)
    memory.append(x)  # here
""",
    "crops what it adds": """
def add(x):
    store.append(x[:100])  # here
    store[0] = make(x)
""",
    "made in the constructor": """
class Trainer:
    def __init__(self):
        self.history = []
        self.last = None
    def step(self, x):
        if x in self.names:
            self.history.append(x)  # here
""",
}


def suspect_in(tmp_path, source, kind="list", holder="nothing: list of 3"):
    path = tmp_path / "train.py"
    path.write_text(source)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "# here" in text)
    return build_suspect(str(path), line, None, holder, kind, 100, 1.0)


@pytest.mark.parametrize("case", LIMITED)
def test_1_2_the_source_has_a_limit(tmp_path, case):
    assert may_stop_growing(suspect_in(tmp_path, LIMITED[case]))


@pytest.mark.parametrize("case", UNLIMITED)
def test_the_source_has_no_limit(tmp_path, case):
    assert not may_stop_growing(suspect_in(tmp_path, UNLIMITED[case]))


def test_1_the_name_of_the_holder_counts_as_well(tmp_path):
    source = UNLIMITED["another one is cleared"]
    assert may_stop_growing(suspect_in(tmp_path, source, holder="others[0]: list of 3"))


@pytest.mark.parametrize("kind", ["optimizer", "cache"])
def test_3_parameters_and_arguments_may_all_be_known(tmp_path, kind):
    assert may_stop_growing(suspect_in(tmp_path, UNLIMITED["begun once"], kind))


ONCE_PER_KEY = """
class Vocabulary:
    def number(self, word):
        if word not in self.numbers:
            self.numbers[word] = len(self.entries)
            entry = describe(word)
            self.entries.append(entry)  # here
        return self.numbers[word]
"""


def test_4_what_is_added_once_for_each_key_may_stop(tmp_path):
    assert may_stop_growing(suspect_in(tmp_path, ONCE_PER_KEY))


@pytest.mark.parametrize(
    ("source", "holder"),
    [
        (LIMITED["by key"], "masks: dict of 3"),
        (LIMITED["known before"], "Tokenizer.cache: dict of 3"),
        (LIMITED["deleted"], "store: dict of 3"),
        (ONCE_PER_KEY, "Vocabulary.entries: list of 3"),
        (
            "def table(key):\n    rows = make(key)  # here\n    memo[key] = rows\n",
            "memo: dict of 3",
        ),
    ],
    ids=["if not in", "else returned", "setdefault", "beside the table", "made before"],
)
def test_4_a_table_is_filled_by_key(tmp_path, source, holder):
    assert is_keyed(suspect_in(tmp_path, source, "dict", holder))


@pytest.mark.parametrize("case", ["flushed", "cropped", "by number", "lists by key, anew"])
def test_4_other_limits_are_no_keys(tmp_path, case):
    assert not is_keyed(suspect_in(tmp_path, LIMITED[case]))


def test_4_a_cache_of_results_is_filled_by_its_arguments(tmp_path):
    assert is_keyed(suspect_in(tmp_path, UNLIMITED["begun once"], "cache"))


COUNTED_DOWN = """
class Pool:
    def add(self, rows):
        self.rows.extend(rows)  # here
    def label(self, rows):
        self.budget -= len(rows)

for step in range(300):
    if {condition}:
        pool.add(choose(pool))
"""


@pytest.mark.parametrize(
    ("condition", "ends"), [("step % 25 == 0 and pool.budget > 0", True), ("step % 25 == 0", False)]
)
def test_what_grows_while_something_is_counted_down_ends_by_itself(tmp_path, condition, ends):
    file = tmp_path / "script.py"
    file.write_text(COUNTED_DOWN.replace("{condition}", condition))
    suspect = build_suspect(str(file), 4, "Pool.add", "Pool.rows: list of 9", "list", 1, 1.0)
    assert ends_by_itself(suspect) == ends
