"""PyTorch's viewer page and the allocator's timeline: a snapshot, the server, and the run page."""

from __future__ import annotations

import base64
import pickle
import re
import zlib
from pathlib import Path

import torch

import memagent
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector, compressed_page
from memagent.wire.codec import encode
from memagent.wire.messages import SnapshotMessage

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


def frames(line, name):
    inner = {"filename": "/venv/site-packages/torch/nn/functional.py", "line": 9, "name": "gelu"}
    return [inner, {"filename": "/home/ana/train.py", "line": line, "name": name}]


def event(action, addr, size, line=0, name=""):
    stack = frames(line, name) if line else []
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": 5,
        "frames": stack,
    }


FAR = 0x7F12_0000_0000  # addresses exceed 32 bits
RECORD = {
    "segments": [
        {
            "device": 0, "address": FAR, "total_size": 40 * 2**20,
            "blocks": [
                {"address": FAR, "size": 2**21, "requested_size": 2**21, "state": "active_allocated"},
                {"address": FAR + 2**23, "size": 2**23, "requested_size": 2**23, "state": "active_allocated"},
                {"address": FAR + 2**25, "size": 2**20, "requested_size": 2**20, "state": "inactive"},
            ],
        }
    ],
    "device_traces": [
        [
            event("segment_alloc", FAR, 40 * 2**20),
            event("alloc", FAR + 2**25, 2**24, 88, "train_epoch"),
            event("alloc", FAR + 2**23, 2**23, 12, "remember"),
            event("free_requested", FAR + 2**25, 2**24), event("free_completed", FAR + 2**25, 2**24),
            event("free_requested", FAR + 2**22, 2**22), event("free_completed", FAR + 2**22, 2**22),
        ]
    ],
    "allocator_settings": {"share": 0.5, "expandable_segments": False, "none": None, "below": -70_000},
}  # fmt: skip
"""16 MiB that are freed, 8 MiB that stay, and 6 MiB from before, of which 4 are freed."""


def test_a_timeline_that_arrives_later_is_drawn_offline(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/runs/k3v9leak")
    page.wait_for_selector("#memory-chart[data-drawn]")
    assert not page.locator("#timeline").count()
    viewer = compressed_page(RECORD, 2**20)
    message = SnapshotMessage(rank=0, step=700, seq=7, method="history", viewer=viewer)
    assert server.post("/api/v1/runs/k3v9leak/snapshots", encode(message)).status == 201
    page.wait_for_selector("#timeline")  # by a refresh
    urls = []
    page.on("request", lambda request: urls.append(request.url))
    assert not page.locator("#timeline-body").is_visible()
    page.get_by_role("button", name="Draw the timeline").click()
    page.wait_for_selector("#timeline-chart[data-drawn='7']")
    assert all(url.startswith(server.url) for url in urls)
    rows = [row.inner_text().split("\t") for row in page.locator("#timeline-sites tbody tr").all()]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["train.py:88 train_epoch", "16.00 MiB", "0"],
        ["train.py:12 remember", "8.00 MiB", "8.00 MiB"],
        ["before the record", "6.00 MiB", "2.00 MiB"],
    ]
    page.locator("#timeline-chart").focus()
    page.keyboard.press("Home")
    tip = page.locator("#timeline-chart .tip")
    until(lambda: "6.00 MiB live" in tip.inner_text())
    page.keyboard.press("End")
    until(lambda: "10.00 MiB live" in tip.inner_text())
    assert "40.00 MiB" in tip.inner_text(), "reserved"


def test_a_record_that_could_run_code_is_refused(server, replay, scenarios, open_page, until):
    replay(scenarios.leaking())
    packed = base64.b64encode(pickle.dumps({"segments": Path}))
    viewer = zlib.compress(b'[{"base64": "%s"}]' % packed)
    message = SnapshotMessage(rank=0, step=700, seq=7, method="history", viewer=viewer)
    assert server.post("/api/v1/runs/k3v9leak/snapshots", encode(message)).status == 201
    page = open_page(f"{server.url}/runs/k3v9leak")
    page.get_by_role("button", name="Draw the timeline").click()
    until(lambda: "unknown opcode" in page.locator("#timeline-note").inner_text())
