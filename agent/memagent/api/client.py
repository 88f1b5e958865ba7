"""`memagent.Api`: stored runs of a server, a database or a folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from memagent.api.source import Fields, RunSelection, open_store
from memagent.api.stored_run import RunList, StoredRun
from memagent.errors import SettingError
from memagent.filters.columns import STATUSES, column_of, nearest, order_of
from memagent.filters.parser import parse


class Api:
    """Reads stored runs.

    `source` is a server's address, a database's URL (`sqlite:///memagent.db`, `postgresql://...`)
    or a folder of run files. Without one it's that of the settings: MEMAGENT_SERVER, else
    MEMAGENT_DATABASE_URL, else MEMAGENT_DIR. Without a `token`, MEMAGENT_TOKEN is used.
    """

    def __init__(self, source: str | Path | None = None, *, token: str | None = None) -> None:
        self.store = open_store(source, token)

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Api of {self.store.place}>"

    def runs(
        self,
        *,
        project: str | None = None,
        status: str | None = None,
        tags: Collection[str] = (),
        q: str | None = None,
        where: str | None = None,
        order: str = "-created_at",
        columns: Collection[str] = (),
        is_archived: bool = False,
    ) -> RunList:
        """Return the matching runs, which are read page by page when they are looked at.

        `tags` must all be there, `q` is words to search, `where` a filter (docs/filters.md).
        `order` is any column of filters, after "-" the highest first; runs without it are last.
        Each run of the list has the values of `columns` in `run.columns`, by name.
        Raises SettingError for a wrong argument at once.
        """
        if status is not None and status not in STATUSES:
            close = nearest(status, STATUSES)
            hint = f"the nearest is {close!r}" if close else f"use one of {', '.join(STATUSES)}"
            raise SettingError(f"There is no status {status!r}; {hint}.")
        order_of(order)
        columns = [columns] if isinstance(columns, str) else list(columns)
        for name in columns:
            column_of(name, "columns")
        tags = [tags] if isinstance(tags, str) else list(tags)
        parsed = parse(where) if where else None
        return RunList(
            self.store,
            RunSelection(project, status, tags, q, where, parsed, is_archived, order, columns),
        )

    def run(self, run_id: str) -> StoredRun:
        """Return a run by its id. Raises MemagentError if there is none."""
        run = StoredRun(self.store, run_id)
        run.to_dict()
        return run

    def groups(
        self,
        by: str | Collection[str],
        *,
        columns: str | Collection[str] = (),
        order: str = "-runs",
        project: str | None = None,
        status: str | None = None,
        where: str | None = None,
        limit: int = 50,
    ) -> list[Fields]:
        """Return groups of runs by up to three columns, each followed by its subgroups.

        `columns` are those whose minimum, mean and maximum each group has; `order` is `runs`,
        `value` or one of them, after "-" the highest first. Needs a server or a database.
        """
        lists = {"by": by, "columns": columns}
        names = {
            key: item if isinstance(item, str) else ",".join(item) for key, item in lists.items()
        }
        query = {**names, "sort": order, "project": project, "status": status, "where": where}
        parameters = {key: value for key, value in query.items() if value}
        address = f"/api/v1/groups?{urlencode({**parameters, 'limit': limit})}"
        return list(self.store.send("GET", address)["groups"])

    def views(self, project: str | None = None) -> list[Fields]:
        """Return the saved views of a project and of all. Needs a server or a database."""
        query = f"?{urlencode({'project': project})}" if project else ""
        return list(self.store.send("GET", f"/api/v1/views{query}")["views"])

    def save_view(self, name: str, query: Mapping[str, str], *, project: str = "*") -> Fields:
        """Save a view of the list under a name, or replace it; `*` is all projects.

        `query` has parameters of the list's address: where, columns, sort, group, project, status,
        tag, q. Needs the scope `admin`.
        """
        body: Fields = {"name": name, "project": project, "query": dict(query)}
        return self.store.send("PUT", "/api/v1/views", body)

    def edit(
        self,
        runs: Iterable[StoredRun | str],
        *,
        name: str | None = None,
        notes: str | None = None,
        add_tags: Collection[str] = (),
        remove_tags: Collection[str] = (),
        add_notes: str | None = None,
        is_archived: bool | None = None,
    ) -> None:
        """Change up to 200 runs, all or none; None leaves a part as it is.

        `add_notes` is one more paragraph below the notes that each has. Needs the scope `admin` of
        a server, or a database.
        """
        parts = {"name": name, "notes": notes, "add_notes": add_notes, "is_archived": is_archived}
        tags = {"add_tags": add_tags, "remove_tags": remove_tags}
        changes: Fields = {
            "runs": [run if isinstance(run, str) else run.id for run in runs],
            **{key: value for key, value in parts.items() if value is not None},
            **{key: [item] if isinstance(item, str) else list(item) for key, item in tags.items()},
        }
        self.store.send("PATCH", "/api/v1/runs", changes)

    def delete(self, runs: Iterable[StoredRun | str]) -> None:
        """Delete up to 200 runs and everything that belongs to them. Needs the scope `admin`."""
        ids = ",".join(run if isinstance(run, str) else run.id for run in runs)
        self.store.send("DELETE", f"/api/v1/runs?{urlencode({'runs': ids})}")

    def waste(
        self,
        *,
        days: int = 7,
        by: Collection[str] = ("user", "project", "card"),
        project: str | None = None,
        order: str = "unused_gib_hours",
        limit: int = 50,
    ) -> Fields:
        """Return the GPU memory that runs had, needed and left unused (GET /api/v1/waste).

        A row is a combination of `by`: user, project, card, run; `order` is a sum, the largest
        first. Needs a server or a database.
        """
        query = {"days": days, "by": ",".join(by), "project": project, "sort": order}
        parameters = {name: value for name, value in query.items() if value is not None}
        return self.store.send("GET", f"/api/v1/waste?{urlencode({**parameters, 'limit': limit})}")

    def close(self) -> None:
        """Close the connection."""
        self.store.close()
