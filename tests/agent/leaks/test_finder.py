"""The finder: when it starts a diagnosis, its cost, and that it leaves nothing behind."""

from __future__ import annotations

import atexit
import colorsys
import gc
import hashlib
import inspect
import itertools
import json
import math
import subprocess
import sys
import tracemalloc
import types
import weakref

import pytest
import torch

from memagent.leaks import WINDOW_STEPS, Budget, Finder, find, fix_for, group_suspects, syntax
from memagent.leaks.confirmation import CONFIRMING_STEPS
from memagent.leaks.detectors.base import Detector
from memagent.leaks.diagnosis import MAX_SEARCH_CPU_S
from memagent.leaks.object_names import ObjectName
from memagent.leaks.referrers import HolderPath
from memagent.leaks.suspect import KINDS, build_suspect
from memagent.leaks.time_budgets import TimeBudget


@pytest.fixture(autouse=True)
def small_world(monkeypatch):
    """Exclude objects of other tests, and let no result depend on the machine's speed.

    A test of a limit sets its own, with a clock of its own.
    """
    for limit in (
        "finder_state.ALLOWANCE_S",
        "finder.MAX_SEARCH_CPU_S",
        "finder.MAX_END_S",
        "referrers._MAX_SAMPLE_S",
    ):
        monkeypatch.setattr(f"memagent.leaks.{limit}", math.inf)
    gc.collect()
    gc.freeze()


class Keeper:
    def __init__(self):
        self.tensors = []

    def step(self):
        self.tensors.append(torch.zeros(64))


@pytest.fixture
def hidden(monkeypatch):
    """A keeper that no variable of the script leads to: only its referrers do."""
    monkeypatch.setattr("memagent.leaks.referrer_levels._MIN_PASSES", 1)
    colorsys.keeper = Keeper()
    yield
    colorsys.__dict__.pop("keeper", None)


def test_find_names_the_attribute_and_its_line():
    keeper = Keeper()
    (suspect,) = find(keeper.step).suspects
    assert (suspect.holder.partition(":")[0], suspect.kind) == ("Keeper.tensors", "list")
    assert (
        suspect.file == __file__
        and suspect.function == "Keeper.step"
        and suspect.bytes_per_step == 256
    )
    assert suspect.line == Keeper.step.__code__.co_firstlineno + 1


def test_it_runs_no_code_of_modules(monkeypatch):
    requested = []
    module = types.ModuleType("lazy")
    module.__getattr__ = requested.append
    monkeypatch.setitem(sys.modules, "lazy", module)
    assert find(Keeper().step).suspects
    assert requested == []


@pytest.mark.parametrize("steps_before", [1, 4, 7, 10, 13])
def test_a_graph_that_is_cut_every_few_steps_does_not_leak(steps_before):
    cell = torch.nn.RNNCell(4, 8)
    state, steps = torch.zeros(2, 8), steps_before

    def step():
        nonlocal state, steps
        state = cell(torch.randn(2, 4), state)
        steps += 1
        if steps % 16 == 0:
            state.mean().backward()
            state = state.detach()

    for _ in range(steps_before):
        step()
    assert find(step).suspects == ()


def test_it_returns_a_false_diagnosis_if_nothing_grows():
    diagnosis = find(lambda: torch.zeros(64))
    assert (
        not diagnosis and diagnosis.suspects == () and diagnosis.step - diagnosis.first_step == 20
    )


def test_find_requires_enough_steps():
    with pytest.raises(ValueError, match="at least 4"):
        find(lambda: None, steps=3)


def test_it_reports_a_tensor_retained_every_seventh_step():
    retained, steps = [], iter(range(1000))

    def step():
        if next(steps) % 7 == 0:
            retained.append(torch.zeros(8))

    (suspect,) = find(step, steps=40).suspects
    assert suspect.holder.startswith("retained: list of")


def test_it_leaves_no_references_behind():
    keeper = Keeper()
    watched = torch.zeros(128)
    keeper.tensors.append(watched)
    before = sys.getrefcount(watched), sys.getrefcount(keeper.tensors), sys.getrefcount(keeper)
    finder = Finder(max_slice_s=math.inf)
    finder.request()
    for step in range(1, 30):
        keeper.step()
        finder.after_step(step)
    assert finder.suspects
    assert (
        sys.getrefcount(watched),
        sys.getrefcount(keeper.tensors),
        sys.getrefcount(keeper),
    ) == before
    references = [weakref.ref(tensor) for tensor in keeper.tensors]
    del watched, keeper
    assert not any(reference() is not None for reference in references)
    assert syntax.syntax_tree.cache_info().currsize == 0


