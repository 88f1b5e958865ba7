"""What agents send: read within bounds, checked, stored once, acknowledged after the commit."""

from memagent_server.ingest.routes import blueprint

__all__ = ["blueprint"]
