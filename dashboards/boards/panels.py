"""Build boards from tables: a board has rows of panels, a panel has a kind, a unit and queries.

The JSON comes from Grafana's own types (grafana-foundation-sdk), so that unknown fields cannot slip in.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # the SDK prefers dashboards of version 2, which Grafana 11 cannot read
    from grafana_foundation_sdk.builders import (
        common,
        dashboard,
        prometheus,
        stat,
        table,
        timeseries,
    )
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_types
from grafana_foundation_sdk.models import dashboard as types
from grafana_foundation_sdk.models import prometheus as prometheus_types

DATASOURCE = common_types.DataSourceRef(type_val="prometheus", uid="${datasource}")
ANNOTATIONS = common_types.DataSourceRef(type_val="grafana", uid="-- Grafana --")
SERVER = "http://localhost:8420"
"""The server in links to runs; `memagent dashboards push` replaces it with MEMAGENT_PUBLIC_URL."""
Steps = list[tuple[float | None, str]]
PLAIN: Steps = [(None, "blue")]
NEAR: Steps = [(None, "green"), (0.85, "orange"), (0.95, "red")]
LIKELY: Steps = [(None, "green"), (0.3, "orange"), (0.6, "red")]
ANY_IS_BAD: Steps = [(None, "green"), (1, "red")]
ANY_IS_SAD: Steps = [(None, "green"), (1, "orange")]


@dataclass(frozen=True)
class Panel:
    """A panel. `queries` are pairs (expression, legend); the width of a board is 24."""

    title: str
    kind: str
    """stat, timeseries or table"""
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str
    width: int = 12
    height: int = 8
    steps: Steps = field(default_factory=lambda: list(PLAIN))
    stacked: bool = False
    columns: tuple[str, ...] = ()
    """For tables: the labels to show, in order, before the value."""
    value: str = "Value"
    """For tables: the header of the value."""
    is_descending: bool = True
    """For tables: sort the highest value first."""


@dataclass(frozen=True)
class Board:
    """A board. `rows` are pairs (title, panels); `annotated_by` lists the tags of its annotations."""

    uid: str
    title: str
    about: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[Any] = ()
    annotated_by: tuple[str, ...] = ("memagent",)


def build(board: Board) -> types.Dashboard:
    """Return Grafana's object for a board."""
    builder = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["memagent"])
        .timezone("browser")
        .refresh("10s")
        .time("now-1h", "now")
        .tooltip(types.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(
            dashboard.TextBoxVariable("memagent")
            .label("memagent")
            .description("Address of the memagent server, for links to its pages")
            .default_value(SERVER)
        )
        .link(
            dashboard.DashboardLink("memagent dashboards")
            .type(types.DashboardLinkType.DASHBOARDS)
            .tags(["memagent"])
            .include_vars(True)
            .keep_time(True)
        )
        .annotation(_annotations(board))
    )
    for variable in board.variables:
        builder = builder.with_variable(variable)
    ids = count(1)
    for title, panels in board.rows:
        builder = builder.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            builder = builder.with_panel(_panel(panel).id(next(ids)))
    return builder.build()


def json_of(built: Any) -> dict[str, Any]:
    """Convert a built object to plain values."""
    values: dict[str, Any] = json.loads(JSONEncoder().encode(built))
    return values


def query_variable(name: str, label: str, query: str, *, multi: bool = False) -> Any:
    """Return a variable with values of Prometheus."""
    builder = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .refresh(types.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(types.VariableSort.ALPHABETICAL_ASC)
    )
    if multi:
        everything = types.VariableOption(text="All", value="$__all")
        builder = builder.multi(True).include_all(True).all_value(".*").current(everything)
    return builder


def _annotations(board: Board) -> Any:
    """Return the annotations of warnings and OOMs, which the server writes to Grafana if configured."""
    target = (
        dashboard.AnnotationTarget()
        .limit(200)
        .match_any(False)
        .tags(list(board.annotated_by))
        .type("tags")
    )
    return (
        dashboard.AnnotationQuery()
        .name("Alerts and OOMs")
        .datasource(ANNOTATIONS)
        .enable(True)
        .icon_color("red")
        .target(_AsIs(target.build()))
    )


