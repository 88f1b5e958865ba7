"""The leak monitor: a growing run names its line in the terminal, the report and the server."""

from __future__ import annotations

import ctypes
import inspect
import math
import pickle
import re
import sys
import time
import zlib
from collections import deque
from dataclasses import replace

import pytest
import torch

import memagent
from memagent.diagnostics import display_path
from memagent.forecast import Forecast
from memagent.leaks.confirmation import HostGrowthCheck
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector
from memagent.leaks.monitor import METHODS_ADVANCE_S
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.triggers import (
    FIRST_CHECK_STEPS,
    HOST_METHODS,
    LONG_WINDOW_STEPS,
    MIDDLE_WINDOW_STEPS,
)
from memagent.leaks.variable_walk import VariableWalk
from memagent.wire.messages import BatchReply, Command, Suspect


class Trainer:
    """Trains for real, and keeps each output where `leaks`."""

    def __init__(self, *, leaks: bool) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.history: list[torch.Tensor] = []
        self.leaks = leaks

    def train(self, steps: int) -> None:
        for _ in range(steps):
            output = self.model(torch.randn(256, 64))
            output.pow(2).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.leaks:
                self.history.append(output)


LINE = inspect.getsourcelines(Trainer.train)[1] + 7


@pytest.fixture
def watched(monkeypatch):
    """watched(leaks): a trainer and its run, which ends with the test."""
    limits = ("leaks.finder.MAX_SEARCH_CPU_S", "leaks.finder.MAX_END_S", "leaks.referrers._MAX_SAMPLE_S",
              "probe.heap.MAX_READING_S", "probe.heap.MAX_READINGS_S")  # fmt: skip
    for limit in limits:
        monkeypatch.setattr(
            f"memagent.{limit}", 60.0
        )  # what other tests have left here to look through decides neither
    runs = []

    def watched(*, leaks: bool):
        trainer = Trainer(leaks=leaks)
        runs.append(
            memagent.attach(trainer.model, trainer.optimizer, predict=False, limit_bytes="64GiB")
        )
        # what other tests have left here to look through decides no step
        finder = runs[-1]._pipeline.leaks._finder
        finder.max_slice_s = math.inf
        finder.budget.allowance_s = 60.0
        return trainer, runs[-1]

    yield watched
    for run in runs:
        run.finish()


def leaking(suspects):
    [suspect] = suspects
    return suspect["file"], suspect["line"], suspect["kind"], suspect["holder"].partition(":")[0]


EXPECTED = (__file__, LINE, "list", "Trainer.history")


def test_the_forecaster_learns_where_a_buffer_ends(watched, recording):
    trainer, run = watched(leaks=True)
    # not as an assignment, which the finder would read as a limit in the other tests
    vars(trainer).update(history=deque(maxlen=10_000))
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
    trainer.train(25)
    run.finish()
    hints = [event.data for event in recording().events if event.kind == "hints"][-1]
    assert hints["grows"] == {"host": "buffer"}
    output_bytes = 256 * 64 * 4
    assert 9_000 * output_bytes < hints["growth_end_bytes"]["host"] < 64 * 2**30


@pytest.mark.parametrize("cause", ["leak", "host_memory"])
def test_a_forecast_of_growth_names_the_line(watched, recording, capfd, cause):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause=cause))
    trainer.train(25)
    assert EXPECTED in [leaking([suspect]) for suspect in run.report()["suspects"]]
    run.finish()
    hints = [event.data for event in recording().events if event.kind == "hints"]
    assert hints[-1]["grows"] == {"host": "list"}
    [snapshot] = recording().snapshots
    [sent] = snapshot.suspects
    assert (sent.line, snapshot.why) == (LINE, f"forecast at step 5: {cause}")
    assert sent.source[sent.line - sent.source_first_line].strip() == "self.history.append(output)"
    assert "ms" in snapshot.notes[0]
    file = display_path(__file__, run._pipeline.leaks.roots)
    assert (
        f"suspect: {file}:{LINE} in Trainer.train: Trainer.history: list of"
        in capfd.readouterr().err
    )


def test_no_source_is_sent_if_a_setting_says_so(monkeypatch, watched, recording):
    monkeypatch.setenv("MEMAGENT_SOURCE", "0")
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
    trainer.train(25)
    run.finish()
    [snapshot] = recording().snapshots
    assert snapshot.suspects and not any(item.source for item in snapshot.suspects)


