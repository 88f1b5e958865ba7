"""The API: responses, parameters, and errors that name the parameter."""

from __future__ import annotations

import pytest
from sqlalchemy import text

import memagent
from memagent.estimator.cards import CARDS
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.wire.messages import Batch, ConsoleLine, RunStart
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch


@pytest.fixture
def filled(client):
    """A client of a server with run `r`, its samples and a prediction, and run `s`."""
    client.post(
        "/api/v1/runs",
        json={
            "run_id": "r",
            "project": "nlp",
            "name": "gpt",
            "config": {"lr": 0.1, "model": {"depth": 4, "width": 8}},
            "devices": [{"id": "GPU-0", "kind": "cuda", "name": "H100", "limit_bytes": 1000}],
        },
    )
    client.post("/api/v1/runs", json={"run_id": "s", "config": {"lr": 0.1, "model": {"depth": 6}}})
    columns = {
        "step": [1, 2, 3],
        "time_s": [1.0, 2.0, 3.0],
        "allocated_bytes": [100, 300, 200],
        "peak_allocated_bytes": [290, 310, 290],
        "peak_reserved_bytes": [400, 400, 400],
        "phase_forward_peak_bytes": [250, 260, 240],
        "parameters_bytes": [50, 50, 50],
        "activations_bytes": [20, 25, 30],
    }
    client.post(
        "/api/v1/runs/r/batches",
        json={"seq": 0, "chunks": [{"stream": "GPU-0", "columns": columns}]},
    )
    client.post(
        "/api/v1/runs/r/predictions",
        json={
            "method": "formula",
            "device": "GPU-0",
            "peak_allocated_bytes": 280,
            "intervals": {"allocated": [270, 320]},
            "components": {"parameters": 50, "activations": 10, "workspace": 5},
        },
    )
    return client


def test_the_list_of_runs(filled):
    body = filled.get("/api/v1/runs").get_json()
    assert [run["id"] for run in body["runs"]] == ["s", "r"]
    assert body["next_cursor"] is None
    assert {
        "used_bytes": 200,
        "peak_bytes": 310,
        "limit_bytes": 1000,
        "predicted_peak_bytes": 280,
    }.items() <= body["runs"][1].items()
    first = filled.get("/api/v1/runs?limit=1").get_json()
    second = filled.get(
        "/api/v1/runs", query_string={"limit": 1, "cursor": first["next_cursor"]}
    ).get_json()
    assert [run["id"] for run in first["runs"] + second["runs"]] == ["s", "r"]
    assert [
        run["id"]
        for run in filled.get(
            "/api/v1/runs?project=nlp&q=GP&status=running&sort=created_at"
        ).get_json()["runs"]
    ] == ["r"]


def test_one_run(filled):
    body = filled.get("/api/v1/runs/r").get_json()
    assert body["config"] == {"lr": 0.1, "model": {"depth": 4, "width": 8}}
    assert body["alerts"] == body["events"] == []
    assert body["streams"][0]["latest"]["allocated_bytes"] == 200


def test_a_series(filled):
    body = filled.get(
        "/api/v1/runs/r/series?fields=allocated_bytes&from=2&to=3&points=10"
    ).get_json()
    assert body["series"] == {
        "allocated_bytes": {"min": [300, 200], "max": [300, 200], "last": [300, 200]}
    }
    assert set(filled.get("/api/v1/runs/r/series").get_json()["series"]) == {
        "allocated_bytes",
        "peak_allocated_bytes",
        "device_used_bytes",
    }


def test_the_forecast_of_a_run_without_one(filled):
    body = filled.get("/api/v1/runs/r/forecast").get_json()
    assert body == {"run_id": "r", "forecasts": [], "history": [], "next_cursor": None}


def test_predictions(filled):
    (prediction,) = filled.get("/api/v1/runs/r/predictions").get_json()["predictions"]
    assert prediction["components"] == {"parameters": 50, "activations": 10, "workspace": 5}
    assert (prediction["peak_reserved_bytes"], prediction["advice"]) == (None, [])
    assert prediction["created_at"].endswith("Z")


