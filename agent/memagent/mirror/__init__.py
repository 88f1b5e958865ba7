"""The run's memory where somebody already looks: W&B, MLflow or TensorBoard, beside what their scripts log there.

1. `requested` checks what `mirror=` was given before anything is hooked; `open_trackers` finds the active run, or says what is missing.
2. Rows are summed up on the collector's thread; every EVERY_S a point goes to the trackers on a thread of its own, since a tracker
   may take minutes to find out that its server is away.
3. What a tracker raises is told once and harms nobody.
"""

from memagent.mirror.aggregate import Point
from memagent.mirror.mirror import Mirror
from memagent.mirror.trackers import TRACKERS, Tracker, open_trackers, requested

__all__ = ["TRACKERS", "Mirror", "Point", "Tracker", "open_trackers", "requested"]
