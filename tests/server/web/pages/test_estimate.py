"""The calculator: fields keep their text and show their errors, and the answer is the API's."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qsl

import pytest
from msgspec import convert

from memagent.estimator.cards import CARDS, smallest_cards
from memagent.units import GIB
from memagent_server.schemas.predictions import Estimate
from memagent_server.web.pages.estimate import advice_rows, levels, read_form, stack, trace_command

HTML = {"Accept": "text/html"}
SHAPE = {
    "model": "shape",
    "layers": "4",
    "hidden": "256",
    "heads": "4",
    "vocab": "1000",
    "sequence": "128",
}


def page(client, **query):
    response = client.get("/estimate", query_string=query, headers=HTML)
    assert response.status_code == 200
    return response.get_data(as_text=True)


def test_it_starts_without_a_verdict_and_links_an_example(client):
    html = page(client)
    assert "Will it fit?" in html and 'class="headline"' not in html
    (address,) = re.findall(r'href="/estimate\?([^"]*)">gpt2-xl with batch 4', html)
    example = page(client, **dict(parse_qsl(unescape(address))))
    assert re.search(r"Won&#39;t fit: needs \d\d\.\d\d of 23\.53 GiB", example)
    assert "a batch of 1 won&#39;t fit" in example and "What would save memory" in example


def test_it_shows_the_result_of_the_api(client):
    body = client.post(
        "/api/v1/estimate", json={"model": "bert-base", "batch": 8, "gpu": "t4"}
    ).get_json()
    html = page(client, model="bert-base", batch="8", gpu="t4")
    for name, peak, between in levels(convert(body, Estimate)):
        assert name in html
        assert peak in html
        assert between in html
    assert f"<b>{body['largest_batch']:,}</b>" in html
    assert all(item["change"] in html for item in body["advice"])


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ({"model": "gpt2"}, "memagent estimate --model gpt2"),
        (
            {"model": "gpt2-xl", "batch": "4", "gpu": "NVIDIA T4", "lora_rank": "8"},
            "memagent estimate --model gpt2-xl --gpu 'NVIDIA T4' --batch 4 --lora-rank 8",
        ),
        ({"model": "gpt2", "gpu": "t4", "limit": "8GiB"}, "memagent estimate --model gpt2 --gpu 8GiB"),
        ({"model": "gpt2", "zero": "3", "ranks": "8"}, ""),
        (SHAPE, ""),
    ],
)  # fmt: skip
def test_it_names_the_command_that_traces_the_same_step(client, query, command):
    assert trace_command(read_form(query).values) == command
    assert ("More exact" in page(client, **query)) == bool(command)


def test_every_choice_reaches_the_estimator():
    form = {
        "model": "llama-2-7b", "batch": "2", "sequence": "1024", "precision": "bf16-amp", "optimizer": "lion", "checkpointing": "full",
        "attention": "math", "loss": "fused", "lora_rank": "16", "quantised": "nf4", "kbit_training": "trl", "ranks": "8", "zero": "3", "tensor": "2",
        "pipeline": "4", "offload_optimizer": "1", "offload_parameters": "1", "gpu": "a100", "limit": "24GiB",
    }  # fmt: skip
    body = read_form(form).request
    for name, value in form.items():
        wanted = 24 * GIB if name == "limit" else value
        result = getattr(body, "limit_bytes" if name == "limit" else name)
        assert str(result) == str(True if name.startswith("offload") else wanted), name


def test_it_says_what_the_answer_depends_on(client):
    form = {"model": "llama-2-7b", "lora_rank": "8", "ranks": "4", "zero": "3"}
    assert "fsdp_wrap is not given" in page(client, **form)
    assert "fsdp_wrap is not given" not in page(client, **form, fsdp_wrap="peft")


def test_a_custom_shape_is_read(client):
    body = read_form({**SHAPE, "gated": "1"}).request
    assert (body.model, body.layers, body.gated) == (None, 4, True)
    assert "Needs" in page(client, **SHAPE)


def test_an_incomplete_shape_names_the_missing_fields():
    assert set(read_form({"model": "shape", "layers": "4"}).errors) == {
        "hidden",
        "heads",
        "vocab",
        "sequence",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", "many"), ("batch", "0"), ("batch", "9" * 12), ("sequence", "-1"), ("limit", "24 lightyears"), ("limit", "80"), ("limit", "80.5"), ("limit", "9" * 30),
        ("zero", "7"), ("precision", "fp3"), ("optimizer", "magic"), ("model", "gpt-none"), ("gpu", "abacus"), ("ranks", "1.5"),
    ],
)  # fmt: skip
def test_an_invalid_field_shows_its_error_and_all_fields_keep_their_text(client, name, value):
    html = page(client, **{"model": "gpt2", "batch": "3", "lora_rank": "17", name: value})
    error = html.split(f'id="wrong-{name}">')[1].split("</span>")[0]
    assert error
    assert 'name="lora_rank" aria-describedby="wrong-lora_rank" value="17"' in html
    assert value in html.split("<form", 1)[1].split("</form>")[0]
    assert "No estimate yet" in html


def test_two_invalid_fields_both_show_their_errors():
    assert set(read_form({"batch": "x", "sequence": "y"}).errors) == {"batch", "sequence"}


def test_typed_markup_is_escaped(client):
    html = page(client, model="<script>alert(1)</script>", gpu='"><img src=x>')
    assert "<script>alert" not in html
    assert "<img src=x" not in html


def test_parts_are_end_to_end_on_one_scale(client):
    body = client.post("/api/v1/estimate", json={"model": "gpt2", "gpu": "a100"}).get_json()
    chart = stack(convert(body, Estimate))
    ends = [part.x + part.width for part in chart.parts]
    assert [part.x for part in chart.parts[1:]] == pytest.approx(ends[:-1], abs=0.03)
    assert max(ends[-1], chart.limit, chart.high) < 100
    assert chart.low <= chart.needed <= chart.high


def test_advice_has_the_memory_needed_then(client):
    body = client.post(
        "/api/v1/estimate", json={"model": "gpt2-xl", "batch": 8, "limit_bytes": 60 * GIB}
    ).get_json()
    items = advice_rows(convert(body, Estimate))
    assert any(item.then_fits for item in items)
    assert all(item.then_bytes <= 60 * GIB for item in items if item.then_fits)


@pytest.mark.parametrize(
    ("limit", "word"),
    [("400GiB", "Fits"), ("429496729600", "Fits"), ("16GiB", "Tight"), ("1GiB", "Won")],
)
def test_the_verdict_is_the_apis_word(client, limit, word):
    html = page(client, model="gpt2-xl", precision="bf16", batch="1", limit=limit)
    assert f'class="headline">{word}' in html


def test_it_names_the_smallest_cards_unless_it_fits(client):
    query = {"model": "gpt2-xl", "batch": "4"}
    html = page(client, **query, gpu="t4")
    line = re.search(r"Smallest cards it fits on, one of each size: ([^<]+)<", html)
    listed = [CARDS[text.split()[0]] for text in line[1].split(", ")]
    body = {"model": "gpt2-xl", "batch": 4, "gpu": "t4"}
    estimate = client.post("/api/v1/estimate", json=body).get_json()
    assert listed == smallest_cards(estimate["intervals"]["device"][1])
    assert "Smallest cards" not in page(client, **query, gpu="b300")


def test_a_model_that_the_formula_does_not_know_gets_a_sentence_and_no_number(client):
    html = page(client, model="resnet-50", batch="256", gpu="a10")
    assert "is a resnet, which the formula" in html and 'class="headline"' not in html
    response = client.post("/api/v1/estimate", json={"model": "resnet-50", "gpu": "a10"})
    assert response.status_code == 422 and "can be traced" in response.get_json()["detail"]


def test_a_card_may_be_written_as_people_write_it(client):
    body = client.post("/api/v1/estimate", json={"model": "gpt2", "gpu": "RTX 4090"}).get_json()
    assert body["limit_bytes"] < 24 * GIB and body["verdict"] == "fits"
    response = client.post("/api/v1/estimate", json={"model": "gpt2", "gpu": "24"})
    assert response.status_code == 422 and "needs a unit" in response.get_json()["detail"]
