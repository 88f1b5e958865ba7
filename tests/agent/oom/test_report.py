"""The report of an out-of-memory error."""

from __future__ import annotations

import pytest

from memagent.oom.report import EXPANDABLE, oom_report, rate_text
from memagent.units import GIB, MIB

EVENT_DATA = {
    "phase": "backward",
    "asked_bytes": 2 * GIB,
    "free_bytes": GIB,
    "devices": {
        "GPU-1": {
            "name": "NVIDIA H100",
            "used_bytes": 78 * GIB,
            "limit_bytes": 79 * GIB,
            "components": {"gradients": 3 * GIB, "optimizer_state": 6 * GIB},
        }
    },
    "largest_tensors": [
        {"name": "logits", "shape": [8, 1024], "dtype": "float32", "size_bytes": 32 * MIB}
    ],
}


def test_it_reports_phase_request_and_fill():
    report = oom_report(EVENT_DATA, 311)
    assert report.title == "Out of memory in backward of step 312 on NVIDIA H100"
    assert any(
        "gradients are created while activations still exist" in finding
        for finding in report.findings
    )
    assert (
        "2.00 GiB were requested with 1.00 GiB free; 78.00 GiB of 79.00 GiB were used."
        in report.findings
    )
    assert report.components == (
        ("everything_else", 69 * GIB),
        ("optimizer_state", 6 * GIB),
        ("gradients", 3 * GIB),
    )


@pytest.mark.parametrize(
    ("allocated", "helps"), [(76.5 * GIB, True), (77.5 * GIB, False), (70 * GIB, True)]
)
def test_it_advises_expandable_segments_if_they_would_have_sufficed(allocated, helps):
    report = oom_report(
        EVENT_DATA, 0, reading={"reserved_bytes": 78 * GIB, "allocated_bytes": int(allocated)}
    )
    assert any(EXPANDABLE in code for _, _, code in report.changes) == helps


def test_it_says_if_a_large_cache_would_not_have_sufficed():
    event_data = {**EVENT_DATA, "asked_bytes": 40 * GIB}
    report = oom_report(
        event_data, 0, reading={"reserved_bytes": 78 * GIB, "allocated_bytes": 60 * GIB}
    )
    assert any(
        "merging the fragments would not have been enough" in finding for finding in report.findings
    )
    assert not any(EXPANDABLE in code for _, _, code in report.changes)


@pytest.mark.parametrize(
    ("phase", "advice"),
    [
        ("forward", "smaller batch"),
        ("backward", "checkpointing"),
        ("optimizer", "8-bit"),
        ("eval", "inference_mode"),
    ],
)
def test_it_describes_each_phase_and_advises_on_it(phase, advice):
    report = oom_report({**EVENT_DATA, "phase": phase}, 0)
    assert advice in report.changes[-1][0]
    others = {
        p: oom_report({**EVENT_DATA, "phase": p}, 0).findings[0]
        for p in ("forward", "backward", "optimizer", "eval")
    }
    assert len(set(others.values())) == 4


def test_it_lists_the_estimators_advice_with_its_saving():
    advice = [{"change": "Use bf16", "saving_bytes": 9 * GIB, "code": "model.bfloat16()"}]
    report = oom_report(EVENT_DATA, 0, advice=advice)
    assert report.changes[0] == ("Use bf16", 9 * GIB, "model.bfloat16()")
    assert (
        "  change: Use bf16 (saves 9.00 GiB, leaving about 71.00 GiB of 79.00 GiB)"
        in report.lines()
    )


def test_it_mentions_prediction_and_other_processes():
    reading = {"peak_allocated_bytes": 66 * GIB, "other_processes_bytes": 5 * GIB}
    findings = oom_report(EVENT_DATA, 0, reading=reading, predicted_peak_bytes=60 * GIB).findings
    assert "Other processes held 5.00 GiB of the device." in findings
    assert "The newest peak was 66.00 GiB, 10 % above the prediction of 60.00 GiB." in findings


