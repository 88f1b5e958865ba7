"""Prometheus exposition of the active runs, read from the store at each scrape."""

from memagent_server.metrics.exposition import blueprint

__all__ = ["blueprint"]
