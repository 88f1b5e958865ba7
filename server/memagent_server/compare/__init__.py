"""Runs against their predictions, and against each other."""

from memagent_server.compare.components import components
from memagent_server.compare.runs import compare_runs

__all__ = ["compare_runs", "components"]
