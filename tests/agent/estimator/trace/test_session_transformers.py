"""Small models of `transformers` and `peft`, compared with the same steps on real tensors."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    SwinConfig,
    SwinForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)

from memagent.estimator.trace.tracing import record_trace
from tests.agent.estimator.trace.real_steps import real_trace

IDS = torch.arange(128).remainder(100).view(4, 32)
WORDS = {"input_ids": IDS, "labels": IDS}
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
MASKED = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2,
            n_embd=64,
            n_head=4,
            vocab_size=100,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def bert():
    return BertForSequenceClassification(BertConfig(**SMALL, vocab_size=100))


def llama():
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=100))


def vit():
    return ViTForImageClassification(ViTConfig(**SMALL, image_size=32, patch_size=8))


def t5():
    return T5ForConditionalGeneration(
        T5Config(
            d_model=64,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            d_kv=16,
            vocab_size=100,
            decoder_start_token_id=0,
        )
    )


def mamba():
    return MambaForCausalLM(
        MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=100, state_size=8)
    )


def swin():
    return SwinForImageClassification(
        SwinConfig(
            image_size=32,
            patch_size=2,
            embed_dim=24,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
        )
    )


def wav2vec2():
    """Return an encoder that leaves out layers at random, though never in the real run."""
    config = Wav2Vec2Config(
        vocab_size=32,
        **{**SMALL, "num_attention_heads": 2},
        conv_dim=(16, 16),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        layerdrop=1e-9,
        apply_spec_augment=False,
    )
    return Wav2Vec2ForCTC(config)


IMAGES = {"pixel_values": torch.ones(2, 3, 32, 32), "labels": torch.ones(2).long()}
SOUND = {"input_values": torch.ones(2, 800)}


@pytest.mark.parametrize(
    ("factory", "inputs", "arguments"),
    [
        (gpt2, WORDS, {}),
        (gpt2, {**WORDS, "attention_mask": torch.ones_like(IDS)}, {"autocast": "bf16"}),
        (bert, {**MASKED, "labels": torch.ones(4).long()}, {}),
        (llama, WORDS, {"accumulate": 2}),
        (vit, IMAGES, {}),
        (swin, IMAGES, {}),
        (t5, WORDS, {}),
        (mamba, WORDS, {}),
        (wav2vec2, SOUND, {}),
    ],
)
def test_it_finds_the_peaks_of_a_real_run_to_the_byte(factory, inputs, arguments):
    real = real_trace(factory, inputs, **arguments).summary()
    traced = record_trace(factory, inputs, device="cpu", **arguments).summary()
    assert traced.phase_peak_bytes == real.phase_peak_bytes
    assert traced.warmup_peak_bytes == real.warmup_peak_bytes


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft uses an old name of transformers
def test_it_follows_low_rank_adapters():
    peft = pytest.importorskip("peft")

    def adapted():
        return peft.get_peft_model(
            gpt2(), peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
        )

    real = real_trace(adapted, WORDS).summary()
    traced = record_trace(adapted(), WORDS, device="cpu").summary()
    assert traced.phase_peak_bytes == real.phase_peak_bytes


def test_it_traces_seven_billion_parameters_with_the_foreach_optimizer():
    config = LlamaConfig()

    def build():
        return LlamaForCausalLM(config).to(torch.bfloat16)

    trace = record_trace(build, {"input_ids": ((1, 512), "int64"), "labels": ((1, 512), "int64")})
    assert trace.parameters == 6_738_415_616
    assert trace.summary().peak_phase == "optimizer"
    assert round(trace.summary().peak_bytes / trace.parameters) == 10
    assert trace.growth_bytes < 300 << 20


MIXTURES = {
    "mixtral": {},  # its experts are looped over, with a place beyond the last that is skipped
    "phimoe": {},  # chooses the experts one by one
    "qwen2_moe": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4},
}


class Mixture(torch.nn.Module):
    """A mixture of experts that runs them one by one, as transformers do where told so."""

    def __init__(self, name: str) -> None:
        super().__init__()
        shape = {**SMALL, "num_key_value_heads": 2, **MIXTURES[name]}
        config = AutoConfig.for_model(name, vocab_size=100, use_cache=False, **shape)
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        self.model.set_experts_implementation("eager")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, labels=ids).loss


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_run_one_by_one_need_what_real_ones_do(name):
    real = real_trace(lambda: Mixture(name), IDS).summary().phase_peak_bytes
    trace = record_trace(lambda: Mixture(name), IDS, device="cpu").summary().phase_peak_bytes
    assert trace == pytest.approx(real, rel=0.02)
