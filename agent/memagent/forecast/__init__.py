"""The forecaster: will this run out of memory, when, and why. Pure and streaming: readings in, frozen `Forecast` out.

No clock, no I/O, no numpy, memory that does not grow with the run. The server and the agent's local mode run the same code.
"""

from memagent.forecast.feed import feed
from memagent.forecast.forecaster import Forecast, Forecaster, Level

__all__ = ["Forecast", "Forecaster", "Level", "feed"]
