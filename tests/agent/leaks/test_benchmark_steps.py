"""The times of `python -m benchmarks.leaks steps`: of the finder, at each step boundary."""

from __future__ import annotations

from benchmarks.leaks import exam, step_times

SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
kept = []
for step in range(120):
    output = model(torch.randn(256, 4))
    kept.append(output.detach().repeat(64, 1))
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(len(kept))
"""


def test_the_summary_has_the_worst_boundaries_and_the_share_of_both_threads():
    times = step_times.summary(
        processor_s=[0.001] * 197 + [0.015, 0.03, 0.5],
        wall_s=[0.002] * 199 + [0.7],
        pass_s=[0.06, 0.04],
        run_s=10.0,
    )
    assert (times.steps, times.over_20_ms) == (200, 2)
    assert (times.most_ms, times.p99_ms) == (500.0, 30.0)
    assert (times.most_wall_ms, times.p99_wall_ms, times.most_pass_ms) == (700.0, 2.0, 60.0)
    assert (times.total_s, times.share) == (0.842, 0.0842)


def test_a_run_without_a_search_costs_nothing():
    times = step_times.summary([], [], [], run_s=10.0)
    assert (times.steps, times.most_ms, times.p99_ms, times.share) == (0, 0.0, 0.0, 0.0)


def test_the_total_has_the_worst_case_and_the_median_share():
    cases = [
        step_times.summary([0.01], [0.01], [], run_s=1.0),
        step_times.summary([0.3, 0.01], [0.3, 0.01], [], run_s=1.0),
        step_times.summary([0.03], [0.03], [], run_s=1.0),
    ]
    assert step_times.total(cases) == (
        "finder: most 300 ms at a boundary, worst p99 300 ms, 2 of 4 boundaries over 20 ms, "
        "median share 3.0%, most 31.0%"
    )


def test_5_a_timed_run_gives_its_times_and_the_same_report(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome = exam.run(script, tmp_path, is_monitored=True, is_timed=True)
    assert (outcome.status, outcome.output) == (0, "120\n")
    assert [suspect["holder"].split(":")[0] for suspect in outcome.suspects[:1]] == ["kept"]
    assert outcome.times is not None
    assert outcome.times.steps > 20  # a window is as long
    assert outcome.times.total_s > 0