@pytest.mark.parametrize(
    ("leaks", "end"),
    [
        (True, "Suspects were found in steps 6 to 26."),
        (False, "No suspect was found in steps 6 to 26. If memory still grows, another method"),
    ],
)
def test_events_say_what_a_diagnosis_does(watched, recording, monkeypatch, leaks, end):
    # what other tests have left here may grow: another diagnosis would follow at once
    monkeypatch.setattr("memagent.leaks.triggers.MIN_OTHER_BYTES_PER_STEP", 2**40)
    trainer, run = watched(leaks=leaks)
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
    trainer.train(25)
    run.finish()
    texts = [event.data["text"] for event in recording().events if event.kind == "diagnosis"]
    assert texts[0] == "Looking for what grows: steps 6 to 26." and texts[-1].startswith(end)


def test_events_of_a_diagnosis_name_the_same_steps(watched, recording):
    trainer, run = watched(leaks=True)
    search_until(run, trainer, "done")
    run.finish()
    texts = [event.data["text"] for event in recording().events if event.kind == "diagnosis"]
    assert {re.search(r"steps \d+ to \d+", text)[0] for text in texts[1:]} == {"steps 7 to 27"}


def test_an_event_says_that_a_diagnosis_was_given_up(watched, recording, monkeypatch):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
    trainer.train(2)
    monkeypatch.setattr("memagent.leaks.detectors.tensors.census.take", _no_memory)
    trainer.train(25)
    run.finish()
    events = [event.data for event in recording().events if event.kind == "diagnosis"]
    assert events[-1] == {
        "state": "idle",
        "text": "The leak diagnosis of steps 6 to 26 was given up: no memory was left for the "
        "diagnosis.",
    }


def search_until(run, trainer, state):
    """Train until the diagnosis is in this state, in slices of one pass."""
    run._pipeline.leaks._finder.max_slice_s = 0.0
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
    while run._pipeline.leaks._finder.state != state:
        trainer.train(1)


def test_a_search_under_way_is_finished_when_the_run_completes(watched, recording):
    trainer, run = watched(leaks=True)
    search_until(run, trainer, "searching")
    run.finish()
    assert leaking(run.report()["suspects"]) == EXPECTED
    assert [item.suspects[0].line for item in recording().snapshots] == [LINE]


def test_a_window_that_is_not_over_is_given_up_when_the_run_completes(watched):
    trainer, run = watched(leaks=True)
    search_until(run, trainer, "counting")
    trainer.train(10)
    run.finish()
    sentence = "No leak diagnosis was run: the run ended before it was over."
    assert (run.report()["suspects"], run.report()["suspect_search"]) == ([], sentence)


def test_causes_without_a_referrer_start_no_diagnosis(watched, recording):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="warning", cause="fragmentation"))
    trainer.train(25)
    run.finish()
    assert recording().snapshots == []


def test_the_server_can_request_a_diagnosis(watched, recording):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    command = Command(kind="snapshot", data={"why": "you leak"})
    run._pipeline.leaks.handle_reply(
        BatchReply(accepted=0, next_seq=1, commands=[command, Command(kind="dance")])
    )
    trainer.train(25)
    run.finish()
    [snapshot] = recording().snapshots
    assert (snapshot.why, snapshot.suspects[0].line) == ("you leak", LINE)


def test_a_script_gets_the_largest_tensors_at_once_and_suspects_later(watched, recording):
    largest = torch.zeros(2**24)  # larger than what other tests of this process have left behind
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run.snapshot("before I change anything")
    trainer.train(25)
    run.finish()
    now, later = recording().snapshots
    assert [snapshot.seq for snapshot in (now, later)] == [0, 1]
    assert now.tensors[0]["size_bytes"] == largest.nbytes and now.suspects == []
    assert later.suspects[0].line == LINE


def test_a_diagnosis_is_not_repeated_before_the_run_is_twice_as_long(watched, recording):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    for _ in range(30):
        run._pipeline.leaks.note_forecast(Forecast(step=run.step, level="warning", cause="leak"))
        trainer.train(1)
    assert len(recording_of(run, recording)) == 1


