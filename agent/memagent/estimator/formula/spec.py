"""A training step as data: the model, how it is trained, and how it is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from msgspec import structs

from memagent.errors import EstimateError, OptionError, did_you_mean
from memagent.estimator.bounds import check_size
from memagent.estimator.cards import Card, card_named
from memagent.estimator.formula.families import family_named
from memagent.estimator.formula.optimizers import OptimizerRule, StepImplementation, optimizer_named
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.precision import (
    Precision,
    precision_named,
    quantised_bytes,
    sharded_precision,
)
from memagent.estimator.formula.releases import FUSED_SINCE, fills_cache, release_of
from memagent.estimator.formula.shapes import Matrix, ModelShape, matrices

Checkpointing = Literal["none", "full", "selective"]
Attention = Literal["eager", "math", "sdpa"]
Loss = Literal["eager", "inplace", "chunked", "fused"]
Loop = Literal["trainer", "plain", "step"]

FsdpWrap = Literal["peft", "layers"]
KbitTraining = Literal["peft", "trl"]
LOOPS: tuple[Loop, ...] = get_args(Loop)
USUAL_LOOP: Loop = "trainer"
"""The loop of a model by name or config.json: of 32 published trainings of three models, the
formula is off by 0.2 % (median) with it, and by 7.7 % with a plain one."""
ALL_LINEAR = "all-linear"
_SIZES = (
    "batch",
    "checkpoint_every",
    "accumulation",
    "loss_chunks",
    "sequence",
    "target_sequence",
    "lora_rank",
    "parameter_count",
)


@dataclass(frozen=True)
class TrainingSpec:
    """One training step of `model` on one rank of `parallel`; `batch` goes through one forward.

    - checkpointing: `full` recomputes every layer (or each `checkpoint_every`-th), `selective` only
      attention's scores and softmax.
    - attention: `math` is SDPA's fall-back, which holds scores as eager attention does.
    - loss: `eager` is transformers' own. `chunked` and `fused` (Liger, cut cross-entropy) never
      hold all logits. `inplace` (Unsloth, FOAK, flash-attn) overwrites them with their gradient.
    - shifted_copy: the loss copies logits to shift them (transformers before 4.50). frees_logits:
      the model replaces its logits by their fp32 copy before the loss (before 4.46). Both follow
      from `transformers`, a version, if it's given, as do losses without an fp32 copy.
    - logits_upcast overrides whether the model's loss converts them to fp32.
    - loop: a variable references the model's output, in `plain` until the next output replaces it,
      in `step`, a function for each step, until the end of backward. `trainer` is transformers'
      Trainer: it drops the output, accelerate converts it to fp32 under autocast, and since
      transformers 5 AdamW's step is fused.
    - keeps_output: False for another loop that drops the output.
    - output_bytes overrides the bytes of one value of the output.
    - use_cache: models of transformers fill a key-value cache even in training, unless their
      config disables it. None: they fill it (`has_cache`), but not in the Trainer since 5.
      `cache_survives`: in spite of checkpointing, too (gpt_bigcode in transformers 4.48).
    - fused_norms: the norms' kernels save only their input (Liger, Unsloth, FOAK).
    - fsdp_wrap: how FSDP wraps a model with adapters. `peft` is peft's policy, which the Trainer
      takes: each adapter is a unit of its own. With `layers`, a unit's frozen weights have a
      gradient beside its adapters', and are held in fp32 under mixed precision. Without either, six
      bytes are counted for each frozen weight, as published runs held.
    - expert_loop: experts run one after the other, not in one product; so does `transformers`
      before 5.
    - lora_rank freezes the model and trains adapters at `lora_targets`; `quantised` holds its
      linear layers in fewer bits.
    - kbit_training: how a quantised model was prepared. `peft` is its
      `prepare_model_for_kbit_training`, which converts what isn't quantised to fp32: norms,
      embeddings and head. `trl` is the same with TRL's trainers, which convert embeddings and head
      back under autocast. GPTQ's weights (int4) are left as they are.
    - residual_bytes overrides the size of the stream between layers.
    """

    model: ModelShape
    batch: int = 1
    sequence: int | None = None
    target_sequence: int | None = None
    precision: str = "amp"
    optimizer: str = "adamw"
    implementation: StepImplementation | None = None
    checkpointing: Checkpointing = "none"
    checkpoint_every: int = 1
    attention: Attention = "sdpa"
    loss: Loss = "eager"
    loss_chunks: int = 8
    shifted_copy: bool = False
    frees_logits: bool = False
    transformers: str | None = None
    accumulation: int = 1
    no_sync: bool = True
    set_to_none: bool = True
    loop: Loop = "step"
    keeps_output: bool = True
    use_cache: bool | None = None
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    lora_bytes: float = 4.0
    lora_dropout: float = 0.0
    quantised: str | None = None
    kbit_training: KbitTraining | None = None
    residual_bytes: float | None = None
    logits_upcast: bool | None = None
    output_bytes: float | None = None
    cache_survives: bool = False
    fsdp_wrap: FsdpWrap | None = None
    expert_loop: bool = False
    fused_norms: bool = False
    parallel: Parallel = field(default_factory=Parallel)
    offload_optimizer: bool = False
    offload_parameters: bool = False
    device: Literal["cuda", "cpu"] = "cuda"
    gpu: str | None = None
    parameter_count: int | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            check_size(name, getattr(self, name))
        self.check_spread()
        if self.transformers is not None:
            release = release_of(self.transformers)
            object.__setattr__(self, "shifted_copy", release < (4, 50))
            object.__setattr__(self, "frees_logits", release < (4, 46))
            object.__setattr__(self, "expert_loop", self.expert_loop or release < (5, 0))
            # measured with 4.48; gone with the checkpointed layers' own class
            survives = self.model.style is family_named("gpt_bigcode") and release < (4, 52)
            object.__setattr__(self, "cache_survives", survives and self.has_cache)
        # unknown names are refused here, not later
        check_loop(self.loop)
        if self.fsdp_wrap not in (None, *get_args(FsdpWrap)):
            raise OptionError("fsdp_wrap", f'is {self.fsdp_wrap!r}: use "peft", "layers" or None')
        check_kbit_training(self.kbit_training, self.quantised)
        self.optimizer_rule, self.dtype_bytes, self.card  # noqa: B018
        if self.quantised is not None:
            quantised_bytes(self.quantised)
            if self.lora_rank is None:
                raise EstimateError(
                    "quantised weights cannot be trained themselves: give lora_rank as well"
                )
        if self.lora_rank is not None:
            self._check_targets()
        if self.lora_rank is not None and self._adapts_fused_experts:
            raise OptionError(
                "lora_targets",
                f"{ALL_LINEAR} of a mixture of experts are not known to the formula: name them, "
                "such as q_proj,v_proj, or trace the model",
            )

    def check_spread(self) -> None:
        """Raise EstimateError for more stages than layers, or ranks that can't share the heads."""
        name, model = self.model.name or self.model.family, self.model
        if self.parallel.pipeline > max(1, model.layers):
            stages = self.parallel.pipeline
            raise OptionError("pipeline", f"is {stages}: {name} has {model.layers} layers")
        if self.checkpointing != "none" and self.checkpoint_every > max(1, model.layers):
            raise OptionError(
                "checkpoint_every", f"is {self.checkpoint_every}: {name} has {model.layers} layers"
            )
        if max(1, model.heads) % self.parallel.tensor:
            ranks = self.parallel.tensor
            raise OptionError(
                "tensor", f"is {ranks}: give a divisor of {name}'s {model.heads} attention heads"
            )

    def _check_targets(self) -> None:
        """Raise EstimateError for a name in `lora_targets` that no layer has."""
        names = [matrix.name for matrix in matrices(self.model) if _is_adaptable(matrix)]
        for target in self.lora_targets:
            if target not in (*names, ALL_LINEAR):
                near, name = did_you_mean(target, names), self.model.name or self.model.family
                choices = ", ".join(dict.fromkeys(names))
                raise OptionError(
                    "lora_targets", f"{target} match no layer of {name}{near}: use {choices}"
                )

    def check_positions(self) -> None:
        """Raise EstimateError for more tokens than the model has learned positions, or images."""
        rows = self.model.positions - self.model.spare_positions
        name = self.model.name or self.model.family
        if self.model.patch and self.sequence:
            raise OptionError(
                "sequence", f"is {self.sequence:,}: {name} takes images, so leave it out"
            )
        if self.model.positions and (self.sequence or 0) > rows:
            raise OptionError("sequence", f"is {self.sequence:,}: {name} has {rows:,} positions")

    @property
    def _adapts_fused_experts(self) -> bool:
        """Return True if peft adapts experts that are one tensor: 1.7 times as much was traced."""
        is_fused = self.model.experts > 0 and not self.expert_loop
        return is_fused and ALL_LINEAR in self.lora_targets

    @property
    def optimizer_rule(self) -> OptimizerRule:
        return optimizer_named(self.optimizer)

    @property
    def dtype_bytes(self) -> Precision:
        sizes = precision_named(self.precision)
        if self.parallel.shards(3) > 1:
            sizes = sharded_precision(sizes)
        residual = self.residual_bytes
        layernorm = self.model.style.norm == "layernorm"
        # quantised layers return their input's dtype, and autocast's LayerNorm returns fp32
        is_wide = self.has_wide_norms or (self.quantised and sizes.autocast and layernorm)
        if residual is None and is_wide:
            residual = 4.0
        if self.has_wide_norms and not sizes.autocast:
            sizes = structs.replace(sizes, compute=4.0)
        return sizes if residual is None else structs.replace(sizes, residual=residual)

    @property
    def quantises_experts(self) -> bool:
        """Return True if experts are quantised: bitsandbytes knows layers, not one tensor of all.

        Since transformers 5 they are one tensor (transformers/integrations/moe.py).
        """
        is_fused = not self.expert_loop and self.quantised in ("int8", "nf4", "nf4-double")
        return self.quantised is not None and not is_fused

    @property
    def has_wide_norms(self) -> bool:
        """Return True if a quantised model's norms were converted to fp32."""
        return self.kbit_training is not None and self.quantised != "int4"

    @property
    def has_wide_edges(self) -> bool:
        """Return True if its embeddings and head were, too, and stayed so."""
        is_narrowed = self.kbit_training == "trl" and precision_named(self.precision).autocast
        return self.has_wide_norms and not is_narrowed

    @property
    def card(self) -> Card | None:
        return None if self.gpu is None else card_named(self.gpu)

    @property
    def step_implementation(self) -> StepImplementation:
        """Return how the optimizer steps if `implementation` doesn't say.

        torch uses foreach on CUDA and a loop on the CPU (torch/optim/optimizer.py,
        `_default_to_fused_or_foreach`); Megatron, DeepSpeed and Apex have fused steps with their
        master weights.
        """
        if self.implementation is not None:
            return self.implementation
        if self.device == "cpu":
            return "single"
        return "fused" if self.dtype_bytes.master or self._has_fused_default else "foreach"

    @property
    def _has_fused_default(self) -> bool:
        """Return True if the Trainer's own choice of AdamW is the fused one."""
        is_trainer = self.loop == "trainer" and self.optimizer == "adamw"
        return (
            is_trainer
            and self.transformers is not None
            and release_of(self.transformers) >= FUSED_SINCE
        )

    @property
    def has_cache(self) -> bool:
        """Return True if the model fills a key-value cache: `use_cache`, else config and loop."""
        if self.use_cache is not None:
            return self.use_cache
        release = None if self.transformers is None else release_of(self.transformers)
        return self.model.use_cache and fills_cache(release, self.loop)

    @property
    def holds_output(self) -> bool:
        """Return True if the output lives through backward."""
        return self.keeps_output and self.loop != "trainer"

    @property
    def carries_output(self) -> bool:
        """Return True if the output lives until the next one replaces it."""
        return self.keeps_output and self.loop == "plain"

    @property
    def is_wrapping_open(self) -> bool:
        """Return True if frozen shards depend on `fsdp_wrap`, and it isn't given."""
        return self.fsdp_wrap is None and self._has_frozen_shards

    @property
    def has_frozen_gradients(self) -> bool:
        """Return True if FSDP's units hold a gradient of frozen weights."""
        return self.fsdp_wrap == "layers" and self._has_frozen_shards

    @property
    def _has_frozen_shards(self) -> bool:
        is_frozen = self.lora_rank is not None and self.quantised is None
        return is_frozen and self.parallel.shards(3) > 1 and self.precision != "fp32"

    def frozen_shard_bytes(self, matrix: Matrix) -> float:
        """Return what a frozen weight's shard takes besides its two bytes: see `fsdp_wrap`.

        FSDP's flat parameter requires a gradient if any of its parameters does, and accelerate
        upcasts it then (`Accelerator.prepare_model`). Only the layers have adapters.
        """
        if self.is_wrapping_open:
            return 4.0
        return max(0.0, self.frozen_gradient_bytes(matrix) - 2)

    def frozen_gradient_bytes(self, matrix: Matrix) -> float:
        """Return what a frozen weight's gradient takes, from backward to the next forward."""
        has_gradient = self.has_frozen_gradients and matrix.layered
        return self.dtype_bytes.weight if has_gradient else 0.0

    @property
    def casts_logits(self) -> bool:
        """Return True if the model's own loss converts logits to fp32 first."""
        if self.logits_upcast is not None:
            return self.logits_upcast
        style = self.model.style
        is_plain = (
            style.plain_loss and self.transformers and release_of(self.transformers) < (4, 50)
        )
        return style.logits_upcast and not is_plain

    @property
    def linear_output_bytes(self) -> float:
        """Return bytes a value of a feed-forward's output; quantised layers keep the input's."""
        return self.dtype_bytes.compute if self.quantised is None else self.dtype_bytes.residual

    @property
    def dequantised_bytes(self) -> float:
        """Return bytes a value of a quantised layer's weight in its product."""
        if self.quantised == "int8":  # in the dtype of its input
            return self.dtype_bytes.residual
        return precision_named(self.precision).compute

    @property
    def first_input_bytes(self) -> float:
        """Return bytes a value of the first layer's input, in the dtype of the embeddings."""
        is_wide = self.quantised is None or self.has_wide_edges
        return self.dtype_bytes.residual if is_wide else self.dtype_bytes.compute

    @property
    def attention_dropout(self) -> float:
        """Return the probability of attention's own dropout."""
        own = self.model.attention_dropout
        return self.model.dropout if own is None else own

    @property
    def attention_path(self) -> Attention:
        """Return the kernel that runs: on the CPU, SDPA has no dropout and no learned bias."""
        needs_math = self.attention_dropout > 0 or self.model.relative_buckets
        if self.attention == "sdpa" and self.device == "cpu" and needs_math:
            return "math"
        return self.attention

    @property
    def positions(self) -> int:
        """Return the positions of one sample, in the encoder if there are two stacks."""
        return self.model.sequence_for(self.sequence)

    @property
    def target_positions(self) -> int:
        return self.target_sequence or self.positions

    @property
    def tokens(self) -> int:
        return self.batch * self.positions

    @property
    def output_tokens(self) -> int:
        """Return the rows of the output."""
        if self.model.head_kind == "classifier":
            return self.batch
        return self.batch * (self.target_positions if self.model.decoder_layers else self.positions)

    def is_target(self, matrix: Matrix) -> bool:
        """Return True if LoRA adapts this matrix: `target_modules` match the end of a name."""
        if self.lora_rank is None or not _is_adaptable(matrix):
            return False
        return ALL_LINEAR in self.lora_targets or matrix.name in self.lora_targets

    def lora_matrices(self) -> tuple[Matrix, ...]:
        return tuple(matrix for matrix in matrices(self.model) if self.is_target(matrix))


def _is_adaptable(matrix: Matrix) -> bool:
    return matrix.layered and matrix.kind == "linear" and matrix.role != "router"


def check_loop(value: Any) -> None:
    """Raise EstimateError if it isn't one of `LOOPS`."""
    if value not in LOOPS:
        choices = ", ".join(f'"{name}"' for name in LOOPS)
        raise OptionError("loop", f"is {value!r}: use {choices}")


def check_kbit_training(value: Any, quantised: str | None) -> None:
    """Raise EstimateError if it isn't a known preparation, or nothing is quantised."""
    if value not in (None, *get_args(KbitTraining)):
        raise OptionError("kbit_training", f'is {value!r}: use "peft", "trl" or None')
    if value is not None and quantised is None:
        raise OptionError("kbit_training", "is for quantised weights: give quantised as well")
