"""Actions on alerts, rules, and the accuracy of warnings, by API and on pages."""

from __future__ import annotations

import re

import pytest

from memagent.forecast import Forecast
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.rules import RULES
from memagent_server.http import credentials
from memagent_server.store.forecasts import add_forecasts
from memagent_server.store.models import StreamRow, TokenRow
from memagent_server.store.runs import lock_run

HTML = {"Accept": "text/html"}
GIB = 2**30
FACTS = {
    "step": 900,
    "eta_step": 1300.0,
    "eta_s": 800.0,
    "used_bytes": 28 * GIB,
    "limit_bytes": 40 * GIB,
    "cause": "leak",
}


@pytest.fixture
def alert_id(app, client):
    """A firing alert of run `r` in project `nlp`."""
    devices = [{"id": "gpu", "kind": "cuda", "name": "GPU", "limit_bytes": 40 * GIB}]
    client.post(
        "/api/v1/runs", json={"run_id": "r", "name": "gpt", "project": "nlp", "devices": devices}
    )
    context = app.extensions["memagent"]
    with context.database.write() as session:
        lock_run(session, "r")
        incidents = IncidentTransaction(session, ("webhook",), context.clock())
        stream = session.query(StreamRow).filter_by(run_id="r").one()
        alert = incidents.open(
            "r", stream.id, "oom_forecast", severity="warning", step=890, data=FACTS, cause="leak"
        )
        incidents.escalate(alert, severity="warning", step=900, data=FACTS)
        incidents.flush()
        return alert.id


def act(client, alert_id, what, **body):
    response = client.post(f"/api/v1/alerts/{alert_id}/{what}", json=body)
    return response.status_code, response.get_json()


def test_an_alert_is_acknowledged_snoozed_and_marked_false(client, alert_id):
    status, alert = act(client, alert_id, "ack", by="ana", note="on it")
    assert (status, alert["id"], alert["incident"]["acked_by"], alert["incident"]["note"]) == (
        200,
        alert_id,
        "ana",
        "on it",
    )
    status, alert = act(client, alert_id, "snooze", for_s=7200)
    assert status == 200 and alert["incident"]["snoozed_until"] > alert["incident"]["acked_at"]
    status, alert = act(client, alert_id, "false-alarm")
    assert status == 200 and alert["incident"]["false_alarm_at"] and alert["state"] == "firing"
    score = client.get("/api/v1/scoreboard?project=nlp").get_json()
    assert (score["total"]["warnings"], score["total"]["open"], score["total"]["called_false"]) == (
        1,
        1,
        1,
    )
    assert client.get("/api/v1/scoreboard?project=other").get_json()["total"]["warnings"] == 0


def test_an_answer_is_taken_back_with_all_that_it_changed(client, alert_id):
    before = client.get("/api/v1/alerts").get_json()["alerts"][0]["incident"]
    act(client, alert_id, "ack", by="ana", note="on it")
    act(client, alert_id, "snooze")
    act(client, alert_id, "false-alarm")
    status, alert = act(client, alert_id, "undo")
    assert status == 200
    assert {**alert["incident"], "updated_at": None} == {**before, "updated_at": None}
    assert client.get("/api/v1/scoreboard").get_json()["total"]["called_false"] == 0
    assert act(client, alert_id, "ack", by="ben")[1]["incident"]["acked_by"] == "ben"


def test_unknown_alerts_and_actions_are_refused(client, alert_id):
    assert act(client, 99_999, "ack")[0] == 404
    assert act(client, alert_id, "like")[0] == 404
    for body in ({"for_s": 5}, {"for_s": "long"}, {"reason": "x"}, {"note": "x" * 3000}):
        status, problem = act(client, alert_id, "snooze", **body)
        assert status == 422 and problem["detail"]
    assert client.post(f"/alerts/{alert_id}/say", data={"what": "like"}).status_code == 422


def test_an_alert_that_is_over_cannot_be_snoozed(app, client, alert_id):
    client.post("/api/v1/runs/r/finish", json={"status": "completed"})
    context = app.extensions["memagent"]
    with context.database.write() as session:
        from memagent_server.store.models import AlertRow

        incidents = IncidentTransaction(session, (), context.clock())
        incidents.end(
            session.get(AlertRow, alert_id),
            "finished",
            step=950,
            reason="the run ended as completed",
        )
        incidents.flush()
    assert act(client, alert_id, "snooze")[0] == 409
    assert act(client, alert_id, "false-alarm")[0] == 200
    alert = client.get("/api/v1/alerts?state=finished").get_json()["alerts"][0]
    assert alert["summary"] == "ended at step 950 before it ran out of memory; warned at step 900"


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "٣", "9" * 30])
def test_an_invalid_cursor_is_refused(client, cursor):
    for path in ("/api/v1/alerts", "/alerts"):
        response = client.get(path, query_string={"cursor": cursor})
        assert response.status_code == 422


