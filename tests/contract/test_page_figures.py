"""The figures of each page agree: one thing has one number, however often a page shows it.

A story of runs is told to a server, and the texts of its pages are searched for claims.
"""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from types import SimpleNamespace

import pytest

from memagent.cli import main
from memagent.units import GIB, MIB, format_bytes
from memagent.wire.messages import Event
from tests.browser.scenarios import H100, LAST_WORDS, PREDICTION, Scenario, Scenarios, gpu_columns

CLAIMS = {
    "the step of the death": r"(?:[Oo]ut of memory|OOM)(?: in \w+)?(?: of| in) step ([\d,]*\d)",
    "the step of the death, among changes": r"out of memory critical step ([\d,]*\d)",
    "steps from the warning to the death": r"([\d,]*\d) steps (?:after the first|earlier|before)",
    "the limit": r"(?:[Pp]eak )?[\d.]+ of ([\d.]+ [GM]iB)",
    "the highest peak": r"(?:, peak ([\d.]+) of|Peak ([\d.]+) GiB highest so far)",
    "the peak of the newest step": r"([\d.]+ of [\d.]+ GiB) at the peak of step",
    "the predicted peak": r"(?:, predicted ([\d.]+ GiB)\.|Predicted peak ([\d.]+ GiB))",
    "the rank of predicted and observed": r"observed memory rank (\d+)",
}
PAGES = {
    "a leaking run": "/runs/k3v9leak",
    "a run that died": "/runs/d1ed",
    "a rank of eight that died": "/runs/eight",
    "two ranks": "/runs/ddp2",
}


def eight_ranks() -> Scenario:
    """Rank 3 leaks and dies in step 1,201; the others go on until they are told."""
    devices = [{**H100, "id": f"GPU-{rank}", "index": rank} for rank in range(8)]
    streams = {
        (rank, device["id"]): gpu_columns(
            1200 if rank == 3 else 1210,
            seed=rank,
            base=40 * GIB,
            leak_from=600,
            growth=60 * MIB if rank == 3 else 0,
        )
        for rank, device in enumerate(devices)
    }
    state = {"name": "H100", "used_bytes": 78 * GIB, "limit_bytes": 79 * GIB}
    death = {**LAST_WORDS, "devices": {"GPU-3": state}}
    return Scenario(
        "eight", "llama-8b fsdp", streams, devices, total_steps=5000,
        prediction={**PREDICTION, "rank": 0, "device": "GPU-0"},
        events=[Event(kind="oom", step=1200, time_s=1.0, data=death)], event_rank=3,
        finish={"status": "oom", "step": 1210, "error": "torch.OutOfMemoryError"},
    )  # fmt: skip


@pytest.fixture
def pages(sqlite_app, sqlite_database):
    """Tell the story to the server; pages(path): the text of a page."""
    client = sqlite_app.test_client()

    def post(path, body):
        content = "application/msgpack" if isinstance(body, bytes) else "application/json"
        data = body if isinstance(body, bytes) else json.dumps(body)
        response = client.post(path, data=data, content_type=content)
        return SimpleNamespace(status=response.status_code, body=response.data)

    server = SimpleNamespace(post=post, database_url=sqlite_database.url)
    for scenario in (
        Scenarios.leaking(),
        Scenarios.died(),
        Scenarios.two_ranks(),
        eight_ranks(),
        *Scenarios.sweep(),
    ):
        scenario.replay(server)
    return lambda path: text_of(client.get(path, headers={"Accept": "text/html"}))


def text_of(response):
    assert response.status_code == 200, response.text
    body = re.sub(r"(?s)<(script|svg|head|select)\b.*?</\1>", " ", response.text)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def claims(text):
    """Return {claim: the different values that the text has for it}."""
    found = defaultdict(set)
    for name, pattern in CLAIMS.items():
        for match in re.finditer(pattern, text):
            found[name].add(next(value for value in match.groups() if value))
    return found


def test_each_page_has_one_number_for_one_thing(pages):
    found = {name: claims(pages(path)) for name, path in PAGES.items()}
    several = {
        (page, claim): values
        for page, by_claim in found.items()
        for claim, values in by_claim.items()
        if len(values) > 1
    }
    assert several == {}
    made = {claim for by_claim in found.values() for claim in by_claim}
    assert made >= CLAIMS.keys() - {"the step of the death, among changes"}


def test_a_page_is_about_the_rank_that_died(pages):
    found = claims(pages("/runs/eight"))
    assert found["the step of the death"] == {"1,201"}
    assert found["the rank of predicted and observed"] == {"3"}
    assert "prediction for rank 0" in pages("/runs/eight")


def test_the_components_of_a_leaking_run_add_up_to_its_peak(pages):
    text = pages("/compare?runs=sweep0,k3v9leak")
    assert "other tensors" in text
    (others,) = re.findall(r"other tensors (?:[\d.]+ [GM]iB|–) ([\d.]+) GiB", text)
    assert float(others) > 20


def test_list_and_run_page_tell_the_same_peak(pages):
    listed, page = pages("/"), pages("/runs/eight")
    (peak,) = claims(page)["the highest peak"]
    assert f"{peak} of 79.00 GiB" in listed


def test_page_and_command_line_estimate_the_same(pages, capsys):
    question = {"model": "gpt2-xl", "batch": "4", "gpu": "rtx4090"}
    for more in ({}, {"zero": "3", "ranks": "8"}, {"lora_rank": "16"}):
        query = "&".join(f"{name}={value}" for name, value in {**question, **more}.items())
        options = [
            part
            for name, value in {**question, **more}.items()
            for part in (f"--{name.replace('_', '-')}", value)
        ]
        assert main(["estimate", *options, "--method", "formula", "--json"]) == 0
        peak = json.loads(capsys.readouterr().out)["peak_device_bytes"]
        assert f"needs {format_bytes(peak).removesuffix(' GiB')}" in pages(f"/estimate?{query}"), (
            more
        )
