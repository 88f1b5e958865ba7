"""The page of unused memory, and the same by the API, the Python API and the command."""

from __future__ import annotations

import re
from html import unescape

import pytest

import memagent
from memagent.cli import main
from memagent.errors import MemagentError
from memagent.units import GIB
from memagent_server.web.waste import COLUMNS, GROUPS

HTML = {"Accept": "text/html"}


def add_run(client, run_id="r", **changes):
    devices = [
        {"id": "G", "kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "limit_bytes": 80 * GIB}
    ]
    start = {"run_id": run_id, "user": "ann", "project": "vision", "devices": devices, **changes}
    assert client.post("/api/v1/runs", json=start).status_code == 201
    columns = {"step": [1], "time_s": [1.0], "allocated_bytes": [9 * GIB]}
    columns |= {"process_device_bytes": [10 * GIB], "device_used_bytes": [12 * GIB]}
    body = {"seq": 0, "chunks": [{"stream": "G", "columns": columns}]}
    assert client.post(f"/api/v1/runs/{run_id}/batches", json=body).status_code == 200


def text_of(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_the_api_answers_rows_and_their_sums(client):
    add_run(client)
    answer = client.get("/api/v1/waste?by=user,card").get_json()
    (row,) = answer["rows"]
    assert (answer["by"], row["user"], row["project"]) == (["user", "card"], "ann", None)
    assert row["smallest_card"] == "NVIDIA GeForce RTX 5070"
    assert row["peak_bytes"] == 10 * GIB and answer["total"]["runs"] == 1
    assert row["unused_gib_hours"] / row["available_gib_hours"] == pytest.approx(68 / 80)


@pytest.mark.parametrize("query", ["days=0", "by=host", "sort=name", "limit=201", "unknown=1"])
def test_a_wrong_query_names_its_parameter(sqlite_client, query):
    response = sqlite_client.get(f"/api/v1/waste?{query}")
    assert response.status_code == 422
    assert response.get_json()["field"] == query.partition("=")[0]


@pytest.mark.parametrize("by", GROUPS)
def test_the_page_shows_each_grouping(sqlite_client, by):
    add_run(sqlite_client)
    text = text_of(sqlite_client.get(f"/waste?by={by}", headers=HTML).text)
    assert "10.00 GiB RTX 5070" in text
    assert ("ann" in text) == (by in ("", "user", "run"))


def test_a_heading_sorts_and_keeps_the_other_choices(sqlite_client):
    add_run(sqlite_client)
    html = sqlite_client.get("/waste?days=30&by=user&project=vision", headers=HTML).text
    for column in COLUMNS.keys() - {"cost", "unused_gib_hours"}:
        address = f"/waste?days=30&amp;by=user&amp;project=vision&amp;sort={column}"
        assert address in html
    assert (
        'aria-sort="descending"><a class="sorts" href="/waste?days=30&amp;by=user&amp;project=vision">Unused'
        in html
    )


def test_without_a_gpu_the_page_says_so(sqlite_client):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    assert "No run used a GPU" in sqlite_client.get("/waste", headers=HTML).text


def test_the_command_prints_a_table(sqlite_client, sqlite_url, capsys):
    add_run(sqlite_client, user="a\x1bnn")
    assert main(["waste", "--source", sqlite_url, "--by", "user,card"]) == 0
    heading, row, total = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["USER", "CARD", "GPU-HOURS"]
    assert row.startswith("a?nn") and row.endswith("10.00 GiB  GeForce RTX 5070")
    assert total.startswith("total")


def test_the_command_says_what_is_wrong(sqlite_url, tmp_path, capsys):
    for arguments, words in (
        (["--by", "host"], "--by takes user, project, card, run, not host"),
        (["--days", "0"], "--days must be 1 to 3650, got 0"),
    ):
        assert main(["waste", "--source", sqlite_url, *arguments]) == 2
        assert words in capsys.readouterr().err
    assert main(["waste", "--source", str(tmp_path)]) == 1
    assert "needs a server or a database" in capsys.readouterr().err
    assert main(["waste", "--source", sqlite_url]) == 0
    assert "no run used a GPU in the last 7 days" in capsys.readouterr().err


def test_the_python_api_answers_the_same(sqlite_client, sqlite_url, tmp_path):
    add_run(sqlite_client)
    with memagent.Api(sqlite_url) as api:
        (row,) = api.waste(by=["run"], order="gpu_hours", limit=1)["rows"]
    assert (row["run"], row["card"]) == ("r", "NVIDIA H100 80GB HBM3")
    with memagent.Api(tmp_path) as api, pytest.raises(MemagentError):
        api.waste()


@pytest.mark.parametrize("by", ["", "user", "project", "card"])
def test_a_row_links_to_its_runs(sqlite_client, by):
    add_run(sqlite_client)
    add_run(sqlite_client, "other", user="ben", project="nlp")
    html = sqlite_client.get(f"/waste?by={by}", headers=HTML).text
    links = [unescape(link) for link in re.findall(r'href="(/\?where=[^"]+)"', html)]
    assert len(links) == (0 if by == "card" else 2)
    for link in links:
        runs = sqlite_client.get(link, headers=HTML).text
        assert ('href="/runs/r"' in runs) != ('href="/runs/other"' in runs)


def test_a_link_keeps_the_project_and_the_lack_of_a_user(sqlite_client):
    add_run(sqlite_client)
    add_run(sqlite_client, "nobodys", user=None)
    add_run(sqlite_client, "elsewhere", user=None, project="nlp")
    html = sqlite_client.get("/waste?by=user&project=vision", headers=HTML).text
    links = [unescape(link) for link in re.findall(r'href="(/\?project=[^"]+)"', html)]
    shown = [
        set(re.findall(r'href="/runs/(\w+)"', sqlite_client.get(link, headers=HTML).text))
        for link in links
    ]
    assert sorted(map(sorted, shown)) == [["nobodys"], ["r"]]