def test_readers_acknowledge_and_only_admins_set_rules(app, client, alert_id):
    context = app.extensions["memagent"]
    tokens = {scope: credentials.new_token() for scope in ("ingest", "read", "admin")}
    with context.database.write() as session:
        for scope, token in tokens.items():
            session.add(
                TokenRow(
                    name=f"{scope}-token",
                    scope=scope,
                    hash=credentials.token_hash(context.settings, token),
                    created_at=1.0,
                )
            )

    def ask(scope, method, path, **options):
        return client.open(
            path, method=method, headers={"Authorization": f"Bearer {tokens[scope]}"}, **options
        )

    for scope, status, changed in (("ingest", 403, 403), ("read", 200, 403), ("admin", 200, 200)):
        assert ask(scope, "POST", f"/api/v1/alerts/{alert_id}/ack", json={}).status_code == status
        assert ask(scope, "PUT", "/api/v1/rules", json={"rules": {}}).status_code == changed
    assert ask("read", "GET", "/api/v1/rules").status_code == 200
    html = ask("read", "GET", "/alerts").get_data(as_text=True)
    assert "Acknowledged by read-token" in html and "False alarm</button>" in html
    assert "fieldset disabled" in ask("read", "GET", "/settings").get_data(as_text=True)


def test_other_sites_cannot_act_on_alerts(client, alert_id):
    foreign = {"Origin": "https://evil.example"}
    assert (
        client.post(f"/alerts/{alert_id}/say", data={"what": "ack"}, headers=foreign).status_code
        == 403
    )
    assert client.post("/settings", data={}, headers=foreign).status_code == 403


def test_the_buttons_of_the_page_act_on_alerts(client, alert_id):
    page = client.get("/alerts?state=open", headers=HTML).get_data(as_text=True)
    assert (
        'value="/alerts?state=open#incident-1"' in page
        and "will run out of memory in about 400 steps" in page
    )
    response = client.post(
        f"/alerts/{alert_id}/say", data={"what": "ack", "next": "/alerts?state=open"}
    )
    assert (response.status_code, response.headers["Location"]) == (303, "/alerts?state=open")
    assert "Acknowledged" in client.get("/alerts", headers=HTML).get_data(as_text=True)
    assert (
        client.post(
            f"/alerts/{alert_id}/say", data={"what": "ack", "next": "//evil.example"}
        ).headers["Location"]
        == "/"
    )


def test_several_alerts_are_acknowledged_at_once(client, alert_id):
    path = "/alerts/acknowledge"
    response = client.post(path, data={"alerts": [alert_id, alert_id], "next": "/alerts"})
    assert (response.status_code, response.headers["Location"]) == (303, "/alerts")
    html = client.get("/alerts", headers=HTML).get_data(as_text=True)
    assert "Acknowledged" in html and f'{path}"' not in html
    for ids, status in (([], 422), (["x"], 422), (["9" * 30], 422), (["999"], 404)):
        assert client.post(path, data={"alerts": ids}).status_code == status, ids


def rules(client, project=""):
    return client.get(
        "/api/v1/rules", query_string={"project": project} if project else {}
    ).get_json()["rules"]


def put_rules(client, project="", **wishes):
    query = {"project": project} if project else {}
    return client.put("/api/v1/rules", query_string=query, json={"rules": wishes})


