"""The texts of pages about a run in all its states."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from memagent.units import GIB, MIB
from memagent_server.schemas.base import ALERT_STATES, NOTIFICATION_STATES, RUN_STATUSES
from memagent_server.schemas.runs import ResourceUse
from memagent_server.schemas.snapshots import SuspectByRank, SuspectLine
from memagent_server.web import headlines, incident_views, labels
from tests.server.web.schema_examples import LEAK, LEAK_SUMMARY, RUN, STREAM

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def a_run(**changes):
    return replace(RUN, **changes)


def headline(run, forecast=None, *warning_steps):
    moment = headlines.Moment(labels.to_seconds(LEAK.at), warning_steps)
    if run.status == "lost_contact":
        moment = headlines.Moment(NOW)
    text = headlines.headline(run, forecast, moment)
    return text.tone, text.text, text.detail


def test_it_shows_when_memory_runs_out_and_the_growth():
    assert headline(a_run(), LEAK) == (
        "warning",
        "Runs out of memory in about 420 steps (25 min)",
        "3.00 of 8.00 GiB used, growing since step 1,200, now by 12.5 MiB a step.",
    )


def test_it_quotes_the_last_run():
    forecast = replace(LEAK, predecessor="The last run ended well at 6.00 GiB.")
    assert headline(a_run(), forecast)[2].endswith(
        "now by 12.5 MiB a step. The last run ended well at 6.00 GiB."
    )


def test_it_counts_down_while_the_forecast_stays_the_same():
    assert headline(a_run(step=1210), LEAK)[1] == "Runs out of memory in about 210 steps (12 min)"


def test_the_least_time_left_is_the_greatest_risk():
    summaries = [
        replace(LEAK_SUMMARY, eta_s=60.0),
        LEAK_SUMMARY,
        replace(LEAK_SUMMARY, eta_step=None, eta_s=None),
    ]
    left = [labels.seconds_left(a_run(step=1210, forecast=each)) for each in summaries]
    assert left == [30.0, 750.0, math.inf]


def test_it_shows_any_moment_after_the_expected_step():
    assert headline(a_run(step=1500), LEAK)[1] == "Runs out of memory now"


def test_a_notice_is_less_certain():
    assert headline(a_run(), replace(LEAK, level="notice"))[:2] == (
        "notice",
        "May run out of memory in about 420 steps (25 min)",
    )


def test_it_warns_without_a_date_if_there_is_none():
    forecast = replace(LEAK, eta_step=None, eta_s=None, growth_bytes_per_step=None)
    assert headline(a_run(), forecast)[1:] == ("Runs out of memory", "3.00 of 8.00 GiB used.")


def test_a_summary_of_a_forecast_has_no_growth():
    assert headline(a_run(), LEAK_SUMMARY)[1:] == (
        "Runs out of memory in about 420 steps (25 min)",
        "",
    )


def test_it_shows_that_a_run_fits():
    calm = replace(LEAK, level="ok", oom_probability=0.04, growth_bytes_per_step=None)
    assert headline(a_run(), calm) == (
        "ok",
        "Fits: peak 3.10 of 8.00 GiB",
        "No sign of running out of memory.",
    )


def test_it_names_growth_and_a_low_risk_before_anybody_is_warned():
    rising = replace(LEAK, level="ok", oom_probability=0.3, growing_since_step=104)
    tone, text, detail = headline(a_run(world_size=2, total_steps=5000), rising)
    # 5 GiB at 12.5 MiB a step from step 1,000 on
    assert (tone, text) == (
        "notice",
        "Memory grows: at this rate it reaches the limit at about step 1,410 of 5,000",
    )
    assert detail == (
        "Rank 0: 3.00 of 8.00 GiB used, growing since step 104, now by 12.5 MiB a step. "
        "A warning follows if that becomes likely."
    )
    assert headline(a_run(total_steps=None), rising)[1].endswith(" at about step 1,410")
    tone, text, detail = headline(a_run(total_steps=1405), rising)
    assert (tone, text) == ("ok", "Fits: peak 3.10 of 8.00 GiB")
    assert detail.endswith(" At this rate it fits until the last step, 1,405.")
    slow = replace(rising, oom_probability=0.004)
    assert headline(a_run(), slow)[1:] == (
        "Fits: peak 3.10 of 8.00 GiB",
        "3.00 of 8.00 GiB used, growing since step 104, now by 12.5 MiB a step.",
    )
    risky = replace(rising, growth_bytes_per_step=None)
    assert headline(a_run(), risky)[1] == "Low risk: peak 3.10 of 8.00 GiB"


@pytest.mark.parametrize(
    ("bytes_per_step", "share"),
    [
        (12 * MIB, ", which explains it"),
        (2 * MIB, ", which explains 2.0 MiB a step"),
        (30 * MIB, ", 30.0 MiB a step when it was found at step 64"),
        (None, ""),
    ],
)
def test_a_suspect_says_how_much_of_the_growth_it_explains(bytes_per_step, share):
    suspect = SuspectByRank(
        kind="list", holder="kept", file="train.py", line=7, function=None,
        bytes_per_step=bytes_per_step, confidence=1.0, fix="", source=[], source_first_line=0,
        ranks=[0], step=64, snapshot=None,
    )  # fmt: skip
    assert headlines.suspect_share(suspect, LEAK) == share
    unknown = ", 2.0 MiB a step when it was found at step 64"
    for forecast in (
        None,
        LEAK_SUMMARY,
        replace(LEAK, growth_bytes_per_step=None),
        replace(LEAK, cause="fragmentation"),
    ):
        assert (
            headlines.suspect_share(replace(suspect, bytes_per_step=2.0 * MIB), forecast) == unknown
        )


def test_growth_is_extrapolated_from_the_newest_reading_and_dated_only_if_the_worker_is_behind():
    rising = replace(LEAK, level="ok", oom_probability=0.3, growing_since_step=104)
    latest = {"peak_allocated_bytes": 6 * GIB}
    late = labels.to_seconds(LEAK.at) + 600
    texts = []
    for last_step in (1200, 1400):
        newest = replace(STREAM, last_step=last_step, latest=latest)
        moment = headlines.Moment(late, newest=newest)
        shown = headlines.headline(a_run(total_steps=None), rising, moment)
        assert shown.text.endswith(f" at about step {last_step + 164:,}")  # 2 GiB at 12.5 MiB
        texts.append(shown.detail)
    assert texts[0].startswith("6.00 of 8.00 GiB at the peak of step 1,200, growing since step 104")
    assert ["Forecast of step 1,000, 10 min ago." in text for text in texts] == [False, True]


def test_growth_outside_tensors_is_extrapolated_from_what_the_forecast_saw():
    rising = replace(LEAK, level="ok", oom_probability=0.3, cause="fragmentation")
    newest = replace(STREAM, last_step=1200, latest={"peak_allocated_bytes": 1 * GIB})
    moment = headlines.Moment(labels.to_seconds(LEAK.at), newest=newest)
    shown = headlines.headline(a_run(total_steps=None), rising, moment)
    assert shown.text.endswith(" at about step 1,410")  # 5 GiB at 12.5 MiB from step 1,000 on
    assert shown.detail.startswith("3.00 of 8.00 GiB used")


def test_growth_that_fits_hides_no_risk_of_one_large_step():
    rising = replace(LEAK, level="ok", oom_probability=0.3, cause="tail")
    _, text, detail = headline(a_run(total_steps=1300), rising)
    assert text == "Low risk: peak 3.10 of 8.00 GiB"
    assert detail.endswith(" Probability of running out of memory: 30 %.")


def test_it_makes_no_claim_before_the_first_forecast():
    assert headline(a_run()) == ("busy", "Running: peak 3.10 of 8.00 GiB", "No forecast yet.")


def test_it_waits_for_the_first_sample():
    assert headline(a_run(peak_bytes=None, limit_bytes=None))[1] == "Waiting for the first sample"


def test_a_run_of_scalars_only_has_its_last_step():
    run = a_run(peak_bytes=None, limit_bytes=None, status="completed", step=99)
    assert headline(run)[:2] == ("ok", "Completed at step 99")


def test_it_shows_the_lead_time_of_the_warning():
    dead = a_run(status="oom", step=1234)
    assert headline(dead, LEAK, 924) == (
        "critical",
        "Out of memory in step 1,235",
        "First warning 311 steps earlier, at step 924.",
    )
    assert headline(dead, LEAK, 1234)[2] == "First warning 1 step earlier, at step 1,234."
    assert headline(dead, LEAK, 924, 980, 1200)[2] == (
        "First warning 311 steps earlier, at step 924, and again after it was averted, at "
        "steps 980 and 1,200."
    )
    assert headline(dead, LEAK, 924, 980)[2].endswith(" averted, at step 980.")


def test_it_admits_a_missed_oom():
    assert headline(a_run(status="oom", step=7))[2] == "There was no warning."


def test_it_shows_the_end_of_other_runs():
    assert headline(a_run(status="completed"))[:2] == ("ok", "Completed: peak 3.10 of 8.00 GiB")
    assert headline(a_run(status="completed"), None, 40)[2] == "There was a warning at step 40."
    assert headline(a_run(status="failed", step=7))[1:] == (
        "Failed at step 7",
        "peak 3.10 of 8.00 GiB",
    )
    assert headline(a_run(status="stopped", step=7))[:2] == ("plain", "Stopped at step 7")
    silent = headline(a_run(status="lost_contact"), LEAK)
    assert silent[1:] == (
        "Lost contact at step 1,000",
        "No contact for 10 min. It was expected to run out of memory at step 1,420.",
    )


def test_a_forecast_badge_counts_steps():
    assert labels.forecast_badge(a_run(forecast=LEAK_SUMMARY)) == labels.Badge(
        "warning", "~420 steps", "Runs out of memory in about 420 steps (cause: leak)"
    )
    badges = [
        labels.forecast_badge(a_run(forecast=replace(LEAK_SUMMARY, **changes)))
        for changes in (
            {"level": "ok", "oom_probability": 0.0},
            {"level": "ok"},
            {"eta_step": None},
        )
    ]
    assert [badge.text for badge in badges] == ["fits", "watched", "warning"]
    assert badges[1].tone == "plain" and "too far off" in badges[1].hint


@pytest.mark.parametrize("run", [a_run(forecast=None), a_run(forecast=LEAK_SUMMARY, status="oom")])
def test_ended_runs_have_no_forecast_badge(run):
    assert labels.forecast_badge(run) is None


@pytest.mark.parametrize(
    ("badge", "names"),
    [
        (labels.status_badge, RUN_STATUSES),
        (incident_views.state_badge, ALERT_STATES),
        (incident_views.delivery_badge, NOTIFICATION_STATES),
    ],
)
def test_every_status_and_state_has_a_distinct_text(badge, names):
    assert all(badge(name).hint for name in names)
    assert len({badge(name).text for name in names}) == len(names)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 steps"),
        (1, "1 step"),
        (7.4, "7 steps"),
        (99, "99 steps"),
        (423, "420 steps"),
        (1234, "1,200 steps"),
    ],
)
def test_steps_are_rounded_to_two_digits(number, text):
    assert labels.steps(number) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (3 * GIB, 8 * GIB, "3.00 of 8.00 GiB"),
        (300 * MIB, 8 * GIB, "300 MiB of 8.00 GiB"),
        (159 * GIB, 79.15 * GIB, "159.00 of 79.15 GiB"),
        (300 * MIB, None, "300 MiB"),
        (None, 8 * GIB, "– of 8.00 GiB"),
    ],
)
def test_an_amount_names_its_unit_once(part, whole, text):
    assert labels.format_part_of(part, whole) == text


def test_a_residual_has_a_sign():
    assert [labels.signed_bytes(size) for size in (3 * MIB, -3 * MIB, 0, None)] == [
        "+3.0 MiB",
        "−3.0 MiB",
        "0 B",
        "–",
    ]


def test_times_are_relative_to_now():
    assert labels.ago("2025-12-31T23:57:00.000Z", NOW) == "3 min ago"
    assert labels.ago("2026-01-01T00:00:03.000Z", NOW) == "just now"  # the other clock is ahead
    assert labels.ago(None, NOW) == "–"
    assert labels.duration_between("2025-12-31T22:00:00Z", "2025-12-31T23:00:00Z", NOW) == "60 min"
    assert labels.duration_between("2025-12-31T22:00:00Z", None, NOW) == "2 h"
    assert labels.duration_between(None, None, NOW) == "–"


def test_what_is_in_backticks_is_code_and_everything_is_escaped():
    text = labels.with_code("Append `x.item()`, `<b>` & <i>no</i> `.")
    assert text == (
        "Append <code>x.item()</code>, <code>&lt;b&gt;</code> &amp; &lt;i&gt;no&lt;/i&gt; `."
    )


def test_the_lines_of_a_diff_are_marked_and_other_code_is_only_escaped():
    assert labels.as_code("- a += <b>\n+ a += 1") == (
        "<del>- a += &lt;b&gt;</del>\n<ins>+ a += 1</ins>"
    )
    assert labels.as_code("a = <b>\n- c") == "a = &lt;b&gt;\n- c"


def test_a_suspect_has_a_diff_of_its_line_if_that_is_enough():
    source = {"source": ["total += loss", "history.append(x)"], "source_first_line": 7}
    line = {"holder": "h", "file": "a.py", "function": None, "bytes_per_step": 1.0, "fix": "f"}
    suspects = [
        SuspectLine(kind=kind, line=number, confidence=1.0, **line, **source)
        for kind, number in (("graph", 7), ("list", 8))
    ]
    graph = "- total += loss\n+ total += loss.detach()"
    assert [labels.line_diff(item, STREAM) for item in suspects] == [graph, ""]
    gpu = replace(STREAM, device="GPU-0")
    assert labels.line_diff(suspects[1], gpu).endswith("+ history.append(x.detach().cpu())")


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (ResourceUse(2e-5, None, None, None), "under 0.01 GPU-hours"),
        (ResourceUse(0.0421, None, None, None), "0.042 GPU-hours"),
        (ResourceUse(1234.56, 0.5, None, None), "1,234.6 GPU-hours, 0.5 kWh"),
        (ResourceUse(12.4, 3.14, 1043.4, "USD"), "12.4 GPU-hours, 3.1 kWh, 1,043.40 USD"),
    ],
)
def test_it_says_what_a_run_has_used(use, text):
    assert labels.resources(use) == text


def test_source_is_shown_without_its_common_indent():
    assert labels.without_indent(["    a", "", "        b"]) == ["a", "", "    b"]


def test_a_range_that_reads_the_same_is_one_size():
    assert labels.byte_range(372_000_000, 372_100_000) == "355 MiB"
    assert labels.byte_range(2**30, 2**31) == "1.00 GiB to 2.00 GiB"


def test_a_channel_with_a_name_of_its_own_keeps_it():
    assert labels.channel_name("slack_webhook") == "Slack webhook"
    assert labels.channel_name("vision-team") == "vision-team"
