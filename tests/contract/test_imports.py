"""Import borders, and the packages that `import memagent` loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_import_borders_hold():
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_import_memagent_loads_no_heavy_package():
    heavy = {"torch", "flask", "sqlalchemy", "numpy", "urllib3", "psutil", "msgspec", "pynvml"}
    code = "import sys, memagent; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert heavy & loaded == set()


def test_the_forecaster_and_the_formula_need_neither_torch_nor_numpy():
    modules = "memagent.forecast, memagent.estimator.formula.training, memagent.estimator.advice.by_cause, memagent.wire.columns"
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numpy"} & set(loaded)


def test_attach_imports_only_what_the_first_step_needs():
    code = """
import sys, threading, torch, memagent

class Imports(list):
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            self.append(name)  # the agent's own threads import besides

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
imports = Imports()
sys.meta_path.insert(0, imports)
run = memagent.attach(model, optimizer)
print(*set(imports))
run.finish()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    later = {
        *("memagent.estimator.engine", "memagent.estimator.formula.lower_bound"),
        *("memagent.leaks.finder", "memagent.leaks.largest_tensors", "memagent.oom.report"),
        *("memagent.preflight.runner", "memagent.mirror.trackers", "memagent.live.supervisor"),
        *("memagent.lifecycle.run_report", "memagent.probe.cuda", "memagent.probe.nvml"),
        *("urllib3", "ssl", "email", "psutil", "statistics", "html", "sysconfig", "sqlalchemy"),
    }
    assert not later & set(loaded)
    # each takes about 0.4 ms; most of that are its dataclasses
    assert 50 < len([name for name in loaded if name.startswith("memagent.")]) <= 100