def test_a_projects_rules_override_those_of_every_project(client):
    result = rules(client)
    assert list(result) == list(RULES) and all(
        rule["is_default"] and rule["is_on"] is RULES[name].is_on for name, rule in result.items()
    )
    assert (
        put_rules(client, high_water={"tells": "warning"}, leak={"is_on": False}).status_code == 200
    )
    assert (
        put_rules(
            client, "nlp", high_water={"tells": "critical", "thresholds": {"used_ratio": 0.9}}
        ).status_code
        == 200
    )
    mine, others = rules(client, "nlp"), rules(client, "vision")
    assert (
        mine["high_water"]["tells"],
        mine["high_water"]["thresholds"]["used_ratio"]["value"],
    ) == ("critical", 0.9)
    assert (
        others["high_water"]["tells"],
        others["high_water"]["thresholds"]["used_ratio"]["value"],
    ) == ("warning", 0.97)
    assert not mine["leak"]["is_on"] and not others["leak"]["is_on"]
    put_rules(client, "nlp", high_water=None)
    assert rules(client, "nlp") == others


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"nothing": {}}, "rules.nothing"),
        ({"leak": {"tells": "always"}}, "rules.leak.tells"),
        ({"leak": {"thresholds": {"grown_ratio": 2}}}, "rules.leak.thresholds.grown_ratio"),
        ({"leak": {"thresholds": {"other": 1}}}, "rules.leak.thresholds.other"),
    ],
)
def test_an_invalid_rule_is_refused_and_nothing_is_stored(client, wish, field):
    response = put_rules(client, high_water={"is_on": False}, **wish)
    assert (response.status_code, response.get_json()["field"]) == (422, field)
    assert rules(client)["high_water"]["is_on"]


def form_of(page):
    """The fields of the settings form as a browser would send them."""
    fields = dict(
        re.findall(r'<input type="number"[^>]* name="([^"]+)"[^>]* value="([^"]*)"', page)
    )
    fields |= dict.fromkeys(
        re.findall(r'<input type="checkbox" name="([^"]+)" checked', page), "on"
    )
    for name, body in re.findall(r'<select name="([^"]+)".*?>(.*?)</select>', page, re.DOTALL):
        fields[name] = re.search(r'value="(\w+)" selected', body)[1]
    return fields


def test_the_settings_page_saves_only_changes(client):
    client.post("/api/v1/runs", json={"run_id": "r", "project": "nlp"})
    page = client.get("/settings?project=nlp", headers=HTML).get_data(as_text=True)
    fields = {
        **form_of(page),
        "project": "nlp",
        "high_water.used_ratio": "90",
        "prediction_mismatch.over_bytes": "1024",
    }
    del fields["stalled.is_on"]
    response = client.post("/settings", data=fields)
    assert (response.status_code, response.headers["Location"]) == (
        303,
        "/settings?project=nlp&saved=1",
    )
    result = rules(client, "nlp")
    assert result["high_water"]["thresholds"]["used_ratio"]["value"] == 0.9
    assert result["prediction_mismatch"]["thresholds"]["over_bytes"]["value"] == GIB
    assert [name for name, rule in result.items() if not rule["is_default"]] == [
        "high_water",
        "prediction_mismatch",
        "stalled",
    ]
    client.post("/settings", data={**fields, "what": "reset"})
    assert all(rule["is_default"] for rule in rules(client, "nlp").values())
    assert client.post("/settings", data={**fields, "leak.grown_ratio": "much"}).status_code == 422


def test_the_scoreboard_is_a_page(client, alert_id):
    page = client.get("/alerts/scoreboard", headers=HTML).get_data(as_text=True)
    assert "Warning accuracy" in page and ">nlp</th>" in page and ">leak</th>" in page
    assert "No run with a forecast has ended yet" in page
    assert client.get("/alerts/scoreboard?days=0", headers=HTML).status_code == 422


def test_the_scoreboard_compares_the_projects_threshold_with_others(app, client, alert_id):
    url = "/api/v1/scoreboard?project=nlp"
    with app.extensions["memagent"].database.write() as session:
        stream = session.query(StreamRow).filter_by(run_id="r").one()
        add_forecasts(session, [("r", stream.id, Forecast(900, "warning", 0.63, "leak"))], 1.0)
    assert client.get(url).get_json()["costs"] == []
    client.put(
        "/api/v1/rules?project=nlp", json={"rules": {"oom_forecast": {"thresholds": {"page_cost": 0.3}}}}
    )  # fmt: skip
    client.post("/api/v1/runs/r/finish", json={"status": "oom", "step": 2000})
    costs = client.get(url).get_json()["costs"]
    assert [row["threshold"] for row in costs] == [0.25, 0.3, 0.4, 0.5, 0.65, 0.9]
    assert [row["is_own"] for row in costs].index(True) == 1
    page = client.get("/alerts/scoreboard?project=nlp", headers=HTML).get_data(as_text=True)
    assert "30 % <span" in page and "A warning costs 0.3 (" in page