def test_components(filled):
    body = filled.get("/api/v1/runs/r/components").get_json()
    assert body == {
        "run_id": "r",
        "rank": 0,
        "device": "GPU-0",
        "step": 3,
        "method": "formula",
        "components": [
            {
                "component": "parameters",
                "predicted_bytes": 50,
                "observed_bytes": 50,
                "residual_bytes": 0,
                "reason": None,
            },
            {
                "component": "activations",
                "predicted_bytes": 10,
                "observed_bytes": 30,
                "residual_bytes": 20,
                "reason": None,
            },
            {
                "component": "workspace",
                "predicted_bytes": 5,
                "observed_bytes": None,
                "residual_bytes": None,
                "reason": None,
            },
            {
                "component": "fragmentation",
                "predicted_bytes": None,
                "observed_bytes": 90,
                "residual_bytes": None,
                "reason": None,
            },
        ],
        "peak": {"predicted_bytes": 280, "observed_bytes": 310, "residual_bytes": 30},
        "levels": [
            {
                "level": "allocated",
                "predicted_bytes": 280,
                "observed_bytes": 310,
                "residual_bytes": 30,
                "low_bytes": 270,
                "high_bytes": 320,
                "is_within": True,
            },
            {
                "level": "reserved",
                "predicted_bytes": None,
                "observed_bytes": 400,
                "residual_bytes": None,
                "low_bytes": None,
                "high_bytes": None,
                "is_within": None,
            },
        ],
        "phases": [
            {
                "phase": "forward",
                "predicted_bytes": None,
                "observed_bytes": 260,
                "residual_bytes": None,
                "reason": None,
            }
        ],
    }


def test_components_without_prediction_and_samples(filled):
    body = filled.get("/api/v1/runs/s/components").get_json()
    assert (body["device"], body["components"]) == (None, [])
    assert body["peak"] == {"predicted_bytes": None, "observed_bytes": None, "residual_bytes": None}


def test_a_comparison(filled):
    body = filled.get("/api/v1/compare?runs=r,s").get_json()
    assert [run["id"] for run in body["runs"]] == ["r", "s"]
    assert body["config_differences"] == {"model.depth": [4, 6], "model.width": [8, None]}
    assert body["environment_differences"] == {}
    first, second = body["runs"]
    assert first["components"]["peak"]["observed_bytes"] == 310
    assert (first["headroom_bytes"], first["residual_bytes"], first["rank"]) == (690, 30, 0)
    assert (second["headroom_bytes"], second["rank"], second["scalars"]) == (None, None, [])


def test_twenty_runs_with_long_names_are_compared(sqlite_client):
    ids = [f"{n:02}" + "x" * 62 for n in range(20)]
    for run_id in ids:
        sqlite_client.post("/api/v1/runs", json={"run_id": run_id})
    body = sqlite_client.get("/api/v1/compare?runs=" + ",".join(ids)).get_json()
    assert [run["id"] for run in body["runs"]] == ids


def test_ranks_over_the_same_steps(filled):
    body = filled.get("/api/v1/runs/r/ranks?points=10").get_json()
    assert body == {
        "run_id": "r", "field": "peak_allocated_bytes", "from": 1, "to": 3, "step": [1, 2, 3], "time_s": [1.0, 2.0, 3.0], "left_out": 0,
        "ranks": [{"rank": 0, "device": "GPU-0", "device_name": "H100", "limit_bytes": 1000, "max": [290, 310, 290]}],
    }  # fmt: skip
    assert filled.get("/api/v1/runs/r/ranks?field=no_such&from=2&to=2").get_json()["ranks"][0][
        "max"
    ] == [None]


def test_the_empty_list_of_alerts(filled):
    assert filled.get("/api/v1/alerts?state=open&run=r").get_json() == {
        "alerts": [],
        "next_cursor": None,
    }


def test_a_deleted_run_is_gone(filled):
    response = filled.delete("/api/v1/runs/r")
    assert (response.status_code, response.data) == (204, b"")
    assert filled.get("/api/v1/runs/r").status_code == 404
    assert filled.delete("/api/v1/runs/r").status_code == 404


