"""GET /metrics: text or OpenMetrics by `Accept`, gzip where it is taken."""

from __future__ import annotations

import gzip
import time

from flask import Blueprint, Response, current_app, request
from flask.blueprints import BlueprintSetupState
from prometheus_client.exposition import choose_encoder

from memagent_server.http.api_route import operation
from memagent_server.http.context import EXTENSION, Context, current
from memagent_server.metrics.exposition import GZIP_LEVEL, Exposition, Scraped
from memagent_server.observability import self_metrics

blueprint = Blueprint("metrics", __name__)

_EXTENSION = "memagent-exposition"
_OTHER_NAMES = ("escaping=dots", "escaping=values")


@blueprint.record
def _install(state: BlueprintSetupState) -> None:
    counted: self_metrics.Telemetry = state.app.extensions[self_metrics.EXTENSION]
    state.app.extensions[_EXTENSION] = _of(state.app.extensions[EXTENSION], counted)


@blueprint.get("/metrics")
@operation("operation", "read", str, media=("text/plain", "application/openmetrics-text"))
def get_metrics() -> Response:
    """Active runs and the server itself, for Prometheus."""
    compressed = "gzip" in request.headers.get("Accept-Encoding", "")
    body, content_type = _written(
        _exposition().get(), request.headers.get("Accept", ""), compressed=compressed
    )
    response = Response(body, content_type=content_type)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    if compressed:
        response.headers["Content-Encoding"] = "gzip"
    return response


def _of(context: Context, counted: self_metrics.Telemetry) -> Exposition:
    most = context.settings.metrics_streams
    return Exposition(context.database, context.clock, time.monotonic, most, counted.collector)


def _exposition() -> Exposition:
    """The one of this process; for a token that is limited to projects one of its own, which nobody else is shown."""
    context = current()
    shared: Exposition = current_app.extensions[_EXTENSION]
    return _of(context, self_metrics.current()) if context.database.is_limited else shared


def _written(scraped: Scraped, accept: str, *, compressed: bool) -> tuple[bytes, str]:
    """The body, and its content type. Names that are to be escaped otherwise than they are, are prometheus-client's to write."""
    encoder, content_type = choose_encoder(accept)
    if content_type.endswith(_OTHER_NAMES):
        body = encoder(scraped)
        return gzip.compress(body, GZIP_LEVEL) if compressed else body, content_type
    openmetrics = content_type.startswith("application/openmetrics-text")
    return scraped.text(openmetrics=openmetrics, compressed=compressed), content_type
