"""The line that makes a name grow, in realistic sources: `#!` marks it."""

from __future__ import annotations

import linecache
import re
import textwrap

import pytest

from memagent.leaks import syntax
from memagent.leaks.growth import growing_lines, lines_adding_to_self
from memagent.leaks.source_lines import GROWS, PASSES, SETS, SourceScope, lengthens
from memagent.leaks.syntax import DYNAMIC

GROWING = {
    "append": ("kept", "kept = []\nfor x in xs:\n    kept.append(x)  #!\n"),
    "extend": ("kept", "kept = []\nfor x in xs:\n    kept += [x]  #!\n"),
    "subscript": ("kept", "kept = {}\nfor i, x in enumerate(xs):\n    kept[i] = x  #!\n"),
    "list in a dict": ("kept", "for x in xs:\n    kept['a'].append(x)  #!\n"),
    "setdefault": ("kept", "for x in xs:\n    kept.setdefault(key, []).append(x)  #!\n"),
    "an alias": (
        ".kept",
        "def f(self):\n    mine = self.kept\n    for x in xs:\n        mine.append(x)  #!\n",
    ),
    "a method taken": ("kept", "add = kept.append\nfor x in xs:\n    add(x)  #!\n"),
    "heap": ("kept", "import heapq\nfor x in xs:\n    heapq.heappush(kept, x)  #!\n"),
    "cat": (
        ".bank",
        "class M:\n    def forward(self, x):\n        self.bank = torch.cat([self.bank, x])  #!\n",
    ),
    "register_buffer": (
        ".bank",
        "class M:\n    def __init__(self):\n        self.register_buffer('bank', zeros(0))\n"
        "    def forward(self, x):\n        self.register_buffer('bank', torch.cat([self.bank, x]))  #!\n",
    ),
    "sum": ("total", "total = 0\nfor x in xs:\n    total = total + x  #!\n"),
    "carried in a tuple": ("h", "for x in xs:\n    y, (h, c) = cell(x, (h, c))  #!\n"),
    "over several lines": ("kept", "for x in xs:\n    kept.append(  #!\n        x,\n    )\n"),
    "a walrus and a condition": (
        "kept",
        "for x in xs:\n    if (y := f(x)) > 0:\n        kept.append(y)  #!\n",
    ),
    "in a loop rather than before": (
        "kept",
        "kept.append(0)\nfor x in xs:\n    kept.append(x)  #!\n",
    ),
    "not in the constructor that makes it": (
        ".kept",
        "class A:\n    def __init__(self, xs):\n        self.kept = {}\n        for x in xs:\n"
        "            self.kept[x] = 1\n    def add(self, x):\n        self.kept[x] = 2  #!\n",
    ),
    "in a constructor that adds to its parent": (
        ".kept",
        "class A:\n    def __init__(self, parent):\n        self.kept = []\n"
        "        parent.kept.append(self)  #!\n",
    ),
    "a loop over it": (
        "kept",
        "kept = [[], []]\nfor i, mine in enumerate(kept):\n    mine.append(x)  #!\n",
    ),
    "an attribute, not a variable of its name": (
        ".kept",
        "class A:\n    def add(self, kept):\n        if self.kept is None:\n            self.kept = kept\n"
        "        else:\n            self.kept = torch.cat([self.kept, kept])  #!\n",
    ),
    "set from what was computed from it": (
        ".bank",
        "class M:\n    def forward(self, x):\n        stacked = torch.cat([self.bank, x])\n        self.bank = stacked  #!\n",
    ),
    "a method that wraps itself": (
        ".forward",
        "def wrap(m):\n    inner = m.forward\n    def outer(x):\n        return inner(x)\n"
        "    m.forward = outer  #!\n",
    ),
    "a builtin's method": ("kept", "for x in xs:\n    list.append(kept, x)  #!\n"),
    "an operator": ("kept", "for x in xs:\n    operator.iadd(kept, [x])  #!\n"),
    "a method that is mapped": ("kept", "deque(map(kept.append, xs), maxlen=0)  #!\n"),
    "in a result": (
        ".ids",
        "class A:\n    def encode(self, words):\n"
        "        return [self.ids.setdefault(word, len(self.ids)) for word in words]  #!\n",
    ),
    "a computed attribute": ("kept", "for x in xs:\n    setattr(kept, f'x{x}', x)  #!\n"),
    "an attribute with a computed name": (
        DYNAMIC,
        "class A:\n    def add(self, x):\n        for name in self.names:\n"
        "            getattr(self, name).append(x)  #!\n",
    ),
    "several in turn": ("b", "for rows, x in zip((a, b), pair):\n    rows.append(x)  #!\n"),
    "a part": (
        "state",
        "def add(state, x):\n    count, rows = state\n    rows.append(x)  #!\n    return count, rows\n"
        "for x in xs:\n    state = add(state, x)\n",
    ),
    "a copy": (
        "kept",
        "def add(old, x):\n    new = dict(old)\n    new[x] = x  #!\n    return new\n"
        "for x in xs:\n    kept = add(kept, x)\n",
    ),
    "in a function rather than once": (
        "kept",
        "kept[0] = []\ndef add(x):\n    kept[0].append(x)  #!\n",
    ),
    "an attribute's own name": (
        ".rows",
        "class A:\n    def __init__(self, rows):\n        self.rows = rows\n"
        "    def add(self, x):\n        rows = self.rows\n        rows.append(x)  #!\n",
    ),
    "a tensor made larger": (
        "log",
        "for x in xs:\n    log.resize_(log.numel() + 9)  #!\n    log[-9:] = x\n",
    ),
    "a kept error that is raised": (
        ".error",
        "class A:\n    error = ValueError()\n    def check(self, x):\n        if x < 0:\n"
        "            raise self.error  #!\n",
    ),
    "asynchronous": (
        "kept",
        "async def f():\n    async for x in xs:\n        await kept.put(x)  #!\n",
    ),
}
WEAKER = {
    "given to a function": (
        "kept", PASSES, "def note(where, x):\n    where.append(x)  #!\nfor x in xs:\n    note(kept, x)\n",
    ),
    "given to a method by keyword": (
        "kept", PASSES, "class A:\n    def note(self, x, *, where):\n        pass\n    def add(self, x, where):\n"
        "        where.append(x)  #!\nfor x in xs:\n    a.add(x, where=kept)\n",
    ),
    "a writer that it was given to": (
        ".stream", PASSES, "class A:\n    def __init__(self):\n        self.stream = StringIO()\n"
        "        self.writer = csv.writer(self.stream)\n    def add(self, x):\n        self.writer.writerow(x)  #!\n",
    ),
    "a stream that a library dumps to": (
        ".stream", PASSES, "class P:\n    def __init__(self):\n        self.stream = BytesIO()\n"
        "    def publish(self, net):\n        torch.save(net, self.stream)  #!\n",
    ),
    "a stream that lines are printed to": (
        "log", PASSES, "log = StringIO()\nfor x in xs:\n    print(x, file=log)  #!\n",
    ),
    "a library's metric": ("metric", PASSES, "metric = Metric()\nfor x in xs:\n    metric.observe(x)  #!\n"),
    "a kept error, raised from a list": (
        "errors", PASSES, "errors = [ValueError()]\ndef check(x):\n    raise errors[x]  #!\n",
    ),
    "set in a loop": ("last", SETS, "last = None\nfor x in xs:\n    last = f(x)  #!\n"),
}  # fmt: skip