@pytest.mark.parametrize(
    "path", ["", "/series", "/ranks", "/forecast", "/predictions", "/components"]
)
def test_an_unknown_run_is_not_found(sqlite_client, path):
    response = sqlite_client.get(f"/api/v1/runs/nobody{path}")
    assert (response.status_code, response.mimetype) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("runs?limit=0", "limit"),
        ("runs?limit=x", "limit"),
        ("runs?limit=201", "limit"),
        ("runs?limit=" + "9" * 999, "limit"),
        ("runs?limit=²", "limit"),
        ("runs?status=happy", "status"),
        ("runs?sort=size", "sort"),
        ("runs?archived=yes", "archived"),
        ("runs?cursor=xx", "cursor"),
        ("runs?q=%00", "q"),
        ("runs/r/series?points=9", "points"),
        ("runs/r/series?points=10001", "points"),
        ("runs/r/series?from=-1", "from"),
        ("runs/r/series?from=--1", "from"),
        ("runs/r/series?to=1.5", "to"),
        ("runs/r/series?rank=-1", "rank"),
        ("runs/r/ranks?points=1001", "points"),
        ("runs/r/ranks?field=*", "field"),
        ("runs/r/series?fields=" + ",".join(f"f{n}" for n in range(101)), "fields"),
        ("compare", "runs"),
        ("compare?runs=a", "runs"),
        ("compare?runs=a,a", "runs"),
        ("compare?runs=" + ",".join(f"r{n}" for n in range(21)), "runs"),
        ("alerts?state=happy", "state"),
    ],
)
def test_bad_parameters_are_named(sqlite_client, path, field):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    response = sqlite_client.get(f"/api/v1/{path}")
    assert (response.status_code, response.mimetype, response.get_json(force=True)["field"]) == (
        422,
        "application/problem+json",
        field,
    )


def test_a_refused_list_or_column_says_what_each_may_be(sqlite_client):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})

    def detail(path):
        return sqlite_client.get(f"/api/v1/runs{path}").get_json(force=True)["detail"]

    assert "'*' is not one column's name" in detail("/r/ranks?field=*")
    assert "each a column's name of at most 128" in detail("/r/series?fields=" + "f" * 129)
    assert "each one of " in detail("?fields=*")


def test_health_and_readiness(client, database):
    assert client.get("/healthz").get_json() == {"status": "ok", "version": memagent.__version__}
    assert client.get("/readyz").status_code == 200
    with database.engine.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    response = client.get("/readyz")
    assert (response.status_code, response.mimetype) == (503, "application/problem+json")
    assert "memagent db upgrade" in response.get_json(force=True)["detail"]


def test_measured_contexts_are_listed(sqlite_client):
    assert sqlite_client.get("/api/v1/contexts").get_json() == {"contexts": [], "next_cursor": None}
    device = {"id": "GPU-1", "kind": "cuda", "name": "NVIDIA H100 80GB HBM3"}
    start = {
        "run_id": "measured",
        "devices": [device],
        "environment": {"driver": "570.86.10", "torch": "2.13.0"},
    }
    batch = {
        "seq": 0,
        "chunks": [{"stream": "GPU-1", "columns": {"step": [1], "context_bytes": [534773760]}}],
    }
    for path, body in (
        ("", start),
        ("/measured/batches", batch),
        ("/measured/finish", {"status": "completed"}),
    ):
        assert sqlite_client.post(f"/api/v1/runs{path}", json=body).status_code in (200, 201)
    [context] = sqlite_client.get("/api/v1/contexts").get_json()["contexts"]
    assert (context["gpu"], context["driver"], context["torch"]) == (
        "NVIDIA H100 80GB HBM3",
        "570.86.10",
        "2.13.0",
    )
    assert context["newest_bytes"] == context["low_bytes"] == context["high_bytes"] == 534773760


SHAPE = {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50257, "sequence": 1024}


def test_an_estimate(sqlite_client):
    small = sqlite_client.post("/api/v1/estimate", json=SHAPE).get_json()
    large = sqlite_client.post(
        "/api/v1/estimate", json={**SHAPE, "batch": 8, "limit_bytes": 2**30}
    ).get_json()
    assert small["method"] == "formula"
    assert small["fits"] is None
    assert large["fits"] is False
    assert large["components"]["parameters"] == small["components"]["parameters"]
    assert large["components"]["activations"] == 8 * small["components"]["activations"]
    assert large["peak_allocated_bytes"] > small["peak_allocated_bytes"]