def test_it_names_suspects_and_advises_to_fix_them_first():
    suspect = {
        "file": "train.py",
        "line": 42,
        "kind": "list",
        "holder": "history: list of 412",
        "fix": "Append a number.",
        "bytes_per_step": 2048,
    }
    report = oom_report(EVENT_DATA, 0, suspects=[suspect], advice=[{"change": "Use bf16"}])
    assert report.lines()[1:5] == [
        "  suspect: train.py:42: history: list of 412, 2.0 KiB a step.",
        "  change: Fix the leak first, at train.py:42. Append a number.",
        "      history.append(x.detach().cpu())  # not: history.append(x)",
        "      history.clear()  # once its values are used",
    ]
    assert [change.split()[0] for change, _, _ in report.changes] == ["Fix", "Use", "Use"]


def test_it_separates_tensor_growth_from_all_growth():
    suspect = {
        "file": "train.py",
        "line": 42,
        "kind": "list",
        "holder": "history: list of 20",
        "bytes_per_step": 2048,
    }
    event_data = {
        **EVENT_DATA,
        "suspects": [suspect],
        "suspect_search": {"step": 26, "growth_bytes_per_step": 4096},
    }
    [line] = [line for line in oom_report(event_data, 311).lines() if "suspect: " in line]
    assert (
        "history: list of 20 at step 26, 2.0 KiB a step in tensors alone "
        "(memory in use grew by 4.0 KiB)." in line
    )


@pytest.mark.parametrize(("kind", "growth"), [("list", 2100), ("list", None), ("worker", 9000)])
def test_it_omits_growth_that_adds_nothing(kind, growth):
    assert rate_text(kind, 2048, growth) == ", 2.0 KiB a step"


def test_it_lists_the_peaks_of_the_last_steps():
    event_data = {**EVENT_DATA, "last_peaks": [[309, 70 * GIB], [310, None], [311, 77 * GIB]]}
    assert (
        "Peaks of steps 309 to 311: 70.00 GiB, 77.00 GiB." in oom_report(event_data, 311).findings
    )
    flat = {**EVENT_DATA, "last_peaks": [[309, 70 * GIB], [310, 70 * GIB + 1]]}
    assert "Peaks of steps 309 to 310: 70.00 GiB." in oom_report(flat, 311).findings
    assert not any(
        "Peaks of" in finding
        for finding in oom_report({**EVENT_DATA, "last_peaks": [[311, GIB]]}, 311).findings
    )


@pytest.mark.parametrize("junk", ["words", 3, [3], ["a", {}], {"step": "x"}, [[1], [1, "2"]]])
def test_malformed_event_data_does_not_break_it(junk):
    report = oom_report(
        {**EVENT_DATA, "suspects": junk, "suspect_search": junk, "last_peaks": junk}, 311
    )
    assert report.suspects == () and not any("Peaks of" in finding for finding in report.findings)


def test_it_needs_no_event_data():
    report = oom_report({}, 0)
    assert report.title == "Out of memory in step 1"
    assert (report.findings, report.changes, report.lines()) == ((), (), [report.title])


def test_it_distinguishes_no_suspect_from_no_diagnosis():
    report = oom_report(
        {**EVENT_DATA, "suspects": [], "suspect_search": {"first_step": 5, "step": 26}}, 311
    )
    assert report.search == "No suspect was found: the leak diagnosis covered steps 5 to 26."
    assert "  no suspect was found: the leak diagnosis covered steps 5 to 26." in report.lines()
    native = {"first_step": 5, "step": 26, "native_bytes_per_step": 92 * 1024}
    with_native = oom_report({**EVENT_DATA, "suspects": [], "suspect_search": native}, 311)
    assert "growth, 92.0 KiB a step, is neither in tensors" in (with_native.search or "")
    without_search = oom_report(
        {**EVENT_DATA, "suspect_search": {"why_not": "no growth was suspected"}}, 311
    )
    assert "  no leak diagnosis was run: no growth was suspected." in without_search.lines()


def test_it_falls_back_to_the_suspects_of_the_event():
    suspect = {"file": "train.py", "line": 42, "holder": "history: list of 412"}
    event_data = {
        **EVENT_DATA,
        "suspects": [suspect],
        "suspect_search": {"first_step": 5, "step": 26},
    }
    assert (
        oom_report(event_data, 0).suspects == (suspect,)
        and oom_report(event_data, 0).search is None
    )
    other = {**suspect, "line": 7}
    assert oom_report(event_data, 0, suspects=[other]).suspects == (other,)


