"""Quality of the forecaster's warnings, how early, right and rare they are: `python -m
benchmarks.forecast [--quick] [--json FILE] [--bench PATH]`.

1. A trace is what an agent can read of a run, step by step, and how the run ended. A detector sees
   only the past, and is judged from its first page (`score.py`).
2. Traces are of four kinds: generated ones (`generated.py`; a run dies only if its need passes the
   limit), training programs on a simulated caching allocator (`simulated.py`), recorded trainings
   on CPU, cut off by a limit that their memory reached (`recorded.jsonl`; `record.py`), and
   programs on a real GPU that died of torch's own error or lived (`gpu_recorded.py`;
   `gpu_record.py`). Half of the programs, simulated and real, are only for scoring.
3. `--bench PATH` adds the families of a generator of labelled traces in that folder (`gen.py` with
   `make(n_oom, n_benign, seed)`).
4. The baselines are today's practice: a 90 % threshold, Prometheus' predict_linear, least squares
   with R2, and Holt's linear trend.
5. The kind of growth comes from the product's leak finder, recorded on the rehearsal device
   (`finder_results.py`; `finder_record.py`), and beside it from an oracle that knows the programs.

No figure is a test. See docs/forecast.md for their meaning.
"""