@pytest.mark.parametrize(
    ("change", "peak_is"),
    [
        ({"precision": "amp"}, "smaller"),
        ({"precision": "fp8"}, "smaller"),
        ({"checkpointing": "selective"}, "smaller"),
        ({"checkpointing": "full"}, "smaller"),
        ({"attention": "math"}, "larger"),
    ],
)
def test_training_options_change_the_estimate(sqlite_client, change, peak_is):
    batch = {**SHAPE, "batch": 8, "precision": "fp32", "attention": "math"}
    plain = {**batch, "attention": "sdpa"} if "attention" in change else batch
    before = sqlite_client.post("/api/v1/estimate", json=plain).get_json()["peak_allocated_bytes"]
    after = sqlite_client.post("/api/v1/estimate", json={**plain, **change}).get_json()[
        "peak_allocated_bytes"
    ]
    assert (after < before) == (peak_is == "smaller") and after != before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": 0}, "layers"),
        ({"hidden": "x"}, "hidden"),
        ({"optimizer": "magic"}, "optimizer"),
        ({"precision": "fp3"}, "precision"),
        ({"quantised": "int1"}, "quantised"),
        ({"gpu": "abacus"}, "gpu"),
        ({"model": "gpt2"}, "model"),
        ({"layers": None}, "model"),
        ({"layers": None, "model": "gpt-17"}, "model"),
        ({"layers": None, "config": {"model_type": "abacus"}}, "config"),
        ({"sequence": None}, "sequence"),
        ({"zero": 4}, "zero"),
        ({"transformers": "9"}, "transformers"),
        ({"layers": None, "model": "gpt2", "sequence": 4096}, "sequence"),
        ({"lora_rank": 8, "lora_targets": ["q_prj"]}, "lora_targets"),
    ],
)
def test_an_invalid_estimate_names_the_field(sqlite_client, change, field):
    response = sqlite_client.post("/api/v1/estimate", json={**SHAPE, **change})
    assert (response.status_code, response.get_json(force=True)["field"]) == (422, field)


@pytest.mark.parametrize(
    ("training", "has_cache"),
    [
        ({}, False),
        ({"loop": "step"}, True),
        ({"loop": "step", "transformers": "5.0"}, True),
        ({"transformers": "4.57"}, True),
        ({"transformers": "5.0", "use_cache": True}, True),
        ({"loop": "step", "use_cache": False}, False),
    ],
)
def test_a_cache_is_filled_as_in_a_spec_of_python(sqlite_client, training, has_cache):
    result = estimated(sqlite_client, model="gpt2-xl", batch=4, gpu="a100", **training)
    spec = TrainingSpec(
        preset("gpt2-xl"), batch=4, **{"loop": "trainer", "gpu": "a100", **training}
    )
    assert spec.has_cache is has_cache
    assert result["peak_allocated_bytes"] == estimate_training(spec).peak_allocated_bytes


def estimated(client, **request):
    response = client.post("/api/v1/estimate", json=request)
    assert response.status_code == 200, response.text
    return response.get_json()


LLAMA = {"model": "llama-2-7b", "sequence": 2048, "precision": "mixed", "gpu": "a100"}


def test_a_preset_gets_advice_that_makes_it_fit(sqlite_client):
    result = estimated(sqlite_client, **LLAMA)
    assert (result["fits"], result["largest_batch"], result["limit_bytes"]) == (
        False,
        0,
        CARDS["a100"].total_bytes,
    )
    states = sum(
        result["components"][name] for name in ("parameters", "gradients", "optimizer_state")
    )
    assert states == pytest.approx(16 * 6.738e9, rel=0.01), "16 bytes a parameter"
    assert result["advice"] and all(
        item["saving_bytes"] > 0 and item["code"] for item in result["advice"]
    )
    assert set(result["intervals"]) == {"allocated", "reserved", "device"}


