"""GET /metrics: text or OpenMetrics by `Accept`, with gzip if accepted."""

from __future__ import annotations

import gzip
import time

from flask import Blueprint, Response, current_app, request
from flask.blueprints import BlueprintSetupState
from prometheus_client.exposition import choose_encoder

from memagent_server.http.api_route import operation
from memagent_server.http.context import EXTENSION, Context, current
from memagent_server.metrics.exposition import GZIP_LEVEL, Exposition, Scrape
from memagent_server.observability import self_metrics

blueprint = Blueprint("metrics", __name__)

_EXTENSION = "memagent-exposition"
_ESCAPED_NAMES = ("escaping=dots", "escaping=values")


@blueprint.record
def _install(state: BlueprintSetupState) -> None:
    own_metrics: self_metrics.ServerMetrics = state.app.extensions[self_metrics.EXTENSION]
    state.app.extensions[_EXTENSION] = _new_exposition(state.app.extensions[EXTENSION], own_metrics)


@blueprint.get("/metrics")
@operation("operation", "read", str, media=("text/plain", "application/openmetrics-text"))
def get_metrics() -> Response:
    """Return the metrics of active runs and of the server, for Prometheus."""
    compressed = "gzip" in request.headers.get("Accept-Encoding", "")
    accept = request.headers.get("Accept", "")
    body, content_type = _encode(_exposition().get(), accept, compressed=compressed)
    response = Response(body, content_type=content_type)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    if compressed:
        response.headers["Content-Encoding"] = "gzip"
    return response


def _exposition() -> Exposition:
    """Return this process's exposition; an uncached one for a token that is limited to projects."""
    context = current()
    if context.database.is_limited:
        return _new_exposition(context, self_metrics.current())
    shared: Exposition = current_app.extensions[_EXTENSION]
    return shared


def _new_exposition(context: Context, own_metrics: self_metrics.ServerMetrics) -> Exposition:
    max_streams = context.settings.metrics_streams
    return Exposition(
        context.database, context.clock, time.monotonic, max_streams, own_metrics.collector
    )


def _encode(scrape: Scrape, accept: str, *, compressed: bool) -> tuple[bytes, str]:
    """Return the body and its content type. prometheus-client writes names with other escapes."""
    encoder, content_type = choose_encoder(accept)
    if content_type.endswith(_ESCAPED_NAMES):
        body = encoder(scrape)
        return gzip.compress(body, GZIP_LEVEL) if compressed else body, content_type
    openmetrics = content_type.startswith("application/openmetrics-text")
    return scrape.text(openmetrics=openmetrics, compressed=compressed), content_type
