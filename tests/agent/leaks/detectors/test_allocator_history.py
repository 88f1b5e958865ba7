"""The difference of two allocator snapshots, in torch's documented form."""

from __future__ import annotations

import base64
import json
import pickle
import random
import re
import zlib
from typing import Any

import pytest
import torch

from memagent.leaks import find
from memagent.leaks.detectors import allocator_history
from memagent.leaks.detectors.allocator_history import (
    allocations_by_stack,
    difference,
    flame,
    folded,
    suspects,
)

SCRIPT = "/home/someone/train.py"
TORCH = "/usr/lib/python3/site-packages/torch/nn/functional.py"
STEP = [(TORCH, 10, "linear"), (SCRIPT, 20, "step"), (SCRIPT, 30, "<module>")]
KEEP = [(SCRIPT, 22, "keep"), (SCRIPT, 30, "<module>")]


def block(
    size: int, frames: list[tuple[str, int, str]], state: str = "active_allocated", address: int = 0
) -> dict[str, Any]:
    named = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    return {
        "address": address,
        "size": -(-size // 512) * 512,
        "requested_size": size,
        "state": state,
        "frames": named,
    }


def snapshot(*blocks: dict[str, Any], device: int = 0) -> dict[str, Any]:
    segment = {
        "device": device,
        "address": 0,
        "total_size": 2**21,
        "segment_type": "small",
        "blocks": list(blocks),
    }
    return {"segments": [segment], "device_traces": [[]], "allocator_settings": {}}


def test_it_counts_live_blocks_that_have_a_stack():
    stacks = allocations_by_stack(
        snapshot(
            block(100, STEP),
            block(50, STEP, "active_awaiting_free"),
            block(70, STEP, "inactive"),
            block(900, []),
        )
    )
    (only,) = stacks.values()
    assert (only.size_bytes, only.blocks, only.stack) == (150, 2, tuple(STEP[::-1]))
    assert only.script_frame == (SCRIPT, 20, "step")


def test_it_counts_each_device_separately():
    both = {
        "segments": [
            *snapshot(block(1, STEP))["segments"],
            *snapshot(block(2, KEEP), device=1)["segments"],
        ]
    }
    assert [one.size_bytes for one in allocations_by_stack(both, device=1).values()] == [2]


def test_the_difference_is_what_grew_largest_first():
    first = snapshot(block(100, STEP), block(10, KEEP))
    last = snapshot(block(80, STEP), *(block(10, KEEP) for _ in range(5)))
    assert [(one.size_bytes, one.blocks) for one in difference(first, last)] == [(40, 4)]


def test_it_names_the_innermost_line_of_the_script():
    first, last = snapshot(), snapshot(*(block(1000, STEP) for _ in range(10)), block(5000, KEEP))
    (only,) = suspects(first, last, steps=10)  # one block in ten steps is no growth
    assert (only.file, only.line, only.function, only.bytes_per_step, only.kind) == (
        SCRIPT,
        20,
        "step",
        1000,
        "allocation",
    )


def test_a_block_reallocated_larger_each_step_is_growth():
    (only,) = suspects(snapshot(block(1000, KEEP)), snapshot(block(9000, KEEP)), steps=8)
    assert (only.line, only.bytes_per_step) == (22, 1000)


def test_a_steady_loop_has_no_suspects():
    steady = snapshot(block(100, STEP), block(10, KEEP))
    assert suspects(steady, steady, steps=10) == []


def test_the_flame_graph_adds_up_and_is_json():
    stacks = allocations_by_stack(snapshot(block(100, STEP), block(30, KEEP))).values()
    rows, tree = (json.loads(json.dumps(folded(stacks))), json.loads(json.dumps(flame(stacks))))
    assert [row["bytes"] for row in rows] == [100, 30] and rows[0]["stack"][
        0
    ] == f"{SCRIPT}:30 <module>"
    (trunk,) = tree["children"]
    assert tree["bytes"] == trunk["bytes"] == 130
    assert [child["bytes"] for child in trunk["children"]] == [100, 30]


class Allocator:
    """torch's record of the CUDA allocator, as it answers; each step of the script keeps one block more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: list[dict[str, Any]] = [block(4096, STEP)]
        self.switched: list[str | None] = []
        memory = torch.cuda.memory
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: False, raising=False)
        monkeypatch.setattr(
            memory, "_record_memory_history", lambda enabled, **_: self.switched.append(enabled)
        )
        monkeypatch.setattr(memory, "_snapshot", lambda: snapshot(*self.blocks))
        monkeypatch.setattr(memory, "memory_snapshot", self.segments)

    def segments(self, include_traces: bool) -> list[dict[str, Any]]:
        assert not include_traces
        return snapshot(*self.blocks)["segments"]

    def keep(self) -> None:
        self.blocks.append(block(1000, KEEP))


def test_a_diagnosis_has_the_growing_stacks(monkeypatch):
    allocator = Allocator(monkeypatch)
    diagnosis = find(allocator.keep, history=True)
    (only,) = diagnosis.grown
    assert diagnosis.method == "history" and allocator.switched == ["all", None]
    assert (only.stack, only.size_bytes, only.blocks) == (tuple(KEEP[::-1]), 10_000, 10)
    [allocated] = [suspect for suspect in diagnosis.suspects if suspect.kind == "allocation"]
    assert (allocated.line, allocated.bytes_per_step) == (22, 1000)


def test_a_record_without_growth_has_no_stacks(monkeypatch):
    Allocator(monkeypatch)
    diagnosis = find(lambda: None, history=True)
    assert (diagnosis.method, diagnosis.grown) == ("census", ())


TRACED = {
    **snapshot(block(1000, KEEP)),
    "device_traces": [[{"action": "alloc", "addr": 0, "size": 1000, "frames": []}]],
}


@pytest.mark.parametrize(
    ("recorded", "view"),
    [(TRACED, "Active Memory Timeline"), (snapshot(block(1000, KEEP)), "Allocator State History")],
)
def test_it_is_saved_for_torchs_own_viewer(tmp_path, recorded, view):
    data, page = allocator_history.save_snapshot(recorded, tmp_path / "runs" / "v1.2-rank0-7")
    assert (data.name, page.name) == ("v1.2-rank0-7.pickle", "v1.2-rank0-7.html")
    assert pickle.loads(data.read_bytes()) == recorded
    html = page.read_text()
    assert inside(html) == recorded and view in html


def inside(html: str) -> Any:
    """The snapshot in one of torch's pages."""
    return pickle.loads(base64.b64decode(re.search(r'"base64": "([^"]+)"', html)[1]))


def test_a_small_record_is_uploaded_whole():
    assert (
        inside(zlib.decompress(allocator_history.compressed_page(TRACED, 2**20)).decode()) == TRACED
    )


def test_a_large_record_is_uploaded_with_its_newest_events():
    chance = random.Random(0)
    events = [
        {"action": "alloc", "addr": chance.getrandbits(40), "size": number}
        for number in range(9_000)
    ]
    packed = allocator_history.compressed_page({**TRACED, "device_traces": [events, []]}, 80_000)
    assert 0 < len(packed) <= 80_000
    assert inside(zlib.decompress(packed).decode())["device_traces"] == [events[-4_000:], []]


def test_no_page_is_uploaded_if_none_fits_or_torch_makes_none(monkeypatch):
    assert allocator_history.compressed_page(TRACED, 100) == b""
    monkeypatch.delattr(torch.cuda._memory_viz, "trace_plot")
    assert allocator_history.compressed_page(TRACED, 2**20) == b""


def test_the_pickle_is_saved_if_torch_makes_no_page(tmp_path, monkeypatch):
    monkeypatch.delattr(torch.cuda._memory_viz, "trace_plot")
    (data,) = allocator_history.save_snapshot(TRACED, tmp_path / "r")
    assert pickle.loads(data.read_bytes()) == TRACED