def test_a_config_json_is_read(sqlite_client):
    config = {
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    by_config = estimated(sqlite_client, config=config, sequence=1024)
    by_name = estimated(sqlite_client, model="gpt2", sequence=1024)
    assert by_config["parameters"] == by_name["parameters"] == 124_439_808


@pytest.mark.parametrize(
    "change",
    [
        {"lora_rank": 16},
        {"lora_rank": 16, "quantised": "nf4-double"},
        {"ranks": 8, "zero": 3},
        {"tensor": 4},
        {"pipeline": 4},
        {"offload_optimizer": True},
        {"optimizer": "adamw8bit"},
        {"checkpointing": "full"},
        {"loss": "fused"},
    ],
)
def test_every_option_of_the_formula_is_accepted(sqlite_client, change):
    body = {**LLAMA, "batch": 16}
    plain = estimated(sqlite_client, **body)
    assert (
        estimated(sqlite_client, **{**body, **change})["peak_allocated_bytes"]
        < plain["peak_allocated_bytes"]
    )


def test_a_measured_context_replaces_the_usual_one(sqlite_client):
    usual = estimated(sqlite_client, **LLAMA)["components"]["context"]
    device = {"id": "GPU-1", "kind": "cuda", "name": "a100"}
    batch = {
        "seq": 0,
        "chunks": [{"stream": "GPU-1", "columns": {"step": [1], "context_bytes": [usual + 4096]}}],
    }
    for path, body in (
        ("", {"run_id": "m", "devices": [device]}),
        ("/m/batches", batch),
        ("/m/finish", {"status": "oom"}),
    ):
        assert sqlite_client.post(f"/api/v1/runs{path}", json=body).status_code in (200, 201)
    assert estimated(sqlite_client, **LLAMA)["components"]["context"] == usual + 4096


def test_contradictory_options_are_refused(sqlite_client):
    response = sqlite_client.post("/api/v1/estimate", json={**LLAMA, "quantised": "nf4"})
    assert response.status_code == 422 and "lora_rank" in response.get_json(force=True)["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs/%00",
        "/api/v1/runs/a%00b/series",
        "/api/v1/runs/%ff",
        "/api/v1/runs/" + "x" * 5000,
    ],
)
def test_impossible_run_ids_are_not_found(client, path):
    assert client.get(path).status_code == 404


def test_invalid_unicode_is_refused(client):
    body = b'{"run_id": "r", "name": "\\ud800"}'
    assert client.post("/api/v1/runs", data=body, content_type="application/json").status_code in (
        400,
        422,
    )


def test_the_console_of_a_run(filled):
    lines = [
        {"number": 0, "text": "<b>one</b>", "time_s": 5},
        {"number": 1, "text": "two\0\nlines", "stream": "stderr", "step": 3},
    ]
    assert (
        filled.post("/api/v1/runs/r/batches", json={"seq": 1, "console": lines}).status_code == 200
    )
    answer = filled.get("/api/v1/runs/r/console").json
    assert answer["ranks"] == [0] and answer["rank"] == 0
    assert answer["lines"] == [
        {"number": 0, "text": "<b>one</b>", "stream": "stdout", "step": 0, "at": "1970-01-01T00:00:05.000Z"},
        {"number": 1, "text": "two\ufffd lines", "stream": "stderr", "step": 3, "at": "1970-01-01T00:00:00.000Z"},
    ]  # fmt: skip
    assert [
        line["number"] for line in filled.get("/api/v1/runs/r/console?last=1").json["lines"]
    ] == [1]
    assert filled.get("/api/v1/runs/s/console").json["lines"] == []
    assert filled.get("/api/v1/runs/nobody/console").status_code == 404
    assert filled.get("/api/v1/runs/r/console?rank=-1").status_code == 422
    assert "&lt;b&gt;one" not in filled.get("/runs/r").text
    filled.post("/api/v1/runs/r/finish", json={"status": "failed"})
    page = filled.get("/runs/r").text
    assert "&lt;b&gt;one&lt;/b&gt;" in page and "<b>one" not in page
    too_long = [{"number": 2, "text": "x" * 2_001}]
    response = filled.post("/api/v1/runs/r/batches", json={"seq": 2, "console": too_long})
    assert response.status_code == 422 and "console[0].text" in response.text


def test_the_page_of_a_run_of_many_ranks_opens_the_console_of_the_one_that_died(filled, database):
    with database.write() as session:
        for rank in range(258):
            start_run(session, RunStart(run_id="r", rank=rank, world_size=258), 1.0)
            lines = [ConsoleLine(number=0, text=f"of {rank}")]
            add_batch(session, "r", Batch(seq=9, rank=rank, console=lines), 2.0)
    filled.post("/api/v1/runs/r/finish", json={"status": "failed", "rank": 257})
    page = filled.get("/runs/r").text
    assert page.count('<option value="257" selected>') == 1
    assert page.count(" selected>rank ") == 1 and "of 257" in page
