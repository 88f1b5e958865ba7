"""Effects of libraries on a step's memory, in numbers from their code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from memagent.estimator.advice import advise
from memagent.estimator.formula.optimizers import OPTIMIZERS
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.saved_tensors import cast_bytes, layer_saved
from memagent.estimator.formula.shapes import matrices
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_formula, estimate_training
from memagent.estimator.formula.transients import (
    LossBytes,
    activation_stack,
    held_output_bytes,
    last_norm_bytes,
    layer_backward,
    loss_bytes,
    surviving_cache_bytes,
)
from memagent.estimator.request import FormulaRequest

LLAMA = preset("llama-7b")
SPEC = TrainingSpec(LLAMA, 2, 1024, precision="bf16")
CODER = TrainingSpec(
    preset("santacoder"),
    2,
    1024,
    precision="bf16-amp",
    checkpointing="full",
    lora_rank=16,
    lora_targets=("c_attn",),
)
TOKENS = 2 * 1024
LOGITS = TOKENS * 32_000


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("int8", 8),
        ("int4", 4 + 16 / 128),
        ("nf4", 4 + 32 / 64),
        ("nf4-double", 4 + 8 / 64 + 32 / 16_384),
    ],
)
def test_quantised_weights_take_their_bits_and_their_scales(name, bits):
    """int8: a byte. GPTQ: an fp16 scale for 128. NF4: an fp32 scale for 64.

    Double quantisation: 8 bits, and fp32 for 256 of those (QLoRA, section 3).
    """
    linear = sum(m.parameters for m in matrices(LLAMA) if m.layered and m.kind == "linear")
    spec = replace(SPEC, lora_rank=8, quantised=name)
    dense = estimate_training(replace(spec, quantised=None)).components["parameters"]
    weights_bytes = estimate_training(spec).components["parameters"]
    assert dense - weights_bytes == pytest.approx(linear * (2 - bits / 8), rel=1e-6)


def test_fp8_saves_inputs_in_one_byte_and_holds_each_weight_twice_more():
    """Transformer Engine: two fp8 copies of each bf16 weight, one transposed; fp32 masters."""
    fp8, mixed = replace(SPEC, precision="fp8"), replace(SPEC, precision="mixed")
    linear = sum(
        m.copies * m.rows * m.cols for m in matrices(LLAMA) if m.kind in ("linear", "head")
    )
    assert cast_bytes(fp8) == 2 * linear
    one, two = layer_saved(fp8), layer_saved(mixed)
    assert one.whole["ffn_input"] == two.whole["ffn_input"] / 2 == TOKENS * 4096
    assert (
        estimate_training(fp8).components["optimizer_state"]
        == estimate_training(mixed).components["optimizer_state"]
    )


def test_lbfgs_holds_the_state_of_torchs():
    """torch/optim/lbfgs.py: history_size pairs of vectors, direction and last gradient."""
    weight = torch.nn.Parameter(torch.ones(50))
    scale, history = torch.arange(1.0, 51.0), 7
    optimizer = torch.optim.LBFGS([weight], lr=0.01, history_size=history, max_iter=20)

    def closure():
        optimizer.zero_grad()
        loss = (scale * weight**2).sum() + (weight**4).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    state = optimizer.state[weight]
    vectors = [*state["old_dirs"], *state["old_stps"], state["d"], state["prev_flat_grad"]]
    assert len(vectors) == 2 * history + 2 and all(vector.numel() == 50 for vector in vectors)
    assert OPTIMIZERS["lbfgs"].states == 2 * 100 + 2 + 1


def test_adafactor_holds_a_row_and_a_column_of_each_matrix_in_its_dtype():
    weight = torch.nn.Parameter(torch.ones(30, 20, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adafactor([weight])
    optimizer.step()
    state = [optimizer.state[weight][name] for name in ("row_var", "col_var")]
    assert sum(each.nbytes for each in state) == 2 * (30 + 20)
    result = estimate_training(replace(SPEC, optimizer="adafactor")).components["optimizer_state"]
    assert result == sum(2 * m.copies * (m.rows + m.cols) for m in matrices(LLAMA))


def test_adafactor_holds_those_of_adapters_only():
    adapted = replace(SPEC, optimizer="adafactor", lora_rank=8, lora_targets=("q_proj",))
    q = next(matrix for matrix in matrices(LLAMA) if matrix.name == "q_proj")
    values = q.copies * (q.rows + q.cols + 2 * 8)
    assert estimate_training(adapted).components["optimizer_state"] == 4 * values


def test_eight_bit_and_paged_states_take_a_byte_and_one_scale_to_256_values():
    count = LLAMA.parameter_count()
    state_bytes = {
        name: estimate_training(replace(SPEC, optimizer=name)).components["optimizer_state"]
        for name in OPTIMIZERS
    }
    assert state_bytes["lion8bit"] == pytest.approx(count * (1 + 4 / 256), rel=1e-9)
    assert (
        state_bytes["adamw8bit"]
        == state_bytes["paged_adamw8bit"]
        == pytest.approx(count * (2 + 8 / 256), rel=1e-9)
    )
    assert state_bytes["lion"] == state_bytes["muon"] == 2 * count == state_bytes["paged_adamw"] / 2
    paged = estimate_training(replace(SPEC, optimizer="paged_adamw"))
    assert paged.assumptions["optimizer_state"].startswith("paged")


@pytest.mark.parametrize(
    ("options", "saved", "forward", "backward"),
    [
        ({}, 4, 2 + 4 + 4, 2 + 12),
        ({"shifted_copy": True, "keeps_output": False}, 4, 2 + 4 + 4 + 4, 12),
        ({"logits_upcast": False, "keeps_output": False}, 2, 2 + 2, 6),
        (
            {
                "logits_upcast": False,
                "keeps_output": False,
                "precision": "bf16-amp",
                "shifted_copy": True,
            },
            4,
            2 + 2 + 4 + 4,
            12,
        ),
        (
            {"keeps_output": True, "precision": "bf16-amp", "output_bytes": 4.0},
            4,
            4 + 2 + 4,
            4 + 12,
        ),
        ({"loss": "inplace", "shifted_copy": True, "keeps_output": False}, 4, 2 + 4 + 4, 4 + 4),
    ],
)
def test_a_logit_takes_as_many_bytes_as_its_loss_makes_copies(options, saved, forward, backward):
    result = loss_bytes(replace(SPEC, **options))
    assert result == LossBytes(saved * LOGITS, forward * LOGITS, backward * LOGITS)


def test_fused_and_chunked_losses_hold_a_part_of_the_logits_and_the_gradient_of_their_input():
    """Liger takes hidden / vocabulary of the rows at a time, rounded up.

    Each part has logits, an fp32 copy, log-softmax and gradient.
    """
    gradient = TOKENS * 4096 * 2
    parts = {"chunked": 8, "fused": -(-32_000 // 4096)}
    for loss, count in parts.items():
        assert loss_bytes(replace(SPEC, loss=loss)) == LossBytes(
            gradient, *[gradient + LOGITS / count * (2 + 4 + 8)] * 2
        )
        assert held_output_bytes(replace(SPEC, loss=loss)) == 0


def test_an_output_converted_by_accelerate_is_held_in_fp32():
    assert held_output_bytes(SPEC) == 2 * LOGITS
    assert held_output_bytes(replace(SPEC, output_bytes=4.0)) == 4 * LOGITS
    assert held_output_bytes(replace(SPEC, keeps_output=False)) == 0


def test_a_cache_of_views_keeps_the_whole_projection_alive():
    """Multi-query: 2,048 query values, 2 x 128 of one key and value, a token and layer."""
    spec = replace(CODER, cache_survives=True)
    assert surviving_cache_bytes(spec, layers=24) == 24 * TOKENS * (2048 + 2 * 128) * 2
    assert surviving_cache_bytes(CODER, layers=24) == 0
    grouped = replace(SPEC, model=preset("mistral-7b"), cache_survives=True)
    assert (
        surviving_cache_bytes(grouped, layers=32) == 32 * TOKENS * 2 * 1024 * 2
    )  # keys and values alone: their own tensors
    with_cache, without = (
        estimate_training(one).phases for one in (replace(spec, keeps_output=False), CODER)
    )
    assert with_cache["forward"] - without["forward"] == surviving_cache_bytes(spec, layers=24)


def test_autocasts_layernorm_makes_the_stream_of_quantised_layers_fp32():
    quantised = replace(CODER, quantised="nf4-double")
    stream = TOKENS * 2048
    assert activation_stack(CODER, layers=24, decoders=0)[0] == 24 * 2 * stream
    # embeddings are in bf16: the first layer's input is
    assert activation_stack(quantised, layers=24, decoders=0)[0] == (23 * 4 + 2) * stream
    assert surviving_cache_bytes(
        replace(quantised, cache_survives=True), layers=1
    ) == 4 * TOKENS * (2048 + 256)
    llama = replace(SPEC, precision="bf16-amp", lora_rank=8, quantised="nf4-double")
    assert llama.dtype_bytes.residual == 2  # RMSNorm is not on autocast's list


def test_only_forward_holds_the_input_of_a_frozen_head():
    assert last_norm_bytes(SPEC) == 0
    assert last_norm_bytes(replace(SPEC, lora_rank=8)) == TOKENS * 4096 * 2
    frozen = replace(SPEC, lora_rank=8, quantised="nf4", residual_bytes=4.0)
    assert last_norm_bytes(frozen) == TOKENS * 4096 * 4


def test_experts_in_a_loop_work_on_their_share_of_the_tokens():
    mixtral = replace(SPEC, model=preset("mixtral-8x7b"))
    together, one_by_one = (
        layer_backward(replace(mixtral, expert_loop=is_loop)).working for is_loop in (False, True)
    )
    assert together - one_by_one == pytest.approx(2 * TOKENS * 14_336 * 2 * 2 * (1 - 1 / 8))


def test_fused_norms_keep_their_input_instead_of_an_fp32_copy():
    frozen = replace(SPEC, lora_rank=8)
    assert layer_saved(frozen).whole["norms"] == 2 * (4 * TOKENS * 4096 + 4 * TOKENS)
    assert layer_saved(replace(frozen, fused_norms=True)).whole["norms"] == 2 * (
        2 * TOKENS * 4096 + 8 * TOKENS
    )


def test_prefetch_adds_a_layer_to_the_gathered_ones_and_the_root():
    layer = sum(m.parameters for m in matrices(LLAMA) if m.layered) / 32 * 2
    for prefetch in (0, 1, 2):
        plan = Parallel(data=8, zero=3, prefetch=prefetch)
        root = 32_000 * 4096 * 2 * 2 + 4096 * 2  # embeddings, head and last norm
        result = estimate_training(replace(SPEC, parallel=plan)).terms["gathered_layers"]
        assert result == pytest.approx(root + layer * (1 + prefetch), rel=1e-6)


def test_an_older_transformers_has_losses_and_a_cache_of_its_own():
    coder = TrainingSpec(preset("santacoder"), 2, 1024, checkpointing="full")
    old, new = (replace(coder, transformers=version) for version in ("4.48.1", "5.0"))
    assert not old.casts_logits and new.casts_logits
    assert old.cache_survives and not new.cache_survives
    assert not replace(old, use_cache=False).cache_survives
    assert replace(SPEC, transformers="4.48.1").casts_logits


@pytest.mark.parametrize(
    ("loop", "version", "has_cache"),
    [
        ("trainer", None, False),
        ("trainer", "5.0", False),
        ("trainer", "4.57", True),
        ("step", None, True),
        ("plain", "5.24", True),
        ("plain", "4.48", True),
    ],
)
def test_the_trainer_since_transformers_5_fills_no_cache(loop, version, has_cache):
    spec = TrainingSpec(preset("gpt2-xl"), batch=4, loop=loop, transformers=version)
    assert spec.has_cache == has_cache
    assert replace(spec, loop="trainer", transformers="5.0").has_cache is False
    for given in (True, False):
        assert replace(spec, use_cache=given).has_cache is given
    without = replace(spec, model=replace(spec.model, use_cache=False))
    assert not without.has_cache and replace(without, use_cache=True).has_cache


@pytest.mark.parametrize(("loop", "has_cache"), [("step", True), ("trainer", False)])
def test_a_cache_is_advised_against_where_there_is_one(loop, has_cache):
    request = FormulaRequest(
        TrainingSpec(preset("gpt2-xl"), batch=4, loop=loop, transformers="5.0")
    )
    changes = [item.change for item in advise(request, estimate_formula(request))]
    assert ("No key-value cache in training" in changes) is has_cache


def test_a_cache_of_gpt_2_xl_holds_keys_and_values_of_its_48_layers():
    spec = TrainingSpec(preset("gpt2-xl"), batch=4)
    usual, filled, without = (
        estimate_training(replace(spec, use_cache=use)).phases["backward"]
        for use in (None, True, False)
    )
    assert usual == filled == without + 48 * 2 * 4 * 1024 * 1600 * 2


def test_a_mask_of_all_positions_is_a_buffer():
    bigcode = preset("starcoderbase-1b")
    held = estimate_training(TrainingSpec(bigcode, batch=1, sequence=128)).components
    assert held["buffers"] == bigcode.positions**2 == 8192**2
    assert estimate_training(SPEC).components["buffers"] == 0
