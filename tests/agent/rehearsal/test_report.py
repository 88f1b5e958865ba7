"""The verdict of a rehearsal, by what its process measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.estimator import rehearsed, vision
from benchmarks.estimator.truths import FOLDER
from memagent.cli.rehearse_view import render, verdict
from memagent.errors import RehearsalError
from memagent.estimator.devices import HOPPER_CONTEXT_BYTES
from memagent.rehearsal.launch import Machine, cuda_card
from memagent.rehearsal.report import Rehearsal, rehearsal_of
from memagent.units import GIB, MIB

MACHINE = Machine(cuda_card("own:24GiB"))
CONVOLUTIONAL = {*vision.FAMILIES, "resnet", "unet", "diffusion", "volume", "dinov2", "mamba", "vit",
                 "swin", "convnext", "regnet"}  # fmt: skip


def result_of(
    status: str = "stopped", *, reserved: int = 20 * GIB, steps: int = 3, **state
) -> Rehearsal:
    device = {
        "index": 0,
        "allocated": reserved - GIB,
        "reserved": reserved,
        "retries": 0,
        "ooms": 0,
    }
    return rehearsal_of(
        MACHINE,
        {
            "status": status,
            "steps": steps,
            "devices": [device],
            "phases": {"forward": 18 * GIB},
            **state,
        },
    )


def measured(
    machine: Machine, allocated: int, reserved: int, *, lasting: int, has_convolutions: bool = False
) -> Rehearsal:
    device = {"allocated": allocated, "reserved": reserved}
    held = {"parameters": lasting}
    state = {"status": "stopped", "steps": 2, "devices": [device], "components": held}
    return rehearsal_of(machine, {**state, "has_convolutions": has_convolutions})


def test_it_fits_with_every_size_of_the_context() -> None:
    result = result_of()
    assert (result.fits, result.is_certain) == (True, True)
    assert result.device_bytes == (
        20 * GIB + 300 * MIB,
        20 * GIB + 820 * MIB,
        20 * GIB + 1728 * MIB + round(0.021 * 19 * GIB),
    )
    assert verdict(result) == "fits, with 3.20 GiB to spare (at least 1.91 GiB)"


def test_a_context_that_is_told_is_known() -> None:
    result = replace(result_of(), machine=replace(MACHINE, context_bytes=500 * MIB))
    low, middle, high = result.device_bytes
    assert low == middle == 20 * GIB + 500 * MIB
    assert high == middle + round(0.021 * 19 * GIB)


def test_the_published_a100_rows_but_one_lie_within_the_interval() -> None:
    """The one has a kernel's own memory, which is replaced here, and a smaller cache by it."""
    published = {rehearsed.case_of(row): row for row in rehearsed.published_rows()}
    rows = json.loads(rehearsed.RESULTS.read_text())["rows"]
    outside = []
    for row in (row for row in rows if row["measured_bytes"]):
        result = measured(
            Machine(cuda_card("a100")),
            row["rehearsed_bytes"],
            row["reserved_bytes"],
            lasting=published[row["case"]]["steady_allocated_bytes"],
        )
        assert row["device_bytes"] == list(result.device_bytes)
        low, _, high = result.device_bytes
        if not low <= row["nvidia_smi_bytes"] <= high:
            outside.append(row["case"])
    assert outside == ["mistral7b x 8"]


def test_recorded_trainings_lie_within_the_interval() -> None:
    rows = json.loads((FOLDER / "nvidia_h200.json").read_text())["cases"]
    machine = Machine(cuda_card("h200"), context_bytes=HOPPER_CONTEXT_BYTES)
    within = {True: [], False: []}
    for row in (row for row in rows if "peak_device_bytes" in row):
        result = measured(
            machine,
            row["rehearsed"]["allocated"],
            row["rehearsed"]["reserved"],
            lasting=row["phases"]["1 data"]["allocated"],
            has_convolutions=row["case"]["family"] in CONVOLUTIONAL,
        )
        low, _, high = result.device_bytes
        within[result.has_convolutions].append(low <= row["peak_device_bytes"] <= high)
    assert (sum(within[False]), len(within[False])) == (84, 84)
    assert (sum(within[True]), len(within[True])) == (64, 64)


