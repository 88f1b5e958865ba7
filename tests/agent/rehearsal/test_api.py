"""`memagent.rehearse` with invalid arguments; tests/agent/cli/test_rehearse.py has a rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memagent
from memagent.errors import RehearsalError, SettingError
from memagent.rehearsal.api import machine_of
from memagent.units import GIB


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("pass")
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpu": "voodoo2"}, "gpu 'voodoo2' is not known: .* such as NAME:24GiB.$"),
        ({"steps": 0}, "steps 0: at least 1"),
        ({"gpus": 17}, "1 to 16"),
        ({"ranks": 0}, "ranks 0: at least 1"),
        ({"ranks": 10**8}, "ranks 100000000: at most 131072"),
        ({"steps": 10**12}, "steps 1000000000000: at most 1000000"),
        ({"patience_s": float("nan")}, "patience nan: give more than 0"),
        ({"patience_s": -1.0}, "patience -1: give more than 0"),
        ({"held_bytes": "999TiB"}, "held 999TiB: less than the card's"),
        ({"held_bytes": "much"}, "24GiB"),
    ],
)
def test_it_refuses_invalid_arguments(script: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        memagent.rehearse(script, **{"gpu": "a100", **options})


def test_a_missing_script_is_named() -> None:
    with pytest.raises(SettingError, match=r"Script nowhere\.py does not exist"):
        memagent.rehearse("nowhere.py", gpu="a100")


def test_a_build_without_cuda_is_named(script: Path) -> None:
    import torch

    if torch.version.cuda is None:
        with pytest.raises(RehearsalError, match="needs"):
            memagent.rehearse(script, gpu="a100")


def test_a_missing_compiler_is_named(
    monkeypatch: pytest.MonkeyPatch, script: Path, tmp_path: Path
) -> None:
    from memagent.rehearsal import build

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RehearsalError, match="no C compiler here"):
        build.compile_device(tmp_path / "device.so")


@pytest.mark.parametrize(
    ("cc", "words"),
    [
        ("/nowhere/cc", "set CC, which is /nowhere/cc"),
        ("false -v", "false could not .*: exit status 1"),
    ],
)
def test_a_compiler_that_does_not_work_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cc: str, words: str
) -> None:
    from memagent.rehearsal import build

    monkeypatch.setenv("CC", cc)
    with pytest.raises(RehearsalError, match=words):
        build.compile_device(tmp_path / "device.so")


def test_sizes_are_bytes_or_texts() -> None:
    machine = machine_of("l4", held_bytes="2GiB", context_bytes=GIB)
    assert (machine.held_bytes, machine.context_bytes) == (2 * GIB, GIB)
