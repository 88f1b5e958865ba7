"""Text that all channels share."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Suspect
from memagent_server.notify.channel import EstimatedSaving
from memagent_server.notify.message_text import headline, plain_text
from memagent_server.notify.slack_webhook import blocks, text


def test_it_contains_the_whole_message(make_message):
    text_lines = plain_text(
        make_message(
            suspect=Suspect(
                kind="list", holder="list `kept`", file="train.py", line=42, bytes_per_step=2.0**24
            ),
            saving=EstimatedSaving("gradient checkpointing", 3 * 2**30, "30 % slower"),
            checkpoint_step=900,
        )
    )
    for words in (
        "gpt-small will run out of memory in about 420 steps (25 min, between 18 min and 36 min)",
        "run k3v9", "project nlp", "rank 1 of 4, NVIDIA A100", "on box", "30.00 GiB of 40.00 GiB used",
        "Growing since step 40, now by 16.0 MiB a step", "Predicted peak 20.00 GiB, observed so far 30.00 GiB (1.5x)",
        "Suspect: train.py:42 keeps 16.0 MiB more each step, held by list `kept`",
        "Last checkpoint at step 900, 100 steps before",
        "Cause: leak.", "What to change:", "outputs.append(x.detach().cpu())", "Would save 3.00 GiB: gradient checkpointing (30 % slower)",
        "http://box/runs/k3v9",
    ):  # fmt: skip
        assert words in text_lines


@pytest.mark.parametrize("state", ["firing", "oom", "lost_contact", "averted", "finished", "test"])
def test_an_open_alert_links_to_the_runbook(make_message, state):
    message = make_message(to_state=state)
    buttons = [button["url"] for button in blocks(message)[-1]["elements"]]
    is_there = state in ("firing", "oom", "lost_contact")
    assert ("Runbook: http://box/runbooks#oom_forecast" in plain_text(message)) == is_there
    assert ("http://box/runbooks#oom_forecast" in buttons) == is_there


@pytest.mark.parametrize("state", ["oom", "finished", "averted", "lost_contact"])
def test_an_outcome_says_how_early_the_warning_was(make_message, state):
    text_lines = plain_text(
        make_message(
            from_state="firing", to_state=state, step=1400, at=3500.0, error="MemoryError: x"
        )
    )
    steps = 401 if state == "oom" else 400
    assert (
        f"First warning at step 1,000, {steps} steps (25 min) before" in text_lines
        and "What to change" not in text_lines
    )


def test_it_reports_a_death_without_warning(make_message):
    assert "There was no warning before" in plain_text(make_message(rule="oom", to_state="oom"))


def test_it_does_not_count_the_last_step(make_message):
    facts = {"eta_step": 1000.6, "eta_low": 1000.4, "eta_high": 1001.0, "eta_s": 3.0}
    assert plain_text(make_message(facts=facts)).startswith(
        "gpt-small will run out of memory in the next step (3 s"
    )


def test_a_bound_that_reads_like_the_time_replaces_it(make_message):
    facts = {"eta_step": 1100.0, "eta_low": 1090.0, "eta_high": 1160.0, "eta_s": 200.0}
    assert "in about 100 steps (3 min to 5 min)" in plain_text(make_message(facts=facts))


def test_an_end_that_is_due_has_no_time(make_message):
    facts = {"eta_step": 990.0, "eta_low": 980.0, "eta_high": 995.0, "eta_s": 0.0}
    assert (
        headline(make_message(facts=facts)) == "gpt-small will run out of memory in the next step"
    )


def test_a_late_message_says_so(make_message):
    assert "waited" not in plain_text(make_message(delayed_s=5.0))
    assert "This message waited 30 min to be sent" in plain_text(make_message(delayed_s=1800.0))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("averted", "gpt-small: high water is over"),
        ("finished", "gpt-small finished; high water is over"),
        ("some_new_state", "gpt-small: high water is some_new_state"),
    ],
)
def test_it_handles_unknown_rules_and_states(make_message, state, words):
    assert headline(make_message(rule="high_water", to_state=state)) == words


def test_a_headline_uses_the_data_of_its_transition(make_message):
    late = make_message(rule="high_water", summary="is over since step 2,000")
    assert headline(late) == "gpt-small peaks near its limit: 30.00 GiB of 40.00 GiB"
    assert headline(make_message(rule="a_new_rule", summary="is odd")) == "gpt-small is odd"


def test_an_evaluation_that_will_not_fit_has_no_step(make_message):
    message = make_message(
        facts={"cause": "eval", "eta_step": None, "eta_low": None, "eta_high": None, "eta_s": None}
    )
    assert (
        headline(message)
        == "gpt-small will run out of memory when it next evaluates or saves a checkpoint"
    )


def test_it_names_all_ranks(make_message):
    assert "4 of 4 ranks (0, 1, 2, 3), NVIDIA A100" in plain_text(make_message(ranks=(0, 1, 2, 3)))


def test_slack_text_is_limited_and_escaped(make_message, faults_of):
    message = make_message(
        run_name="<!channel> & " + "x" * 500,
        project="<script>" * 600,
        error="&" * 5000,
        saving=EstimatedSaving("<" * 4000, 1, ">"),
        suspect=Suspect(kind="list", holder="", file="a/" * 3000, line=1),
    )
    for state in ("firing", "oom"):
        result = blocks(make_message(**{**vars(message), "to_state": state}))
        assert faults_of(result) == []
        assert "&lt;script&gt;" in result[1]["elements"][0]["text"]
    assert len(text(message)) <= 4000 and "<!channel>" not in text(message)
