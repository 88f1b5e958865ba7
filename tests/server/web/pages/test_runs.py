"""Tagging, archiving and sorting in the list of runs, with a browser's forms."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qs, quote

import pytest

from memagent_server.http.credentials import token_hash
from memagent_server.store import run_list
from memagent_server.store.tokens import create_token
from memagent_server.web.pages import runs as pages

HTML = {"Accept": "text/html"}


@pytest.fixture
def listed(client):
    """listed("/?..."): the names of the listed runs; the server has a, b and c."""
    for run_id, tags in (("a", ["x"]), ("b", []), ("c", ["x", "y"])):
        client.post("/api/v1/runs", json={"run_id": run_id, "name": f"run {run_id}", "tags": tags})

    def listed(path):
        return re.findall(
            r'class="strong" href="[^"]*">run (\w)<', client.get(path, headers=HTML).text
        )

    return listed


def organise(client, what, *run_ids, **fields):
    return client.post("/runs", data={"what": what, "runs": list(run_ids), **fields}, headers=HTML)


def test_a_filter_without_runs_names_the_setting_that_they_have(client):
    config = {"optimizer": {"lr": 0.01}}
    client.post("/api/v1/runs", json={"run_id": "a", "config": config})
    page = client.get("/?where=config.lr+<+1&group=user", headers=HTML).text
    text = " ".join(unescape(re.sub("<[^>]+>", "", page)).split())
    assert "No runs match No recent run has config.lr. Did you mean config.optimizer.lr?" in text
    (link,) = re.findall(r'href="([^"]+)"><code>config.optimizer.lr', page)
    assert "config.optimizer.lr" in link
    assert "group-status" in client.get(unescape(link), headers=HTML).text
    quoted = client.get(
        "/", query_string={"where": "config.lr > 1 and name = 'config.lr x'"}, headers=HTML
    ).text
    (link,) = re.findall(r'href="([^"]+)"><code>config.optimizer.lr', quoted)
    assert parse_qs(unescape(link).partition("?")[2])["where"] == [
        "config.optimizer.lr > 1 and name = 'config.lr x'"
    ]
    for known in ("config.optimizer.lr > 1", "config.width > 1", "peak_bytes > 1"):
        assert (
            "Did you mean" not in client.get("/", query_string={"where": known}, headers=HTML).text
        )


def test_selected_runs_are_tagged_and_found_by_their_tag(client, listed):
    response = organise(client, "tag", "a", "b", tag="best, shown", next="/?q=run")
    assert (response.status_code, response.location) == (303, "/?q=run")
    assert listed("/?tag=best&sort=name") == listed("/?tag=shown&sort=name") == ["a", "b"]
    organise(client, "untag", "a", "c", tag="x")
    assert listed("/?tag=x") == []
    assert client.get("/api/v1/runs?tag=y").get_json()["runs"][0]["tags"] == ["y"]


@pytest.mark.usefixtures("listed")
def test_selected_runs_are_renamed_and_noted_together(client):
    client.post("/runs/a", data={"name": "a", "notes": "First."}, headers=HTML)
    assert organise(client, "rename", "a", "b", name=" sweep 7 ").status_code == 303
    assert (
        organise(client, "note", "a", "b", notes="Too hot.\r\nStop at *90 %*.\r\n").status_code
        == 303
    )
    runs = {run_id: client.get(f"/api/v1/runs/{run_id}").get_json() for run_id in "abc"}
    assert [runs[run_id]["name"] for run_id in "ab"] == ["sweep 7"] * 2
    assert runs["c"]["name"] != "sweep 7" and not runs["c"]["notes"]
    note = "Too hot.\nStop at *90 %*."
    assert [runs[run_id]["notes"] for run_id in "ab"] == [f"First.\n\n{note}", note]


def test_a_filter_of_the_address_stays_in_every_link_until_it_is_removed(client, listed):
    where = quote('name != "run b" and "x" in tags')
    assert listed(f"/?where={where}&sort=name") == ["a", "c"]
    assert listed(f"/?where={where}&tag=y") == ["c"]
    page = client.get(f"/?where={where}&sort=name", headers=HTML).text
    assert 'name="where" list="names" value="name != &#34;run b&#34; and' in page
    links = re.findall(r'class="sorts" href="([^"]*)"', page)
    assert links and all("where=name" in link for link in links)


def test_a_wrong_filter_lists_the_runs_with_the_mistake_beside_its_field(client, listed):
    assert sorted(listed("/?where=peak_ration>1")) == ["a", "b", "c"]
    page = client.get("/?where=peak_ration>1", headers=HTML)
    assert page.status_code == 200
    assert "the nearest is &#39;peak_ratio&#39;" in page.text
    assert 'value="peak_ration&gt;1"' in page.text
    assert 'aria-invalid="true" aria-describedby="mistake"' in page.text
    assert listed("/?where=peak_ration>1&tag=y") == ["c"]


def test_the_columns_of_the_listed_runs_complete_a_filter(client):
    config = {"optimizer": {"lr": 1e-3, "a.b": 1, 'no"quote': 1}}
    client.post("/api/v1/runs", json={"run_id": "a", "config": config})
    page = client.get("/", headers=HTML).text
    options = [unescape(name) for name in re.findall(r'<option value="([^"]+\.[^"]+)"', page)]
    assert options == ['config.optimizer."a.b"', "config.optimizer.lr"]


@pytest.mark.parametrize(
    ("address", "count"),
    [
        ("/", "3 runs"),
        ("/?tag=x", "2 runs"),
        ("/?where=name+%3D+%22run+b%22", "1 run"),
        ("/?project=none", ""),
        ("/?q=run", ""),
    ],
)
@pytest.mark.usefixtures("listed")
def test_the_head_counts_the_runs_of_all_pages(client, address, count):
    page = client.get(address, headers=HTML).text
    assert re.search(r'<p id="total"[^>]*>([^<]*)</p>', page)[1] == count


@pytest.mark.usefixtures("listed")
def test_the_count_has_a_bound(client, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_COUNTED", 2)
    monkeypatch.setattr(pages, "MAX_COUNTED", 2)
    assert ">over 2 runs</p>" in client.get("/", headers=HTML).text


def test_a_search_without_a_match_goes_on_where_it_ended(client, listed, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_SEARCHED", 2)
    monkeypatch.setattr(pages, "MAX_SEARCHED", 2)
    page = client.get("/?q=%22run+a%22", headers=HTML).text
    assert "No match in the newest 2 runs" in page
    more = unescape(re.search(r'rel="next" href="([^"]*)">Search the next 2', page)[1])
    assert listed(more) == ["a"]
    assert "No runs match" in client.get("/?q=run+c+nothing&project=none", headers=HTML).text


def test_archived_runs_leave_the_list_and_come_back(client, listed):
    organise(client, "archive", "a", "c")
    assert listed("/?sort=name") == ["b"]
    assert listed("/?archived=1&sort=name") == ["a", "c"]
    assert [
        run["id"] for run in client.get("/api/v1/runs?archived=1&sort=-name").get_json()["runs"]
    ] == ["c", "a"]
    assert client.get("/runs/a", headers=HTML).status_code == 200
    organise(client, "restore", "a")
    assert listed("/?sort=-name") == ["b", "a"]


@pytest.mark.parametrize(
    ("what", "run_ids", "tag", "status", "text"),
    [
        ("destroy", ["a"], "", 422, "not one of tag, untag, rename, note, archive, restore"),
        ("tag", [], "x", 422, "Runs: select 1 to 200 runs, not 0."),
        ("tag", ["a"], " , ", 422, "enter tags of 1 to 200 characters"),
        ("tag", ["a"], "y" * 201, 422, "enter tags of 1 to 200 characters"),
        ("tag", ["a", "\0"], "y", 422, "NUL"),
        ("archive", ["a", "nobody"], "", 404, "nobody"),
        ("rename", ["a"], "", 422, "Name: enter 1 to 200 characters"),
        ("note", ["a"], "", 422, "Notes: enter 1 to 20,000 characters"),
    ],
    ids=(
        "unknown action",
        "no run",
        "no tag",
        "long tag",
        "NUL",
        "unknown run",
        "no name",
        "no notes",
    ),
)
def test_an_invalid_action_is_refused_as_a_whole(client, listed, what, run_ids, tag, status, text):
    response = organise(client, what, *run_ids, tag=tag)
    assert response.status_code == status
    assert text in response.text
    assert listed("/?sort=name") == ["a", "b", "c"]
    assert listed("/?tag=y") == ["c"]


def test_pages_of_other_sites_change_nothing(client, listed):
    response = client.post(
        "/runs", data={"what": "archive", "runs": ["a"]}, headers={"Origin": "https://evil.example"}
    )
    assert response.status_code == 403
    assert len(listed("/")) == 3


def test_readers_can_only_compare(sqlite_app, sqlite_client):
    sqlite_client.post("/api/v1/runs", json={"run_id": "a"})
    changing = ('value="archive"', 'value="tag"', 'name="tag"')
    assert all(control in sqlite_client.get("/", headers=HTML).text for control in changing)
    with sqlite_app.extensions["memagent"].database.write() as session:
        settings = sqlite_app.extensions["memagent"].settings
        create_token(session, name="r", scope="read", token_hash=token_hash(settings, "t"), now=1.0)
    reader = {**HTML, "Authorization": "Bearer t"}
    html = sqlite_client.get("/", headers=reader).text
    assert 'id="compare"' in html
    assert not [control for control in changing if control in html]
    assert (
        sqlite_client.post(
            "/runs", data={"what": "archive", "runs": ["a"]}, headers=reader
        ).status_code
        == 403
    )


def test_filters_are_kept_from_page_to_page_and_by_the_links_of_a_row(sqlite_client):
    for number in range(51):
        sqlite_client.post(
            "/api/v1/runs", json={"run_id": f"r{number:02}", "project": "a&b", "tags": ["t"]}
        )
    html = sqlite_client.get("/?project=a%26b&sort=name&endpoint=x", headers=HTML).text
    older = re.search(r'rel="next" href="([^"]+)"', html)[1].replace("&amp;", "&")
    assert older.startswith("/?project=a%26b&sort=name&")
    assert "r50" in sqlite_client.get(older, headers=HTML).text
    assert 'class="tag" href="/?project=a%26b&amp;tag=t&amp;sort=name"' in html


@pytest.mark.parametrize(
    "path",
    [
        "/?archived=yes",
        "/?sort=name&cursor=WzEuMCwgImEiXQ",
        "/?sort=config.lr&cursor=WzEuMCwgImEiXQ",
        "/?sort=config.lr&cursor=WzIsMSwiYSJd",
    ],
)
def test_unsupported_filters_are_refused(sqlite_client, path):
    assert sqlite_client.get(path, headers=HTML).status_code == 422


def test_a_heading_of_any_column_sorts_by_it(client):
    for run_id, lr in (("a", 0.5), ("b", "x"), ("c", None), ("d", 0.25)):
        client.post(
            "/api/v1/runs", json={"run_id": run_id, "config": {"lr": lr}, "name": f"run {run_id}"}
        )
    page = client.get("/?columns=config.lr", headers=HTML).text
    rising = re.search(
        r'class="cell-chosen" title="config.lr"><a class="sorts" href="([^"]*)"', page
    )
    page = client.get(unescape(rising[1]), headers=HTML).text
    assert re.findall(r'class="strong" href="/runs/(\w)"', page) == ["d", "a", "b", "c"]
    assert (
        'title="config.lr" aria-sort="ascending"' in page and ">lr, lowest first</option>" in page
    )
    falling = re.search(r'aria-sort="ascending"><a class="sorts" href="([^"]*)"', page)
    page = client.get(unescape(falling[1]), headers=HTML).text
    assert re.findall(r'class="strong" href="/runs/(\w)"', page) == ["b", "a", "d", "c"]


def test_an_order_by_no_column_lists_the_newest_first_and_says_so(client, listed):
    page = client.get("/?sort=peak_ration", headers=HTML)
    assert page.status_code == 200
    assert "Order not applied: there is no column &#39;peak_ration&#39;" in page.text
    assert listed("/?sort=peak_ration") == listed("/")


def test_a_server_with_tokens_says_where_to_create_one(sqlite_app, sqlite_client):
    assert "MEMAGENT_TOKEN" not in sqlite_client.get("/", headers=HTML).text
    server = sqlite_app.extensions["memagent"]
    with server.database.write() as session:
        key = token_hash(server.settings, "t")
        create_token(session, name="a", scope="admin", token_hash=key, now=1.0)
    page = sqlite_client.get("/", headers={**HTML, "Authorization": "Bearer t"}).text
    assert "export MEMAGENT_TOKEN=mag_…" in page and 'href="/settings/tokens">Tokens</a>' in page
    assert "memagent token create" not in page, "elsewhere it makes a token of another server"


def test_selected_runs_are_deleted(client, listed):
    assert organise(client, "delete", "a", "c").status_code == 303
    assert listed("/?sort=name") == ["b"]
    assert organise(client, "delete", "unknown").status_code == 404
    assert client.get("/api/v1/runs/a").status_code == 404


def test_chosen_columns_are_shown_and_stay_in_every_link(sqlite_client):
    for run_id, lr in (("a", 0.25), ("b", 0.5)):
        config = {"lr": lr, "batch": 8}
        sqlite_client.post("/api/v1/runs", json={"run_id": run_id, "config": config})
    page = sqlite_client.get("/?columns=config.lr,+config.<b>", headers=HTML).text
    assert (
        'title="config.lr"><a class="sorts"' in page and 'data-name="config.lr">0.25</td>' in page
    )
    assert "config.&lt;b&gt;" in page and "config.<b>" not in page
    assert all(
        "columns=config.lr" in link for link in re.findall(r'class="sorts" href="([^"]*)"', page)
    )
    differing = sqlite_client.get("/?columns=differing", headers=HTML).text
    assert re.findall(r'class="cell-chosen" title="([^"]*)"', differing) == ["config.lr"]
    page = sqlite_client.get("/?columns=lr,config.lr", headers=HTML)
    assert page.status_code == 200 and "write config.lr for a setting" in page.text
    assert 'data-name="config.lr">0.25</td>' in page.text


def test_groups_are_shown_with_the_filter_of_each(client):
    for number, optimizer in enumerate(["adam", "adam", '<b>"it\'s"', None]):
        config = {"optimizer": optimizer, "lr": number / 10}
        client.post("/api/v1/runs", json={"run_id": f"r{number}", "config": config})
    address = "/?group=config.optimizer,status&columns=config.lr&where=config.lr<1+or+id='r0'"
    page = client.get(address, headers=HTML).text
    assert "<b>" not in page and "&lt;b&gt;" in page
    links = re.findall(r'class="level-(\d)" title="[^"]*"><a href="([^"]*)">([^<]*)<', page)
    assert [(level, text) for level, _, text in links] == [
        ("0", "adam"),
        ("1", "running"),
        ("0", "–"),
        ("1", "running"),
    ], "no filter can name a text with both quotes"
    runs = client.get(unescape(links[1][1]), headers=HTML).text
    assert sorted(re.findall(r'class="strong" href="/runs/(\w+)"', runs)) == ["r0", "r1"]
    assert "(config.lr&lt;1 or id=&#39;r0&#39;) and config.optimizer = " in runs
    runs = client.get(unescape(links[3][1]), headers=HTML).text
    assert re.findall(r'class="strong" href="/runs/(\w+)"', runs) == ["r3"]
    assert 'aria-sort="descending"><a class="sorts"' in page and "(0 to 0.1)</span>" in page


def test_a_wrong_group_lists_the_runs_and_says_so(client, listed):
    page = client.get("/?group=lr", headers=HTML)
    assert page.status_code == 200 and "write config.lr for a setting" in page.text
    assert sorted(listed("/?group=lr")) == ["a", "b", "c"]


def test_more_groups_than_fit_are_counted(sqlite_client):
    for number in range(52):
        config = {"x": number, "y": 0}
        sqlite_client.post("/api/v1/runs", json={"run_id": f"r{number}", "config": config})
    assert "The first 50 of 52 groups." in sqlite_client.get("/?group=config.x", headers=HTML).text
    page = sqlite_client.get("/?group=config.y,config.x", headers=HTML).text
    assert "and 2 more in it" in page
