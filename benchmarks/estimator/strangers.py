"""The allocator simulator on histories that strangers recorded on GPUs: `python -m
benchmarks.estimator histories FOLDER`.

A file is gzipped JSON of one snapshot in columns: `segments` with blocks as (offset, size,
requested size, state), and `traces`, one per device, with one letter per action.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.estimator.simulation_score import score_history
from memagent.errors import EstimateError

_ACTIONS = {
    "a": "alloc",
    "r": "free_requested",
    "f": "free_completed",
    "S": "segment_alloc",
    "F": "segment_free",
    "M": "segment_map",
    "U": "segment_unmap",
    "s": "snapshot",
    "O": "oom",
}


@dataclass(frozen=True)
class StrangersHistory:
    """How the simulation repeated one device's history; `note` says why it wasn't judged."""

    repository: str
    file: str
    device: int
    is_expandable: bool = False
    requests: int = 0
    allocations: int = 0
    reserved_mismatches: int = 0
    address_mismatches: int = 0
    worst_bytes: int = 0
    is_exact: bool | None = None
    first_difference: str = ""
    note: str = ""


def main(folder: Path, out: Path | None) -> int:
    """Repeat every history in the folder, and print what differs and the sums."""
    results = []
    for path in sorted(folder.glob("*.json.gz")):
        for result in histories(path):
            results.append(result)
            if not result.is_exact or result.address_mismatches:
                print(_line(result), flush=True)
    judged = [result for result in results if result.is_exact is not None]
    requests = sum(result.requests for result in judged)
    allocations = sum(result.allocations for result in judged)
    reserved = sum(result.reserved_mismatches for result in judged)
    addresses = sum(result.address_mismatches for result in judged)
    exact = sum(bool(result.is_exact) for result in judged)
    repositories = len({result.repository for result in judged})
    print(
        f"{exact} of {len(judged)} histories of {repositories} projects exact; reserved bytes equal"
        f" after {requests - reserved:,} of {requests:,} requests"
        f" ({1 - reserved / max(1, requests):.4%}), {allocations - addresses:,} of"
        f" {allocations:,} blocks at the recorded address"
        f" ({1 - addresses / max(1, allocations):.4%})"
    )
    if out is not None:
        out.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0


def histories(path: Path) -> Iterator[StrangersHistory]:
    """Score each device's history of a file."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    repository, file = content["source"]["repo"], path.name.removesuffix(".json.gz")
    snapshot = _snapshot(content)
    for device, trace in enumerate(snapshot["device_traces"]):
        if trace:
            yield _score(StrangersHistory(repository, file, device), snapshot)


def _score(named: StrangersHistory, snapshot: Mapping[str, Any]) -> StrangersHistory:
    try:
        score = score_history(snapshot, device=named.device)
    except EstimateError as error:
        return StrangersHistory(named.repository, named.file, named.device, note=str(error))
    difference = score.first_difference
    return StrangersHistory(
        named.repository,
        named.file,
        named.device,
        is_expandable=any(segment["is_expandable"] for segment in snapshot["segments"]),
        requests=score.compared,
        allocations=score.allocations,
        reserved_mismatches=score.reserved_mismatches,
        address_mismatches=score.address_mismatches,
        worst_bytes=score.worst_reserved_error,
        is_exact=score.exact,
        first_difference=f"entry {difference.index}, {difference.action}" if difference else "",
    )


def _snapshot(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the snapshot in torch's own form."""
    streams = content["streams"]
    return {
        "allocator_settings": content["allocator_settings"] or {},
        "segments": [_segment(segment) for segment in content["segments"]],
        "device_traces": [_trace(trace, streams) for trace in content["traces"]],
    }


def _segment(segment: Mapping[str, Any]) -> dict[str, Any]:
    names = ("size", "requested_size", "state")
    start = segment["address"]
    blocks = [
        {"address": start + offset, **dict(zip(names, values, strict=True))}
        for offset, *values in segment["blocks"]
    ]
    allocated = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    pool = tuple(segment["pool"] or (0, 0))
    return {**segment, "blocks": blocks, "allocated_size": allocated, "segment_pool_id": pool}


def _trace(trace: Mapping[str, Any], streams: list[int]) -> list[dict[str, Any]]:
    if not trace["n"]:
        return []
    columns = (trace["action"], trace["addr"], trace["size"], trace["stream"])
    return [
        {"action": _ACTIONS[action], "addr": address, "size": size, "stream": streams[stream]}
        for action, address, size, stream in zip(*columns, strict=True)
    ]


def _line(result: StrangersHistory) -> str:
    if result.note:
        return f"{result.file}: {result.note}"
    return (
        f"{result.file}: {result.reserved_mismatches:,} of {result.requests:,} differ, worst"
        f" {result.worst_bytes:+,} bytes, first at {result.first_difference or '-'};"
        f" {result.address_mismatches:,} of {result.allocations:,} at another address"
    )
