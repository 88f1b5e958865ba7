"""What the server costs: `python -m benchmarks.server [--quick] [--json FILE] [--only GROUP ...]`.

1. What matters are ratios of two things measured in the same run, side by side and taking turns: a machine that is slow or busy is so
   for both. Absolute figures are told as they were seen.
2. Servers are real: `memagent serve` in processes of its own over a fresh database, and clients in processes of theirs.
3. A group of rows is a module of this package with a `TITLE` and a `measure(quick)`, and its entry in `__main__.GROUPS`. One that fails
   is a row that says so, and the exit status is 1 then; a peer that is not installed is a row that says so, too.
4. What servers log is shown only where something went wrong.

No figure is a test: goals are printed beside the figures, and the exit status does not depend on them. See docs/performance.md.
"""
