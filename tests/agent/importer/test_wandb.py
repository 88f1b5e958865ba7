"""Files that the real wandb has written offline."""

from __future__ import annotations

import math
import os
import struct
import zlib

import pytest

from memagent.importer.record_logs import RECORD_BYTES
from tests.agent.importer.conftest import needed, values_of

pytestmark = pytest.mark.xdist_group("importer")


@pytest.fixture
def copy(wandb_file, tmp_path):
    file = tmp_path / wandb_file.name
    file.write_bytes(wandb_file.read_bytes())
    return file


def write_records(path, records):
    """Write records in the format of W&B's files, whose own writer isn't Python any more.

    Blocks have 32 KiB. A record is in one or more fragments of checksum, length and kind.
    """
    content = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        rest, is_first = record, True
        while rest or is_first:
            if (space := 2**15 - len(content) % 2**15) < 7:
                content += bytes(space)
                space = 2**15
            part, rest = rest[: space - 7], rest[space - 7 :]
            kind = (1 if is_first else 4) if not rest else (2 if is_first else 3)
            checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
            content += struct.pack("<IHB", checksum, len(part), kind) + part
            is_first = False
    path.write_bytes(content)


def run_record():
    from wandb.proto.wandb_internal_pb2 import Record

    record = Record()
    record.run.run_id = "r1"
    record.run.project = "p"
    record.run.start_time.seconds = 1_000_000_000
    return record


def history_record(step, **values):
    from wandb.proto.wandb_internal_pb2 import Record

    record = Record()
    record.history.step.num = step
    for name, text in values.items():
        record.history.item.add(key=name, value_json=text)
    return record


def test_a_file_is_a_run_with_scalars_config_tags_and_its_end(wandb_file, read):
    ((run,), problems) = read("wandb", wandb_file.parents[2])
    assert problems == [] and run.notes == []
    assert (run.name, run.project, run.status) == ("first try", "vision", "completed")
    assert run.config["lr"] == 0.1 and run.config["model"] == {"depth": 12}
    assert run.tags == ["baseline", "a100"]
    assert run.environment["wandb_id"] == "abc123" and run.environment["notes"] == "on the old data"
    losses = values_of(run, "loss")
    assert losses[9] == pytest.approx(0.1) and math.isnan(losses[100]) and len(losses) == 200
    assert values_of(run, "eval.accuracy")[100] == 0.5
    assert values_of(run, "best") == {199: 0.995}
    assert run.skipped["table"] == 1 and run.skipped["text"] == 1
    assert 0 < run.started_at < run.finished_at


def test_a_file_of_a_run_in_progress_has_no_end_and_grows(wandb_file, copy, read):
    os.truncate(copy, copy.stat().st_size // 2)
    ((part,), _) = read("wandb", copy)
    ((whole,), _) = read("wandb", wandb_file)
    assert part.status is None and "torn" in part.notes[0]
    assert 0 < len(part.scalars) < len(whole.scalars)
    assert part.key == whole.key and whole.scalars.extends(part.scalars.extents())


def test_any_cut_gives_a_run_or_a_sentence(wandb_file, copy, read):
    content = wandb_file.read_bytes()
    for size in range(0, len(content), len(content) // 60):
        copy.write_bytes(content[:size])
        runs, problems = read("wandb", copy)
        assert len(runs) + len(problems) == 1
        assert all(str(copy) in problem for problem in problems)


def test_any_damaged_byte_gives_a_run_or_a_sentence(wandb_file, copy, read):
    content = wandb_file.read_bytes()
    for at in range(0, len(content), len(content) // 60):
        damaged = bytearray(content)
        damaged[at] ^= 0x55
        copy.write_bytes(damaged)
        runs, problems = read("wandb", copy)
        assert len(runs) + len(problems) == 1


def test_records_across_blocks_are_whole_and_a_damaged_block_costs_itself(tmp_path, read):
    file = tmp_path / "run-r1.wandb"
    records = [history_record(step, loss=str(step), text=f'"{"x" * 999}"') for step in range(200)]
    write_records(
        file, [run_record().SerializeToString(), *(r.SerializeToString() for r in records)]
    )
    ((run,), _) = read("wandb", file)
    assert values_of(run, "loss") == {step: float(step) for step in range(200)}
    content = bytearray(file.read_bytes())
    content[3 * 2**15 + 500] ^= 0xFF
    file.write_bytes(content)
    ((run,), _) = read("wandb", file)
    assert 150 < len(values_of(run, "loss")) < 200 and "1 of its blocks" in run.notes[0]


def test_a_record_above_the_limit_is_counted_and_passed_over(tmp_path, read):
    file = tmp_path / "run-r1.wandb"
    bomb = b"\x0a\x00" * (RECORD_BYTES // 2 + 1)
    records = [run_record(), history_record(1, loss="0.5")]
    write_records(file, [*(record.SerializeToString() for record in records), bomb])
    ((run,), _) = read("wandb", file)
    assert run.skipped == {"record over 2 MiB": 1} and values_of(run, "loss") == {1: 0.5}


def test_numbers_of_gpus_become_readings(tmp_path, read):
    file = tmp_path / "run-r1.wandb"
    from wandb.proto.wandb_internal_pb2 import Record

    environment, stats = Record(), Record()
    gpu = environment.environment.gpu_nvidia.add(name="NVIDIA A100", memory_total=40 * 2**30)
    gpu.uuid = "GPU-7"
    stats.stats.timestamp.seconds = 1_000_000_010
    readings = {"gpu.0.memoryAllocatedBytes": 2**30, "gpu.0.gpu": 55, "proc.memory.rssMB": 512}
    for name, value in {**readings, "cpu": 3}.items():
        stats.stats.item.add(key=name, value_json=str(value))
    records = [run_record(), environment, history_record(7, _timestamp="1000000005"), stats]
    write_records(file, [record.SerializeToString() for record in records])
    ((run,), _) = read("wandb", file)
    gpu, host = run.devices.devices()
    assert (gpu.id, gpu.name, gpu.total_bytes) == ("GPU-7", "NVIDIA A100", 40 * 2**30)
    columns = dict(run.devices.blocks(run.scalars.clock()))
    assert columns["GPU-7"]["device_used_bytes"] == [2**30]
    assert columns["GPU-7"]["utilization_ratio"] == [0.55]
    assert columns["host"]["host_rss_bytes"] == [512 * 2**20] and host.kind == "host"
    assert run.skipped == {"other system metric": 1}


def test_texts_of_any_size_and_depth_stay_small(tmp_path, read):
    from wandb.proto.wandb_internal_pb2 import Record

    config = Record()
    for number in range(100):
        config.config.update.add(key=f"k{number}", value_json=f'"{"x" * 15_000}"')
    deep = history_record(1, deep="[" * 10_000, nested='{"a":' * 50_000, huge="9" * 10_000)
    file = tmp_path / "run-r1.wandb"
    write_records(file, [record.SerializeToString() for record in (run_record(), config, deep)])
    ((run,), _) = read("wandb", file)
    assert 60 < len(run.config) < 75 and run.skipped["config value beyond a MiB"] > 25
    assert run.skipped["list"] == 1 and run.skipped["object"] == 1


@pytest.mark.parametrize("content", [b"", b"text", b":W&B\x00\x00\x00", b":W&B\xe1\xbe\x01"])
def test_other_files_are_refused_with_a_reason(tmp_path, read, content):
    needed("wandb")
    file = tmp_path / "run-r1.wandb"
    file.write_bytes(content)
    runs, (problem,) = read("wandb", file)
    assert runs == [] and problem.startswith(str(file))
