"""The environment of a rehearsed process."""

from __future__ import annotations

from pathlib import Path

import pytest

from memagent import environment
from memagent.errors import RehearsalError, SettingError
from memagent.rehearsal import build, launch, stubs
from memagent.units import GIB

BUILD = build.Build(Path("/cache/abc"), cuda_major=12, unknown=())


def test_the_device_is_loaded_before_everything_else() -> None:
    machine = launch.Machine(launch.cuda_card("l4"), count=4)
    before = {"LD_PRELOAD": "/a.so", "PATH": "/bin", "MEMAGENT_REHEARSAL_HELD": "5"}
    after = launch.environment_of(before, BUILD, machine)
    assert after["LD_PRELOAD"].split(":") == [
        f"/cache/abc/{build.DEVICE}",
        f"/cache/abc/{stubs.SONAME}",
        "/a.so",
    ]
    assert after["LD_LIBRARY_PATH"] == after["TRITON_LIBCUDA_PATH"] == "/cache/abc"
    assert after["PATH"] == "/bin"
    assert after["MEMAGENT_REHEARSAL_HELD"] == "0"
    assert after["MEMAGENT_REHEARSAL_NAME"] == "NVIDIA L4"
    assert after["MEMAGENT_REHEARSAL_COUNT"] == "4"
    assert after["MEMAGENT_REHEARSAL_CAPABILITY"] == "8.9"
    assert after["MEMAGENT_REHEARSAL_CUDA"] == "12080"
    assert "LD_PRELOAD" in before and len(before) == 3


@pytest.mark.parametrize("count", [0, 17])
def test_it_refuses_too_few_or_too_many_devices(count: int) -> None:
    with pytest.raises(RehearsalError, match="1 to 16"):
        launch.environment_of({}, BUILD, launch.Machine(launch.cuda_card("t4"), count=count))


def test_unknown_functions_are_named() -> None:
    assert launch.notice_of(BUILD) is None
    unknown = tuple(f"cudaNew{i}" for i in range(7))
    notice = launch.notice_of(build.Build(Path("/"), 13, unknown))
    assert notice is not None and "cudaNew0, cudaNew1" in notice and "and 2 more" in notice


def test_a_card_may_have_another_memory() -> None:
    card = launch.cuda_card("A100:24GiB")
    assert (card.total_bytes, card.multiprocessors) == (24 * GIB, 108)
    assert launch.cuda_card("Some GPU:24000MB").name == "Some GPU"
    assert launch.cuda_card("a100-80gb") == launch.cuda_card("a100")


@pytest.mark.parametrize("name", ["riva128", "a100:much", "a100:24"])
def test_it_refuses_an_unknown_card_or_size(name: str) -> None:
    with pytest.raises(SettingError):
        launch.cuda_card(name)


def test_a_card_without_cuda_is_refused() -> None:
    with pytest.raises(SettingError, match="has no CUDA"):
        launch.cuda_card("MI300X")
    assert launch.cuda_card("RTX 4090").name.endswith("RTX 4090")


def test_a_cpu_build_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    with pytest.raises(RehearsalError, match="CUDA build of torch"):
        build.prepare(tmp_path, tmp_path)


def test_the_agent_reads_its_settings_in_a_rehearsed_process() -> None:
    machine = launch.Machine(launch.cuda_card("t4"))
    after = launch.environment_of({"MEMAGENT_NAME": "run"}, BUILD, machine)
    assert environment.read_settings(["MEMAGENT_NAME"], after) == {"MEMAGENT_NAME": "run"}
