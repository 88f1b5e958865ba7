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