def test_the_finder_does_not_extend_the_life_of_local_variables():
    """Before Python 3.13 a look at a frame's variables leaves a copy of them in the frame."""
    finder = Finder(max_slice_s=math.inf)
    finder.request()
    retained, reference = [], None
    for step in range(1, 30):
        passing = torch.zeros(16)
        retained.append(torch.zeros(8))
        finder.after_step(step)
        reference = weakref.ref(passing)
        del passing
        assert reference() is None, step
    assert finder.suspects


def test_it_searches_only_on_request():
    finder = Finder(max_slice_s=math.inf)
    for step in range(1, 50):
        assert finder.after_step(step) is None
    assert finder.budget.spent_s == 0 and not finder.is_busy


def test_another_diagnosis_waits_until_the_first_is_within_the_share_of_the_run():
    now = 0.0
    finder = Finder(clock=lambda: now, window=5, budget=Budget())
    finder.request()
    step = run_until_done(finder)
    first = finder.diagnosis
    assert first is not None and finder.budget.spent_s > 0
    finder.request()
    for later in range(step + 1, step + 11):
        finder.after_step(later)
    assert finder.diagnosis is first and finder.state == "requested"
    now = 201 * finder.budget.spent_s
    run_until_done(finder, step + 11)
    assert finder.diagnosis is not first


def run_until_done(finder, step=1, train_step=lambda: None):
    """Make steps until there is a new diagnosis, and return the last one."""
    while True:
        train_step()
        if finder.after_step(step) is not None:
            return step
        step += 1


def test_the_budget_is_a_share_of_the_time():
    budget = Budget(share=0.005)
    assert budget.allows(0.0)
    budget.spend(0.5)
    assert not budget.allows(99.0) and budget.allows(100.0)
    assert not budget.allows(49.0, 0.25) and budget.allows(50.0, 0.25)
    assert Budget(allowance_s=0.5, spent_s=0.5).allows(0.0)


class ThreadClock:
    """Processor time that passes by `tick_s` at each look, whatever the host does."""

    def __init__(self, tick_s):
        self.tick_s = tick_s
        self.now_s = 0.0

    def __call__(self):
        self.now_s += self.tick_s
        return self.now_s


def test_the_search_is_cut_into_slices_between_steps(hidden):
    clock = ThreadClock(0.011)
    finder = Finder(thread_clock=clock, window=5)
    finder.request()
    states = []
    for step in range(1, 40):
        colorsys.keeper.step()
        finder.after_step(step)
        states.append(finder.state)
        if finder.diagnosis is not None:
            break
    assert states[:7] == [*6 * ["counting"], "searching"] and states[-1] == "done"
    assert states.count("searching") >= 2
    assert finder.suspects[0].holder.startswith("Keeper.tensors")
    assert (finder.diagnosis.first_step, finder.diagnosis.step) == (2, 7)


def test_a_holder_among_a_hundred_thousand_objects_of_the_script_is_named():
    """In a long list, and in one of the objects that it holds."""
    rows = [{"row": [number]} for number in range(100_000)]
    owner = Keeper()
    rows.insert(500, owner)

    def step():
        rows.append(torch.zeros(8))
        owner.tensors.append(torch.zeros(8, 8))

    holders = {suspect.holder.partition(":")[0] for suspect in find(step).suspects}
    assert holders == {"rows", "Keeper.tensors"}


MANY_OBJECTS = """
import gc, time, torch
from memagent.leaks.finder import Finder
from memagent.leaks.time_budgets import Budget

class Keeper:
    tensors = []
    def step(self):
        self.tensors.append(torch.zeros(64, 64))

ballast = [{"row": [number]} for number in range(400_000)]
gc.collect()  # so that none is due in a step
began_s = time.thread_time()
set(map(type, gc.get_objects()))
pass_s = time.thread_time() - began_s
keeper, finder, costs_s = Keeper(), Finder(budget=Budget(allowance_s=600.0)), []
finder.request()
while finder.diagnosis is None:
    keeper.step()
    began_s = time.thread_time()
    finder.after_step(len(costs_s) + 1)
    costs_s.append(time.thread_time() - began_s)
print(finder.suspects[0].holder.partition(":")[0], max(costs_s) / pass_s)
"""


