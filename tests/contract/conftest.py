"""A server whose runs have one row of every kind."""

from __future__ import annotations

import base64
import re
import zlib
from types import SimpleNamespace

import pytest

from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.http import credentials
from memagent_server.store.models import (
    FeedbackRow,
    NotificationRow,
    ResolvedFailureRow,
    RunRow,
    StreamRow,
)
from memagent_server.store.public_links import open_link
from memagent_server.store.runs import lock_run

GIB = 2**30
FACTS = {
    "step": 3,
    "eta_step": 13.0,
    "eta_s": 8.0,
    "used_bytes": 28 * GIB,
    "limit_bytes": 40 * GIB,
    "cause": "leak",
}

OPEN = (
    "static",
    "show_login",
    "log_in",
    "begin_login",
    "finish_login",
    "log_out",
    "get_health",
    "get_readiness",
    "get_openapi",
    "show_public_run",
    "show_embedded_run",
    "get_public_series",
    "get_public_ranks",
    "get_public_forecast",
)
BODIES = {
    "post_run": {
        "environment": {"takes_commands": True},
        "run_id": "{run_id}",
        "project": "{project}",
        "name": "taken over",
    },
    "post_batch": {"seq": 1},
    "post_prediction": {"method": "formula", "peak_allocated_bytes": 1},
    "post_rehearsal": {
        "project": "{project}",
        "fingerprint": "f",
        "script": "train.py",
        "gpu": "NVIDIA L4",
        "fits": True,
        "prediction": {"method": "rehearsal", "peak_allocated_bytes": 1},
    },
    "post_snapshot": {"method": "census", "seq": 1},
    "post_finish": {"status": "completed"},
    "put_rules": {"rules": {"leak": {"is_on": False}}},
    "put_column_rules": {"rules": {"Loss": {"column": "loss", "test": "above"}}},
    "put_routes": {"routes": [{"name": "vision", "projects": ["vision"]}]},
    "put_schedules": {"schedules": {}},
    "post_preview": {"routes": []},
    "post_command": {"kind": "stop"},
    "put_view": {"name": "theirs", "project": "{project}", "query": {}},
    "put_public_link": {"days": 7},
    "patch_run": {"notes": "theirs"},
    "patch_runs": {"runs": ["{run_id}"], "notes": "theirs"},
    "post_estimate": {"model": "gpt2", "batch": 1},
}
QUERIES = {
    "get_comparison": "runs={run_id},seen-too",
    "show_comparison": "runs={run_id},seen-too",
    "get_groups": "by=project",
    "delete_one_view": "name=theirs&project={project}",
    "delete_runs": "runs={run_id}",
    "put_rules": "project={project}",
    "put_column_rules": "project={project}",
}
FORMS = {
    "change_alert": {"what": "ack"},
    "acknowledge_alerts": {"alerts": "{alert_id}"},
    "choose_runs": {"runs": "{run_id},seen-too"},
    "change_views": {"name": "mine", "project": "{project}"},
    "change_runs": {"what": "tag", "runs": "{run_id}", "tag": "mine"},
    "request_command": {"kind": "stop"},
    "change_public_link": {"what": "open"},
    "change_failure": {"next": "/"},
    "change_run": {"name": "theirs", "notes": ""},
    "change_rules": {"project": "{project}"},
    "change_column_rules": {
        "project": "{project}",
        "name": "Loss",
        "column": "loss",
        "test": "above",
    },
    "change_routing": {"name": "vision"},
    "change_schedules": {"remove": "webhook"},
    "change_channels": {"retry": "{notification_id}"},
}


@pytest.fixture
def routes(sqlite_app):
    """Return (view name, method, rule) of every route that is not public."""
    return [
        (rule.endpoint.rpartition(".")[2], method, rule)
        for rule in sqlite_app.url_map.iter_rules()
        for method in sorted(rule.methods - {"HEAD", "OPTIONS"})
        if rule.endpoint.rpartition(".")[2] not in OPEN
    ]


@pytest.fixture
def ask(sqlite_app):
    """Return ask(token, name, method, rule, of): a request about the run that `fill` created."""

    def ask(token, name, method, rule, of):
        def fitted(template):
            return re.sub(r"\{(\w+)\}", lambda match: str(getattr(of, match[1])), template)

        options = {"query_string": fitted(QUERIES.get(name, ""))}
        if name in FORMS:
            options["data"] = {key: fitted(value) for key, value in FORMS[name].items()}
        elif name in BODIES:
            options["json"] = {
                key: [*map(fitted, value)]
                if key == "runs"
                else fitted(value)
                if isinstance(value, str)
                else value
                for key, value in BODIES[name].items()
            }
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return sqlite_app.test_client().open(
            path_of(rule, of), method=method, headers=headers, **options
        )

    return ask


