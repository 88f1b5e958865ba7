"""Replay of a recorded run through the forecaster, row by row, without training or server."""

from memagent.replay.readers import read_trace
from memagent.replay.replay import ReplayedForecast, ReplayTrace, replay

__all__ = ["ReplayTrace", "ReplayedForecast", "read_trace", "replay"]
