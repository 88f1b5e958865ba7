"""Values that `run.log` accepts, and that it never waits for a device."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from memagent.delivery.buffer import DroppedSamples, to_columns
from memagent.errors import SettingError
from memagent.sampling import scalars
from memagent.sampling.scalars import ScalarLog


class Rows:
    """A log and its rows."""

    def __init__(self) -> None:
        self.drops = DroppedSamples()
        self.log = ScalarLog(self.drops)

    def columns(self) -> dict[str, list]:
        buffer = self.log.buffer
        return to_columns(buffer.columns, buffer.drain())

    def values(self) -> list[dict[str, Any]]:
        return [extra for _, extra in self.log.buffer.drain()]


@pytest.fixture
def rows() -> Rows:
    return Rows()


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.25, 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7.0),
        (np.bool_(True), 1.0),
        (np.array([2.5]), 2.5),
        (Decimal("1.5"), 1.5),
        (float("inf"), float("inf")),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([[3]]), 3.0),
        (torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), 0.5),
    ],
    ids=repr,
)
def test_it_accepts_numbers_of_every_type(rows, value, number):
    rows.log.log(3, {"x": value})
    assert rows.columns()["x"] == [number]


def test_nan_stays_nan(rows):
    rows.log.log(3, {"x": float("nan"), "y": torch.tensor(float("nan"))})
    assert all(value != value for value in rows.values()[0].values())


def test_nested_names_are_joined(rows):
    rows.log.log(1, {"train": {"loss": 1.0, "acc": {"top1": 0.5}}, "lr": 0.1})
    assert rows.columns() | {"time_s": None} == {
        "step": [1], "time_s": None, "train/loss": [1.0], "train/acc/top1": [0.5], "lr": [0.1],
    }  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        "text",
        None,
        [1.0],
        np.zeros(2),
        torch.zeros(2),
        torch.tensor(1j),
        10**400,
        torch.zeros((), device="meta"),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_rejects_other_types_and_logs_the_rest(rows, value):
    with pytest.raises(SettingError, match=f"'bad' \\({type(value).__name__}\\)"):
        rows.log.log(1, {"bad": value, "good": 1.0})
    assert rows.values() == [{"good": 1.0}]


def test_it_reports_a_rejected_name_once(rows):
    for _ in range(3):
        try:
            rows.log.log(1, {"bad": "text", "good": 1.0})
        except SettingError as error:
            rows.drops[str(error)] += 1
    assert list(rows.drops.values()) == [1]
    assert len(rows.values()) == 3
    with pytest.raises(SettingError, match="'other'"):
        rows.log.log(1, {"other": "text", "bad": "text"})


@pytest.mark.parametrize("name", ["step", "time_s", "", "9lives", "a" * 200, "ünï"])
def test_it_rejects_a_name_that_cannot_be_a_column(rows, name):
    with pytest.raises(SettingError, match="cannot record"):
        rows.log.log(1, {name: 1.0})
    assert rows.values() == []


@pytest.mark.parametrize("step", [-1, 1.5, "3", None, 2**60])
def test_it_rejects_an_invalid_step(rows, step):
    with pytest.raises(SettingError, match="step="):
        rows.log.log(step, {"x": 1.0})


def test_it_accepts_a_step_of_numpy(rows):
    rows.log.log(np.int64(5), {"x": 1.0})
    assert rows.columns()["step"] == [5]


def test_it_limits_the_number_of_names(rows, monkeypatch):
    monkeypatch.setattr(scalars, "MAX_NAMES", 10)
    for step in range(10):
        rows.log.log(step, {f"loss_{step}": 1.0})
    with pytest.raises(SettingError, match="at most 10 names"):
        rows.log.log(10, {"loss_10": 1.0})
    rows.log.log(11, {"loss_3": 1.0})
    assert len(rows.values()) == 11


def test_a_recursive_mapping_ends(rows):
    loop: dict[str, Any] = {"x": 1.0}
    loop["loop"] = loop
    with pytest.raises(SettingError, match="loop/loop"):
        rows.log.log(1, loop)
    assert rows.values()[0]["loop/x"] == 1.0


def test_many_threads_may_log(rows):
    def log(name: str) -> None:
        for step in range(500):
            rows.log.log(step, {name: float(step)})

    threads = [threading.Thread(target=log, args=(f"thread{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows.log.flush(wait=True)
    values = rows.values()
    assert len(values) == 2000
    for number in range(4):
        logged = [row[f"thread{number}"] for row in values if f"thread{number}" in row]
        assert logged == [float(step) for step in range(500)]


# -- device tensors, on a fake device that rejects synchronization ---------------------------------


class OnDevice(torch.Tensor):
    """A CPU tensor that claims to be on a device, counts copies and rejects synchronization."""

    kind = "cuda"
    copies: list[tuple[Any, bool]]
    refused = (
        "item",
        "__float__",
        "__int__",
        "__bool__",
        "__index__",
        "cpu",
        "tolist",
        "numpy",
        "to",
        "is_nonzero",
        "__format__",
    )

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in cls.refused:
            raise AssertionError(f"{name} waits for the device")
        if function == torch.Tensor.device.__get__:
            return torch.device(cls.kind, 0)
        if name == "copy_":
            target, source = args
            assert not isinstance(target, OnDevice)
            assert kwargs["non_blocking"] is True, "a blocking copy waits for the device"
            cls.copies.append((target, kwargs["non_blocking"]))
            return None  # the value arrives with the event
        return super().__torch_function__(function, types, args, kwargs)


class Device:
    """Events of a device that a test runs by hand."""

    def __init__(self) -> None:
        self.done, self.recorded, self.pinned = False, [], []

    def event(self) -> Any:
        device = self

        class Event:
            def record(self, stream: Any = None) -> None:
                device.recorded.append(stream)

            def query(self) -> bool:
                return device.done

            def synchronize(self) -> None:
                raise AssertionError("the event is waited for")

        return Event()

    def arrive(self, value: float) -> None:
        """Complete the copies."""
        for target, _ in OnDevice.copies:
            target.fill_(value)
        self.done = True


@pytest.fixture(params=["cuda", "xpu", "mps"])
def device(request, monkeypatch) -> Device:
    device = Device()
    backend = getattr(torch, request.param)
    monkeypatch.setattr(backend, "Event", device.event)
    if request.param != "mps":  # which has one stream
        monkeypatch.setattr(backend, "current_stream", lambda of: f"stream of {of}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    if hasattr(backend, "synchronize"):
        monkeypatch.setattr(
            backend, "synchronize", lambda *_: pytest.fail("the device is synchronised")
        )
    empty = torch.empty

    def noted(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        device.pinned.append(pin_memory)
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", noted)
    monkeypatch.setattr(OnDevice, "kind", request.param)
    monkeypatch.setattr(OnDevice, "copies", [], raising=False)
    return device


def on_device(value: float, **options: Any) -> torch.Tensor:
    return torch.tensor(value, **options).as_subclass(OnDevice)


def test_a_device_tensor_is_read_when_its_copy_has_arrived(rows, device):
    rows.log.log(5, {"loss": on_device(0.0), "lr": 0.1})
    rows.log.flush()
    assert rows.values() == []
    device.arrive(2.5)
    rows.log.flush()
    assert rows.columns() | {"time_s": 0} == {"step": [5], "time_s": 0, "loss": [2.5], "lr": [0.1]}
    assert device.pinned == [True]


def test_one_event_covers_all_values_of_a_call(rows, device):
    rows.log.log(5, {f"loss{number}": on_device([0.0]) for number in range(5)})
    assert len(OnDevice.copies) == 5
    assert len(device.recorded) == 1


def test_it_copies_values_in_their_dtype_without_a_kernel(rows, device):
    rows.log.log(
        5, {"a": on_device(0.0, dtype=torch.bfloat16), "b": on_device(7, dtype=torch.int64)}
    )
    assert [target.dtype for target, _ in OnDevice.copies] == [torch.bfloat16, torch.int64]


def test_rows_stay_in_order_behind_one_that_waits(rows, device):
    rows.log.log(1, {"loss": on_device(0.0)})
    rows.log.log(2, {"lr": 0.1})
    assert rows.values() == []
    device.arrive(1.0)
    rows.log.log(3, {"lr": 0.2})
    assert rows.columns()["step"] == [1, 2, 3]


def test_a_device_that_never_answers_costs_no_memory(rows, device, monkeypatch):
    monkeypatch.setattr(scalars, "MAX_WAITING_ROWS", 10)
    for step in range(25):
        rows.log.log(step, {"loss": on_device(0.0)})
    assert len(OnDevice.copies) == 10
    assert rows.drops == {"scalars_waiting": 15}


def test_the_final_flush_waits_shortly_and_keeps_what_has_arrived(rows, device, monkeypatch):
    monkeypatch.setattr(scalars, "FINAL_WAIT_S", 0.01)
    rows.log.log(1, {"loss": on_device(0.0), "lr": 0.1})
    rows.log.log(2, {"lr": 0.2})
    rows.log.flush(wait=True)
    assert rows.values() == [{"lr": 0.1}, {"lr": 0.2}]
    assert rows.drops == {"scalars_lost": 1}


def test_a_lost_device_loses_only_its_values(rows, device, monkeypatch):
    rows.log.log(1, {"loss": on_device(0.0), "lr": 0.1})
    monkeypatch.setattr(
        scalars.PendingCopy,
        "has_arrived",
        lambda self: (_ for _ in ()).throw(RuntimeError("device-side assert")),
    )
    rows.log.flush()
    assert rows.values() == [{"lr": 0.1}]


def test_it_copies_nothing_while_a_graph_is_captured(rows, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: OnDevice.kind == "cuda")
    if OnDevice.kind != "cuda":
        rows.log.log(1, {"loss": on_device(0.0)})
        assert len(OnDevice.copies) == 1
        return
    with pytest.raises(SettingError, match="loss"):
        rows.log.log(1, {"loss": on_device(0.0)})
    assert OnDevice.copies == []


# -- DTensor ---------------------------------------------------------------------------------------


def test_it_reads_a_replicated_dtensor_and_rejects_a_partial_one(rows, tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = DTensor.from_local(torch.tensor(2.5), mesh, [Replicate()])
        part = DTensor.from_local(torch.tensor(2.5), mesh, [Partial()])
        rows.log.log(1, {"whole": whole})
        with pytest.raises(SettingError, match="'part' \\(DTensor\\)"):
            rows.log.log(1, {"part": part})
    finally:
        dist.destroy_process_group()
    assert rows.values() == [{"whole": 2.5}]
