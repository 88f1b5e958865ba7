"""Tools for an assistant over stored runs: each answers one question in plain values.

1. A signature and a docstring are all that an assistant sees of a tool, so they say when to use it.
2. Answers are bounded: an assistant reads them whole.
3. Estimates and rehearsals are verbs in processes of their own: what they print, and a script that
   ends its process, don't reach this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from memagent.api.client import Api
from memagent.api.source import Fields
from memagent.api.stored_run import StoredRun
from memagent.errors import MemagentError

MAX_RUNS = 50
MAX_POINTS = 500
_VERB_TIMEOUT_S = 1800.0
_SUMMARY = (
    *("id", "name", "project", "user", "host", "status", "step", "total_steps", "created_at"),
    *("started_at", "finished_at", "peak_bytes", "limit_bytes", "tags", "url"),
)
_DETAILS = ("config", "error", "world_size", "dropped_samples", "notes")


class RunTools:
    """The tools over one API; `all` lists them."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def all(self) -> list[Callable[..., Any]]:
        """Return the tools, those that change or run something last."""
        return [
            self.list_runs,
            self.get_run,
            self.explain_run,
            self.get_series,
            self.read_console,
            self.list_suspects,
            self.advise_run,
            self.group_runs,
            self.find_waste,
            self.estimate,
            self.rehearse,
            self.acknowledge_alert,
            self.edit_run,
        ]

    def list_runs(
        self,
        where: str | None = None,
        project: str | None = None,
        order: str = "-created_at",
        columns: list[str] | None = None,
        limit: int = 10,
    ) -> dict[str, Any]:
        """List training runs, the newest first. Use it to find the run that a question is about.

        where: a filter such as `status in ("oom", "failed", "lost_contact")`, `config.lr < 1e-3`,
        `created_at > "2026-01-31"`, `peak_ratio > 0.9` (share of the memory limit), `scalar.loss <
        2`, combined by and, or, not. order: any of these columns, the highest first after `-`.
        columns: those that each run shows besides, such as `config.lr`, `scalar.loss`.
        """
        runs = self._api.runs(where=where, project=project, order=order, columns=columns or ())
        chosen = islice(runs, max(1, min(limit, MAX_RUNS)))
        return {"runs": [_fields(run, (*_SUMMARY, "columns")) for run in chosen]}

    def get_run(self, run_id: str) -> dict[str, Any]:
        """Return a run's settings, status, memory, forecasts and alerts (with their ids)."""
        run = self._api.run(run_id)
        streams = [
            {name: stream.get(name) for name in ("rank", "device", "name", "samples", "latest")}
            for stream in run.streams
            if stream["is_current"]
        ]
        return {
            **_fields(run, (*_SUMMARY, *_DETAILS)),
            "streams": streams[:16],
            "forecasts": run.forecasts[:16],
            "alerts": run.alerts[:16],
        }

    def explain_run(self, run_id: str) -> dict[str, Any]:
        """Explain why a run died or is at risk. Use it for any "why".

        The answer has the cause, the line of the script with its source, changes with code, a patch
        if a change of that line is enough, the evidence, and the last lines that it printed.
        """
        return self._api.run(run_id).explain().to_dict()

    def get_series(
        self, run_id: str, columns: list[str], rank: int = 0, points: int = 100
    ) -> dict[str, Any]:
        """Return readings or logged scalars over steps, the maximum of each interval.

        columns: such as `allocated_bytes`, `peak_allocated_bytes`, `host_rss_bytes`, `step_s`; or
        names of scalars such as `loss`. A wrong name answers with those that exist.
        """
        run = self._api.run(run_id)
        rows = run.history(columns, ranks=[rank]).to_dict()
        if not rows["step"]:
            known = sorted({name for item in run.streams for name in item["latest"]})
            raise MemagentError(f"There are no such columns on rank {rank}; it has: {known}.")
        width = -(-len(rows["step"]) // max(1, min(points, MAX_POINTS)))
        starts = range(0, len(rows["step"]), width)
        maxima = {
            name: [_maximum(rows[name][first : first + width]) for first in starts]
            for name in dict.fromkeys(columns)
        }
        return {"step": [rows["step"][first] for first in starts], "max": maxima}

    def read_console(
        self, run_id: str, search: str = "", last: int = 50, rank: int | None = None
    ) -> dict[str, Any]:
        """Return the last lines that a run printed, oldest first; `search`: lines that contain it.

        It has at most its last 64 KiB. Use it if the end of it that explain_run shows is too short.
        """
        lines = self._api.run(run_id).console(rank, search=search)
        return {"lines": lines[-max(1, min(last, MAX_POINTS)) :]}

    def list_suspects(self, run_id: str) -> dict[str, Any]:
        """List the lines suspected of a memory leak, most certain first, with source and fix."""
        return {"suspects": self._api.run(run_id).suspects[:10]}

    def advise_run(self, run_id: str) -> dict[str, Any]:
        """List changes that would save memory in a run: bytes saved, cost, and the code to change.

        For a leak use explain_run: less memory a step would only delay the crash.
        """
        prediction = self._api.run(run_id).prediction
        advice = prediction.get("advice", []) if prediction else []
        return {"predicted": prediction is not None, "advice": advice[:20]}

    def group_runs(
        self,
        by: list[str],
        where: str | None = None,
        project: str | None = None,
        columns: list[str] | None = None,
        limit: int = 20,
    ) -> dict[str, Any]:
        """Count runs by the values of up to three columns, each group followed by its subgroups.

        by: such as `project`, `status`, `config.lr`. columns: those whose minimum, mean and maximum
        each group has, such as `scalar.loss`. where: as for list_runs.
        """
        limit = max(1, min(limit, MAX_RUNS))
        groups = self._api.groups(
            by, columns=columns or (), where=where, project=project, limit=limit
        )
        return {"groups": groups}

    def find_waste(
        self, days: int = 7, by: list[str] | None = None, project: str | None = None
    ) -> dict[str, Any]:
        """Sum up the GPU memory that runs had, needed and left unused, and GPU-hours and cost.

        by: keys of a row, of `user`, `project`, `card`, `run`. `smallest_card` would have done for
        all runs of a row.
        """
        return self._api.waste(days=days, by=by or ("user", "project", "card"), project=project)

    def estimate(self, model: str, gpu: str, options: list[str] | None = None) -> dict[str, Any]:
        """Estimate a training step's memory before it runs: does the model fit the GPU?

        model: a preset such as `gpt2-xl` or `llama-2-7b`, or a hub name. gpu: such as `a100` or
        `h100:80GiB`. options: more of `memagent estimate`, such as `["--batch", "8",
        "--precision", "amp", "--checkpointing", "full", "--advice"]`; `--max-batch` finds the
        largest batch.
        """
        arguments = ["estimate", "--model", model, "--gpu", gpu, *(options or ()), "--json"]
        answer: dict[str, Any] = json.loads(_run_verb(arguments).stdout)
        return answer

    def rehearse(
        self,
        script: str,
        gpu: str,
        arguments: list[str] | None = None,
        what_if: bool = False,
        steps: int | None = None,
    ) -> dict[str, Any]:
        """Run an unchanged training script on a GPU that isn't there, to see whether it fits.

        It executes the script on this machine, in a sandbox, for some steps: minutes. Ask the
        person first. what_if: also try changes (checkpointing, autocast, fused optimizer ...) and
        return what each saves.
        """
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            flags = ["--what-if"] if what_if else []
            flags += ["--steps", str(steps)] if steps is not None else []
            command = ["rehearse", "--gpu", gpu, "--report", str(report), *flags, script]
            done = _run_verb([*command, *(arguments or ())], may_fail=True)
            # a script that doesn't fit is a result, and the verb's exit status is 1
            if not report.exists():
                raise MemagentError(done.stderr.strip() or "The rehearsal gave no report.")
            answer: dict[str, Any] = json.loads(report.read_text())
        return answer

    def acknowledge_alert(self, alert_id: int, note: str = "") -> dict[str, Any]:
        """Acknowledge an alert, so that it sends no more messages. Do so only if asked to."""
        return self._api.store.send("POST", f"/api/v1/alerts/{alert_id}/ack", {"note": note})

    def edit_run(
        self,
        run_id: str,
        name: str | None = None,
        notes: str | None = None,
        tags: list[str] | None = None,
        is_archived: bool | None = None,
    ) -> dict[str, Any]:
        """Change a run's name, notes (Markdown), tags or archive. Do so only if asked to.

        notes and tags replace those of the run: read them with get_run first, to add to them.
        """
        run = self._api.run(run_id)
        run.edit(name=name, notes=notes, tags=tags, is_archived=is_archived)
        return _fields(run, (*_SUMMARY, "notes"))


def _fields(run: StoredRun, names: Sequence[str]) -> Fields:
    fields = run.to_dict() if set(names) & set(_DETAILS) else run.summary
    return {name: fields.get(name) for name in names}


def _maximum(values: list[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _run_verb(
    arguments: Sequence[str], *, may_fail: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a verb without a terminal. Raises MemagentError with what it printed."""
    done = subprocess.run(  # noqa: S603 - memagent itself  # nosec B603
        [sys.executable, "-m", "memagent", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_VERB_TIMEOUT_S,
    )
    if done.returncode and not may_fail:
        raise MemagentError(done.stderr.strip() or f"`memagent {arguments[0]}` failed.")
    return done