FORECAST = {
    "cause": "leak",
    "step": 300,
    "first_step": 120,
    "used_bytes": 70 * GIB,
    "limit_bytes": 79 * GIB,
    "growth_bytes_per_step": 0.25 * GIB,
    "growing_since_step": 100,
    "grown_bytes": 50 * GIB,
}
ADVICE = [
    {"change": "8-bit Adam", "saving_bytes": 9 * GIB, "code": "eight"},
    {"change": "Activation checkpointing", "saving_bytes": 4 * GIB, "code": "again"},
]


def test_a_leak_is_the_cause_wherever_the_memory_ran_out():
    event_data = {**EVENT_DATA, "phase": "optimizer", "forecast": FORECAST}
    suspect = {"file": "train.py", "line": 42, "kind": "graph", "holder": "total: Tensor"}
    report = oom_report(event_data, 311, suspects=[suspect], advice=ADVICE)
    assert report.lines()[1:7] == [
        "  cause: leak, forecast since step 120. Memory grew by 50.00 GiB since step 100, in the end "
        "by 256 MiB a step.",
        "  suspect: train.py:42: total: Tensor.",
        "  change: Fix the leak first, at train.py:42.",
        "      total += loss.item()  # not: total += loss",
        "  Without this growth, about 20.00 GiB of 79.00 GiB would have been in use.",
        "  It happened in the optimizer's step.",
    ]
    assert len(report.changes) == 1 and "8-bit" not in "".join(report.lines())


def test_a_leak_without_a_suspect_gets_the_advice_for_leaks():
    event_data = {**EVENT_DATA, "forecast": FORECAST, "suspect_search": {"why_not": "it failed"}}
    lines = oom_report(event_data, 311, advice=ADVICE).lines()
    assert lines[2:5] == [
        "  no leak diagnosis was run: it failed.",
        "  change: Look for outputs or losses that are stored with their graph. Store numbers "
        "instead, or detach them and clear what is used.",
        "      total_loss += loss.item()  # not: total_loss += loss",
    ]


@pytest.mark.parametrize(("phase", "count"), [("backward", 2), ("optimizer", 1)])
def test_growth_without_a_suspect_may_be_that_of_inputs(phase, count):
    event_data = {**EVENT_DATA, "forecast": FORECAST, "phase": phase}
    changes = [change for change, _, _ in oom_report(event_data, 311, advice=ADVICE).changes]
    assert len(changes) == count and changes[0].startswith("Look for outputs")
    assert changes[1:] == ["Use a smaller batch with accumulation, or recompute activations by "
                           "checkpointing."][: count - 1]  # fmt: skip


def test_other_causes_get_the_changes_that_help_first():
    forecast = {"cause": "input", "step": 300, "first_step": 290}
    report = oom_report({**EVENT_DATA, "forecast": forecast}, 311, advice=ADVICE)
    assert report.lines()[1] == (
        "  cause: input, forecast since step 290. "
        "Activations grow with the input, and inputs are still getting larger."
    )
    assert [change for change, _, _ in report.changes[1:]] == [
        "Activation checkpointing",
        "8-bit Adam",
    ]
    assert report.cause.without_growth is None


@pytest.mark.parametrize(
    "changes", [{"grown_bytes": 70 * GIB}, {"grown_bytes": None}, {"used_bytes": None}]
)
def test_it_does_not_extrapolate_beyond_the_readings(changes):
    report = oom_report({**EVENT_DATA, "forecast": {**FORECAST, **changes}}, 311)
    assert report.cause.is_leak and report.cause.without_growth is None


@pytest.mark.parametrize("junk", ["leak", 3, [3], {"cause": 3}, {"cause": ["leak"]}, {}])
def test_a_malformed_forecast_is_none(junk):
    assert oom_report({**EVENT_DATA, "forecast": junk}, 311).cause is None


def test_its_dict_has_the_fix_first():
    result = oom_report({**EVENT_DATA, "forecast": FORECAST}, 311).to_dict()
    assert result["cause"] == "leak" and "20.00 GiB of 79.00" in result["without_growth"]
    assert result["changes"][0]["code"].startswith("total_loss += loss.item()")
    assert result["details"][0].startswith("cause: leak")
