"""Shapes of well-known models, from their published config.json files."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from memagent.errors import UnknownModelError
from memagent.estimator.formula.shapes import ModelShape


def _gpt2(name: str, layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(layers, hidden, heads, 50_257, name, "gpt2", positions=1024, dropout=0.1)


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int
) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, vocab, name, kv_heads=kv_heads, ffn=ffn, tied_embeddings=False
    )


def _qwen2(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> ModelShape:
    # Qwen2 ties the embeddings of its models of up to 3B, and pads the vocabulary of the others
    tied = hidden <= 2048
    shape = _llama(name, layers, hidden, heads, kv_heads, ffn, 151_936 if tied else 152_064)
    return replace(shape, family="qwen2", tied_embeddings=tied)


def _gemma(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, 256_000, name, "gemma", kv_heads=kv_heads, head_dim=256, ffn=ffn
    )


def _bert(name: str, layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, 30_522, name, "bert", positions=512, token_types=2, dropout=0.1
    )


def _roberta(name: str, layers: int, hidden: int, heads: int) -> ModelShape:
    return replace(_bert(name, layers, hidden, heads), vocab=50_265, positions=514, token_types=1)


def _t5(
    name: str, layers: int, hidden: int, heads: int, ffn: int, head_dim: int = 64
) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, 32_128, name, "t5", decoder_layers=layers, ffn=ffn,
        head_dim=head_dim, relative_buckets=32, dropout=0.1,
    )  # fmt: skip


def _flan(name: str, layers: int, hidden: int, heads: int, ffn: int) -> ModelShape:
    return replace(_t5(name, layers, hidden, heads, ffn), gated=True, activation="gelu_new")


def _vit(name: str, layers: int, hidden: int, heads: int, patch: int) -> ModelShape:
    return ModelShape(layers, hidden, heads, 0, name, "vit", image=224, patch=patch, labels=1000)


_SHAPES = (
    _gpt2("gpt2", 12, 768, 12),
    _gpt2("gpt2-medium", 24, 1024, 16),
    _gpt2("gpt2-large", 36, 1280, 20),
    _gpt2("gpt2-xl", 48, 1600, 25),
    _llama("llama-2-7b", 32, 4096, 32, 32, 11_008, 32_000),
    _llama("llama-2-13b", 40, 5120, 40, 40, 13_824, 32_000),
    _llama("llama-2-70b", 80, 8192, 64, 8, 28_672, 32_000),
    _llama("llama-3-8b", 32, 4096, 32, 8, 14_336, 128_256),
    _llama("llama-3-70b", 80, 8192, 64, 8, 28_672, 128_256),
    replace(_llama("llama-3.2-1b", 16, 2048, 32, 8, 8192, 128_256), tied_embeddings=True),
    replace(_llama("llama-3.2-3b", 28, 3072, 24, 8, 8192, 128_256), tied_embeddings=True),
    _llama("mistral-7b", 32, 4096, 32, 8, 14_336, 32_000),
    replace(
        _llama("mixtral-8x7b", 32, 4096, 32, 8, 14_336, 32_000), experts=8, experts_per_token=2
    ),
    replace(
        _llama("mixtral-8x22b", 56, 6144, 48, 8, 16_384, 32_768), experts=8, experts_per_token=2
    ),
    _qwen2("qwen2-0.5b", 24, 896, 14, 2, 4864),
    _qwen2("qwen2-1.5b", 28, 1536, 12, 2, 8960),
    _qwen2("qwen2-7b", 28, 3584, 28, 4, 18_944),
    _qwen2("qwen2-72b", 80, 8192, 64, 8, 29_568),
    _qwen2("qwen2.5-0.5b", 24, 896, 14, 2, 4864),
    _qwen2("qwen2.5-1.5b", 28, 1536, 12, 2, 8960),
    _qwen2("qwen2.5-3b", 36, 2048, 16, 2, 11_008),
    _qwen2("qwen2.5-7b", 28, 3584, 28, 4, 18_944),
    _qwen2("qwen2.5-14b", 48, 5120, 40, 8, 13_824),
    _qwen2("qwen2.5-32b", 64, 5120, 40, 8, 27_648),
    _qwen2("qwen2.5-72b", 80, 8192, 64, 8, 29_568),
    _gemma("gemma-2b", 18, 2048, 8, 1, 16_384),
    _gemma("gemma-7b", 28, 3072, 16, 16, 24_576),
    ModelShape(24, 2048, 32, 51_200, "phi-1.5", "phi", ffn=8192),
    ModelShape(32, 2560, 32, 51_200, "phi-2", "phi", ffn=10_240),
    ModelShape(32, 3072, 32, 32_064, "phi-3-mini", "phi3", ffn=8192, tied_embeddings=False),
    replace(
        _gpt2("santacoder", 24, 2048, 16),
        family="gpt_bigcode",
        kv_heads=1,
        vocab=49_280,
        positions=2048,
    ),
    replace(
        _gpt2("starcoder", 40, 6144, 48),
        family="gpt_bigcode",
        kv_heads=1,
        vocab=49_152,
        positions=8192,
    ),
    ModelShape(32, 4096, 32, 50_432, "pythia-6.9b", "gpt_neox", ffn=16_384),
    ModelShape(16, 2048, 8, 50_304, "pythia-1b", "gpt_neox", ffn=8192),
    ModelShape(44, 6144, 64, 50_432, "gpt-neox-20b", "gpt_neox", ffn=24_576),
    _bert("bert-base", 12, 768, 12),
    _bert("bert-large", 24, 1024, 16),
    _roberta("roberta-base", 12, 768, 12),
    _roberta("roberta-large", 24, 1024, 16),
    _t5("t5-small", 6, 512, 8, 2048),
    _t5("t5-base", 12, 768, 12, 3072),
    _t5("t5-large", 24, 1024, 16, 4096),
    _t5("t5-3b", 24, 1024, 32, 16_384, 128),
    _t5("t5-11b", 24, 1024, 128, 65_536, 128),
    _flan("flan-t5-small", 8, 512, 6, 1024),
    _flan("flan-t5-base", 12, 768, 12, 2048),
    _flan("flan-t5-large", 24, 1024, 16, 2816),
    _flan("flan-t5-xl", 24, 2048, 32, 5120),
    _flan("flan-t5-xxl", 24, 4096, 64, 10_240),
    _vit("vit-b-16", 12, 768, 12, 16),
    _vit("vit-b-32", 12, 768, 12, 32),
    _vit("vit-l-16", 24, 1024, 16, 16),
    _vit("vit-h-14", 32, 1280, 16, 14),
)

PRESETS = {shape.name: shape for shape in _SHAPES}
_OTHER_NAMES = {
    "llama-7b": "llama-2-7b",
    "llama-13b": "llama-2-13b",
    "llama-70b": "llama-2-70b",
    "llama-8b": "llama-3-8b",
    "llama2-7b": "llama-2-7b",
    "llama3-8b": "llama-3-8b",
    "llama-3.1-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3-70b",
    "mixtral": "mixtral-8x7b",
    "mistral": "mistral-7b",
    "bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
    "vit-b": "vit-b-16",
    "vit-l": "vit-l-16",
    "vit-h": "vit-h-14",
    "vit-base-patch16-224": "vit-b-16",
    "gpt2-small": "gpt2",
}


def preset(name: str) -> ModelShape:
    """Return a model's shape by name, in any case, with or without owner
    (`meta-llama/Llama-2-7b-hf`).

    Raises UnknownModelError that lists the nearest names.
    """
    key = name.lower().rpartition("/")[2].removesuffix("-hf").removesuffix("-v0.1")
    shape = PRESETS.get(_OTHER_NAMES.get(key, key))
    if shape is None:
        near = get_close_matches(key, [*PRESETS, *_OTHER_NAMES], 4, 0.4) or sorted(PRESETS)
        raise UnknownModelError(
            f"model {name!r} is not known to the formula: did you mean {', '.join(near)}? "
            "Any other model can be traced: give its config.json, or path.py:factory."
        )
    return shape
