"""Forecaster: will this run out of memory, when, and why.

Pure and streaming: readings in, frozen `Forecast` out. No clock, no I/O, no numpy, and memory that
doesn't grow with the run. The server and the agent's local mode run the same code.
"""

from memagent.forecast.forecaster import Forecaster
from memagent.forecast.gc_check import GcProbe, later
from memagent.forecast.hints import Hints
from memagent.forecast.replay_columns import feed_columns, feed_repetitions, select_columns
from memagent.forecast.types import CAUSES, Cause, Forecast, Level

__all__ = [
    "CAUSES",
    "Cause",
    "Forecast",
    "Forecaster",
    "GcProbe",
    "Hints",
    "Level",
    "feed_columns",
    "feed_repetitions",
    "later",
    "select_columns",
]