def path_of(rule, of):
    """Return the path of a rule for a run."""

    def piece(match):
        argument = match[0].strip("<>").rpartition(":")[2]
        if options := re.search(r"any\(([^)]*)\)", match[0]):
            return options[1].split(",")[0].strip(" '")
        name = "runs.png" if rule.rule.startswith("/docs/images/") else "webhook"
        return {"name": name, "page": "metrics"}.get(argument) or str(getattr(of, argument))

    return re.sub(r"<[^>]+>", piece, rule.rule)


@pytest.fixture
def token_of(sqlite_app):
    """token_of(scope, *projects): a new token, and from then on the server asks for one."""

    def make(scope, *projects):
        context = sqlite_app.extensions["memagent"]
        with context.database.write() as session:
            secret, _ = credentials.issue_token(
                session,
                context.settings,
                name=f"{scope} of {projects}",
                scope=scope,
                now=1.0,
                projects=projects,
            )
        return secret

    return make


@pytest.fixture
def fill(sqlite_app):
    """fill(run_id, project, marker): a run with a row in every table; `marker` is in every text of it. What was made, by name."""

    def make(run_id, project, marker, *, headers=None):
        client, context = sqlite_app.test_client(), sqlite_app.extensions["memagent"]

        def post(path, body):
            response = client.post(f"/api/v1/runs{path}", json=body, headers=headers)
            assert response.status_code in (200, 201), response.text
            return response.get_json()

        device = {
            "id": f"GPU-{marker}",
            "kind": "cuda",
            "name": f"card {marker}",
            "limit_bytes": 40 * GIB,
        }
        start = {
            "run_id": run_id,
            "project": project,
            "name": marker,
            "user": marker,
            "host": marker,
            "tags": [marker],
            "config": {"lr": 0.1, "about": marker},
            "devices": [device],
            "environment": {"takes_commands": True},
        }
        post("", start)
        columns = {
            "step": [1, 2, 3],
            "time_s": [1.0, 2.0, 3.0],
            "allocated_bytes": [GIB, 2 * GIB, 28 * GIB],
            "parameters_bytes": [5, 5, 5],
            "phase_forward_peak_bytes": [7, 8, 9],
        }
        scalars = {"stream": "scalars", "columns": {"step": [1, 2], f"loss_{marker}": [0.5, 0.25]}}
        event = {"kind": "xid", "step": 2, "time_s": 2.0, "data": {"about": marker}}
        post(
            f"/{run_id}/batches",
            {
                "seq": 0,
                "chunks": [{"stream": device["id"], "columns": columns}, scalars],
                "events": [event],
                "dropped_samples": {"full": 1},
            },
        )
        advice = {"change": marker, "saving_bytes": 5}
        post(
            f"/{run_id}/predictions",
            {
                "method": "formula",
                "device": device["id"],
                "peak_allocated_bytes": GIB,
                "components": {"parameters": 5},
                "intervals": {"allocated": [1, 2 * GIB]},
                "advice": [advice],
            },
        )
        suspect = {
            "kind": "leak",
            "holder": marker,
            "file": f"{marker}.py",
            "line": 7,
            "confidence": 0.9,
        }
        stack = {"frames": [f"main ({marker}.py:7)"], "size_bytes": GIB}
        tensor = {"name": marker, "size_bytes": 5}
        viewer = base64.b64encode(zlib.compress(marker.encode())).decode()
        snapshot = {
            "viewer": viewer,
            "method": "history",
            "device": device["id"],
            "suspects": [suspect],
            "stacks": [stack],
            "tensors": [tensor],
            "notes": [marker],
        }
        snapshot_id = post(f"/{run_id}/snapshots", snapshot)["id"]
        return SimpleNamespace(
            run_id=run_id,
            project=project,
            device=device["id"],
            snapshot_id=snapshot_id,
            **_alert(context, run_id),
        )

    return make


def _alert(context, run_id):
    """An alert that fires, seen by somebody, with a notification that was given up."""
    with context.database.write() as session:
        lock_run(session, run_id)
        incidents = IncidentTransaction(session, ("webhook",), context.clock())
        stream = session.query(StreamRow).filter_by(run_id=run_id, kind="cuda").one()
        alert = incidents.open(
            run_id, stream.id, "oom_forecast", severity="warning", step=3, data=FACTS, cause="leak"
        )
        incidents.escalate(alert, severity="warning", step=3, data=FACTS)
        incidents.flush()
        notification = session.query(NotificationRow).filter_by(alert_id=alert.id).one()
        notification.state, notification.last_error = "dead", "nobody listens"
        session.add(
            FeedbackRow(
                at=1.0,
                kind="ack",
                incident_id=alert.incident_id,
                run_id=run_id,
                project="-",
                rule="oom_forecast",
            )
        )
        run = session.get(RunRow, run_id)
        open_link(session, run_id, by=run.name, now=1.0, expires_at=None)
        run.failure = f"of-{run_id}"
        run.failure_title = run.name
        session.add(
            ResolvedFailureRow(
                fingerprint=run.failure, project=run.project, resolved_at=1.0, resolved_by=run.name
            )
        )
        return {
            "alert_id": alert.id,
            "notification_id": notification.id,
            "fingerprint": run.failure,
        }
