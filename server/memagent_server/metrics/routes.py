"""GET /metrics: text or OpenMetrics by `Accept`, gzip where it is taken."""

from __future__ import annotations

import gzip

from flask import Blueprint, Response, request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from memagent_server import telemetry
from memagent_server.context import current
from memagent_server.metrics.collector import StoreCollector
from memagent_server.operation import operation

blueprint = Blueprint("metrics", __name__)

_GZIP_LEVEL = 1
"""Level 9 takes seven times as long as level 1 for a fifth less."""


@blueprint.get("/metrics")
@operation("operation", "read", str, media=("text/plain", "application/openmetrics-text"))
def get_metrics() -> Response:
    """Active runs and the server itself, for Prometheus."""
    context = current()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(context.database, context.clock()))
    registry.register(telemetry.current().collector())
    encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
    response = Response(encoder(registry), content_type=content_type)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        response.data = gzip.compress(response.data, _GZIP_LEVEL)
        response.headers["Content-Encoding"] = "gzip"
    return response
