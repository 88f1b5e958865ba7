"""Comparison of runs with their predictions and with each other, and the OOM report."""

from memagent_server.compare.components import components
from memagent_server.compare.runs import compare_runs, median_step_s, oom_report_of

__all__ = ["compare_runs", "components", "median_step_s", "oom_report_of"]
