"""Benchmarks of the agent's cost: `python -m benchmarks.agent [--quick] [--json FILE] [--gpu]
[--processor]`.

1. Each measurement runs in a new process (`measures.py`), one at a time and in random order, so
   that no measurement shares imports, threads or memory with another. One that fails becomes a row
   with the reason.
2. Costs are paired: short blocks with and without the agent alternate in random order within one
   process. The figure is the median of the blocks' differences with a bootstrap interval, so a
   drift of the machine's speed affects both.
3. The same cost is also read directly, by timers around each hook of the agent, which is far less
   noisy and gives percentiles. It is reported next to the raw reads: the system calls that any
   reader of memory at those moments must make.
4. Other trackers log 20 values a step in the same training, each in its own processes with its own
   baseline (`peers.py`). A tracker that is not installed becomes a row with that reason.

No figure is a test: goals are printed next to the figures, and the exit status doesn't depend on
them. See docs/performance.md.
"""
