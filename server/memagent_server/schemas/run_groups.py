"""Groups of runs, and saved views of their list."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from memagent_server.schemas.base import JsonObject, Schema, Timestamp


class GroupFigure(Schema):
    """A column's numbers in a group of runs, or its commonest value if it has none."""

    runs: Annotated[int, Meta(description="Runs whose value is a number.")]
    min: float | None
    mean: float | None
    max: float | None
    commonest: Annotated[Any, Meta(description="If no value is a number: the most frequent.")] = (
        None
    )
    values: Annotated[int, Meta(description="If no value is a number: different ones.")] = 0


class RunGroup(Schema):
    """The runs that have the same values in some columns."""

    key: Annotated[
        JsonObject,
        Meta(
            description="{column: value} of the group and of those around it.",
            examples=[{"config.optimizer": "adamw"}],
        ),
    ]
    runs: int
    groups: Annotated[int, Meta(description="Its subgroups, also those that are left out.")]
    statuses: Annotated[
        dict[str, int], Meta(description="{status: runs}.", examples=[{"completed": 3}])
    ]
    peak_bytes: GroupFigure
    columns: Annotated[
        dict[str, GroupFigure], Meta(description="{name: figure} of the chosen columns.")
    ]


class RunGroups(Schema):
    """Groups of runs, each followed by its subgroups."""

    groups: list[RunGroup]
    total: Annotated[int, Meta(description="Groups on the first level.")]


class RunView(Schema):
    """A saved view of the list of runs."""

    project: Annotated[str, Meta(description="`*` for all projects.")]
    name: str
    query: Annotated[
        JsonObject,
        Meta(description="Parameters of the list's address.", examples=[{"sort": "-config.lr"}]),
    ]
    saved_at: Timestamp
    saved_by: Annotated[str | None, Meta(description="The name of the token.")]


class RunViews(Schema):
    """Saved views."""

    views: list[RunView]
