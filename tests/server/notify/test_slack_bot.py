"""The Slack bot against a fake Slack that validates, stores and refuses messages."""

from __future__ import annotations

import struct

import pytest

from memagent_server.notify.channel import DeliveryFailedError, MemoryCurve
from memagent_server.notify.chart_image import ChartImage, _has_matplotlib
from memagent_server.notify.slack_bot import SlackBot

CURVE = MemoryCurve(
    tuple(range(0, 1001, 10)),
    tuple(10 * 2**30 + step * 20 * 2**20 for step in range(0, 1001, 10)),
    (None,) * 101,
)


class Pace(list):
    """Takes the place of sleeping: keeps how long it would have been."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def pace():
    return Pace()


@pytest.fixture
def bot(slack, pace):
    return SlackBot(slack.token, slack.channel, base_url=slack.url, sleep=pace)


def test_a_topic_is_one_message_with_changes_in_its_thread(slack, bot, make_message):
    receipt = bot.send(make_message())
    receipt = bot.send(make_message(severity="critical", dedup_key="2", receipt=receipt))
    receipt = bot.send(
        make_message(to_state="oom", severity="critical", step=1400, dedup_key="3", receipt=receipt)
    )
    (root,) = slack.roots
    assert root["ts"] == receipt["ts"] and root["edits"] == 2
    assert "ran out of memory" in root["text"] and "💥" in root["blocks"][0]["text"]["text"]
    escalation, death = slack.replies(root["ts"])
    assert (
        "will run out of memory" in escalation["text"]
        and "ran out of memory in step 1,401" in death["text"]
    )
    assert escalation["reply_broadcast"] and death["reply_broadcast"]


def test_the_oom_report_is_sent_once(slack, bot, make_message):
    death = {"to_state": "oom", "autopsy": ("8.0 MiB were asked for.",)}
    alone = bot.send(make_message(**death))
    assert "asked for" in slack.messages[alone["ts"]]["text"]
    warned = bot.send(make_message())
    bot.send(make_message(**death, receipt=warned))
    (response,) = slack.replies(warned["ts"])
    assert (
        "asked for" in response["text"] and "asked for" not in slack.messages[warned["ts"]]["text"]
    )


def test_a_good_end_is_posted_in_the_thread_only(slack, bot, make_message):
    bot.send(make_message(to_state="averted", receipt=bot.send(make_message())))
    (root,) = slack.roots
    (reply,) = slack.replies(root["ts"])
    assert "no longer expected" in reply["text"] and not reply["reply_broadcast"]


def test_it_edits_the_message_in_place_as_the_eta_moves(slack, bot, make_message):
    receipt = bot.send(make_message())
    assert (
        bot.refresh(make_message(facts={"step": 1200, "eta_step": 1300.0}, receipt=receipt))
        == receipt
    )
    (root,) = slack.roots
    assert (
        "in about 100 steps" in root["text"]
        and slack.replies(root["ts"]) == []
        and root["edits"] == 1
    )


def test_it_links_the_run_the_alert_and_the_runbook(slack, bot, make_message):
    bot.send(make_message())
    buttons = slack.roots[0]["blocks"][-1]["elements"]
    addresses = [
        "http://box/runs/k3v9",
        "http://box/alerts#alert-1",
        "http://box/runbooks#oom_forecast",
    ]
    assert [button["url"] for button in buttons] == addresses


def test_it_finds_the_message_of_a_killed_attempt(slack, bot, make_message):
    first = bot.send(make_message())
    assert bot.send(make_message(is_repeat=True)) == first and len(slack.roots) == 1
    outcome = make_message(to_state="oom", dedup_key="2", receipt=first)
    bot.send(outcome)
    bot.send(make_message(**{**vars(outcome), "is_repeat": True}))
    assert len(slack.replies(first["ts"])) == 1


def test_without_permission_to_search_it_posts_again(slack, bot, make_message):
    slack.scopes.discard("channels:history")
    bot.send(make_message())
    bot.send(make_message(is_repeat=True))
    first, second = slack.roots
    assert "may repeat" not in first["text"] and "may repeat" in second["text"]


def test_a_retry_that_found_no_earlier_message_is_no_repeat(slack, bot, make_message):
    bot.send(make_message(is_repeat=True))
    assert "may repeat" not in slack.roots[0]["text"]


def test_a_late_delivery_does_not_revert_a_newer_message(slack, bot, make_message):
    receipt = bot.send(make_message(to_state="oom"))
    bot.send(make_message(is_overtaken=True, is_repeat=True, dedup_key="2", receipt=receipt))
    assert "ran out of memory" in slack.roots[0]["text"] and len(slack.replies(receipt["ts"])) == 1


@pytest.mark.parametrize(
    "refusal", ["message_not_found", "cant_update_message", "edit_window_closed"]
)
def test_a_message_that_cannot_be_edited_is_posted_again(slack, bot, make_message, refusal):
    receipt = bot.send(make_message())
    slack.refuse("chat.update", refusal)
    after = bot.send(make_message(to_state="oom", receipt=receipt))
    assert (
        after["ts"] != receipt["ts"] and "ran out of memory" in slack.messages[after["ts"]]["text"]
    )


@pytest.mark.parametrize(
    ("error", "status", "headers", "retry_after_s", "is_final"),
    [
        ("ratelimited", 429, {"Retry_After": "3"}, 3.0, False),
        ("internal_error", 200, {}, None, False),
        ("channel_not_found", 200, {}, None, True),
        ("not_in_channel", 200, {}, None, True),
    ],
)
def test_a_refusal_has_its_reason_and_advice(
    slack, bot, make_message, error, status, headers, retry_after_s, is_final
):
    slack.refuse("chat.postMessage", error, status, **headers)
    with pytest.raises(DeliveryFailedError, match=error) as caught:
        bot.send(make_message())
    assert (caught.value.retry_after_s, caught.value.is_final) == (retry_after_s, is_final)
    assert slack.token not in str(caught.value)
    assert (
        "MEMAGENT_SLACK_CHANNEL" in str(caught.value) or "/invite" in str(caught.value)
    ) == is_final


def test_it_says_which_token_is_wrong(slack, make_message):
    with pytest.raises(DeliveryFailedError, match="check MEMAGENT_SLACK_BOT_TOKEN") as caught:
        SlackBot("xoxb-wrong", slack.channel, base_url=slack.url).send(make_message())
    assert caught.value.is_final and "xoxb-wrong" not in str(caught.value)


def test_it_sends_at_most_one_message_a_second(slack, bot, pace, make_message):
    receipt = bot.send(make_message())
    bot.send(make_message(to_state="oom", dedup_key="2", receipt=receipt))
    assert slack.calls.count("chat.update") == 1 and len(pace) == 2
    assert all(0 < seconds <= 1.0 for seconds in pace)


def test_it_leaves_retries_to_the_dispatcher(slack, bot, make_message):
    slack.refuse("chat.postMessage", "ratelimited", 429, Retry_After="3")
    with pytest.raises(DeliveryFailedError):
        bot.send(make_message())
    assert slack.calls == ["chat.postMessage"]


def test_a_picture_is_posted_in_the_thread(slack, bot, make_message):
    receipt = bot.send(make_message(curve=CURVE))
    (file,) = slack.messages[receipt["ts"]]["files"]
    assert file["name"] == "memory.png" and file["content"].startswith(b"\x89PNG")
    width, height = struct.unpack(">II", file["content"][16:24])
    assert 800 <= width <= 1600 and width > height and len(file["content"]) < 150_000


def test_a_refused_picture_does_not_stop_the_message(slack, bot, make_message, caplog):
    slack.scopes.discard("files:write")
    receipt = bot.send(make_message(curve=CURVE))
    assert (
        slack.messages[receipt["ts"]]["files"] == [] and "did not accept the chart" in caplog.text
    )


def test_it_says_once_that_pictures_need_the_extra(make_message, monkeypatch, caplog):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _has_matplotlib.cache_clear()
    try:
        assert [ChartImage().render(make_message(curve=CURVE)) for _ in range(3)] == [None] * 3
        assert caplog.text.count("pip install 'memagent[plot]'") == 1
    finally:
        _has_matplotlib.cache_clear()


@pytest.mark.parametrize("state", ["firing", "oom", "averted", "lost_contact"])
@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"eta_step": None, "eta_low": None, "eta_high": None},
        {"limit_bytes": None, "used_bytes": None},
    ],
)
def test_a_picture_is_drawn_from_incomplete_data(make_message, state, facts):
    assert (
        ChartImage().render(
            make_message(to_state=state, facts=facts, curve=CURVE, predicted_peak_bytes=None)
        )
        is not None
    )
    assert (
        ChartImage().render(
            make_message(
                to_state=state, facts=facts, curve=MemoryCurve((1, 2), (3, 4), (None, None))
            )
        )
        is None
    )
