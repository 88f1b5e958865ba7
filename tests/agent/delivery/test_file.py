"""Run files: whole frames in, whole frames out, whatever happened in between."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from memagent.delivery.file import MAGIC, FileTransport, read_frames
from memagent.delivery.parcel import parcel
from memagent.errors import DeliveryError, WireError
from memagent.wire.messages import Batch, RunStart


@pytest.fixture
def transport(tmp_path):
    transport = FileTransport(tmp_path / "deep" / "run.memagent")
    yield transport
    transport.close()


def deliver(transport, seq):
    transport.deliver(parcel("r", Batch(seq=seq)), timeout_s=1)


def test_what_was_delivered_can_be_read_back(transport):
    start = parcel("r", RunStart(run_id="r"))
    transport.deliver(start, timeout_s=1)
    deliver(transport, 0)
    assert list(read_frames(transport.path)) == [("start", start.body), ("batch", parcel("r", Batch(seq=0)).body)]


def test_a_torn_last_frame_is_left_out(transport):
    deliver(transport, 0)
    deliver(transport, 1)
    size = transport.path.stat().st_size
    os.truncate(transport.path, size - 1)
    assert len(list(read_frames(transport.path))) == 1


def test_a_damaged_frame_ends_the_reading(transport):
    for seq in range(3):
        deliver(transport, seq)
    data = bytearray(transport.path.read_bytes())
    data[len(MAGIC) + 9 + 2] ^= 1
    transport.path.write_bytes(data)
    assert list(read_frames(transport.path)) == []


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("hello")
    with pytest.raises(WireError, match="no run file"):
        list(read_frames(tmp_path / "x"))


def test_a_folder_that_cannot_be_made_is_a_delivery_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DeliveryError, match="cannot be written"):
        deliver(FileTransport(tmp_path / "file" / "run"), 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses RLIMIT_FSIZE as a disk that is full")
def test_a_full_disk_leaves_no_half_frame_and_the_next_one_fits(tmp_path):
    code = f"""
import resource, signal
from pathlib import Path
from memagent.delivery.file import FileTransport, read_frames
from memagent.delivery.parcel import parcel
from memagent.errors import DeliveryError
from memagent.wire.messages import Batch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
transport = FileTransport(Path({str(tmp_path / "run")!r}))
transport.deliver(parcel("r", Batch(seq=0)), timeout_s=1)
size = transport.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
item = parcel("r", Batch(seq=1, dropped_samples={{"x" * 50: 1}}))
try:
    transport.deliver(item, timeout_s=1)
except DeliveryError:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
transport.deliver(item, timeout_s=1)
print(len(list(read_frames(transport.path))))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["refused", "2"]
