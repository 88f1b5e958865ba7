"""An assistant's client, the official one, over stdio to a real `memagent mcp` process."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from tests.agent.api.conftest import folder, source  # noqa: F401 - the runs of the API's tests


def converse(source, talk, cwd=None):  # noqa: F811
    """Start a server for the source, and return what `talk(ask, client)` returns."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MEMAGENT_")}
    command = ["-m", "memagent", "mcp", "--source", source]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environ, cwd=cwd)

    async def run():
        async with Client(stdio_client(parameters)) as client:

            async def ask(tool, **arguments):
                answer = await client.call_tool(tool, arguments)
                text = answer.content[0].text if answer.content else ""
                return text if answer.is_error else answer.structured_content

            return await talk(ask, client)

    return asyncio.run(run())


def test_a_death_and_its_patch_are_two_calls_away(source):  # noqa: F811
    async def talk(ask, client):
        died = await ask("list_runs", where='status in ("oom", "failed", "lost_contact")', limit=1)
        return await ask("explain_run", run_id=died["runs"][0]["id"])

    explanation = converse(source, talk)
    assert explanation["run_id"] == "death"
    assert explanation["cause"].startswith("leak, forecast since step 600.")
    assert explanation["line"] == "train.py:42"
    assert "-    history.append(loss)\n+    history.append(loss.item())" in explanation["patch"]


def test_every_tool_answers(folder):  # noqa: F811
    async def talk(ask, client):
        tools = (await client.list_tools()).tools
        assert all(tool.description for tool in tools)
        answers = {
            "get_run": await ask("get_run", run_id="second"),
            "get_series": await ask("get_series", run_id="first", columns=["loss"], points=4),
            "read_console": await ask("read_console", run_id="death"),
            "list_suspects": await ask("list_suspects", run_id="death"),
            "advise_run": await ask("advise_run", run_id="first"),
            "find_waste": await ask("find_waste", by=["user"]),
            "group_runs": await ask("group_runs", by=["project"], columns=["step"]),
            "estimate": await ask("estimate", model="gpt2", gpu="a100", options=["--batch", "2"]),
            "rehearse": await ask("rehearse", script="nowhere.py", gpu="a100"),
            "acknowledge_alert": await ask("acknowledge_alert", alert_id=1),
            "edit_run": await ask("edit_run", run_id="first", notes="a note"),
        }
        names = {tool.name for tool in tools if not tool.annotations.read_only_hint}
        assert names == {"rehearse", "acknowledge_alert", "edit_run"}
        assert {tool.name for tool in tools} == {*answers, "list_runs", "explain_run"}
        return answers

    answers = converse(str(folder), talk)
    assert answers["get_run"]["config"]["optimizer"] == {"name": "adam"}
    assert answers["get_series"] == {
        "step": [0, 250, 500, 750],
        "max": {"loss": [1.0, 1 / 251, 1 / 501, 1 / 751]},
    }
    assert answers["read_console"] == {"lines": []}
    assert answers["list_suspects"]["suspects"][0]["line"] == 42
    assert answers["advise_run"] == {"predicted": True, "advice": []}
    assert answers["estimate"]["fits"] is True
    assert "needs a server or a database" in answers["find_waste"]
    assert "server" in answers["group_runs"]
    assert "Script nowhere.py does not exist" in answers["rehearse"]
    assert "needs a server or a database" in answers["acknowledge_alert"]
    assert "needs a server or a database" in answers["edit_run"]


def test_an_error_says_what_is_right(folder):  # noqa: F811
    async def talk(ask, client):
        return [
            await ask("list_runs", where="peak_ration > 1"),
            await ask("get_series", run_id="first", columns=["los"]),
            await ask("explain_run", run_id="nobody"),
        ]

    where, series, run = converse(str(folder), talk)
    assert "the nearest is 'peak_ratio'" in where
    assert "it has:" in series and "'loss'" in series
    assert "'nobody' does not exist" in run


def test_an_alert_is_acknowledged_and_its_run_gets_notes(start_server, alerted_run):
    server = start_server()
    alert_id = alerted_run(server.database_url)

    async def talk(ask, client):
        run = await ask("get_run", run_id="r")
        assert [alert["id"] for alert in run["alerts"]] == [alert_id]
        groups = (await ask("group_runs", by=["status"], columns=["step"]))["groups"]
        assert [(group["key"], group["runs"]) for group in groups] == [({"status": "running"}, 1)]
        run = await ask("edit_run", run_id="r", notes="Batch 16 fits.", tags=["fixed"])
        assert (run["notes"], run["tags"]) == ("Batch 16 fits.", ["fixed"])
        return await ask("acknowledge_alert", alert_id=alert_id, note="looking")

    alert = converse(server.url, talk)
    assert alert["id"] == alert_id and alert["incident"]["note"] == "looking"


@pytest.fixture
def alerted_run():
    """Return a function that adds a run with an alert to a database."""
    from memagent.wire.messages import Device, RunStart
    from memagent_server.alerts.incident_updates import IncidentTransaction
    from memagent_server.store.engine import Database
    from memagent_server.store.models import StreamRow
    from memagent_server.store.runs import lock_run, start_run

    def add(url):
        gpu = Device(id="gpu", kind="cuda", name="GPU", limit_bytes=2**30)
        database = Database(url)
        with database.write() as session:
            start_run(session, RunStart(run_id="r", devices=[gpu]), 1.0)
            lock_run(session, "r")
            incidents = IncidentTransaction(session, (), 2.0)
            stream = session.query(StreamRow).one()
            alert = incidents.open(
                "r", stream.id, "oom_forecast", severity="warning", step=1, data={}, cause="leak"
            )
            incidents.escalate(alert, severity="warning", step=2, data={})
            incidents.flush()
            return alert.id

    return add