def test_no_step_pays_for_a_pass_over_all_objects(fork_server, tmp_path):
    """In processor time of the training thread, and in a process that has no other objects."""
    script = tmp_path / "train.py"
    script.write_text(MANY_OBJECTS)
    done = fork_server.run(str(script))
    holder, passes = done.stdout.split()
    assert holder == "Keeper.tensors", done.stderr
    assert float(passes) < 1.5  # as it took 3 of them


def test_a_host_that_gives_no_processor_time_makes_a_diagnosis_later_and_not_shorter():
    """Hours on the wall pass between two looks at the clock: they are no work."""
    keeper, wall = Keeper(), ThreadClock(3600.0)
    finder = Finder(clock=wall, thread_clock=ThreadClock(0.015))
    finder.request()
    run_until_done(finder, train_step=keeper.step)
    assert finder.suspects[0].holder.startswith("Keeper.tensors")
    assert not finder.diagnosis.is_cut_short


def test_a_search_far_ahead_of_its_share_waits(monkeypatch):
    keeper, clock = Keeper(), ThreadClock(0.0)
    now = 0.0
    monkeypatch.setattr("memagent.leaks.finder.MAX_ADVANCE_S", 0.0)
    finder = Finder(clock=lambda: now, thread_clock=clock, budget=Budget())
    finder.request()
    for step in range(1, 60):
        keeper.step()
        clock.tick_s = 0.015 if finder.observed_steps >= WINDOW_STEPS - 1 else 0.0  # the search
        finder.after_step(step)
    spent_s = finder.budget.spent_s
    assert finder.state == "searching" and finder.diagnosis is None
    now = 10_000.0 * spent_s
    run_until_done(finder, 60, keeper.step)
    assert finder.suspects and finder.budget.spent_s > spent_s


def test_nothing_is_kept_alive_between_slices(hidden):
    """The holder and its tensors are freed in the middle of a search, which ends without them."""
    finder = Finder(max_slice_s=0.0, window=5)
    finder.request()
    step = 0
    while finder.state != "searching":
        step += 1
        colorsys.keeper.step()
        finder.after_step(step)
    finder.after_step(step + 1)
    assert finder.state == "searching"
    references = [weakref.ref(tensor) for tensor in colorsys.keeper.tensors]
    reference = weakref.ref(colorsys.keeper)
    del colorsys.keeper
    assert reference() is None and not any(tensor() is not None for tensor in references)
    run_until_done(finder, step + 2)
    assert finder.suspects == ()


@pytest.mark.long  # beside a busy thread, in a worker with 800,000 objects
def test_no_tuple_of_another_thread_fails(hidden, tuple_builder):
    """It builds tuples of the tensors whose referrers a search asks for."""
    colorsys.keeper.step()
    errors = tuple_builder(colorsys.keeper.tensors)
    for slice_s in (0.0, math.inf):
        finder = Finder(max_slice_s=slice_s, window=5)
        finder.request(beyond_budget=True)
        run_until_done(finder, train_step=lambda: colorsys.keeper.step())
        assert finder.suspects[0].holder.startswith("Keeper.tensors")
    assert errors == []


def test_a_tuple_that_no_variable_leads_to_is_named(hidden):
    """Also if a search pauses between all passes: it finds the tuple by what refers to it."""
    vars(colorsys.keeper).update(tensors=())  # no assignment: the source would have a limit

    def step():
        colorsys.keeper.tensors = (*colorsys.keeper.tensors, torch.zeros(64))

    for slice_s in (math.inf, 0.0):
        finder = Finder(max_slice_s=slice_s, window=5)
        finder.request()
        run_until_done(finder, train_step=step)
        assert finder.suspects[0].holder.startswith("Keeper.tensors: tuple"), slice_s


def test_a_list_that_is_replaced_between_slices_is_not_taken_for_the_first(hidden):
    finder = Finder(max_slice_s=0.0, window=5)
    finder.request()
    step = 0
    while finder.state != "searching":
        step += 1
        colorsys.keeper.step()
        finder.after_step(step)
    vars(colorsys.keeper).update(tensors=[torch.zeros(64) for _ in range(8)])
    run_until_done(finder, step + 1)
    assert finder.suspects == ()


