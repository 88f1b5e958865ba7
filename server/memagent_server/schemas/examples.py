"""One example of each request body and of the most read responses, by schema name.

A test posts and validates them all.
"""

from typing import Any

_GIB = 2**30
_LEAK_RULE = {"is_on": True, "tells": "warning", "thresholds": {"grown_ratio": 0.2}}
_SUSPECT = {
    "kind": "list",
    "holder": "losses",
    "file": "train.py",
    "line": 41,
    "bytes_per_step": 4096.0,
    "confidence": 0.9,
}

EXAMPLES: dict[str, Any] = {
    "RunStart": {
        "run_id": "k3v9",
        "project": "vision",
        "name": "vit-b-16",
        "config": {"lr": 0.0003, "batch": 64},
        "tags": ["baseline"],
        "total_steps": 1000,
        "devices": [
            {"id": "GPU-7a2c", "kind": "cuda", "name": "NVIDIA H100", "limit_bytes": 80 * _GIB}
        ],
    },
    "Batch": {
        "seq": 0,
        "chunks": [
            {
                "stream": "GPU-7a2c",
                "columns": {
                    "step": [1, 2],
                    "time_s": [1767225600.0, 1767225600.5],
                    "allocated_bytes": [20 * _GIB, 21 * _GIB],
                    "peak_allocated_bytes": [30 * _GIB, 31 * _GIB],
                },
            },
            {"stream": "scalars", "columns": {"step": [1, 2], "loss": [2.5, None]}},
        ],
        "events": [{"kind": "checkpoint", "step": 2, "time_s": 1767225600.5}],
    },
    "BatchReply": {
        "accepted": 4,
        "next_seq": 1,
        "risk": None,
        "commands": [],
        "batch_every_s": 1.0,
    },
    "PredictionMessage": {
        "method": "formula",
        "device": "GPU-7a2c",
        "peak_allocated_bytes": 32 * _GIB,
        "intervals": {"allocated": [30 * _GIB, 34 * _GIB]},
        "components": {"parameters": 2 * _GIB, "activations": 24 * _GIB},
    },
    "RehearsalMessage": {
        "fingerprint": "5f0c8a",
        "script": "train.py 8",
        "gpu": "NVIDIA A100-SXM4-40GB",
        "fits": True,
        "prediction": {"method": "rehearsal", "peak_allocated_bytes": 32 * _GIB},
    },
    "SnapshotMessage": {
        "method": "census",
        "device": "GPU-7a2c",
        "step": 120,
        "why": "memory grows",
        "suspects": [_SUSPECT],
    },
    "Finish": {"status": "completed", "step": 1000},
    "EstimateBody": {
        "model": "llama-2-7b",
        "batch": 1,
        "sequence": 2048,
        "gpu": "a100",
        "checkpointing": "full",
    },
    "AlertAction": {"by": "ana", "note": "on it"},
    "RuleChanges": {"rules": {"leak": _LEAK_RULE, "stalled": None}},
    "ColumnRuleChanges": {
        "rules": {"Loss diverges": {"column": "loss", "test": "above", "value": 10, "for_s": 60}}
    },
    "RouteChanges": {
        "routes": [
            {"name": "vision", "projects": ["vision", "vit-*"], "channels": ["slack_bot"]},
            {"name": "on call", "severity": "critical", "channels": ["pagerduty"], "goes_on": True},
        ]
    },
    "ScheduleChanges": {
        "schedules": {
            "email": {
                "time_zone": "Europe/Berlin",
                "quiet_from": "22:00",
                "quiet_to": "07:00",
                "quiet_days": ["saturday", "sunday"],
                "daily": True,
                "waste_day": "monday",
            }
        }
    },
    "CommandRequest": {"kind": "checkpoint"},
    "RunStarted": {
        "run_id": "k3v9",
        "url": "http://127.0.0.1:8420/runs/k3v9",
        "next_seq": 0,
        "predecessor": None,
    },
    "RunEnded": {"run_id": "k3v9", "status": "completed"},
    "Series": {
        "run_id": "k3v9",
        "rank": 0,
        "device": "GPU-7a2c",
        "attempt": 0,
        "samples": 120000,
        "bucketed": True,
        "step": [60000, 120000],
        "time_s": [1767225600.0, 1767229200.0],
        "series": {"allocated_bytes": {"min": [1, 2], "max": [3, 4], "last": [2, 3]}},
    },
    "Problem": {
        "type": "about:blank",
        "title": "Unprocessable Content",
        "status": 422,
        "detail": "limit: '0' is no whole number from 1 to 200",
        "field": "limit",
    },
}  # fmt: skip
