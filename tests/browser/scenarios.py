"""Typical runs, as their agents would send them, for the tests of pages.

Samples, events, predictions and ends are posted over HTTP. Forecasts and alerts, which the worker
would derive from samples over time, are written to the database, so that tests cover every state.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from memagent.units import GIB, MIB
from memagent.wire.codec import encode
from memagent.wire.columns import pack
from memagent.wire.fields import scalar_kind_of
from memagent.wire.messages import Batch, Chunk, Event

MARKUP = '<script>window.hacked=1</script><img src=x onerror="window.hacked=2">'


@dataclass
class Scenario:
    """One run as its agents would send it. `streams` is {(rank, device): columns}, with steps."""

    run_id: str
    name: str
    streams: dict[tuple[int, str], dict[str, list[Any]]]
    devices: list[dict[str, Any]]
    project: str = "language"
    total_steps: int | None = None
    started_s_ago: float = 1500.0
    config: dict[str, Any] = field(default_factory=lambda: dict(CONFIG))
    tags: list[str] = field(default_factory=list)
    prediction: dict[str, Any] | None = None
    snapshot: dict[str, Any] | None = None
    events: list[Event] = field(default_factory=list)
    event_rank: int = 0
    finish: dict[str, Any] | None = None
    forecasts: list[dict[str, Any]] = field(default_factory=list)
    alert: dict[str, Any] | None = None
    status: str | None = None
    user: str = "ana"
    host: str = "gpu-07"

    def replay(self, server: Any) -> None:
        ranks = sorted({rank for rank, _ in self.streams} or {0})
        for rank in ranks:
            self._post(server, "/api/v1/runs", self._start(rank, len(ranks)))
        for place, ((rank, device), columns) in enumerate(self.streams.items()):
            self.send(server, rank, device, columns, None if device == "scalars" else 1_000 * place)
        if self.events:
            self._batch(server, Batch(rank=self.event_rank, seq=900_000, events=self.events))
        if self.prediction:
            self._post(server, f"/api/v1/runs/{self.run_id}/predictions", self.prediction)
        if self.snapshot:
            self._post(server, f"/api/v1/runs/{self.run_id}/snapshots", self.snapshot)
        if self.finish:
            for rank in ranks:
                self._post(
                    server, f"/api/v1/runs/{self.run_id}/finish", {**self.finish, "rank": rank}
                )
        if self.forecasts or self.alert or self.status:
            self._conclude(server)

    def _start(self, rank: int, world_size: int) -> dict[str, Any]:
        return {
            "run_id": self.run_id, "project": self.project, "name": self.name, "user": self.user, "host": self.host, "rank": rank,
            "world_size": world_size, "started_at": time.time() - self.started_s_ago, "total_steps": self.total_steps,
            "config": self.config, "tags": self.tags, "environment": ENVIRONMENT,
            "devices": [device for device in self.devices if (rank, device["id"]) in self.streams],
        }  # fmt: skip

    def send(
        self,
        server: Any,
        rank: int,
        device: str,
        columns: dict[str, list[Any]],
        seq: int | None = None,
    ) -> None:
        rows = len(columns["step"])
        seq = seq if seq is not None else {"scalars": 500_000}.get(device, 0)
        for first in range(0, rows, 10_000):
            chunks = [
                Chunk(stream=device, packed=_packed(device, columns, start, min(start + 500, rows)))
                for start in range(first, min(first + 10_000, rows), 500)
            ]
            self._batch(server, Batch(rank=rank, seq=seq, chunks=chunks))
            seq += 1

    def _batch(self, server: Any, batch: Batch) -> None:
        response = server.post(f"/api/v1/runs/{self.run_id}/batches", encode(batch))
        assert response.status == 200, response.body

    def _post(self, server: Any, path: str, body: dict[str, Any]) -> None:
        response = server.post(path, body)
        assert response.status in (200, 201), response.body

    def _conclude(self, server: Any) -> None:
        from sqlalchemy import select

        from memagent_server.store.engine import Database
        from memagent_server.store.models import (
            AlertRow,
            ForecastRow,
            IncidentRow,
            NotificationRow,
            RunRow,
            StreamRow,
            TransitionRow,
        )

        now, database = time.time(), Database(server.database_url)
        with database.write() as session:
            stream = session.scalars(
                select(StreamRow)
                .where(StreamRow.run_id == self.run_id, StreamRow.kind != "scalars")
                .order_by(StreamRow.id.desc())
            ).first()
            for facts in self.forecasts:
                session.add(
                    ForecastRow(
                        run_id=self.run_id,
                        stream_id=stream.id,
                        **{**NO_FORECAST, "at": now - 5, **facts},
                    )
                )
            if self.status:
                run = session.get(RunRow, self.run_id)
                run.status, run.finished_at, run.last_seen_at = self.status, now - 300, now - 420
            if self.alert:
                facts = dict(self.alert)
                changes, notifications = facts.pop("transitions"), facts.pop("notifications")
                incident = IncidentRow(
                    run_id=self.run_id, rule="oom_forecast", cause="leak", state=facts["state"], severity=facts["severity"],
                    opened_at=now - 260, fired_at=now - 240, updated_at=now - 40, closed_at=facts.get("closed_at"),
                )  # fmt: skip
                session.add(incident)
                session.flush()
                alert = AlertRow(
                    run_id=self.run_id,
                    stream_id=stream.id,
                    incident_id=incident.id,
                    rule="oom_forecast",
                    opened_at=now - 260,
                    updated_at=now - 40,
                    **facts,
                )
                session.add(alert)
                session.flush()
                for age, step, from_state, to_state, severity, reason in changes:
                    transition = TransitionRow(
                        alert_id=alert.id, at=now - age, step=step, from_state=from_state, to_state=to_state,
                        severity=severity, reason=reason,
                    )  # fmt: skip
                    session.add(transition)
                session.flush()
                for number, (channel, state, error) in enumerate(notifications):
                    session.add(
                        NotificationRow(
                            alert_id=alert.id,
                            transition_id=transition.id,
                            incident_id=incident.id,
                            channel=channel,
                            state=state,
                            attempts=1,
                            dedup_key=f"{alert.id}:{number}",
                            created_at=now - 60,
                            next_attempt_at=now + 60,
                            sent_at=now - 58 if state == "sent" else None,
                            last_error=error,
                        )
                    )
        database.close()


CONFIG = {
    "model": {"name": "gpt2-medium", "layers": 24, "width": 1024, "context": 1024},
    "optimizer": {"name": "AdamW", "lr": 3e-4, "betas": [0.9, 0.95]},
    "batch_size": 16,
    "precision": "bf16",
    "gradient_checkpointing": False,
    "seed": 1337,
}
ENVIRONMENT = {
    "python": "3.12.4", "torch": "2.13.0", "cuda": "12.6", "platform": "Linux-6.8-x86_64",
    "command": "python train.py --config medium.yaml",
    "git": {"commit": "3f9c2ab", "dirty": True},
}  # fmt: skip
NO_FORECAST = {
    "level": "ok", "oom_probability": 0.01, "cause": None, "eta_step": None, "eta_low": None, "eta_high": None, "eta_s": None,
    "used_bytes": None, "limit_bytes": None, "growth_bytes_per_step": None, "growing_since_step": None,
}  # fmt: skip
H100 = {
    "id": "GPU-6f1c0a52",
    "kind": "cuda",
    "name": "NVIDIA H100 80GB",
    "total_bytes": 80 * GIB,
    "limit_bytes": 79 * GIB,
    "limit_source": "device memory",
}
BOX = {
    "id": "host",
    "kind": "host",
    "name": "host (8.00 GiB)",
    "total_bytes": 16 * GIB,
    "limit_bytes": 8 * GIB,
    "limit_source": "RLIMIT_DATA",
}


class Scenarios:
    """Typical runs."""

    @staticmethod
    def leaking() -> Scenario:
        """On a GPU, growing since step 300, warned at 870, about 420 steps from its end."""
        last, growth = 1180, 30 * MIB
        streams = {
            (0, H100["id"]): gpu_columns(last, leak_from=300, growth=growth, base=40 * GIB),
            (0, "scalars"): scalar_columns(last),
        }
        return Scenario(
            "k3v9leak", "gpt2-medium, longer context", streams, [H100], total_steps=5000, tags=["sweep-4", "bf16"],
            prediction=PREDICTION, events=[Event(kind="snapshot", step=640, time_s=time.time() - 700)],
            snapshot={**SNAPSHOT, "device": H100["id"], "step": 640},
            forecasts=[
                {"step": 420, "level": "notice", "oom_probability": 0.4, "cause": "leak", "eta_step": 2300.0},
                {"step": 870, "level": "warning", "oom_probability": 0.93, "cause": "leak", "eta_step": 1610.0},
                {
                    "step": last, "level": "critical", "oom_probability": 0.98, "cause": "leak", "eta_step": 1598.0, "eta_low": 1530.0,
                    "eta_high": 1700.0, "eta_s": 418 * 1.27, "used_bytes": streams[0, H100["id"]]["allocated_bytes"][-1],
                    "limit_bytes": 79 * GIB, "growth_bytes_per_step": float(growth), "growing_since_step": 300,
                },
            ],
            alert={
                "severity": "critical", "state": "firing", "first_step": 870, "step": last,
                "summary": "gpt2-medium, longer context will run out of memory in about 420 steps (9 min)",
                "transitions": [
                    (260, 860, "ok", "pending", "warning", "probability 0.91 at step 860"),
                    (240, 870, "pending", "firing", "warning", "confirmed by 2 forecasts in a row: limit at about step 1,610"),
                    (40, 1150, "firing", "firing", "critical", "less than 10 minutes left"),
                ],
                "notifications": [("slack_webhook", "sent", None), ("webhook", "waiting", "503 Service Unavailable, tried 2 times")],
            },
        )  # fmt: skip

    @staticmethod
    def healthy() -> Scenario:
        last = 2400
        streams = {
            (0, H100["id"]): gpu_columns(last, seed=2, base=46 * GIB),
            (0, "scalars"): scalar_columns(last, seed=2),
        }
        return Scenario(
            "h8healthy", "gpt2-medium baseline", streams, [H100], total_steps=5000, prediction=PREDICTION,
            forecasts=[{"step": last, "used_bytes": 46 * GIB, "limit_bytes": 79 * GIB}], user="ben", host="gpu-02",
        )  # fmt: skip

    @staticmethod
    def died() -> Scenario:
        """On a host: warned 311 steps before the end."""
        last, growth = 1234, int(5.4 * MIB)
        columns = host_columns(last, growth=growth)
        return Scenario(
            "d1ed", "char-gpt on stdlib", {(0, "host"): columns, (0, "scalars"): scalar_columns(last, seed=3)}, [BOX],
            project="demo", total_steps=4000, prediction=HOST_PREDICTION, started_s_ago=600,
            events=[Event(kind="oom", step=last, time_s=time.time() - 20, data=LAST_WORDS)],
            finish={"status": "oom", "step": last, "error": CPU_OOM},
            forecasts=[
                {
                    "step": 924, "level": "warning", "oom_probability": 0.95, "cause": "leak", "eta_step": 1241.0, "eta_low": 1190.0,
                    "eta_high": 1310.0, "eta_s": 150.0, "used_bytes": columns["allocated_bytes"][924], "limit_bytes": 8 * GIB,
                    "growth_bytes_per_step": float(growth), "growing_since_step": 12,
                },
            ],
            alert={
                "severity": "warning", "state": "oom", "first_step": 924, "step": last, "closed_at": time.time() - 15,
                "summary": "ran out of memory in step 1,235, 311 steps after the warning at step 924",
                "transitions": [
                    (190, 916, "ok", "pending", "warning", "probability 0.92"),
                    (180, 924, "pending", "firing", "warning", "limit at about step 1,241"),
                    (15, last, "firing", "oom", "warning", "the run died of out-of-memory"),
                ],
                "notifications": [("slack_webhook", "sent", None)],
            },
        )  # fmt: skip

    @staticmethod
    def two_ranks() -> Scenario:
        last = 640
        devices = [H100, {**H100, "id": "GPU-91d0be77", "index": 1}]
        streams = {
            (rank, device["id"]): gpu_columns(last, seed=5 + rank, base=(40 + 14 * rank) * GIB)
            for rank, device in enumerate(devices)
        }
        return Scenario(
            "ddp2", "llama-1b ddp", streams, devices, total_steps=20_000, project="llama",
            prediction={**PREDICTION, "rank": 1, "device": devices[1]["id"]},
            forecasts=[{**TAIL, "step": last}],
        )  # fmt: skip

    @staticmethod
    def eight_ranks() -> Scenario:
        """Seven alike, and rank 3, which leaks."""
        last = 300
        devices = [{**H100, "id": f"GPU-{rank}", "index": rank} for rank in range(8)]
        leak = {3: {"leak_from": 100, "growth": 60 * MIB}}
        streams = {
            (rank, device["id"]): gpu_columns(last, seed=5, base=40 * GIB, **leak.get(rank, {}))
            for rank, device in enumerate(devices)
        }
        return Scenario("fsdp8", "llama-3b fsdp", streams, devices, total_steps=900)

    @staticmethod
    def sweep() -> list[Scenario]:
        """Two short runs that differ in context and batch; both count tokens, the second at
        twice the speed.
        """
        results = []
        for number, (context, batch, base) in enumerate(
            ((1024, 16, 40 * GIB), (2048, 8, 46 * GIB))
        ):
            scalars = {
                **scalar_columns(300, seed=20 + number),
                "tokens": [16_384 * (1 + number) * step for step in range(1, 301)],
            }
            results.append(
                Scenario(
                    f"sweep{number}", f"gpt2-medium, context {context}",
                    {(0, H100["id"]): gpu_columns(300 + 100 * number, seed=30 + number, base=base), (0, "scalars"): scalars}, [H100],
                    config={**CONFIG, "model": {**CONFIG["model"], "context": context}, "batch_size": batch}, prediction=PREDICTION,
                    tags=["sweep-4"], finish={"status": "completed", "step": 300 + 100 * number}, started_s_ago=7200 - 60 * number,
                )
            )  # fmt: skip
        return results

    @staticmethod
    def long() -> Scenario:
        """100,000 steps and one spike of a single step."""
        last = 100_000
        columns = host_columns(last, growth=0, seed=7)
        columns["peak_allocated_bytes"][54_321] = 7 * GIB
        return Scenario(
            "l0ng", "wikitext overnight", {(0, "host"): columns}, [BOX], total_steps=last, finish={"status": "completed", "step": last},
            started_s_ago=9 * 3600, user="chen",
        )  # fmt: skip

    @staticmethod
    def hostile() -> Scenario:
        """Everything a stranger can write is markup."""
        columns = host_columns(60, growth=0)
        return Scenario(
            "h0stile", MARKUP, {(0, "host"): columns, (0, "scalars"): {"step": [1, 2], "time_s": [1.0, 2.0], "loss": [1.0, 0.5]}},
            [{**BOX, "name": MARKUP, "limit_source": MARKUP}], project=MARKUP, tags=[MARKUP], user=MARKUP, host=MARKUP,
            config={MARKUP: {MARKUP: MARKUP}, "list": [MARKUP]}, finish={"status": "failed", "step": 60, "error": MARKUP},
            events=[Event(kind="oops", step=30, time_s=time.time(), data={MARKUP: MARKUP})],
            alert={
                "severity": "warning", "state": "firing", "first_step": 1, "step": 1, "summary": MARKUP,
                "transitions": [(5, 1, "pending", "firing", "warning", MARKUP)], "notifications": [("slack_webhook", "dead", MARKUP)],
            },
        )  # fmt: skip

    @staticmethod
    def lost_contact() -> Scenario:
        return Scenario(
            "l0st", "resnet50 augment", {(0, H100["id"]): gpu_columns(310, seed=9, base=30 * GIB)}, [H100], project="vision",
            status="lost_contact", user="dora", host="gpu-11", started_s_ago=4000,
        )  # fmt: skip

    @staticmethod
    def failed() -> Scenario:
        return Scenario(
            "fa1led", "vit-b16 lr sweep", {(0, H100["id"]): gpu_columns(77, seed=10, base=22 * GIB)}, [H100], project="vision",
            finish={"status": "failed", "step": 77, "error": "KeyError: 'labels'"}, user="dora", host="gpu-11", started_s_ago=90_000,
        )  # fmt: skip

    @classmethod
    def all(cls) -> list[Scenario]:
        return [
            cls.failed(),
            cls.long(),
            cls.lost_contact(),
            cls.died(),
            cls.healthy(),
            cls.two_ranks(),
            cls.leaking(),
        ]


CPU_OOM = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8388608 bytes. Error code 12 (Cannot allocate memory)"
)
LAST_WORDS = {
    "phase": "backward", "asked_bytes": 8388608, "free_bytes": 3 * MIB,
    "devices": {
        "host": {
            "name": "build-box", "used_bytes": int(7.99 * GIB), "limit_bytes": 8 * GIB,
            "components": {"parameters": 3 * MIB, "gradients": 3 * MIB, "optimizer_state": 6 * MIB, "buffers": 0},
        }
    },
    "largest_tensors": [
        {"name": "lstm.weight_hh_l0", "kind": "parameter", "shape": [1024, 256], "dtype": "float32", "device": "cpu", "size_bytes": MIB},
        {"name": "outputs[7]", "kind": "other", "shape": [64, 128, 256], "dtype": "float32", "device": "cpu", "size_bytes": MIB},
    ],
    "forecast": {
        "cause": "leak", "level": "critical", "first_step": 610, "step": 1234, "used_bytes": int(7.9 * GIB), "limit_bytes": 8 * GIB,
        "growth_bytes_per_step": 5.4 * MIB, "growing_since_step": 12, "grown_bytes": int(6.44 * GIB),
    },
    "suspects": [
        {
            "kind": "list", "holder": "outputs: list of 1180", "file": "/home/ana/char/train.py", "line": 42, "bytes_per_step": 5.4 * MIB,
            "fix": "Append `x.detach().cpu()` or `x.item()`, and clear the list once its values are used.", "confidence": 0.97,
            "source": ["loss.backward()", "if step % 10 == 0:", "    outputs.append(logits)  # for the confusion matrix", "optimizer.step()", ""],
            "source_first_line": 40,
        }
    ],
    "suspect_search": {"first_step": 610, "step": 641},
}  # fmt: skip
SNAPSHOT = {
    "method": "history", "why": "forecast to run out of memory: leak", "seq": 0, "time_s": 1.0,
    "suspects": [
        {
            "kind": "graph", "holder": "total_loss: float tensor, sum of 412 losses with their graphs", "file": "train.py", "line": 88,
            "function": "train_epoch", "bytes_per_step": 38.4 * MIB, "confidence": 0.93,
            "fix": "Add loss.item() or loss.detach(): a sum of losses with gradients keeps the graph of every step.",
            "source": ["loss = model(batch, attention_mask=attention_mask, labels=labels, use_cache=False).loss", "", "total_loss += loss", "loss.backward()", "<b>optimizer</b>.step()"],
            "source_first_line": 86,
        },
        {"kind": "list", "holder": "Trainer.history: list of 412", "file": "trainer.py", "line": 211, "confidence": 0.31},
    ],
    "stacks": [
        {"frames": ["main (train.py:120)", "train_epoch (train.py:71)", *frames], "size_bytes": size, "blocks": 9}
        for frames, size in (
            (["forward (model.py:44)", "attention (model.py:90)", "scaled_dot_product (functional.py:5602)"], 9 * GIB),
            (["forward (model.py:44)", "attention (model.py:97)", "linear (functional.py:2317)"], 4 * GIB),
            (["forward (model.py:44)", "mlp (model.py:131)", "gelu (functional.py:1800)"], 6 * GIB),
            (["forward (model.py:44)", "mlp (model.py:133)"], 2 * GIB),
            (["cross_entropy (functional.py:3104)"], 3 * GIB),
            (["step (adamw.py:188)", "_init_group (adam.py:170)"], 3 * GIB),
        )
    ],
    "notes": ["Of the last 20 steps; what was allocated before has no stack."],
}  # fmt: skip
TAIL = {
    "level": "notice", "oom_probability": 0.35, "cause": "tail", "eta_step": 5600.0, "used_bytes": 54 * GIB, "limit_bytes": 79 * GIB,
}  # fmt: skip
PREDICTION = {
    "method": "formula", "device": H100["id"], "peak_allocated_bytes": 47 * GIB, "limit_bytes": 79 * GIB,
    "peak_reserved_bytes": int(48.2 * GIB), "peak_device_bytes": int(48.7 * GIB),
    "intervals": {
        "allocated": [45 * GIB, 49 * GIB], "reserved": [46 * GIB, int(51.5 * GIB)], "device": [46 * GIB, 53 * GIB],
    },
    "phases": {"forward": int(44.9 * GIB), "backward": 47 * GIB, "optimizer": int(6.6 * GIB)},
    "components": {
        "parameters": int(1.32 * GIB), "gradients": int(1.32 * GIB), "optimizer_state": int(2.64 * GIB), "buffers": 24 * MIB,
        "activations": int(40.9 * GIB), "context": 480 * MIB,
    },
    "advice": [
        {
            "change": "Recompute activations in backward", "saving_bytes": 31 * GIB, "cost": "about a third more time a step",
            "code": "model.gradient_checkpointing_enable()",
        },
        {"change": "Halve the batch and accumulate gradients", "saving_bytes": 20 * GIB, "cost": "slower by little"},
    ],
}  # fmt: skip
HOST_PREDICTION = {
    "method": "formula", "device": "host", "peak_allocated_bytes": int(1.4 * GIB),
    "components": {
        "parameters": 3 * MIB, "gradients": 3 * MIB, "optimizer_state": 6 * MIB, "activations": 210 * MIB, "context": int(1.18 * GIB),
    },
}  # fmt: skip


def gpu_columns(
    last: int, *, seed: int = 1, base: int = 42 * GIB, leak_from: int = 10**9, growth: int = 0
) -> dict[str, list[Any]]:
    """Steps 0 to `last` on a GPU: a floor, a peak above it, and all else that an agent reads."""
    noise, rows = random.Random(seed), []
    started = time.time() - 1.27 * last
    floor_bytes = base // 8
    for step in range(last + 1):
        floor = floor_bytes + growth * max(0, step - leak_from) + noise.randrange(40 * MIB)
        peak = (
            floor + base - floor_bytes + noise.randrange(GIB) + (3 * GIB if step % 173 == 60 else 0)
        )
        reserved = max(int(peak * 1.04), rows[-1]["reserved_bytes"] if rows else 0)
        rows.append(
            {
                "step": step, "time_s": started + 1.27 * step, "step_s": 1.27 + noise.random() / 50,
                "allocated_bytes": floor, "peak_allocated_bytes": peak, "reserved_bytes": reserved,
                "peak_reserved_bytes": reserved, "process_device_bytes": reserved + 510 * MIB,
                "device_used_bytes": reserved + 900 * MIB, "limit_bytes": 79 * GIB,
                "parameters_bytes": int(1.32 * GIB), "gradients_bytes": int(1.32 * GIB), "optimizer_state_bytes": int(2.64 * GIB),
                "buffers_bytes": 24 * MIB, "activations_bytes": peak - floor, "context_bytes": 510 * MIB,
                "phase_data_peak_bytes": floor, "phase_forward_peak_bytes": peak - 2 * GIB, "phase_backward_peak_bytes": peak,
                "phase_optimizer_peak_bytes": floor + int(2.6 * GIB),
                "phase_eval_peak_bytes": peak - GIB if step and step % 200 == 0 else None,
            }
        )  # fmt: skip
    return {name: [row[name] for row in rows] for name in rows[0]}


def host_columns(last: int, *, growth: int, seed: int = 3) -> dict[str, list[Any]]:
    """Steps 0 to `last` on a machine without GPU."""
    noise, started = random.Random(seed), time.time() - 0.4 * last
    steps = range(last + 1)
    floor = [int(1.2 * GIB) + growth * step + noise.randrange(12 * MIB) for step in steps]
    peak = [size + 230 * MIB + noise.randrange(30 * MIB) for size in floor]
    return {
        "step": list(steps), "time_s": [started + 0.4 * step for step in steps], "step_s": [0.4] * len(floor), "allocated_bytes": floor,
        "peak_allocated_bytes": peak, "device_used_bytes": floor, "reserved_bytes": [size + 80 * MIB for size in peak],
        "limit_bytes": [8 * GIB] * len(floor), "parameters_bytes": [3 * MIB] * len(floor), "gradients_bytes": [3 * MIB] * len(floor),
        "optimizer_state_bytes": [6 * MIB] * len(floor), "activations_bytes": [top - size for top, size in zip(peak, floor, strict=True)],
        "context_bytes": [int(1.17 * GIB)] * len(floor),
    }  # fmt: skip


def scalar_columns(last: int, *, seed: int = 1) -> dict[str, list[Any]]:
    noise = random.Random(seed)
    steps = range(1, last + 1)
    return {
        "step": list(steps), "time_s": [time.time() - last + step for step in steps],
        "loss": [2.2 + 8 * math.exp(-step / 220) + noise.gauss(0, 0.12) for step in steps],
        "lr": [3e-4 * min(1.0, step / 200) for step in steps],
        "grad_norm": [0.7 + abs(noise.gauss(0, 0.3)) + (6 if step % 411 == 0 else 0) for step in steps],
    }  # fmt: skip


def _packed(device: str, columns: dict[str, list[Any]], start: int, stop: int) -> bytes:
    part = {name: values[start:stop] for name, values in columns.items()}
    return pack(part, kind_of=scalar_kind_of) if device == "scalars" else pack(part)
