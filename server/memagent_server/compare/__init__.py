"""Runs against their predictions, and against each other; and why one died."""

from memagent_server.compare.components import components
from memagent_server.compare.oom_report import autopsy
from memagent_server.compare.runs import compare_runs

__all__ = ["autopsy", "compare_runs", "components"]