def recording_of(run, recording):
    run.finish()
    return recording().snapshots


def test_a_diagnosis_without_suspects_is_repeated_once(watched, recording):
    trainer, run = watched(leaks=False)
    trainer.train(5)
    run._pipeline.leaks.suspect("it creeps up")
    trainer.train(25)
    assert run.report()["suspects"] == []
    trainer.leaks = True
    run._pipeline.leaks.note_forecast(
        Forecast(step=run.step, level="warning", cause="leak")
    )  # too early: it would see the same steps
    trainer.train(25)
    run._pipeline.leaks._finder.budget.spend(3600.0)  # the one retry goes beyond it
    run._pipeline.leaks.note_forecast(Forecast(step=run.step, level="warning", cause="leak"))
    trainer.train(60)
    assert EXPECTED in [leaking([suspect]) for suspect in run.report()["suspects"]]


def test_each_method_is_tried_once_beyond_the_budget(watched, recording):
    """On a host: the usual window, one with traced allocations, a long one."""
    trainer, run = watched(leaks=False)
    trainer.train(5)
    lengths = []
    for _ in range(40):  # on a busy machine a diagnosis takes more steps than its window
        run._pipeline.leaks.note_forecast(Forecast(step=run.step, level="warning", cause="leak"))
        trainer.train(42)
        diagnosis = run._pipeline.leaks._finder.diagnosis
        lengths.append(diagnosis.step - diagnosis.first_step)
        if lengths[-1] == 160:
            break
    assert lengths[:2] == [20, 20] and lengths[-1] == 160
    assert len(recording_of(run, recording)) == 3


@pytest.fixture
def a_tracer():
    """Keep the heap from being read at each line, as beside a debugger."""
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    yield
    sys.settrace(before)


def growing_natively(trainer, until):
    """Let memory outside of Python grow with each step, until something holds."""
    allocate = ctypes.CDLL(None).malloc
    allocate.restype = ctypes.c_void_p
    blocks = []
    for _ in range(600):
        trainer.train(1)
        blocks.append(allocate(ctypes.c_size_t(2**16)))
        if until():
            break
    for block in blocks:
        ctypes.CDLL(None).free(ctypes.c_void_p(block))


def test_measured_growth_without_a_name_is_followed_by_all_methods(watched, recording, a_tracer):
    """Ahead of their share of the run's time, but within an advance."""
    trainer, run = watched(leaks=False)
    trainer.train(5)
    leaks = run._pipeline.leaks
    leaks.suspect("it grows")
    leaks._finder.budget.spend(-60.0)  # a busy machine has spent the advance before all are over
    growing_natively(trainer, lambda: leaks._methods.is_over)
    assert len(recording_of(run, recording)) == len(HOST_METHODS)


def test_methods_that_are_too_dear_wait_until_a_warning(watched, recording, a_tracer):
    trainer, run = watched(leaks=False)
    trainer.train(5)
    leaks = run._pipeline.leaks
    leaks.suspect("it grows")
    trainer.train(1)
    leaks._finder.budget.spend(METHODS_ADVANCE_S + 3600.0)
    growing_natively(trainer, lambda: leaks._methods.tried and leaks._finder.state == "requested")
    trainer.train(20)
    assert leaks._methods.tried == 1 and leaks._finder.state == "requested"
    leaks.note_forecast(Forecast(step=run.step, level="warning", cause="leak"))
    trainer.train(1)
    assert leaks._finder.state == "counting"


def test_a_diagnosis_that_was_cut_short_uses_up_no_retry(watched, recording, monkeypatch):
    trainer, run = watched(leaks=True)
    monkeypatch.setattr("memagent.leaks.finder.MAX_SEARCH_CPU_S", -math.inf)
    trainer.train(5)
    run._pipeline.leaks.suspect("it grows")
    trainer.train(50)
    assert run._pipeline.leaks._finder.diagnosis.is_cut_short and not run.report()["suspects"]
    monkeypatch.setattr("memagent.leaks.finder.MAX_SEARCH_CPU_S", 60.0)
    run._pipeline.leaks.note_forecast(Forecast(step=run.step, level="warning", cause="leak"))
    trainer.train(30)
    assert EXPECTED in [leaking([suspect]) for suspect in run.report()["suspects"]]
    assert recording_of(run, recording)[-1].method == "census"


