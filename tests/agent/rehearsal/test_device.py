"""Torch's own CUDA code on the rehearsal device."""

from __future__ import annotations

import pytest

from memagent.estimator.cards import CARDS
from memagent.estimator.devices import CUBLAS_WORKSPACE_BYTES
from memagent.rehearsal import build
from memagent.units import GIB, MIB

CONTEXT = 500 * MIB


def test_no_function_of_this_torch_is_unknown(device_build: build.Build) -> None:
    assert device_build.unknown == ()


def test_torch_sees_the_card(rehearse) -> None:
    seen = rehearse("basics", context_bytes=CONTEXT)
    card = CARDS["a100"]
    assert seen["count"] == 1
    assert seen["name"] == card.name
    assert tuple(seen["capability"]) == card.capability
    assert seen["multiprocessors"] == card.multiprocessors
    assert seen["l2"] == card.l2_bytes
    assert seen["shared"] == card.shared_bytes - 1024
    assert (seen["threads"], seen["warp"]) == (card.threads, 32)
    assert seen["total"] == card.total_bytes


def test_the_allocator_counts_blocks_and_segments(rehearse) -> None:
    seen = rehearse("basics", context_bytes=CONTEXT)
    assert seen["allocated"] == GIB + 4096 + 14 * MIB
    assert seen["reserved"] == GIB + 2 * MIB + 20 * MIB  # 3 and 11 MiB share a segment of 20
    assert seen["used"] == seen["reserved"] + CONTEXT
    assert seen["pinned"] == [True, False]
    assert seen["numbers"] == list(range(10))


def test_an_out_of_memory_error_has_torchs_text(rehearse) -> None:
    seen = rehearse("basics", context_bytes=CONTEXT, held_bytes=GIB)
    assert seen["ooms"] == 1
    assert "oom" in seen["actions"]
    assert seen["error"].startswith("CUDA out of memory. Tried to allocate 79.15 GiB.")
    assert "GPU 0 has a total capacity of 79.15 GiB of which 76.66 GiB is free." in seen["error"]
    assert "Including non-PyTorch memory, this process has 1.49 GiB" in seen["error"]
    assert "reserved by PyTorch but unallocated" in seen["error"]


def test_an_mlp_with_adam_takes_what_arithmetic_says(rehearse) -> None:
    seen = rehearse("mlp")
    assert seen["parameters"] == seen["parameters_expected"]
    assert seen["workspaces"] == 2 * CUBLAS_WORKSPACE_BYTES
    assert seen["peak"] == seen["peak_expected"]


@pytest.mark.parametrize("addresses", ["growing", "falling"])
def test_segments_are_reserved_and_given_back(rehearse, addresses: str) -> None:
    seen = rehearse("segments", addresses=addresses, context_bytes=CONTEXT)
    assert seen["expandable"] == [False]
    assert "3.96 GiB allowed" in seen["error"]
    assert (seen["reserved_after"], seen["used_after"]) == (0, CONTEXT)


def test_expandable_segments_grow(rehearse) -> None:
    seen = rehearse("segments", conf="expandable_segments:True", context_bytes=CONTEXT)
    assert seen["expandable"] == [True]
    assert seen["reserved"] == 1000 * MIB
    assert (seen["reserved_after"], seen["used_after"]) == (0, CONTEXT)


@pytest.mark.parametrize("card", ["t4", "rtx3090", "l4", "b200"])
def test_kernels_of_cub_have_code_for_each_card(rehearse, card: str) -> None:
    assert rehearse("sorting", card=card)["rows"] == [1000, 64]


def test_threads_in_c_are_not_ended_while_python_ends(rehearse) -> None:
    """torch's threads of backward would abort the process."""
    assert rehearse("ending")["threads"] == 2


@pytest.mark.parametrize("card", ["t4", "a100", "h100"])
def test_a_gpt_trains_in_bf16(rehearse, card: str) -> None:
    seen = rehearse("gpt", card=card)
    assert seen["retries"] == 0
    assert seen["peak"] > seen["held"] > 0


def test_convolutions_train_with_a_gradient_scaler(rehearse) -> None:
    seen = rehearse("residual")
    assert seen["peak"] > seen["held"] > 0


def test_recurrent_networks_run(rehearse) -> None:
    assert rehearse("recurrent")["shape"] == [8, 20, 32]


def test_a_captured_graph_has_a_pool_of_its_own(rehearse) -> None:
    seen = rehearse("graphs")
    assert seen["pools"] == 2
    assert seen["branch_captures"]
    assert seen["private_bytes"] > 0
    assert not seen["capturing_after"]


def test_two_devices_are_apart(rehearse) -> None:
    seen = rehearse("two_devices", count=2)
    assert seen["count"] == seen["uuids"] == 2
    assert seen["allocated"] == [8192, 8192 + GIB]
    assert seen["last"] == 999


def test_nvml_shows_the_process(rehearse) -> None:
    seen = rehearse("readings", context_bytes=CONTEXT, held_bytes=3 * GIB)
    assert seen["name"] == CARDS["a100"].name
    assert seen["total"] == CARDS["a100"].total_bytes
    assert seen["processes"] == [[seen["pid"], GIB + CONTEXT]]
    assert seen["used"] == seen["torch_used"] == 4 * GIB + CONTEXT


def test_a_step_of_7b_parameters_fits_a_laptop(rehearse) -> None:
    seen = rehearse("llama")
    assert seen["held"] == pytest.approx(3 * seen["parameter_bytes"], rel=0.01)
    assert seen["host_bytes"] < 3 * GIB
    assert seen["processor_seconds"] < 60


def test_one_rank_of_eight_holds_an_eighth(rehearse) -> None:
    seen = rehearse("sharded", card="h100")
    assert seen["shard"] == pytest.approx(seen["whole"] / 8, rel=0.001)
    assert seen["gathered"] == [1, 2, 3] * 8
    assert seen["retries"] == 0


def test_it_does_not_fit_a_small_card(rehearse) -> None:
    with pytest.raises(AssertionError, match="CUDA out of memory"):
        rehearse("llama", card="a100-40gb")


def test_visible_devices_are_ordinals_of_the_machine(rehearse, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    seen = rehearse("readings", card="l4:30GiB", count=3, context_bytes=CONTEXT)
    assert seen["total"] == 30 * GIB
    assert seen["processes"] == []  # NVML's first device is another one
    assert seen["torch_used"] == GIB + CONTEXT