def test_a_run_that_ends_within_the_window_is_diagnosed_by_its_steps_so_far():
    keeper, finder = Keeper(), Finder(max_slice_s=math.inf)
    finder.request()
    for step in range(1, 12):
        keeper.step()
        finder.after_step(step)
    diagnosis = finder.conclude()
    assert diagnosis and diagnosis.suspects[0].holder.startswith("Keeper.tensors")
    assert Finder().conclude() is None


ENGINES = weakref.WeakSet()


class Engine:
    """Its handlers refer to it, so only the collector frees it."""

    def __init__(self):
        self.output, self.callbacks = torch.zeros(64), []
        ENGINES.add(self)

    def on_completed(self, handler):
        self.callbacks.append((handler, self))


def test_cycles_are_a_leak_if_the_script_has_switched_the_collector_off():
    finder, steps = Finder(), itertools.count(1)
    finder.request()
    gc.disable()
    try:
        run_until_done(finder, train_step=lambda: Engine().on_completed(next(steps)))
        assert len(ENGINES) == next(steps) - 1  # none was freed by the search
    finally:
        gc.enable()
        gc.collect()
    (suspect,) = finder.suspects
    assert suspect.holder == "Engine.callbacks: reference cycle"
    assert suspect.line == Engine.on_completed.__code__.co_firstlineno + 1
    assert "switched the collector off" in suspect.fix


class Document:
    def __init__(self):
        self.pages = {}
        atexit.register(self.close)

    def add(self, number):
        self.pages[number] = torch.zeros(64)

    def close(self):
        self.pages.clear()


@pytest.mark.parametrize("has_newest", [False, True])
def test_a_function_that_code_in_c_keeps_is_named_by_the_call_that_gets_it(has_newest, monkeypatch):
    """A variable that leads to the newest object keeps few of the tensors."""
    name = ObjectName("Document.pages", (".pages",), __file__, "Document", owner=Document)
    newest = HolderPath({}, 0.05, name, (), ())
    if has_newest:
        monkeypatch.setattr(group_suspects, "holders_from_variables", lambda *_: [newest])
    documents, finder = weakref.WeakSet(), Finder()
    finder.request()

    def train_step():
        document = Document()
        document.add(1)
        documents.add(document)

    try:
        run_until_done(finder, train_step=train_step)
    finally:
        for document in documents:
            atexit.unregister(document.close)
    (suspect,) = finder.suspects
    assert suspect.holder == "atexit.register(self.close): functions"
    assert suspect.line == Document.__init__.__code__.co_firstlineno + 2
    assert "`atexit.register`" in suspect.fix


class Writer:
    def __init__(self, flushed_every):
        self.flushed_every = flushed_every
        self.rows = []
        self.calls = 0

    def step(self):
        self.calls += 1
        self.rows.append(torch.zeros(64))
        if self.calls % self.flushed_every == 0:
            self.rows = []


def test_a_buffer_that_is_flushed_after_the_window_is_no_suspect():
    finder = Finder(max_slice_s=60.0)
    finder.request()
    step = run_until_done(finder, train_step=Writer(33).step)
    assert finder.suspects == () and step > 100


def test_a_buffer_that_is_never_flushed_is_named_after_a_longer_window():
    finder = Finder(max_slice_s=60.0)
    finder.request()
    run_until_done(finder, train_step=Writer(math.inf).step)
    assert finder.suspects[0].holder.startswith("Writer.rows")
    assert finder.diagnosis.step - finder.diagnosis.first_step == CONFIRMING_STEPS


@pytest.mark.parametrize(("flushed_every", "is_named"), [(150, False), (math.inf, True)])
def test_what_was_withdrawn_returns_only_if_it_grows_beyond_that(flushed_every, is_named):
    finder, writer = Finder(max_slice_s=60.0), Writer(flushed_every)
    finder.request()
    step = run_until_done(finder, train_step=writer.step)
    assert finder.suspects[0].holder.startswith("Writer.rows")
    while writer.calls < flushed_every < math.inf:
        writer.step()
    while (stopped := finder.withdraw_stopped(step + 60)) is None:
        pass
    assert stopped and not finder.suspects
    for _ in range(60 if is_named else 0):  # it was a pause
        writer.step()
    finder.request(beyond_budget=True)
    run_until_done(finder, step + 61, writer.step)
    assert bool(finder.suspects) == is_named


