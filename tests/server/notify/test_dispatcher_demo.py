"""One incident end to end: the demo training leaks, and a real server notifies Slack."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from memagent_demo.processes import TRAIN, limited
from tests.waiting import wait_until

STEPS, LIMIT_BYTES = 2400, 1100 * 2**20


@pytest.fixture
def leaking(tmp_path):
    """leaking(url): start the demo's training, with a leak and under a limit."""
    processes: list[subprocess.Popen] = []

    def leaking(url: str) -> subprocess.Popen:
        own = {
            "MEMAGENT_SERVER": url,
            "MEMAGENT_RUN_ID": "doomed",
            "MEMAGENT_NAME": "gpt",
            "MEMAGENT_DIR": str(tmp_path),
        }
        command = [sys.executable, str(TRAIN), "--steps", str(STEPS), "--leak", "outputs"]
        with (tmp_path / "training.log").open("w") as log:
            process = subprocess.Popen(
                limited(command, LIMIT_BYTES),
                env={**os.environ, **own},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
        return process

    yield leaking
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
@pytest.mark.long
def test_a_leak_is_one_message_whose_end_is_explained_in_its_thread(
    start_server, slack, leaking, tmp_path
):
    server = start_server(
        environ={
            "MEMAGENT_SLACK_BOT_TOKEN": slack.token, "MEMAGENT_SLACK_CHANNEL": slack.channel,
            "MEMAGENT_SLACK_API_URL": slack.url, "MEMAGENT_ALLOW_LOCAL_WEBHOOKS": "1",
        }
    )  # fmt: skip
    training = leaking(server.url)
    wait_until(lambda: slack.roots, "a warning")
    (root,) = slack.roots
    warning = root["text"]
    is_early = training.poll() is None
    wait_until(
        lambda: any("ran out of memory" in reply["text"] for reply in slack.replies(root["ts"])),
        "the end, in the thread",
    )
    wait_until(lambda: len(root["files"]) >= 2, "a picture of the warning and one of the end")
    log = (tmp_path / "training.log").read_text()
    assert (
        is_early and "gpt will run out of memory in" in warning and "Predicted peak" in warning
    ), log
    assert slack.roots == [root] and "gpt ran out of memory in step" in root["text"]
    assert all(file["content"].startswith(b"\x89PNG") for file in root["files"])
    reply = slack.replies(root["ts"])[-1]["text"]
    for words in (
        "First warning at step",
        "were requested",
        "It happened in",
        "Suspect: ",
        "Change: Fix the leak first",
    ):
        assert words in reply, log
    assert "were requested" not in root["text"]
