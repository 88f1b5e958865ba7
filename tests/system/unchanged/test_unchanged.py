"""What a script prints, writes and returns is the same with memagent as without it.

`scripts` has the patterns of public scripts, and all that a script may do with its model, its
optimizer, its loader and its process. Each is a script that anyone could run. It is seeded and
prints its losses to the last bit. `comparison.py` says how it runs, and what is compared.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.python_fork import TORCH, ForkServer
from tests.system.unchanged.comparison import SCRIPTS, Script

ALWAYS = (
    "closures",
    "comparisons",
    "dcgan",
    "early_stopping",
    "exit_in_step",
    "hook_order",
    "k_fold",
    "optimizer_in_pickle",
    "resume",
    "save_whole_objects",
    "step_signatures",
    "strange_classes",
    "tensor_modes",
    "vae",
    "word_language_model",
)
"""The scripts that `make test` runs. `make test-long` runs the others."""
FRAMEWORKS = ("transformers", "accelerate", "lightning", "torchmetrics", "safetensors.torch")


def scripts() -> list[Any]:
    together = pytest.mark.xdist_group("unchanged")
    return [
        pytest.param(
            Script(path),
            id=path.stem,
            marks=[together] if path.stem in ALWAYS else [together, pytest.mark.long],
        )
        for path in sorted(SCRIPTS.glob("*.py"))
    ]


@pytest.fixture(scope="module")
def framework_fork() -> Iterator[ForkServer]:
    """Run scripts in processes that have imported every framework at hand."""
    python = ForkServer(*TORCH, *filter(is_installed, FRAMEWORKS))
    yield python
    python.close()


@pytest.mark.parametrize("script", scripts())
def test_a_script_does_the_same_as_without_memagent(
    script: Script, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    required = script.directive("requires")
    if required and not is_installed(required):
        pytest.skip(f"{required} is not installed")
    python = request.getfixturevalue("framework_fork" if required else "fork_server")
    expected = script.execute("plain", tmp_path, python)
    for mode in script.modes:
        assert script.execute(mode, tmp_path, python) == expected, mode
        if not script.directive("killed"):  # nothing is on the disk before the first tick
            assert list((tmp_path / "runs").glob("*.memagent")), f"{mode}: nothing was recorded"


def is_installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None
