"""Accuracy of the estimator: `python -m benchmarks.estimator [score|record] [--quick] [--json
FILE]`.

1. One zoo (`zoo.py`) of small trainings of every kind. Each is a frozen description and a function
   that builds it, so measurement and prediction share their code: two optimizer steps of one loop
   (`workload.train_step`).
2. Truth. `truth_cpu.py` runs the steps on the CPU and follows every storage from allocation to
   release; torch's profiler, which hooks the allocator, is the second source. `record.py` runs them
   on a GPU and keeps the readings of the allocator and NVML, with a history of every allocation,
   below `truth/`. `public.py` holds published measurements.
3. Estimators (`estimators.py`): memagent's and the peers, one function each, all given the same
   workload. One that fails, is missing or excludes a case becomes a row with the reason.
4. `score.py`: errors (median, 90th percentile, worst), the verdict "fits" or "won't fit" at many
   limits, and the coverage of intervals.

Every truth and every estimate is computed in a forked process (`isolated.py`): none shares tensors
with another, and a crash becomes a row. Nothing is downloaded; weights are random. No figure is a
test. See docs/estimator-accuracy.md.
"""
