"""The run's memory in W&B, MLflow or TensorBoard, next to what the script logs there.

1. `parse_mirror` checks `mirror=` before anything is hooked; `open_trackers` finds the active run,
   or raises an error that says what is missing.
2. Rows are aggregated on the collector's thread. Every EVERY_S a point goes to the trackers on a
   thread of the mirror's, since a tracker may block for minutes while its server is away.
3. An error of a tracker is reported once and has no other effect.
"""
