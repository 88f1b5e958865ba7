"""What the agent costs the training it watches: `python -m benchmarks.agent [--quick] [--json FILE] [--gpu]`.

1. Each measure runs in a fresh process (`measures.py`), one at a time and in random order, so that none sees another's imports,
   threads or memory. One that fails is a row that says so.
2. Costs are paired: short blocks with and without the agent alternate in random order within one process, and the figure is the
   median of the blocks' differences with a bootstrap interval. A machine whose speed drifts drifts for both.
3. The same cost is also read directly, by timers around each of the agent's hooks, which is far less noisy and gives percentiles.
   It is told beside the raw reads: the system calls that anything that looks at memory at those moments must make.
4. Other trackers log 20 values a step beside the same training, each in processes of its own with its own baseline (`peers.py`).
   One that is not installed is a row that says so.

No figure is a test: goals are printed beside the figures, and the exit status does not depend on them. See docs/performance.md.
"""
