"""Comparison of runs with their predictions and with each other, and the OOM report."""

from memagent_server.compare.components import components
from memagent_server.compare.runs import autopsy, compare_runs

__all__ = ["autopsy", "compare_runs", "components"]