def test_suspects_whose_growth_has_stopped_are_withdrawn(watched, recording, capfd, monkeypatch):
    monkeypatch.setattr("memagent.leaks.diagnosis_report.MIN_NOTICE_BYTES", 0)
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.suspect("it grows")
    trainer.train(25)
    assert EXPECTED in [leaking([suspect]) for suspect in run.report()["suspects"]]
    trainer.train(FIRST_CHECK_STEPS)
    trainer.leaks = False
    trainer.train(3 * FIRST_CHECK_STEPS)
    assert run.report()["suspects"] == []
    assert re.search("suspect: .*no longer a suspect: ", capfd.readouterr().err, re.DOTALL)
    run.finish()
    grown, stopped = recording().snapshots
    assert grown.suspects and stopped.suspects == [] and "withdrawn" in stopped.notes[0]
    hints = [event.data["grows"]["host"] for event in recording().events if event.kind == "hints"]
    assert hints[-2:] == ["list", "unknown"]


def test_the_terminal_does_not_name_what_fills_up_meanwhile(watched, capfd):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.suspect("it grows")
    trainer.train(25)
    assert run.report()["suspects"]
    trainer.leaks = False
    trainer.train(2 * FIRST_CHECK_STEPS)
    run.finish()
    assert run.report()["suspects"] == [] and "a suspect" not in capfd.readouterr().err


def test_the_terminal_names_a_suspect_before_the_end_if_it_keeps_much(watched, capfd, monkeypatch):
    monkeypatch.setattr("memagent.leaks.diagnosis_report.MIN_NOTICE_BYTES", 2**20)
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.suspect("it grows")
    trainer.train(25)
    assert "suspect: " not in capfd.readouterr().err
    trainer.train(FIRST_CHECK_STEPS)
    assert "suspect: " in capfd.readouterr().err


def test_a_warning_prints_the_suspect_at_once(watched, capfd):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="warning", cause="leak"))
    trainer.train(25)
    assert "suspect: " in capfd.readouterr().err


def test_suspects_that_a_warning_leaves_out_are_printed_at_the_end(watched, capfd):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    leaks = run._pipeline.leaks
    leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
    trainer.train(25)
    assert leaks.suspects and leaks.take_suspects(lambda item: item.kind == "worker") == ()
    run.finish()
    assert f"suspect: {display_path(__file__, leaks.roots)}:{LINE} " in capfd.readouterr().err


def test_a_warning_long_after_the_diagnosis_has_the_line_in_itself(watched, capfd):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
    trainer.train(25)
    monitor, risks = run._pipeline.forecast.monitor, []
    monitor.add_risk_listener(risks.append)
    warning = Forecast(step=30, level="warning", cause="leak", oom_probability=0.9)
    monitor._report(monitor._forecasts["host"], warning, 0.0)
    file = display_path(__file__, run._pipeline.leaks.roots)
    printed = capfd.readouterr().err
    assert f"  suspect: {file}:{LINE}: Trainer.history: list of " in printed
    assert "\n      self.history.append(output.detach())" in printed
    [[suspect]] = [risk.suspects for risk in risks]
    assert (suspect.line, suspect.holder.rpartition(" at ")[2][:5]) == (LINE, "step ")
    run.finish()
    assert "suspect: " not in capfd.readouterr().err


def test_what_stays_after_a_withdrawal_is_still_checked(watched):
    """Tensors that have stopped becoming more are withdrawn first, host memory at a later check."""
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.suspect("it grows")
    trainer.train(25)
    finder = run._pipeline.leaks._finder
    rows = Suspect(
        kind="host",
        holder="rows",
        file=__file__,
        line=1,
        bytes_per_step=2**20,
        confidence=0.5,
        fix="",
    )
    finder.diagnosis = replace(finder.diagnosis, suspects=(*finder.suspects, rows))
    used_bytes = finder.host_bytes()
    finder._host_check = HostGrowthCheck([rows], run.step, used_bytes)
    finder.host_bytes = lambda: used_bytes
    trainer.leaks = False
    trainer.train(FIRST_CHECK_STEPS)
    assert finder.suspects == (rows,)
    trainer.train(2 * FIRST_CHECK_STEPS)
    assert finder.suspects == ()


