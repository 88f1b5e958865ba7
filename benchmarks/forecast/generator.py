"""Traces of a generator in another folder: `gen.py` with `make(n_oom, n_benign, seed)`. Its sizes
are GiB in numpy arrays.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.forecast.traces import Trace

GIB = 2**30
CAUSES = {
    "a_leak": "leak", "b_step": "leak", "c_frag": "fragmentation", "d_tail": "tail", "e_optim": "optimizer_state", "f_eval": "eval",
    "g_other": "other_processes", "h_host": "host_memory", "i_compile": "leak", "j_nccl": "other_processes", "k_curric": "input",
}  # fmt: skip
TRENDING = {"a_leak", "b_step", "c_frag", "h_host", "i_compile", "k_curric"}
BYTES = {
    "allocated_bytes": "alloc", "peak_allocated_bytes": "peak", "reserved_bytes": "reserved", "inactive_split_bytes": "split",
    "device_used_bytes": "nvml", "host_rss_bytes": "host",
}  # fmt: skip
PHASES = ("train", "eval", "checkpoint")


def traces(folder: Path, each: int, seed: int) -> Iterator[Trace]:
    """Return `each` runs that die and as many that survive."""
    for run in _module(folder).make(each, each, seed):
        yield _trace(run)


def _module(folder: Path) -> ModuleType:
    path = folder / "gen.py"
    spec = importlib.util.spec_from_file_location("forecast_generator", path)
    if spec is None or spec.loader is None or not path.exists():
        raise SystemExit(f"no generator at {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _trace(run: Any) -> Trace:
    rows = len(run.alloc)
    columns = {
        name: (getattr(run, field) * GIB).astype("int64").tolist() for name, field in BYTES.items()
    }
    columns |= {
        "step": list(range(rows)), "time_s": [run.step_s * step for step in range(rows)], "input_size": run.tokens.tolist(),
        "phase": [PHASES[phase] for phase in run.phase],
        "optimizer_steps": [max(0, step - run.optim_at + 1) for step in range(rows)],
    }  # fmt: skip
    garbage = run.meta.get("gcable")
    options = {
        "host_limit_bytes": int(run.host_cap * GIB), "total_steps": run.planned, "max_input_size": run.max_tokens,
        "optimizer_state_bytes": int(run.optim_bytes * GIB) or None, "epoch_steps": run.meta.get("epoch_len"),
    }  # fmt: skip
    return Trace(
        run.family, int(run.cap * GIB), columns, run.oom, CAUSES.get(run.family) if run.oom is not None else None,
        run.family in TRENDING, options, [0] * rows if garbage is None else (garbage * GIB).astype("int64").tolist(),
    )  # fmt: skip
