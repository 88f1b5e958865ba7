"""The compare page as HTML: its content, its address, and its errors."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from memagent.units import GIB
from memagent_server.web import compare_view
from memagent_server.web.pages import compare as pages

HTML = {"Accept": "text/html"}


def start(client, run_id, peak=2 * GIB, **changes):
    devices = [{"id": "D", "kind": "cuda", "name": "H100", "limit_bytes": 8 * GIB}]
    client.post(
        "/api/v1/runs",
        json={"run_id": run_id, "name": f"run {run_id}", "devices": devices, **changes},
    )
    columns = {
        "step": [1, 2],
        "time_s": [1.0, 2.0],
        "allocated_bytes": [GIB, peak],
        "step_s": [0.25, 0.25],
    }
    columns["parameters_bytes"] = [GIB, GIB]
    client.post(
        f"/api/v1/runs/{run_id}/batches",
        json={"seq": 0, "chunks": [{"stream": "D", "columns": columns}]},
    )


def text_of(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_it_shows_config_components_and_figures_side_by_side(client):
    start(client, "a", config={"batch": 8, "lr": 1})
    start(client, "b", config={"batch": 16, "lr": 1}, peak=3 * GIB)
    text = text_of(client.get("/compare?runs=a,b", headers=HTML).text)
    assert "Setting A run a B run b batch 8 16" in text
    assert "All run on H100." in text
    assert " lr " not in text
    assert "parameters 1.00 GiB 1.00 GiB" in text
    assert "run a 2.00 GiB 8.00 GiB 6.00 GiB 75 % – – 250 ms 2" in text
    assert "run b 3.00 GiB +1.00 GiB 8.00 GiB 5.00 GiB 62 % – – 250 ms the same 2" in text
    order = [
        text.index(title)
        for title in (
            "Differences in the config",
            "Curves",
            "Components",
            "Peaks, headroom and time",
        )
    ]
    assert order == sorted(order)


def test_equal_configs_are_reported(sqlite_client):
    for run_id in "ab":
        start(sqlite_client, run_id)
    assert "no run has a config" in sqlite_client.get("/compare?runs=a,b", headers=HTML).text
    for run_id in "cd":
        start(sqlite_client, run_id, config={"lr": 0.1})
    assert "the configs are equal" in sqlite_client.get("/compare?runs=c,d", headers=HTML).text


def test_a_form_redirects_to_the_shareable_address(sqlite_client):
    response = sqlite_client.get("/compare?runs=a&runs=b&runs=a&by=time", headers=HTML)
    assert (response.status_code, response.location) == (303, "/compare?runs=a,b&by=time")
    response = sqlite_client.post(
        "/compare", data={"runs": ["b", "a"], "tag": "left empty"}, headers=HTML
    )
    assert (response.status_code, response.location) == (303, "/compare?runs=b,a")
    response = sqlite_client.post("/compare", data={"runs": ["b"]}, headers=HTML)
    assert (response.status_code, response.location) == (303, "/compare?runs=b")


@pytest.mark.parametrize(
    ("address", "chosen"), [("/compare", 0), ("/compare?runs=", 0), ("/compare?runs=a,a", 1)]
)
def test_an_address_of_too_few_runs_offers_the_newest(sqlite_client, address, chosen):
    for run_id in "abc":
        start(sqlite_client, run_id)
    response = sqlite_client.get(address, headers=HTML)
    assert response.status_code == 200 and "Choose 2 to 20 of the newest runs" in response.text
    assert response.text.count('name="runs"') == 3
    assert response.text.count(" checked") == chosen == response.text.count('value="a" checked')


@pytest.mark.parametrize(
    ("names", "text"), [("", "There are none yet."), ("a", "There is only one yet.")]
)
def test_a_server_without_two_runs_says_so(sqlite_client, names, text):
    for run_id in names:
        start(sqlite_client, run_id)
    page = sqlite_client.get("/compare", headers=HTML).text
    assert text in page and 'name="runs"' not in page


def test_twenty_one_runs_are_refused(sqlite_client):
    names = ",".join(f"r{n}" for n in range(21))
    response = sqlite_client.get(f"/compare?runs={names}", headers=HTML)
    assert (response.status_code, response.mimetype) == (422, "text/html")
    assert "name at most 20 runs" in response.text.lower()


def test_unknown_runs_are_named(sqlite_client):
    start(sqlite_client, "a")
    assert "No run has the id gone:" in sqlite_client.get("/compare?runs=gone", headers=HTML).text
    page = sqlite_client.get("/compare?runs=a,b,c", headers=HTML).text
    assert "No run has the id b, c:" in page and "There is only one yet." in page
    start(sqlite_client, "b")
    page = sqlite_client.get("/compare?runs=a,b,c", headers=HTML).text
    assert "No run has the id c:" in page and "2 runs side by side" in page


def test_a_run_alone_is_preselected_also_if_it_is_old(sqlite_client, monkeypatch):
    monkeypatch.setattr(pages, "_MAX_CHOICE", 2)
    for run_id in "abc":
        start(sqlite_client, run_id)
    page = sqlite_client.get("/compare?runs=a", headers=HTML).text
    assert re.findall(r'value="(\w)"( checked)?', page)[:3] == [
        ("a", " checked"),
        ("c", ""),
        ("b", ""),
    ]


def test_a_device_that_all_runs_share_has_no_column(sqlite_client):
    for run_id in "ab":
        start(sqlite_client, run_id)
    page = sqlite_client.get("/compare?runs=a,b", headers=HTML).text
    assert "All run on H100" in page and ">Device</th>" not in page


def test_runs_without_a_device_have_no_column_of_dashes(sqlite_client):
    for run_id in "ab":
        sqlite_client.post("/api/v1/runs", json={"run_id": run_id})
    page = sqlite_client.get("/compare?runs=a,b", headers=HTML).text
    assert "All run on" not in page and ">Device</th>" not in page


def test_a_run_can_be_removed_down_to_two(sqlite_client):
    for run_id in "abc":
        start(sqlite_client, run_id)
    assert 'href="/compare?runs=a,c"' in sqlite_client.get(
        "/compare?runs=a,b,c", headers=HTML
    ).text.replace("%2C", ",")
    assert "Compare without" not in sqlite_client.get("/compare?runs=a,b", headers=HTML).text


def test_twenty_runs_differ_in_color_and_dash(sqlite_client):
    for number in range(20):
        start(sqlite_client, f"r{number}")
    html = sqlite_client.get(
        "/compare?runs=" + ",".join(f"r{n}" for n in range(20)), headers=HTML
    ).text
    marks = set(re.findall(r'class="swatch (run-\d( dashed)?)"', html))
    assert len(marks) == 20


def test_curves_are_memory_and_logged_scalars():
    runs = [SimpleNamespace(scalars=names) for names in (["loss", "lr"], ["loss", "accuracy"])]
    names = [name for name, _ in compare_view.curves(runs)]
    assert names[0] == "peak_allocated_bytes"
    assert names[-3:] == ["scalar:accuracy", "scalar:loss", "scalar:lr"]


def test_bars_share_a_scale_and_fall_back_on_the_prediction():
    def run(*rows):
        facts = [
            SimpleNamespace(component=name, observed_bytes=observed, predicted_bytes=predicted)
            for name, observed, predicted in rows
        ]
        return SimpleNamespace(components=SimpleNamespace(components=facts))

    observed = run(("parameters", 30, 50), ("activations", 70, 10))
    predicted = run(("parameters", None, 25))
    first, second, empty = compare_view.bars([observed, predicted, run()])
    assert [(part.x, part.width) for part in first.parts] == [(0.0, 30.0), (30.0, 70.0)]
    assert [(part.x, part.width) for part in second.parts] == [(0.0, 25.0)]
    assert (empty.parts, empty.sum) == ([], "–")