def test_workspaces_of_cudnn_widen_the_interval_of_convolutional_nets() -> None:
    held = {"parameters": 6 * GIB, "optimizer_state": 12 * GIB, "activations": GIB}
    plain, convolutional = result_of(components=held), result_of(
        components=held, has_convolutions=True
    )  # fmt: skip
    assert convolutional.device_bytes[:2] == plain.device_bytes[:2]
    added = convolutional.device_bytes[2] - plain.device_bytes[2]
    assert added == round(0.38 * GIB) - round(0.021 * GIB)
    causes = "by the CUDA context and cuDNN's workspaces"
    texts = ["\n".join(render(result, "")) for result in (plain, convolutional)]
    assert [causes in text for text in texts] == [False, True]


def test_tuning_may_take_what_is_free_and_makes_do_with_less() -> None:
    held = {"parameters": 18 * GIB}
    usual = result_of(components=held, has_convolutions=True)
    tuned = replace(usual, tunes_convolutions=True)
    assert usual.device_bytes[2] < tuned.device_bytes[2] == tuned.capacity_bytes
    assert tuned.is_certain and verdict(tuned) == verdict(usual)
    assert "by trials of cudnn.benchmark" in "\n".join(render(tuned, ""))
    assert tuned.to_dict()["tunes_convolutions"] is True
    assert replace(tuned, peak_reserved_bytes=23 * GIB).is_certain is False


def test_peaks_of_tuned_trainings_lie_within_the_interval() -> None:
    rows = json.loads((FOLDER / "nvidia_h200.json").read_text())["cases"]
    machine = Machine(cuda_card("h200"), context_bytes=HOPPER_CONTEXT_BYTES)
    within = {True: [], False: []}
    tuned = (row for row in rows if row["case"].get("cudnn_benchmark"))
    for row in (row for row in tuned if "peak_reserved_bytes" in row):
        result = measured(
            machine,
            row["rehearsed"]["allocated"],
            row["rehearsed"]["reserved"],
            lasting=row["phases"]["1 data"]["allocated"],
            has_convolutions=True,
        )
        for tunes, results in within.items():
            high = replace(result, tunes_convolutions=tunes).device_bytes[2]
            results.append(row["peak_reserved_bytes"] + row["outside_bytes"] <= high)
    assert (sum(within[True]), sum(within[False]), len(within[True])) == (8, 7, 8)


def test_buffers_of_nccl_are_told_apart() -> None:
    machine = replace(MACHINE, ranks=8)
    alone = replace(result_of(), machine=machine)
    result = replace(alone, communicators=2)
    added = [now - then for now, then in zip(result.device_bytes, alone.device_bytes, strict=True)]
    assert added == list(result.nccl_bytes) == [80 * MIB, 1376 * MIB, 3200 * MIB]
    assert result.to_dict()["nccl_bytes"]["middle"] == 1376 * MIB
    assert result.to_prediction().terms == {"nccl_buffers": 1376 * MIB}
    text = "\n".join(render(result, ""))
    assert "NCCL's buffers       1.34 GiB   80.0 MiB to 3.12 GiB, 2 communicators" in text
    assert "NCCL" not in "\n".join(render(alone, ""))


def test_a_narrow_margin_is_said() -> None:
    result = result_of(reserved=23 * GIB)
    assert (result.fits, result.is_certain) == (True, False)
    assert verdict(result).startswith(
        "fits by a narrow margin: 204 MiB to spare, and 1.15 GiB too little"
    )


