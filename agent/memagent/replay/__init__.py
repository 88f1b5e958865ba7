"""A recorded run through the forecaster again: what it would have said, row by row, with no training and no server."""

from memagent.replay.readers import read_trace
from memagent.replay.replay import Piece, ReplayedForecast, Trace, replay

__all__ = ["Piece", "ReplayedForecast", "Trace", "read_trace", "replay"]