def test_suspects_that_go_on_growing_stay(watched, recording):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.suspect("it grows")
    trainer.train(4 * FIRST_CHECK_STEPS)
    assert EXPECTED in [leaking([suspect]) for suspect in run.report()["suspects"]]
    assert len(recording_of(run, recording)) == 1


def test_what_fills_up_for_half_of_a_run_is_withdrawn_before_its_end(watched):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.suspect("it grows")
    trainer.train(5 * FIRST_CHECK_STEPS)
    assert EXPECTED in [leaking([suspect]) for suspect in run.report()["suspects"]]
    trainer.leaks = False
    trainer.train(4 * FIRST_CHECK_STEPS)
    assert run.report()["suspects"] == []


@pytest.mark.parametrize("end", ["stopped", "leaks", "leaks, but freed at the end"])
def test_what_has_stopped_shortly_before_the_end_is_withdrawn_there(watched, capfd, end):
    """No check is due any more. What the end frees may have grown until then."""
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.suspect("it grows")
    trainer.train(25 + FIRST_CHECK_STEPS + 60)
    trainer.leaks = end != "stopped"
    trainer.train(40)
    if end == "leaks, but freed at the end":
        # as `clear()` it would limit the list in this source, for the other tests too
        vars(trainer).update(history=[])
    assert EXPECTED in [leaking([suspect]) for suspect in run.report()["suspects"]]
    run.finish()
    printed = "Trainer.history" in capfd.readouterr().err
    assert printed == bool(run._pipeline.leaks.suspects) == (end != "stopped")


def test_a_search_from_the_variables_does_not_enter_the_agent(watched):
    trainer, run = watched(leaks=False)
    trainer.train(30)
    track = run._pipeline.sampler.tracks[0]  # which keeps rows

    def found(root) -> bool:
        walk = VariableWalk(lambda items: {id(track)}.intersection(map(id, items)), 1)
        walk._walk(walk._visit([[root]], [root]), TimeBudget(60.0))
        return bool(walk.reached)

    assert found([track]) and not found(trainer.model)


def test_results_of_every_fiftieth_step_are_found_over_a_long_window(watched, recording):
    trainer, run = watched(leaks=False)
    trainer.train(5)
    run._pipeline.leaks.suspect("memory grows slowly", window=LONG_WINDOW_STEPS)
    results = []
    for step in range(200):
        trainer.train(1)
        if step % 50 == 0:
            # of a shape that no other test has left here
            results.append(torch.zeros(2, 2, 2, 2, 2, dtype=torch.int16))
    holders = [suspect["holder"] for suspect in run.report()["suspects"]]
    assert holders and holders[0].startswith("results: list of")


def test_a_leak_of_a_short_run_is_named_without_a_request(watched):
    trainer, run = watched(leaks=True)
    trainer.train(80)
    assert EXPECTED in [leaking([suspect]) for suspect in run.report()["suspects"]]


def test_a_host_leak_of_a_short_run_is_traced_at_once(watched):
    """The second diagnosis waits neither for more growth nor for its share of a long run."""
    trainer, run = watched(leaks=False)
    texts = []
    for step in range(120):
        trainer.train(1)
        texts.append(f"{step} " * 8_000)
    holders = [suspect["holder"] for suspect in run.report()["suspects"]]
    assert holders and holders[0].startswith("texts: list of")


def test_rare_growth_of_native_memory_is_traced_over_a_longer_window(watched):
    trainer, run = watched(leaks=False)
    pages = []
    for step in range(600):
        trainer.train(1)
        if step % 12 == 0:
            pages.append(zlib.compressobj(level=9, memLevel=9))  # opaque, of 400 KB
        if run.report()["suspects"]:
            break
    diagnosis = run._pipeline.leaks._finder.diagnosis
    assert run.report()["suspects"][0]["holder"].startswith("pages: list of")
    assert diagnosis.step - diagnosis.first_step == MIDDLE_WINDOW_STEPS


def test_a_clean_loop_reports_no_suspects(watched, recording):
    trainer, run = watched(leaks=False)
    trainer.train(5)
    run.snapshot()
    trainer.train(25)
    report = run.report()
    assert report["suspects"] == []
    assert report["suspect_search"].startswith(
        "No suspect was found: the leak diagnosis covered steps 6 to "
    )
    run.finish()
    assert recording().snapshots[-1].suspects == []


