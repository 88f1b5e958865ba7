"""How far off the estimator is: `python -m benchmarks.estimator [score|record] [--quick] [--json FILE]`.

1. One zoo (`zoo.py`): small trainings of every kind, each a frozen description and a function that builds it, so that what is measured
   and what is predicted are the same lines of code, two optimizer steps of one loop (`workload.train_step`).
2. Truth. `truth_cpu.py` runs the steps for real on the CPU and follows every storage from birth to death; torch's profiler, which hears
   from the allocator itself, is the second opinion. `record.py` runs them on a GPU and keeps what the allocator and NVML say, with a
   history of every allocation, below `truth/`. `public.py` holds what others measured and published.
3. Estimators (`estimators.py`): ours and the peers, one function each, all given the same workload. One that fails, is missing or
   leaves a case out is a row that says so.
4. `score.py`: errors (median, 90th percentile, worst), the verdict "fits" or "won't fit" at many limits, and how often intervals hold.

Every truth and every estimate is made in a process forked for it (`isolated.py`): none sees another's tensors, and a crash is a row.
Nothing is downloaded; weights are random. No figure is a test. See docs/estimator-accuracy.md.
"""
