"""Real trainings mirrored to the real trackers, offline, and read back from their files."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import memagent
from memagent.errors import SettingError
from memagent.mirror.aggregate import Point, PointWindow, merge_points
from memagent.mirror.mirror import Mirror
from memagent.mirror.trackers import open_trackers, parse_mirror
from memagent.mirror.wandb import MAX_WAITING_POINTS, WandbTracker
from memagent.wire.messages import Device, Risk

HOST = Device(id="host", kind="host", name="a host", limit_bytes=100)
GPU = Device(id="GPU-1", kind="cuda", name="a GPU", index=3, limit_bytes=100)
SERIES = "memagent/host/peak_allocated_bytes"


def needed(package: str) -> None:
    if find_spec(package) is None:
        reason = f"{package} is not installed: pip install 'memagent[trackers]'"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def trained(training, **options: Any) -> Any:
    model, optimizer, step = training
    with memagent.attach(model, optimizer, predict=False, **options) as run:
        for _ in range(5):
            step()
    return run


# -- points ----------------------------------------------------------------------------------------


def test_it_keeps_the_last_of_a_state_and_the_maximum_of_a_peak():
    window = PointWindow()
    columns = {
        "step": [1, 2],
        "time_s": [10.0, 11.0],
        "allocated_bytes": [7, 5],
        "peak_allocated_bytes": [9, 8],
    }
    window.add("cuda0", {**columns, "phase_eval_peak_bytes": [None, 4], "power_w": [1.0, 2.0]})
    window.add(
        "cuda0",
        {"step": [3], "time_s": [12.0], "allocated_bytes": [6], "peak_allocated_bytes": [2]},
    )
    assert window.point() == Point(
        3,
        12.0,
        {
            "cuda0/allocated_bytes": 6,
            "cuda0/peak_allocated_bytes": 9,
            "cuda0/phase_eval_peak_bytes": 4,
        },
    )


def test_it_has_no_point_without_rows():
    assert PointWindow().point() is None
    assert merge_points([]) is None


def test_it_merges_points_like_rows():
    first = Point(1, 1.0, {"host/allocated_bytes": 5, "host/host_rss_bytes": 9, "host/step_s": 1.0})
    second = Point(2, 2.0, {"host/allocated_bytes": 4, "host/host_rss_bytes": 3})
    expected = {"host/allocated_bytes": 4, "host/host_rss_bytes": 9, "host/step_s": 1.0}
    assert merge_points([first, second]) == Point(2, 2.0, expected)


# -- targets ---------------------------------------------------------------------------------------


def test_it_accepts_names_in_a_text_or_a_list_once_each():
    needed("tensorboard")
    assert (
        parse_mirror("tensorboard, tensorboard")
        == parse_mirror(["tensorboard"])
        == ("tensorboard",)
    )
    assert parse_mirror(None) == parse_mirror("") == ()


def test_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("memagent.mirror.trackers.find_spec", lambda _: None)
    with pytest.raises(SettingError, match="pip install wandb"):
        parse_mirror("wandb")


@pytest.mark.parametrize(
    ("name", "advice"), [("wandb", r"wandb\.init\(\)"), ("mlflow", r"mlflow\.start_run\(\)")]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_starts_no_run_and_says_how_to(training, name, advice, tmp_path, monkeypatch):
    needed(name)
    monkeypatch.chdir(tmp_path)
    model, optimizer, _ = training
    with pytest.raises(SettingError, match=advice):
        memagent.attach(model, optimizer, mirror=name)
    assert not model._forward_hooks and not optimizer._optimizer_step_post_hooks
    assert not list(tmp_path.glob("*.db")), "nor a database where the script runs"


def test_names_mean_nothing_on_other_ranks_than_0():
    assert open_trackers(["wandb", "mlflow"], run_id="r", rank=1) == []


def test_a_tracker_that_fails_to_open_is_an_error_with_its_reason(monkeypatch):
    def broken(run_id: str) -> None:
        raise RuntimeError("a wrong protobuf")

    monkeypatch.setattr("memagent.mirror.wandb.discover", broken)
    with pytest.raises(SettingError, match="wrong protobuf"):
        open_trackers(["wandb"], run_id="r", rank=0)


# -- isolation from the run ------------------------------------------------------------------------


class Recorder:
    """A tracker that records all calls."""

    name = "a recorder"

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.warnings: list[tuple[str, bool]] = []
        self.threads: set[str] = set()
        self.closed = 0

    def write(self, point: Point) -> None:
        self.threads.add(threading.current_thread().name)
        self.points.append(point)

    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None:
        self.warnings.append((title, is_critical))

    def close(self) -> None:
        self.closed += 1


class Broken(Recorder):
    name = "a broken one"

    def write(self, point: Point) -> None:
        raise ConnectionError("away")

    warn = close = write  # type: ignore[assignment]


@pytest.fixture
def recorder(monkeypatch) -> Recorder:
    """The tracker that `mirror="wandb"` opens."""
    result = Recorder()
    monkeypatch.setattr("memagent.mirror.trackers.find_spec", lambda _: SimpleNamespace())
    monkeypatch.setattr("memagent.mirror.wandb.discover", lambda run_id: result)
    return result


def test_points_contain_every_sample_and_are_written_on_another_thread(training, recorder):
    trained(training, mirror="wandb")
    assert recorder.points[-1].step == 5
    assert recorder.points[-1].values["host/peak_allocated_bytes"] > 0
    assert recorder.threads == {"memagent-mirror"}
    assert recorder.closed == 1


def test_the_argument_overrides_the_setting(training, recorder, monkeypatch):
    monkeypatch.setenv("MEMAGENT_MIRROR", "wandb")
    trained(training, mirror=[])
    assert recorder.points == []
    trained(training)
    assert recorder.points[-1].step == 5


def test_an_automatic_run_does_without_a_missing_tracker(training, recording, monkeypatch, capsys):
    from memagent.attach import start_run
    from memagent.lifecycle.options import AttachOptions
    from memagent.settings import Settings

    def missing(run_id: str) -> None:
        raise SettingError("there is no active run")

    monkeypatch.setattr("memagent.mirror.trackers.find_spec", lambda _: SimpleNamespace())
    monkeypatch.setattr("memagent.mirror.wandb.discover", missing)
    monkeypatch.setenv("MEMAGENT_MIRROR", "wandb")
    model, optimizer, step = training
    with start_run(
        Settings.from_environ(), [model], [optimizer], AttachOptions(automatic=True, predict=False)
    ):
        step()
    assert (
        "memagent: the run is recorded without a mirror: there is no active run\n"
        in capsys.readouterr().err
    )
    assert recording().columns()["step"] == [0, 1]


def test_it_warns_when_the_run_ends_out_of_memory(training, recorder):
    import torch

    with pytest.raises(torch.OutOfMemoryError):
        model, optimizer, step = training
        with memagent.attach(model, optimizer, predict=False, mirror="wandb"):
            step()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert recorder.warnings == [("out of memory", True)]


def test_a_trackers_error_is_reported_once_and_others_continue(capsys):
    recorder = Recorder()
    mirror = Mirror([Broken(), recorder], [HOST], 0)
    for step in (1, 2):
        mirror.observe("host", {"step": [step], "allocated_bytes": [step]})
        mirror._write()
    mirror.warn("careful", step=2, is_critical=False)
    mirror.close()
    assert [point.step for point in recorder.points] == [1, 2]
    assert recorder.warnings == [("careful", False)]
    assert capsys.readouterr().err == (
        "memagent: some data could not be mirrored to a broken one (reported once): "
        "ConnectionError: away\n"
    )


def test_a_tracker_that_hangs_does_not_block_the_end(monkeypatch):
    monkeypatch.setattr("memagent.mirror.mirror.CLOSE_S", 0.05)
    forever = threading.Event()

    class Hanging(Recorder):
        def write(self, point: Point) -> None:
            forever.wait()

    mirror = Mirror([Hanging()], [HOST], 0)
    mirror.observe("host", {"step": [1], "allocated_bytes": [1]})
    mirror.close()
    mirror.observe("host", {"step": [2], "allocated_bytes": [2]})
    forever.set()


def test_without_trackers_there_is_no_thread():
    threads = threading.enumerate()
    mirror = Mirror([], [HOST], 0)
    mirror.observe("host", {"step": [1], "allocated_bytes": [1]})
    assert set(threading.enumerate()) <= set(threads)
    mirror.close()


def test_series_names_contain_rank_and_device():
    recorder = Recorder()
    risk = Risk(
        level="warning",
        rank=2,
        device="GPU-1",
        step=7,
        oom_probability=0.8,
        eta_step=40.0,
        cause="leak",
    )
    mirror = Mirror([recorder], [GPU, HOST], 2, get_risks=lambda: [risk])
    mirror.note_prediction(60)
    mirror.note_risk(risk)
    mirror.observe("GPU-1", {"step": [7], "allocated_bytes": [50]})
    mirror.observe("scalars", {"step": [7], "loss": [0.1]})
    mirror.close()
    assert recorder.points[0].values == {
        "rank2/cuda3/allocated_bytes": 50,
        "rank2/cuda3/oom_probability": 0.8,
        "rank2/cuda3/oom_eta_step": 40.0,
        "rank2/cuda3/predicted_peak_bytes": 60,
    }
    ((title, is_critical),) = recorder.warnings
    assert "a GPU will run out of memory in about 33 steps" in title and not is_critical


# -- W&B -------------------------------------------------------------------------------------------


def test_points_wait_for_rows_of_the_script_and_the_oldest_are_merged():
    rows: list[tuple[dict, dict]] = []
    run = SimpleNamespace(
        step=0,
        define_metric=lambda *_, **__: None,
        log=lambda row, **keywords: rows.append((row, keywords)),
    )
    tracker = WandbTracker(run)
    for step in range(MAX_WAITING_POINTS + 1):
        tracker.write(Point(step, float(step), {"host/host_rss_bytes": 1000 - step}))
    assert rows == []
    run.step = 1
    tracker.write(Point(600, 600.0, {"host/host_rss_bytes": 1}))
    assert rows == [
        ({"memagent/step": 600, "memagent/host/host_rss_bytes": 1000}, {"commit": False})
    ]


@pytest.fixture
def wandb_run(tmp_path, monkeypatch) -> Iterator[Any]:
    needed("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    import wandb

    run = wandb.init(
        project="memagent", dir=str(tmp_path), settings=wandb.Settings(x_disable_stats=True)
    )
    yield run
    run.finish()


def wandb_records(folder: Path) -> list[Any]:
    """Records of an offline run; W&B's process may still be writing when `finish` returns."""
    (path,) = folder.glob("wandb/offline-*/*.wandb")
    for _ in range(300):
        records = list(read_wandb(path))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{path} was never finished")