def test_without_a_request_nothing_is_diagnosed(watched, recording):
    trainer, run = watched(leaks=True)
    trainer.train(30)
    run.finish()
    assert recording().snapshots == []


@pytest.mark.parametrize(
    ("steps", "why"), [(0, "no growth was suspected"), (3, "growth was suspected only 2 steps")]
)
def test_a_run_that_dies_before_a_diagnosis_has_a_reason(watched, recording, capfd, steps, why):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    expected = "No leak diagnosis was run"
    if steps:
        run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
        trainer.train(steps)
        expected = "No suspect yet: a leak diagnosis is counting live tensors."
    assert expected in run.report()["suspect_search"]
    run.fail_with(MemoryError("no"))
    assert f"  no leak diagnosis was run: {why}" in capfd.readouterr().err
    [words] = [event.data for event in recording().events if event.kind == "oom"]
    assert words["suspects"] == [] and words["suspect_search"]["why_not"].startswith(why)


def test_the_oom_event_has_the_peaks_of_the_last_steps(watched, recording, until_it_is_seen):
    trainer, run = watched(leaks=True)
    trainer.train(12)
    until_it_is_seen(run, 12)
    run.fail_with(MemoryError("no"))
    [words] = [event.data for event in recording().events if event.kind == "oom"]
    assert [step for step, _ in words["last_peaks"]] == list(range(5, 13))
    assert all(peak > 0 for _, peak in words["last_peaks"])


@pytest.fixture
def until_it_is_seen():
    """until_it_is_seen(run, step): the collector's thread has looked at that step's sample."""

    def wait(run, step):
        while not run._pipeline.leaks.last_peaks or run._pipeline.leaks.last_peaks[-1][0] < step:
            time.sleep(0.02)

    return wait


def test_a_diagnosis_without_memory_at_exit_leaves_the_oom_event(
    watched, recording, monkeypatch, capfd
):
    trainer, run = watched(leaks=True)
    trainer.train(5)
    run._pipeline.leaks.note_forecast(Forecast(step=5, level="notice", cause="leak"))
    trainer.train(10)
    monkeypatch.setattr("memagent.leaks.detectors.tensors.diagnose", _no_memory)
    run.fail_with(MemoryError("no"))
    [words] = [event.data for event in recording().events if event.kind == "oom"]
    assert words["suspect_search"] == {"why_not": "no memory was left for the diagnosis"}
    assert not run.guard.errors and "Traceback" not in capfd.readouterr().err


def _no_memory(*_, **__):
    raise MemoryError


def test_growing_stacks_are_sent_to_the_server(watched, recording):
    trainer, run = watched(leaks=False)
    retained = []
    trainer.train(5)
    run._pipeline.leaks.suspect("the host grows", host=True)
    for _ in range(25):
        retained.append(bytearray(50_000))
        trainer.train(1)
    run.finish()
    [snapshot] = recording().snapshots
    line = inspect.getsourcelines(test_growing_stacks_are_sent_to_the_server)[1] + 6
    [stack] = [stack for stack in snapshot.stacks if stack.frames[-1] == f"{__file__}:{line}"]
    assert snapshot.method == "host"
    assert stack.blocks >= 8 and stack.size_bytes >= 8 * 50_000


def test_a_snapshot_includes_the_allocators_record(watched, recording, capfd, monkeypatch):
    trainer, run = watched(leaks=False)
    trainer.train(5)
    run.snapshot("to look closer")
    history = AllocatorHistoryDetector()
    # an assignment would make the trainers' history, in this file, one that begins anew
    monkeypatch.setattr(run._pipeline.leaks._finder, "history", history)
    history.last = {"segments": [], "device_traces": [[]], "allocator_settings": {}}
    trainer.train(25)
    run.finish()
    stderr = capfd.readouterr().err
    [pickled] = run.settings.directory.glob("*-26.pickle")
    assert pickle.loads(pickled.read_bytes()) == history.last
    assert stderr.count(str(pickled)) == 1 and str(pickled.with_suffix(".html")) in stderr
    assert str(pickled) in recording().snapshots[-1].notes[-1]