class _AsIs:
    """A builder of a finished object: the SDK expects builders, and has none for this query."""

    def __init__(self, built: Any) -> None:
        self._built = built

    def build(self) -> Any:
        return self._built


def _panel(panel: Panel) -> Any:
    builder = _KINDS[panel.kind](panel)
    builder = (
        builder.title(panel.title)
        .description(panel.about)
        .datasource(DATASOURCE)
        .span(panel.width)
        .height(panel.height)
        .unit(panel.unit)
        .thresholds(
            dashboard.ThresholdsConfig()
            .mode(types.ThresholdsMode.ABSOLUTE)
            .steps([types.Threshold(value=value, color=color) for value, color in panel.steps])
        )
    )
    if panel.unit == "percentunit":
        builder = builder.min(0).max(1)
    for index, (expression, legend) in enumerate(panel.queries):
        builder = builder.with_target(_query(panel, chr(ord("A") + index), expression, legend))
    return builder


def _query(panel: Panel, ref_id: str, expression: str, legend: str) -> Any:
    builder = (
        prometheus.Dataquery()
        .ref_id(ref_id)
        .datasource(DATASOURCE)
        .expr(expression)
        .legend_format(legend)
    )
    if panel.kind == "timeseries":
        return builder.range().format(prometheus_types.PromQueryFormat.TIME_SERIES)
    is_table = panel.kind == "table"
    formats = prometheus_types.PromQueryFormat
    return builder.instant().format(formats.TABLE if is_table else formats.TIME_SERIES)


def _stat(_: Panel) -> Any:
    return (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .color_mode(common_types.BigValueColorMode.VALUE)
        .graph_mode(common_types.BigValueGraphMode.NONE)
        .text_mode(common_types.BigValueTextMode.VALUE)
        .color_scheme(dashboard.FieldColor().mode(types.FieldColorModeId.THRESHOLDS))
    )


def _timeseries(panel: Panel) -> Any:
    stacking = common_types.StackingMode.NORMAL if panel.stacked else common_types.StackingMode.NONE
    return (
        timeseries.Panel()
        .color_scheme(dashboard.FieldColor().mode(types.FieldColorModeId.PALETTE_CLASSIC))
        .draw_style(common_types.GraphDrawStyle.LINE)
        .line_width(1)
        .fill_opacity(25 if panel.stacked else 5)
        .show_points(common_types.VisibilityMode.NEVER)
        .stacking(common.StackingConfig().mode(stacking).group("A"))
        .legend(
            common.VizLegendOptions()
            .display_mode(common_types.LegendDisplayMode.TABLE)
            .placement(common_types.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_types.TooltipDisplayMode.MULTI)
            .sort(common_types.SortOrder.DESCENDING)
        )
    )


def _table(panel: Panel) -> Any:
    shown = (*panel.columns, "Value")
    order = common.TableSortByFieldState().display_name(panel.value).desc(panel.is_descending)
    builder = (
        table.Panel()
        .show_header(True)
        .color_scheme(dashboard.FieldColor().mode(types.FieldColorModeId.THRESHOLDS))
        .sort_by([order])
        .with_transformation(
            types.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {
                        "Time": True,
                        "__name__": True,
                        "instance": True,
                        "job": True,
                    },
                    "indexByName": {name: index for index, name in enumerate(shown)},
                    "renameByName": {"Value": panel.value, "run_id": "run"},
                },
            )
        )
    )
    cell = (
        {"type": "gauge", "mode": "basic"}
        if panel.unit == "percentunit"
        else {"type": "color-text"}
    )
    builder = builder.override_by_name(
        panel.value, [_property("custom.cellOptions", cell), _property("custom.width", 260)]
    )
    if "run_id" not in panel.columns:
        return builder
    links = [
        {"title": "Open the run's board", "url": "/d/memagent-run/memagent-run?var-run=${__data.fields.run}", "targetBlank": False},
        {"title": "Open the run's page", "url": "${memagent}/runs/${__data.fields.run}", "targetBlank": True},
    ]  # fmt: skip
    return builder.override_by_name("name", [_property("links", links)])


def _property(name: str, value: object) -> types.DynamicConfigValue:
    return types.DynamicConfigValue(id_val=name, value=value)


_KINDS = {"stat": _stat, "timeseries": _timeseries, "table": _table}
