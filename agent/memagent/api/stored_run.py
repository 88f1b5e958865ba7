"""Runs as the API returns them: a lazy list, and one run with everything about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, overload

from memagent.api.explanation import Explanation, explain
from memagent.api.history import History, read_history
from memagent.api.source import Fields, RunSelection, RunStore, SampleSelection, run_path
from memagent.diagnostics import display_roots
from memagent.errors import MemagentError
from memagent.filters.columns import nearest
from memagent.live.progress import Progress
from memagent.oom.report import OomReport, oom_report
from memagent.wire.fields import SCALARS_STREAM

_METHODS = ("rehearsal", "trace", "formula")
"""The most exact first."""


class RunList(Sequence["StoredRun"]):
    """Runs in order, read page by page as far as they are looked at; `len` reads all."""

    def __init__(self, store: RunStore, selection: RunSelection) -> None:
        self._store = store
        self._selection = selection
        self._runs: list[StoredRun] = []
        self._cursor: str | None = None
        self._is_complete = False

    def __iter__(self) -> Iterator[StoredRun]:
        index = 0
        while self._has(index):
            yield self._runs[index]
            index += 1

    def __len__(self) -> int:
        while self._read_page():
            pass
        return len(self._runs)

    @overload
    def __getitem__(self, index: int) -> StoredRun: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredRun]: ...
    def __getitem__(self, index: int | slice) -> StoredRun | list[StoredRun]:
        ends = [index.start, index.stop] if isinstance(index, slice) else [index, index]
        if any(end is None or end < 0 for end in ends[1:]) or (ends[0] or 0) < 0:
            # a position from the end, or an open end
            len(self)
        else:
            self._has(max(end or 0 for end in ends))
        return self._runs[index]

    def __repr__(self) -> str:
        more = "" if self._is_complete else " or more"
        return f"<{len(self._runs)}{more} runs of {self._store.place}>"

    def _has(self, index: int) -> bool:
        while index >= len(self._runs) and self._read_page():
            pass
        return index < len(self._runs)

    def _read_page(self) -> bool:
        """Read the next page; return False if there is none."""
        if self._is_complete:
            return False
        page = self._store.page(self._selection, self._cursor)
        self._runs += [StoredRun(self._store, run["id"], run) for run in page.runs]
        self._cursor = page.next_cursor
        self._is_complete = page.next_cursor is None
        return True


class StoredRun:
    """A stored run. Its fields are those of docs/http.md: `run.status`, `run.config`, `run.tags`.

    Fields beyond the list's are read from the store at first use, and then kept.
    """

    def __init__(self, store: RunStore, run_id: str, summary: Fields | None = None) -> None:
        self.id = run_id
        self._store = store
        self._summary = summary

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self._store.place}>"

    def __getattr__(self, name: str) -> Any:
        # copy and pickle ask for such names before there is a store
        if name.startswith("_"):
            raise AttributeError(name)
        for fields in (self._summary or {}, self._detail):
            if name in fields:
                return fields[name]
        close = nearest(name, self._detail)
        hint = f"; the nearest is {close!r}" if close else ""
        raise AttributeError(f"a run has no field {name!r}{hint}")

    @property
    def summary(self) -> Fields:
        """Return the fields that a list has."""
        return self._detail if self._summary is None else self._summary

    def to_dict(self) -> Fields:
        """Return all fields of the run."""
        return dict(self._detail)

    @cached_property
    def _detail(self) -> Fields:
        return self._store.run(self.id)

    def history(
        self,
        columns: Collection[str] | None = None,
        *,
        ranks: Collection[int] | None = None,
        steps: tuple[int | None, int | None] | None = None,
    ) -> History:
        """Read all samples of the run's devices, or the named columns of them.

        `steps` is the first and the last, inclusive; None is open. Scalars may be among the
        columns if all are.
        """
        scalars = self._scalar_names() if columns is not None else set()
        of_scalars = bool(columns) and set(columns or ()) <= scalars
        return self._read(columns, ranks, steps, of_scalars=of_scalars)

    def scalars(
        self,
        names: Collection[str] | None = None,
        *,
        ranks: Collection[int] | None = None,
        steps: tuple[int | None, int | None] | None = None,
    ) -> History:
        """Read what the run has logged."""
        return self._read(names, ranks, steps, of_scalars=True)

    @property
    def prediction(self) -> Fields | None:
        """The newest prediction of the most exact method."""
        predictions = self._store.part(self.id, "predictions")["predictions"]
        return min(predictions, key=lambda item: _METHODS.index(item["method"]), default=None)

    @property
    def forecasts(self) -> list[Fields]:
        """The newest forecast of each rank and device."""
        return list(self._store.part(self.id, "forecast")["forecasts"])

    @property
    def alerts(self) -> list[Fields]:
        """The newest alerts of the run, which only a server raises."""
        return list(self._store.part(self.id, "alerts")["alerts"])

    @property
    def suspects(self) -> list[Fields]:
        """Lines suspected of a leak, most certain first."""
        return list(self._store.part(self.id, "suspects")["suspects"])

    def console(self, rank: int | None = None, *, search: str = "") -> list[Fields]:
        """Return the last lines that a rank has printed: number, text, stream, step and time.

        By default those of the rank that died first, else of the first that has any. `search`:
        only lines that contain it, in any case.
        """
        lines = self._store.console(self.id, rank)["lines"]
        return [line for line in lines if search.lower() in line["text"].lower()]

    def report(self) -> Fields:
        """Return what happened to the run: status, peaks, forecasts, suspects, and its death."""
        death = self.death()
        return {
            "run_id": self.id,
            "name": self.name,
            "project": self.project,
            "status": self.status,
            "error": self._detail.get("error"),
            "step": self.step,
            "peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit_bytes,
            "prediction": self.prediction,
            "forecasts": self.forecasts,
            "suspects": self.suspects,
            "out_of_memory": death.to_dict() if death is not None else None,
        }

    def explain(self) -> Explanation:
        """Return why the run ended as it did, and what to change."""
        return explain(
            self._detail,
            death=self.death(),
            suspects=self.suspects,
            forecasts=self.forecasts,
            alerts=self.alerts,
            prediction=self.prediction,
            console=self._last_words(),
        )

    def _last_words(self) -> list[str]:
        if self.status not in ("failed", "oom", "lost_contact"):
            return []
        try:
            return [line["text"] for line in self.console()]
        except MemagentError:  # a server before consoles
            return []

    def death(self) -> OomReport | None:
        """Return the report of the run's out-of-memory error, None if it had none."""
        event = next((item for item in self._detail["events"] if item["kind"] == "oom"), None)
        if event is None:
            return None
        prediction = self.prediction
        device = self._detail["device"]
        streams = [item for item in self._detail["streams"] if item["is_current"]]
        reading = next((item for item in streams if item["device"] == device), None)
        return oom_report(
            event["data"],
            event["step"],
            device=device,
            reading=_allocator_reading(reading) if reading else None,
            predicted_peak_bytes=prediction["peak_allocated_bytes"] if prediction else None,
            suspects=self.suspects,
            advice=prediction.get("advice", []) if prediction else [],
            roots=display_roots(self._detail["environment"]),
        )

    def edit(
        self,
        *,
        name: str | None = None,
        notes: str | None = None,
        tags: Collection[str] | None = None,
        is_archived: bool | None = None,
    ) -> None:
        """Change the run's name, notes (Markdown), tags or archive; None leaves a part as it is.

        Needs the scope `admin`. A launch that resumes the run leaves what was changed alone.
        """
        listed = [tags] if isinstance(tags, str) else tags and list(tags)
        parts = {"name": name, "notes": notes, "tags": listed, "is_archived": is_archived}
        changes: Fields = {key: value for key, value in parts.items() if value is not None}
        answer = self._store.send("PATCH", run_path(self.id), changes)
        self._summary = None
        self._detail = answer

    def share(self, days: int | None = None) -> str:
        """Open a public page of the run, and return its address: anyone who has it reads the page.

        The link ends after so many days, or with `unshare`. An open link keeps its address. Needs
        the scope `admin`.
        """
        answer = self._store.send("PUT", f"{run_path(self.id)}/public-link", {"days": days})
        return str(answer["url"])

    def unshare(self) -> None:
        """Revoke the run's public link. Needs the scope `admin`."""
        self._store.send("DELETE", f"{run_path(self.id)}/public-link")

    def delete(self) -> None:
        """Delete the run and everything that belongs to it. Needs the scope `admin`."""
        self._store.send("DELETE", run_path(self.id))

    def _scalar_names(self) -> set[str]:
        streams = [item for item in self._detail["streams"] if item["device"] == SCALARS_STREAM]
        return {name for item in streams for name in item["latest"]}

    def _read(
        self,
        columns: Collection[str] | None,
        ranks: Collection[int] | None,
        steps: tuple[int | None, int | None] | None,
        *,
        of_scalars: bool,
    ) -> History:
        streams = [
            item
            for item in self._detail["streams"]
            if (item["device"] == SCALARS_STREAM) == of_scalars
            and (ranks is None or item["rank"] in ranks)
        ]
        total = sum(item["samples"] for item in streams)
        first, last = steps or (None, None)
        selection = SampleSelection(of_scalars, tuple(ranks or ()), first, last)
        with Progress() as progress:
            return read_history(
                self._store.frames(self.id, selection),
                columns=columns,
                first=first,
                last=last,
                expected_samples=total if steps is None else None,
                advance=lambda rows: progress.advance(rows, total, f"{rows:,} samples"),
            )


def _allocator_reading(stream: Fields) -> Fields:
    """Return a stream's newest sample; a host's `reserved` is mapped memory, not a cache."""
    latest: Fields = stream["latest"]
    return latest if stream["kind"] != "host" else {**latest, "reserved_bytes": None}
