"""Benchmarks of the server: `python -m benchmarks.server [--quick] [--json FILE] [--only GROUP
...]`.

1. The results are ratios of two things measured in the same run in alternation, so that a slow or
   busy machine slows both. Absolute figures are reported as measured.
2. Servers are real: `memagent serve` processes over a new database, and clients in separate
   processes.
3. A group of rows is a module of this package with a `TITLE` and a `measure(quick)`, and an entry
   in `__main__.GROUPS`. A group that fails becomes a row with the reason, and the exit status is 1.
   A peer that is not installed becomes a row with that reason.
4. Server logs are shown only after an error.

No figure is a test: goals are printed next to the figures, and the exit status doesn't depend on
them. See docs/performance.md.
"""