def growth_and_line(tmp_path, name: str, source: str):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(source))
    marked = next(number for number, text in enumerate(source.splitlines(), 1) if "#!" in text)
    return growing_lines([SourceScope(str(path))], [name])[0], marked


@pytest.mark.parametrize("case", GROWING)
def test_it_finds_the_line_that_grows(case, tmp_path):
    line, marked = growth_and_line(tmp_path, *GROWING[case])
    assert (line.line, line.strength) == (marked, GROWS), line


PLACES = {
    "global": ("kept", "kept = {new}\ndef add(x):\n    global kept\n    {statement}  #!\n"),
    "loop": ("kept", "kept = {new}\nfor x in xs:\n    {statement}  #!\n"),
    "attribute": (
        ".kept",
        "class A:\n    def __init__(self):\n        self.kept = {new}\n    def add(self, x):\n        {statement}  #!\n",
    ),
    "class": (
        ".kept",
        "class A:\n    kept = {new}\n    @classmethod\n    def add(self, x):\n        {statement}  #!\n",
    ),
    "closure": (
        "kept",
        "def f():\n    kept = {new}\n    def add(x):\n        nonlocal kept\n        {statement}  #!\n    return add\n",
    ),
    "generator": ("kept", "def f():\n    kept = {new}\n    while True:\n        x = yield\n        {statement}  #!\n"),
    "entry": (".kept", "state = {{'kept': {new}}}\nfor x in xs:\n    {statement}  #!\n"),
}  # fmt: skip
OWNERS = {"attribute": "self.kept", "class": "self.kept", "entry": 'state["kept"]'}
STATEMENTS = {
    "[]": [
        "K.append(x)", "K += [x]", "K.extend([x])", "K.insert(0, x)", "K[len(K):] = [x]", "K = K + [x]",
        "K = [*K, x]", "K = [old for old in (*K, x)]", "heapq.heappush(K, x)", "any(K.append(y) for y in x)",
    ],
    "{}": [
        "K[x.step] = x", "K.setdefault(x.step, x)", "K.setdefault(x.step, []).append(x)", "K.update({1: x})",
        "K |= {1: x}", "K = {**K, 1: x}", "K = K | {1: x}", "K[f'key{x}'] = x",
    ],
    "()": ["K += (x,)", "K = (x, K)"],
    "set()": ["K.add(x)", "K |= {x}", "K = K.union([x])"],
    "deque()": ["K.appendleft(x)", "K.extend((x,))"],
    "Queue()": ["K.put(x)", "K.put_nowait(x)"],
    "''": ["K += x", "K = ''.join([K, x])", "K = f'{K}{x}'"],
    "zeros(0)": ["K = torch.cat([K, x])", "K = numpy.append(K, x)"],
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("new", "statement"), [(new, item) for new, items in STATEMENTS.items() for item in items]
)
def test_it_finds_each_statement_in_each_place(new, statement, place, tmp_path):
    name, source = PLACES[place]
    # other quotes than those of a statement, for f-strings before Python 3.12
    text = re.sub(r"\bK\b", OWNERS.get(place, "kept"), statement)
    line, marked = growth_and_line(tmp_path, name, source.format(new=new, statement=text))
    assert (line.line, line.strength) == (marked, GROWS), line