def read_wandb(path: Path) -> Iterator[Any]:
    """A LevelDB log of protobuf records, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (rest := 2**15 - at % 2**15) < 7:
            at += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def wandb_rows(folder: Path) -> list[dict[str, str]]:
    records = [
        record for record in wandb_records(folder) if record.WhichOneof("record_type") == "history"
    ]
    return [
        {item.nested_key[0]: item.value_json for item in record.history.item} for record in records
    ]


def test_wandb_adds_points_to_the_scripts_rows(training, wandb_run, tmp_path):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, predict=False, mirror="wandb") as run:
        for epoch in range(3):
            step()
            wandb_run.log({"loss": 0.5}, step=epoch + 1)
        run._pipeline.mirror.warn("careful\nbecause", step=3, is_critical=False)
    wandb_run.finish()
    rows = wandb_rows(tmp_path)
    assert [(row["_step"], row["loss"]) for row in rows if "loss" in row] == [
        ("1", "0.5"),
        ("2", "0.5"),
        ("3", "0.5"),
    ]
    assert [row["memagent/step"] for row in rows if SERIES in row][-1] == "3"
    alerts = [
        record.alert
        for record in wandb_records(tmp_path)
        if record.WhichOneof("record_type") == "alert"
    ]
    assert [(alert.title, alert.text, alert.level) for alert in alerts] == [
        ("careful", "because", "WARN")
    ]


def test_wandb_logs_points_of_a_script_that_logs_nothing(training, wandb_run, tmp_path):
    trained(training, mirror=wandb_run)
    wandb_run.finish()
    assert [row["memagent/step"] for row in wandb_rows(tmp_path) if SERIES in row][-1] == "5"


# -- MLflow ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_logs_metrics_of_the_active_run(training, tmp_path):
    needed("mlflow")
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    client = mlflow.MlflowClient()
    with mlflow.start_run() as active:
        assert parse_mirror([active, client]) == (active, client)
        model, optimizer, step = training
        with memagent.attach(model, optimizer, predict=False, mirror="mlflow") as run:
            with run.phase("odd@name"):
                step()
            step()
            run._pipeline.mirror.warn("careful\nbecause", step=2, is_critical=True)
    history = client.get_metric_history(active.info.run_id, SERIES)
    assert [metric.step for metric in history][-1] == 2
    result = client.get_run(active.info.run_id).data
    assert result.metrics["memagent/host/phase_odd_name_peak_bytes"] > 0
    assert result.tags["memagent.critical"] == "careful\nbecause"


# -- TensorBoard -----------------------------------------------------------------------------------


def read_events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_writes_to_the_scripts_writer(training, tmp_path):
    needed("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "events")) as writer:
        run = trained(training, mirror=writer)
        run._pipeline.mirror._trackers[0].warn("careful", "because", step=4, is_critical=False)
        writer.add_scalar("loss", 0.5, 5)
    events = read_events(tmp_path / "events")
    assert events.Scalars(SERIES)[-1].step == 5
    assert events.Scalars("loss")[0].value == 0.5
    (text,) = events.Tensors("memagent/alerts/text_summary")
    assert text.step == 4 and b"careful" in text.tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_by_name_writes_where_torch_does(training, tmp_path, monkeypatch):
    needed("tensorboard")
    monkeypatch.chdir(tmp_path)
    run = trained(training, mirror="tensorboard")
    assert read_events(tmp_path / "runs" / f"memagent-{run.id}").Scalars(SERIES)[-1].step == 5
