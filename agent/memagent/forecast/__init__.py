"""The forecaster: will this run out of memory, when, and why. Pure and streaming: readings in, frozen `Forecast` out.

No clock, no I/O, no numpy, memory that does not grow with the run. The server and the agent's local mode run the same code.
"""

from memagent.forecast.forecaster import Forecaster
from memagent.forecast.gc_check import GcProbe, later
from memagent.forecast.hints import Hints, select_columns
from memagent.forecast.replay_columns import feed_columns
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
    "later",
    "select_columns",
]
