"""Receive what agents send: read within limits, check, store once, acknowledge after the commit."""

from memagent_server.ingest.routes import blueprint

__all__ = ["blueprint"]
