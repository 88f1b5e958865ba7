"""PyTorch's viewer page end to end: a snapshot, the server, the run page, and the download."""

from __future__ import annotations

import base64
import pickle
import re
from pathlib import Path

import torch

import memagent
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector

FRAMES = [{"filename": "/home/ana/train.py", "line": 88, "name": "train_epoch"}]
SNAPSHOT = {
    "segments": [
        {
            "device": 0, "address": 4096, "total_size": 2**21, "allocated_size": 2**20, "active_size": 2**20, "requested_size": 2**20,
            "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": FRAMES,
            "blocks": [{"address": 4096, "size": 2**20, "requested_size": 2**20, "state": "active_allocated", "frames": FRAMES}],
        }
    ],
    "device_traces": [[{"action": "alloc", "addr": 4096, "size": 2**20, "stream": 0, "time_us": 1, "frames": FRAMES}]],
    "allocator_settings": {"expandable_segments": False},
}  # fmt: skip
"""In the format of `torch.cuda.memory._snapshot`."""


def test_the_viewer_page_can_be_downloaded(server, tmp_path, monkeypatch, open_page):
    monkeypatch.setenv("MEMAGENT_DIR", str(tmp_path / "runs"))
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    with memagent.attach(
        model, optimizer, predict=False, run_id="traced", server=server.url
    ) as run:
        run.snapshot("to look closer")
        run._pipeline.leaks._finder.history = window = (
            AllocatorHistoryDetector()
        )  # the CPU allocator records nothing
        window.last = SNAPSHOT
        for _ in range(25):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
    page = open_page(f"{server.url}/runs/traced")
    with page.expect_download() as saving:
        page.get_by_role("link", name="PyTorch's viewer").click()
    assert re.fullmatch(r"traced-step2\d-rank0\.html", saving.value.suggested_filename)
    html = Path(saving.value.path()).read_text()
    assert "MemoryViz.js" in html and page.url == f"{server.url}/runs/traced"
    [inside] = re.findall(r'"base64": "([^"]+)"', html)
    assert pickle.loads(base64.b64decode(inside)) == SNAPSHOT