def test_what_was_withdrawn_stays_so_beside_another_leak():
    finder, writer, others = Finder(max_slice_s=60.0), Writer(150), []

    def train_step():
        writer.step()
        others.append(torch.zeros(3, 1000))

    finder.request()
    step = run_until_done(finder, train_step=writer.step)
    while writer.calls < 150:
        writer.step()
    while (stopped := finder.withdraw_stopped(step + 60)) is None:
        pass
    assert stopped
    finder.request(beyond_budget=True)
    run_until_done(finder, step + 61, train_step)
    assert finder.suspects
    assert not [item for item in finder.suspects if item.holder.startswith("Writer.rows")]


def test_a_run_that_ends_before_a_suspect_is_confirmed_names_it():
    finder, writer = Finder(max_slice_s=60.0), Writer(math.inf)
    finder.request()
    for step in range(1, 60):
        writer.step()
        assert finder.after_step(step) is None
    assert finder.conclude().suspects[0].holder.startswith("Writer.rows")


def test_a_run_that_ends_after_a_buffer_was_flushed_names_nobody():
    finder, writer = Finder(max_slice_s=60.0), Writer(33)
    finder.request()
    for step in range(1, 60):
        writer.step()
        finder.after_step(step)
    assert finder.is_running and finder.conclude().suspects == ()


def test_a_run_that_ends_well_is_less_sure_of_a_suspect_that_may_stop_growing():
    finder, writer, step = Finder(max_slice_s=0.0), Writer(math.inf), 0
    finder.request()
    while finder.state != "searching":
        step += 1
        writer.step()
        finder.after_step(step)
    [suspect] = finder.conclude_search().suspects
    assert suspect.holder.startswith("Writer.rows") and suspect.confidence < 0.5
    assert not finder.is_busy


@pytest.mark.parametrize(("steps", "is_named"), [(10, False), (60, True)])
def test_a_long_window_that_the_end_cuts_off_names_what_it_knows(steps, is_named):
    finder, keeper = Finder(max_slice_s=0.0), Keeper()
    finder.request(window=160)
    for step in range(1, 3 + steps):
        keeper.step()
        finder.after_step(step)
    diagnosis = finder.conclude_search()
    assert bool(diagnosis) == is_named
    assert all(item.confidence < 0.5 for item in finder.suspects)


def test_a_suspect_whose_longer_window_has_just_begun_is_named_less_surely_at_the_end():
    finder, writer = Finder(max_slice_s=60.0), Writer(math.inf)
    finder.request()
    for step in range(1, 40):
        writer.step()
        finder.after_step(step)
    assert finder.is_running and finder.observed_steps < 40
    [suspect] = finder.conclude_search().suspects
    assert suspect.holder.startswith("Writer.rows") and suspect.confidence < 0.5


def test_hooks_that_a_parameter_collects_are_no_state_of_its_optimizer():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([weight])

    def step():
        scale = torch.ones(64, dtype=torch.float64)
        weight.register_hook(lambda gradient: gradient * scale.sum())
        weight.sum().backward()
        optimizer.step()

    [suspect] = find(step).suspects
    assert suspect.kind == "hook" and "._backward_hooks: " in suspect.holder
    line = inspect.getsourcelines(step)[1] + 2
    assert (suspect.file, suspect.line) == (__file__, line)


class Average:
    value = 0.0

    def update(self, x):
        self.value = 0.9 * self.value + 0.1 * x


def test_what_a_graph_grows_by_is_named_rather_than_what_holds_its_newest_value():
    average, newest, weight = Average(), {}, torch.ones(4, requires_grad=True)

    def step():
        average.update(weight.sum())
        newest["loss"] = average.value

    [suspect] = find(step).suspects
    assert suspect.holder.startswith("Average.value: graph of")


@pytest.mark.parametrize(("steps", "is_named"), [(10, False), (18, True)])
def test_a_window_that_is_nearly_over_is_searched_when_the_run_ends_well(steps, is_named):
    finder, keeper = Finder(), Keeper()
    finder.request()
    for step in range(1, 3 + steps):
        keeper.step()
        finder.after_step(step)
    assert finder.state == "counting"
    assert bool(finder.conclude_search()) == bool(finder.suspects) == is_named


