"""The finder on a real GPU: `python -m pytest tests/gpu/test_leaks.py`."""

from __future__ import annotations

import base64
import re
import zlib

import pytest
import torch

from memagent.leaks import Finder
from memagent.leaks.detectors import allocator_history
from memagent.leaks.detectors.allocator_history import flame, is_recording
from memagent.wire.messages import VIEWER_BYTES

pytestmark = pytest.mark.gpu


def diagnose(step, *, history: bool):
    finder = Finder(used_bytes=torch.cuda.memory_allocated)
    finder.request(history=history)
    number = 0
    while finder.diagnosis is None:
        step()
        number += 1
        finder.after_step(number)
    return finder


def test_it_names_the_list_and_the_line_that_allocates(gpu_training):
    _, _, step = gpu_training
    retained = []

    def leaking_step():
        step()
        retained.append(torch.ones(2**18, device="cuda"))

    finder = diagnose(leaking_step, history=True)
    kinds = {suspect.kind: suspect for suspect in finder.suspects}
    line = leaking_step.__code__.co_firstlineno + 2
    assert kinds["list"].line == kinds["allocation"].line == line
    assert kinds["list"].bytes_per_step == kinds["allocation"].bytes_per_step == 2**20
    assert flame(finder.history.grown)["bytes"] >= 2**20
    largest = finder.diagnosis.grown[0]
    assert finder.diagnosis.method == "history" and largest.script_frame[:2] == (__file__, line)
    assert largest.size_bytes == largest.blocks * 2**20


def test_the_allocator_record_becomes_a_page_for_upload(gpu_training):
    finder = diagnose(gpu_training[2], history=True)
    page = zlib.decompress(
        allocator_history.compressed_page(finder.history.last, VIEWER_BYTES)
    ).decode()
    [inside] = re.findall(r'"base64": "([^"]+)"', page)
    assert len(base64.b64decode(inside)) > 1000 and "Active Memory Timeline" in page


def test_a_clean_loop_has_no_suspects(gpu_training):
    assert diagnose(gpu_training[2], history=True).suspects == ()


def test_disabling_stops_the_recording(gpu_training):
    finder = diagnose(gpu_training[2], history=True)
    assert finder.diagnosis is not None and not is_recording()
    late = torch.ones(2**20, device="cuda")
    blocks = [
        block
        for segment in torch.cuda.memory._snapshot()["segments"]
        for block in segment["blocks"]
    ]
    result = next(block for block in blocks if block["address"] == late.data_ptr())
    assert not result.get("frames")


def test_a_recording_started_by_the_script_is_not_stopped(gpu_training):
    torch.cuda.memory._record_memory_history(
        enabled="all", context="all", stacks="python", max_entries=1000
    )
    try:
        finder = diagnose(gpu_training[2], history=True)
        assert finder.history.last == {} and is_recording()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