def test_an_out_of_memory_error_has_step_and_line() -> None:
    error = {"message": "CUDA out of memory. Tried ...", "file": "train.py", "line": 12, "step": 1}
    result = result_of("oom", steps=0, error=error)
    assert result.fits is False
    assert verdict(result) == "does not fit: out of memory in step 1, at train.py, line 12"
    error["title"] = f"Out of memory in backward of step 1 on {MACHINE.card.name}"
    result = result_of("oom", steps=0, error=error)
    assert verdict(result).startswith("does not fit: out of memory in backward of step 1, at train")
    assert any("Tried" in line for line in render(result, "train.py"))


@pytest.mark.parametrize("status", ["failed", "waiting", "stuck", "interrupted", "killed"])
def test_another_end_has_no_verdict_but_what_is_known(status: str) -> None:
    result = result_of(status)
    assert result.fits is None
    assert "after 3 steps; up to there 20.8" in verdict(result)


def test_a_script_without_steps_or_memory_has_no_verdict() -> None:
    assert result_of("completed", steps=0).fits is None
    nothing = replace(result_of("completed"), peak_allocated_bytes=0)
    assert nothing.fits is None
    with pytest.raises(RehearsalError, match="made no optimizer step: the script ended"):
        result_of("completed", steps=0).check_steps()
    with pytest.raises(RehearsalError, match="not on the GPU"):
        nothing.check_steps()
    result_of("oom", steps=0).check_steps()


def test_a_script_that_fails_before_its_first_step_has_its_reason() -> None:
    error = {"message": "AssertionError: empty data.\nsee above"}
    failed = replace(result_of("failed", steps=0), error=error)
    with pytest.raises(RehearsalError, match=r"the script failed\. AssertionError: empty data.$"):
        failed.check_steps()
    with pytest.raises(RehearsalError, match="empty data; values of large tensors, which it read"):
        replace(failed, reads=[{"file": "train.py", "line": 5}]).check_steps()


@pytest.mark.parametrize(
    ("exit_status", "end"),
    [
        (-11, "was ended by SIGSEGV"),
        (-9, "was ended by SIGKILL, as when the host has no memory left"),
        (-250, "was ended by signal 250"),
        (0, "left without a word"),
    ],
)
def test_a_process_that_is_killed_has_its_signal(exit_status: int, end: str) -> None:
    result = result_of("killed", steps=0, exit=exit_status)
    assert result.end == f"the script's process {end}"
    with pytest.raises(RehearsalError, match=r"Nothing is known about its memory\.$"):
        result.check_steps()


def test_a_script_without_torchs_optimizers_fits_if_it_ends() -> None:
    result = result_of("completed", steps=0, backwards=9)
    assert result.fits is True
    result.check_steps()
    assert result_of("stuck", steps=0, backwards=9).fits is None


def test_the_report_is_json() -> None:
    document = json.loads(json.dumps(result_of().to_dict()))
    assert document["method"] == "rehearsal"
    assert document["peak_device_bytes"]["low"] == 20 * GIB + 300 * MIB
    assert document["phases"] == {"forward": 18 * GIB}


def test_others_memory_is_not_to_spare() -> None:
    result = replace(result_of(), machine=replace(MACHINE, held_bytes=2 * GIB))
    assert result.capacity_bytes == 22 * GIB


@pytest.mark.parametrize(
    ("card", "architectures", "has_kernels"),
    [
        ("v100", ["sm_75", "sm_80", "sm_120"], False),
        ("v100", ["sm_70"], True),
        ("v100", ["sm_75", "compute_60"], True),
        ("a10", ["sm_80"], True),  # 8.6 runs what 8.0 does
        ("a100", ["sm_86", "sm_90"], False),
        ("h100", ["sm_90a"], True),
        ("h100", ["sm_100", "compute_120"], False),
        ("a100", [], True),  # not known
    ],
)
def test_it_says_if_this_torch_has_no_kernels_for_the_card(card, architectures, has_kernels):
    result = replace(result_of(architectures=architectures), machine=Machine(cuda_card(card)))
    assert result.has_kernels is result.to_dict()["has_kernels"] is has_kernels
    assert (
        "this torch has none for the card" in "\n".join(render(result, "train.py"))
    ) is not has_kernels