@pytest.mark.parametrize(("limit", "is_named"), [(math.inf, True), (30, False)])
def test_an_unsure_suspect_is_named_at_the_end_if_it_went_on_growing(limit, is_named):
    """Up to the middle of the longer window; by now the function's variables are gone."""
    finder, writer = Finder(max_slice_s=60.0), Writer(math.inf)
    finder.request()
    for step in range(1, 78):
        if step < limit:
            writer.step()
        finder.after_step(step)
    assert finder.is_running and finder.observed_steps > 40
    writer.rows.clear()
    finder.conclude_search()
    assert bool(finder.suspects) == is_named


@pytest.mark.parametrize("growth", [0, 300_000])
def test_a_growing_list_of_native_memory_is_named_if_memory_grows(growth):
    """Python doesn't see what such an object keeps, as with the pixels of an image."""
    kept, used = [], itertools.count(0, growth)
    finder = Finder(used_bytes=lambda: next(used))
    finder.request(host=True)
    run_until_done(finder, train_step=lambda: kept.append(hashlib.sha256()))
    names = [item.holder.partition(":")[0] for item in finder.suspects]
    assert names == (["kept"] if growth else [])


@pytest.mark.parametrize(("later_bytes", "told"), [(200_000, None), (2_000_000, 50_000)])
def test_native_growth_is_told_if_memory_goes_on_growing(monkeypatch, later_bytes, told):
    module = "memagent.leaks.detectors.host_memory"
    monkeypatch.setattr(f"{module}.untraced_growth", lambda *_: 50_000)
    used = [10**6]
    finder = Finder(host_bytes=lambda: used[0])
    finder.request(host=True)
    run_until_done(finder, train_step=lambda: None)
    used[0] += later_bytes
    assert finder.native_rate(finder.diagnosis.step + 40) == told


def test_a_shortened_diagnosis_has_less_confidence(monkeypatch):
    small, large, clock = [], [], ThreadClock(0.0)

    def step():
        small.append(torch.zeros(4, 4))
        large.append(torch.zeros(4096))
        clock.tick_s = 0.01 if finder.observed_steps >= 4 else 0.0  # while it searches

    finder = Finder(thread_clock=clock, window=5)
    whole = find(step)
    monkeypatch.setattr("memagent.leaks.finder.MAX_SEARCH_CPU_S", 0.04)
    finder.request()
    run_until_done(finder, train_step=step)
    cut = finder.diagnosis
    assert (len(whole.suspects), whole.is_cut_short) == (2, False)
    assert [one.holder.partition(":")[0] for one in cut.suspects] == ["large"] and cut.is_cut_short
    assert cut.suspects[0].confidence < whole.suspects[0].confidence


def test_a_search_has_time_however_long_its_readings_took():
    """Beside tracemalloc those of a million objects take longer than the limit of a search."""
    kept, clock = [], ThreadClock(0.0)

    def used_bytes():
        clock.now_s += 10 * MAX_SEARCH_CPU_S

    finder = Finder(used_bytes=used_bytes, thread_clock=clock, window=5)
    finder.request(host=True)
    run_until_done(finder, train_step=lambda: kept.append(torch.zeros(4096)))
    assert finder.suspects[0].holder.startswith("kept") and not finder.diagnosis.is_cut_short


def test_a_time_budget_counts_its_slices_and_not_the_training_between_them():
    clock = ThreadClock(0.0)
    budget = TimeBudget(1.0, clock)
    for _ in range(3):
        budget.begin_slice(0.5)
        assert not budget.is_slice_over()
        clock.now_s += 0.5
        assert budget.is_slice_over()
        budget.end_slice()
        clock.now_s += 3600
    assert budget.used_s() == pytest.approx(1.5) and budget.is_over() and budget.was_hit


def test_the_end_of_a_run_concludes_a_search_at_once(hidden):
    finder = Finder(max_slice_s=0.0, window=5)
    finder.request()
    step = 0
    while finder.state != "searching":
        step += 1
        colorsys.keeper.step()
        finder.after_step(step)
    assert finder.conclude().suspects[0].holder.startswith("Keeper.tensors")