@pytest.mark.parametrize("case", WEAKER)
def test_an_uncertain_line_has_a_lower_confidence(case, tmp_path):
    name, strength, source = WEAKER[case]
    line, marked = growth_and_line(tmp_path, name, source)
    assert (line.line, line.strength) == (marked, strength), line


@pytest.mark.parametrize(
    "source",
    [
        *("kept = []\n", "other.append(1)\n", "print(kept)\n", "save(kept, f)\n", "def broken(:\n"),
        *('print("n", kept)\n', 'print("loss", kept[-1])\n', "print(1, sep=kept)\n"),
        *("raise kept()\n", "raise ValueError(kept)\n"),
        *('np.save("x.npy", kept)\n', 'np.save(f"{n}.npy", kept)\n', "dump(x, indent=kept)\n"),
        "np.save(path, kept)\n",
    ],
)
def test_it_names_no_line_without_growth(source, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(source)
    assert growing_lines([SourceScope(str(path))], ["kept"]) == []


def test_it_searches_the_given_scope_first(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("def a(kept):\n    kept.append(1)\n\n\ndef b(kept):\n    kept.append(2)\n")
    whole = SourceScope(str(path))
    assert growing_lines([SourceScope(str(path), 5), whole], ["kept"])[0].line == 6
    assert growing_lines([SourceScope(str(path), name="a"), whole], ["kept"])[0].line == 2


def test_a_collection_grows_where_its_class_adds_to_itself(tmp_path):
    path = tmp_path / "bank.py"
    path.write_text(
        "class Bank(UserDict):\n    def put(self, key, x):\n        self.count += 1\n"
        "        self[key] = x\n        super().update(x)\n"
    )
    lines = lines_adding_to_self(SourceScope(str(path), name="Bank"))
    assert [line.line for line in lines] == [4, 5]


def test_text_becomes_longer_if_its_variable_lasts(tmp_path):
    path = tmp_path / "text.py"
    path.write_text(
        "def paste(words):\n    text = ''\n    for word in words:\n        text += word\n"
        "def log(self, word):\n    self.text += word\n    self.last = word\n"
    )
    assert [lengthens(str(path), line, functions=()) for line in (4, 6, 7)] == [False, True, False]
    assert lengthens(str(path), 4, functions={1})


def test_the_lines_of_a_name_are_known_until_the_cache_is_cleared(tmp_path):
    file = tmp_path / "train.py"

    def line_in(source: str) -> int:
        file.write_text(source)
        linecache.checkcache(str(file))
        return growing_lines([SourceScope(str(file))], ["rows"])[0].line

    assert line_in("rows = []\nrows.append(1)\n") == 2
    assert line_in("\nrows = []\nrows.append(1)\n") == 2
    syntax.clear_cache()
    assert line_in("\nrows = []\nrows.append(1)\n") == 3