def test_a_request_may_go_beyond_the_budget():
    finder = Finder(clock=lambda: 0.0, window=5, budget=Budget())
    finder.budget.spend(10.0)
    finder.request()
    finder.after_step(1)
    assert finder.is_busy and not finder.is_running
    finder.request(beyond_budget=True)
    finder.after_step(2)
    assert finder.is_running
    finder.close()


def test_it_reports_growth_of_memory_in_use_next_to_the_tensors():
    used = iter((1_000, 41_000))
    finder = Finder(used_bytes=lambda: next(used), max_slice_s=math.inf)
    finder.request()
    retained = []
    for step in range(1, 22):
        retained.append(torch.zeros(64))
        finder.after_step(step)
    assert finder.diagnosis.growth_bytes_per_step == 2_000
    assert finder.suspects[0].bytes_per_step == 256


def test_it_switches_everything_off_after_an_error(monkeypatch):
    finder = Finder(window=6)
    finder.request(host=True)
    for step in range(1, 7):  # what a step takes without a trace is known after the first five
        assert not tracemalloc.is_tracing()
        finder.after_step(step)
    finder.after_step(7)
    assert tracemalloc.is_tracing()
    monkeypatch.setattr(Detector, "middle", lambda self, step: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        for step in range(8, 14):
            finder.after_step(step)
    assert not tracemalloc.is_tracing() and not finder.is_busy


HOST_LEAK = """
import json, tracemalloc
from memagent.leaks import find

kept = []
def step():
    kept.append(bytearray(50_000))

diagnosis = find(step, host=True)
found = [suspect.to_dict() for suspect in diagnosis.suspects]
stacks = [{"stack": held.stack, "bytes": held.size_bytes, "blocks": held.blocks} for held in diagnosis.grown]
print(json.dumps({"suspects": found, "method": diagnosis.method, "stacks": stacks, "traces": tracemalloc.is_tracing()}))
"""


def test_host_memory_is_traced_on_demand(tmp_path):
    """Run in another process: tracemalloc records the allocations of all threads and tests."""
    script = tmp_path / "train.py"
    script.write_text(HOST_LEAK)
    printed = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, check=True
    ).stdout
    output = json.loads(printed)
    [suspect] = output["suspects"]
    assert (
        suspect["kind"] == "host"
        and suspect["file"] == str(script)
        and suspect["holder"].startswith("kept: list of")
    )
    assert 45_000 < suspect["bytes_per_step"] < 60_000 and not output["traces"]
    largest = output["stacks"][0]
    assert output["method"] == "host" and largest["stack"][-1] == [str(script), 7, ""]
    assert largest["blocks"] >= 8 and largest["bytes"] >= 50_000 * 8


def test_it_leaves_the_garbage_collector_unchanged():
    gc.disable()
    try:
        find(lambda: torch.zeros(4))
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_fix(kind):
    assert fix_for(kind).endswith(".")
    assert build_suspect("train.py", 1, "f", "x: list", kind, 1, 1.0).fix == fix_for(kind)


@pytest.mark.parametrize("has_backward", [True, False])
def test_the_rate_counts_what_the_graphs_of_outputs_save(has_backward):
    """Without a backward that frees them, an input, the activations behind the ReLU and the output stay each step."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16))
    outputs = []

    def step():
        outputs.append(model(torch.randn(32, 64)))
        if has_backward:
            model.zero_grad()
            outputs[-1].pow(2).mean().backward()

    [suspect] = find(step).suspects
    expected = 32 * 16 * 4 if has_backward else 32 * (64 + 512 + 16) * 4
    assert suspect.kind == "list" and suspect.bytes_per_step == pytest.approx(expected, rel=0.1)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient + 0 * ctx.saved_tensors[0]


@pytest.mark.parametrize(("is_freed", "expected"), [(True, 4 * 64), (False, 2 * 4 * 64)])
def test_tensors_saved_by_a_custom_function_count_until_they_are_freed(is_freed, expected):
    weight, outputs = torch.ones(64, requires_grad=True), []

    def step():
        output = Doubled.apply(weight + 1)
        weight.grad = None
        if is_freed:
            output.sum().backward()
        outputs.append(output)

    assert find(step).suspects[0].bytes_per_step == pytest.approx(expected, rel=0.1)
